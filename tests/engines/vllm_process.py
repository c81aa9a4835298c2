"""What the vLLM tests measure, in a process of its own: the engine changes thread and rank settings of its process.

python vllm_process.py compare MODEL ITEMS.jsonl     texts and labels' log-probabilities of vLLM and of transformers;
                                                     it ends by SIGKILL while vLLM's processes run
python vllm_process.py sync RUN SCRATCH              texts before and after the policy's weights changed
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, get_args

import torch
import yaml
from warm import processes_in

from think_as_locals.config.schema import RunConfig
from think_as_locals.data import load
from think_as_locals.data.sources import jsonl
from think_as_locals.engines import Sampling, sample_all
from think_as_locals.engines.engine import label_log_probs
from think_as_locals.engines.transformers_engine import TransformersEngine
from think_as_locals.judging import render
from think_as_locals.reward_models.judge import Backend, Judge
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.train import settings_of
from think_as_locals.training.checkpoints import Checkpoints
from think_as_locals.training.grpo import JudgeTrainer, policy_engine


def compare(model: str, items: str) -> dict[str, Any]:
    asked = list(jsonl.read(Path(items)))
    options: dict[str, Any] = {"transformers": {}, "vllm": {"max_model_length": 1000, "gpu_memory_utilization": 0.5}}
    judges = {name: Judge.load(model, name, vllm=options[name]) for name in get_args(Backend)}
    texts = {name: [judgement.completion for judgement in judge.judge(asked)] for name, judge in judges.items()}
    engines: dict[str, Any] = {name: judge.engine for name, judge in judges.items()}
    settings = judges["vllm"].settings
    conversations = [render(item, settings.prompt, settings.seed) for item in asked[:32]]
    sampling = Sampling(max_completion_length=settings.max_completion_length)
    rollouts = sample_all(engines["vllm"], conversations, sampling)
    labels = {name: label_log_probs(one, one.chat.encode(conversations), rollouts) for name, one in engines.items()}
    names = [process.name() for process in processes_in(Path.cwd())]
    return {"texts": texts, "labels": labels, "processes": names, "positions": engines["vllm"].chat.positions}


def sync(run: str, scratch: str) -> dict[str, Any]:
    values = yaml.safe_load((Path(run) / "config.yaml").read_text())
    config = RunConfig.model_validate({**values, "rollout": {**values["rollout"], "backend": "vllm_colocate"}})
    model = str(Path(run) / "cold_start" / "model")
    splits = load(config.data, config.seed)
    checkpoints = Checkpoints(Path(scratch) / "checkpoints", 1)
    trainer = JudgeTrainer(config, model, splits.train, RunFolder(Path(scratch)), checkpoints)
    chat, items = trainer.chat, splits.test[:32]

    def texts(engine: Any) -> list[str]:
        return [judgement.completion for judgement in Judge(engine=engine, settings=settings_of(config)).judge(items)]

    found = {}
    with policy_engine(trainer, 32) as engine:
        found["before"] = texts(engine)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.add_(0.05 * parameter.std() * torch.randn(parameter.shape, generator=generator))
    with policy_engine(trainer, 32) as engine:
        found["after"] = texts(engine)
    return {**found, "policy": texts(TransformersEngine(trainer.model, chat, 32))}


if __name__ == "__main__":
    task, *arguments = sys.argv[1:]
    result = {"compare": compare, "sync": sync}[task](*arguments)
    Path(arguments[-1]).with_suffix(".result.json").write_text(json.dumps(result))
    if task == "compare":
        os.kill(os.getpid(), signal.SIGKILL)
