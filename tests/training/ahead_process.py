"""Sampling ahead on two ranks, under every kind of sharding.

accelerate launch --config_file launch/cpu_zero2.yaml ahead_process.py FOLDER URL      on two processes
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory
from typing import NoReturn

from accelerate import PartialState
from accelerate.utils import gather_object
from training.small_grpo import chance, ends_with, figures, settings, tiny_trainer

from think_as_locals.data.load import EvalSet
from think_as_locals.runtime.ranks import join
from think_as_locals.train import judge_sets
from think_as_locals.training.grpo import JudgeTrainer
from think_as_locals.types import DataError

LORA = ["lora=rank16", "lora.r=4"]
WAYS = {
    "ddp": (None, ["reward=full", "prompt=compact_rubric", "rollout.ahead=3"]),
    "zero3": ("3", ["grpo.beta=0.05"]),
    "unmoved": ("3", [*LORA, "grpo.learning_rate=1e-9"]),
}
SETTINGS = ["grpo.max_steps=4", "grpo.save_steps=2", "grpo.learning_rate=0.01", "grpo.warmup_steps=0"]


def make(folder: Path, url: str, overrides: list[str]) -> JudgeTrainer:
    where = ["rollout=vllm_server", f"rollout.url={url}", "rollout.ahead=1", "rollout.timeout_s=20"]
    components = {"structure": chance}
    if PartialState().is_main_process and not (folder / "model").is_dir():
        copytree(folder.parent / "model", folder / "model")  # the server's: another prompt would make other words
    return tiny_trainer(folder, *SETTINGS, *where, *overrides, **components)


def judged(trainer: JudgeTrainer) -> list[list[str]]:
    """The completions about two items in an evaluation: one is too long, and by one protocol there is only one."""
    config, (item, *_) = settings()
    long = replace(item, id="long", prompt="rain " * 5000)
    sets = {
        kind: EvalSet(items=items, dataset="cards", split="all", protocol=kind, orders=1)
        for kind, items in {"listwise": (item, long), "pairwise": (item,)}.items()
    }
    with TemporaryDirectory() as folder:
        judged = judge_sets(config, trainer, sets, Path(folder) / "step-0.jsonl", lambda *_: None)
    return [[one.judgement.completion for one in found] for found in judged.values()]


def no_prompt(rows: list[int]) -> NoReturn:
    raise DataError("item 'x': no prompt")


def main(folder: Path, url: str) -> None:
    join()
    found = {}
    for case, (stage, overrides) in WAYS.items():
        os.environ["ACCELERATE_USE_DEEPSPEED"] = str(stage is not None).lower()
        os.environ["ACCELERATE_DEEPSPEED_ZERO_STAGE"] = stage or ""
        os.environ["ACCELERATE_DEEPSPEED_ZERO3_INIT"] = str(stage == "3").lower()
        found[case] = {}
        for time in ("whole", "resumed")[: 1 if case == "unmoved" else 2]:
            trainer = make(folder / case, url, overrides)
            trainer.train_from(trainer.checkpoints.latest())
            found[case][time] = figures(trainer)
        found[case]["judged"] = gather_object([judged(trainer)])
        trainer._ahead._tokenized, trainer._ahead._rows = no_prompt, None  # the main process alone calls this
        found[case]["fault"] = gather_object([ends_with(lambda trainer=trainer: trainer._ahead._start(0))])
    if PartialState().is_main_process:
        (folder / "results.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
