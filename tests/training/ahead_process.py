"""Sampling ahead on two ranks, under every way to spread a training over them.

accelerate launch --config_file launch/cpu_zero2.yaml ahead_process.py FOLDER URL      on two processes
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from accelerate import PartialState
from training.small_grpo import chance, figures, tiny_trainer

from think_as_locals.judging import COMPONENTS
from think_as_locals.runtime.ranks import join
from think_as_locals.training.grpo import JudgeTrainer

WAYS = {"ddp": (None, []), "zero2": ("2", ["lora=rank16", "lora.r=4"]), "zero3": ("3", ["grpo.beta=0.05"])}
SETTINGS = ["grpo.max_steps=4", "grpo.save_steps=2", "grpo.learning_rate=0.01", "grpo.warmup_steps=0"]


def make(folder: Path, url: str, overrides: list[str]) -> JudgeTrainer:
    where = ["rollout=vllm_server", f"rollout.urls=[{url}]", "rollout.ahead=1", "rollout.timeout_s=20"]
    components = {**COMPONENTS, "structure": chance}
    return tiny_trainer(folder, *SETTINGS, *where, *overrides, components=components)


def main(folder: Path, url: str) -> None:
    join()
    found = {}
    for case, (stage, overrides) in WAYS.items():
        os.environ["ACCELERATE_USE_DEEPSPEED"] = str(stage is not None).lower()
        os.environ["ACCELERATE_DEEPSPEED_ZERO_STAGE"] = stage or ""
        os.environ["ACCELERATE_DEEPSPEED_ZERO3_INIT"] = str(stage == "3").lower()
        found[case] = []
        for _ in ("in one go", "from its checkpoint"):
            trainer = make(folder / case, url, overrides)
            trainer.train_from(trainer.checkpoints.latest())
            found[case].append(figures(trainer))
    if PartialState().is_main_process:
        (folder / "results.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
