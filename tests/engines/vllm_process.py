"""Texts and labels' log-probabilities of vLLM and of transformers, in a process of its own: vLLM changes its settings.

python vllm_process.py MODEL ITEMS.jsonl     it ends by SIGKILL while vLLM's processes run
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, get_args

from warm import processes_in

from think_as_locals.data.sources import jsonl
from think_as_locals.engines import Sampling, sample_all
from think_as_locals.engines.engine import label_log_probs
from think_as_locals.judging import render
from think_as_locals.reward_models.judge import Backend, Judge


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


if __name__ == "__main__":
    result = compare(*sys.argv[1:])
    Path(sys.argv[2]).with_suffix(".result.json").write_text(json.dumps(result))
    os.kill(os.getpid(), signal.SIGKILL)
