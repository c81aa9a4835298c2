"""A small SCPO run under every kind of distributed launch.

accelerate launch --config_file launch/cpu_zero2.yaml two_processes.py MODEL FOLDER: two processes, each way
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from accelerate import PartialState

from think_as_locals import steer as steering
from think_as_locals.config.checks import load_config
from think_as_locals.run import load_data
from think_as_locals.runtime.ranks import join, set_rank_timeout
from think_as_locals.runtime.run_folder import RunFolder, open_run

GLOBAL_BATCH = 16
STEERED = [
    'data.countries=["TH"]',
    "data.groups=[greeting_gesture,gift_taboo]",
    "data.test_share=0.05",
    "eval.bootstrap_samples=200",
    "scpo.variants=[scpo]",
    "scpo.keep_models=[scpo]",
    "scpo.seeds=[0]",
    "scpo.pair_counts=[50]",  # no multiple of the batch, of which some are left by the filter
    "scpo.max_steps=8",
    "scpo.logging_steps=1",
    "scpo.scoring_batch_size=16",
]
"""Overrides that make the SCPO quick start a matter of seconds."""

WAYS: dict[str, tuple[str | None, list[str]]] = {  # stage of ZeRO, and overrides
    "zero2": ("2", []),
    "lora_zero2": ("2", ["lora=rank16", "lora.r=4"]),
    "ddp": (None, []),
    "zero3": ("3", []),
}


def overrides(model: Path, folder: Path, case: str) -> list[str]:
    """Those of a way to steer a model: the same for any number of processes."""
    loaded = ["model.scratch=null", f"model.path={model}", "global_rm=none"]
    run = [f"scpo.batch_size={GLOBAL_BATCH}", f"run.dir={folder}", f"run.name={case}"]
    return [*STEERED, *loaded, *WAYS[case][1], *run]


def curves(run: Path) -> dict[str, list[list[float]]]:
    """Loss, gradient norm, learning rate and number of tokens of each step of each training."""
    names = ("loss", "grad_norm", "learning_rate", "num_tokens")
    found: dict[str, list[list[float]]] = {}
    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        if "loss" in (log := json.loads(line)):
            found.setdefault(log["stage"], []).append([log[name] for name in names])
    return found


def main(model: Path, folder: Path) -> None:
    configs = {case: load_config("recipes/scpo_quickstart.yaml", overrides(model, folder, case)) for case in WAYS}
    join()
    set_rank_timeout(configs["zero2"])
    for case, (stage, _) in WAYS.items():
        os.environ["ACCELERATE_USE_DEEPSPEED"] = str(stage is not None).lower()
        os.environ["ACCELERATE_DEEPSPEED_ZERO_STAGE"] = stage or ""
        os.environ["ACCELERATE_DEEPSPEED_ZERO3_INIT"] = str(stage == "3").lower()
        os.environ["ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL"] = str(stage == "3").lower()
        if PartialState().is_main_process:
            open_run(configs[case])
        PartialState().wait_for_everyone()
        steering.run(configs[case], load_data(configs[case]), RunFolder(folder / case))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
