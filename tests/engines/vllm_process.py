"""What the vLLM tests measure, in a process of its own: the engine changes thread and rank settings of its process.

python vllm_process.py verdicts MODEL ITEMS.jsonl     texts of vLLM and of transformers, greedy
python vllm_process.py labels MODEL ITEMS.jsonl       log-probabilities of the verdicts' labels, of the same texts
python vllm_process.py sync RUN                       texts before and after the policy's weights changed
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, get_args

import torch
import yaml

from think_as_locals.config.schema import RunConfig
from think_as_locals.data import load
from think_as_locals.data.sources import jsonl
from think_as_locals.engines import Sampling, sample_all
from think_as_locals.engines.engine import label_log_probs
from think_as_locals.engines.transformers_engine import TransformersEngine
from think_as_locals.judging import render
from think_as_locals.reward_models.judge import Backend, Judge, JudgeSettings
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.train import settings_of
from think_as_locals.training.checkpoints import Checkpoints
from think_as_locals.training.grpo import JudgeTrainer
from think_as_locals.training.rollouts import policy_engine


def verdicts(model: str, items: str) -> dict[str, Any]:
    asked = list(jsonl.read(Path(items)))
    return {
        "transformers": [judgement.text for judgement in Judge.load(model).judge(asked)],
        "vllm": [judgement.text for judgement in Judge.load(model, backend="vllm").judge(asked)],
    }


def labels(model: str, items: str) -> dict[str, Any]:
    asked, settings = list(jsonl.read(Path(items))), JudgeSettings.load(model)
    engines: dict[str, Any] = {name: Judge.load(model, name).engine for name in get_args(Backend)}
    conversations = [render(item, settings.prompt, settings.seed) for item in asked]
    rollouts = sample_all(
        engines["vllm"], conversations, Sampling(max_completion_length=settings.max_completion_length)
    )
    return {
        name: label_log_probs(engine, engine.chat.encode(conversations), rollouts) for name, engine in engines.items()
    }


def sync(run: str, scratch: str) -> dict[str, Any]:
    values = yaml.safe_load((Path(run) / "config.yaml").read_text())
    config = RunConfig.model_validate({**values, "rollout": {**values["rollout"], "backend": "vllm_colocate"}})
    model = str(Path(run) / "cold_start" / "model")
    splits = load(config.data, config.seed)
    checkpoints = Checkpoints(Path(scratch) / "checkpoints", 1)
    trainer = JudgeTrainer(config, model, splits.train, RunFolder(Path(scratch)), checkpoints)
    chat, items = trainer.chat, splits.test[:32]

    def sampled() -> list[str]:
        with policy_engine(trainer, chat, 32) as engine:
            return [judgement.text for judgement in Judge(engine=engine, settings=settings_of(config)).judge(items)]

    before = sampled()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.add_(0.05 * parameter.std() * torch.randn(parameter.shape, generator=generator))
    after = sampled()
    reference = Judge(engine=TransformersEngine(trainer.model, chat, 32), settings=settings_of(config)).judge(items)
    return {"before": before, "after": after, "policy": [judgement.text for judgement in reference]}


if __name__ == "__main__":
    task, *arguments = sys.argv[1:]
    result = {"verdicts": verdicts, "labels": labels, "sync": sync}[task](*arguments)
    Path(arguments[-1]).with_suffix(".result.json").write_text(json.dumps(result))
