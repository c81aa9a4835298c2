"""What the vLLM tests measure, in a process of its own: the engine changes thread and rank settings of its process.

python vllm_process.py RUN ITEMS.jsonl     what vLLM and transformers write, and how sure they are of the same verdicts;
                                           texts before and after the policy's weights changed
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
from think_as_locals.engines import Engine, Sampling, sample_all
from think_as_locals.engines.engine import label_log_probs
from think_as_locals.engines.transformers_engine import TransformersEngine
from think_as_locals.judging import render
from think_as_locals.reward_models.judge import Backend, Judge, JudgeSettings
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.train import settings_of
from think_as_locals.training.checkpoints import Checkpoints
from think_as_locals.training.grpo import JudgeTrainer
from think_as_locals.training.rollouts import policy_engine


def compare(model: str, items: Path) -> dict[str, Any]:
    """Greedy texts of either engine, and log-probabilities of the verdicts' labels, of the same texts."""
    asked, settings = list(jsonl.read(items)), JudgeSettings.load(model)
    judges = {name: Judge.load(model, backend=name) for name in get_args(Backend)}
    found = {name: {"texts": [judgement.text for judgement in judge.judge(asked)]} for name, judge in judges.items()}
    conversations = [render(item, settings.prompt, settings.seed) for item in asked[:24]]
    sampling = Sampling(max_completion_length=settings.max_completion_length)
    rollouts = sample_all(judges["vllm"].engine, conversations, sampling)
    for name, judge in judges.items():
        found[name]["labels"] = label_log_probs(judge.engine, judge.engine.chat.encode(conversations), rollouts)
    return found


def sync(run: Path, scratch: Path) -> dict[str, Any]:
    values = yaml.safe_load((run / "config.yaml").read_text())
    config = RunConfig.model_validate({**values, "rollout": {**values["rollout"], "backend": "vllm_colocate"}})
    model = str(run / "cold_start" / "model")
    splits = load(config.data, config.seed)
    trainer = JudgeTrainer(config, model, splits.train, RunFolder(scratch), Checkpoints(scratch / "checkpoints", 1))

    def texts(engine: Engine) -> list[str]:
        judge = Judge(engine=engine, settings=settings_of(config))
        return [judgement.text for judgement in judge.judge(splits.test[:32])]

    def sampled() -> list[str]:
        with policy_engine(trainer, trainer.chat, 32) as engine:
            return texts(engine)

    before = sampled()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.add_(0.05 * parameter.std() * torch.randn(parameter.shape, generator=generator))
    return {"before": before, "after": sampled(), "policy": texts(TransformersEngine(trainer.model, trainer.chat, 32))}


if __name__ == "__main__":
    run, items = map(Path, sys.argv[1:])
    result = compare(str(run / "model"), items) | {"sync": sync(run, items.parent)}
    items.with_suffix(".json").write_text(json.dumps(result))
