"""Saves one checkpoint per failing write call: `LD_PRELOAD=full_disk.so python full_disk.py FOLDER`."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path

from training.small_grpo import ends_with, tiny_trainer


def main(folder: Path) -> None:
    disk = ctypes.CDLL(None)
    calls, fail_at = ctypes.c_int.in_dll(disk, "calls"), ctypes.c_int.in_dll(disk, "fail_at")
    trainer = tiny_trainer(folder, "grpo.max_steps=3", "grpo.save_steps=1")
    trainer.train()
    trainer.state.global_step = 2
    for _ in range(2):  # a checkpoint that replaces another is what is tried
        calls.value = 0
        trainer._save_checkpoint(trainer.model, None)
    whole, found = calls.value, []
    # Every fourth of the tensors' writes, each of the last ones (manifest, names), and none at last.
    for number in (*range(1, whole - 16, 4), *range(max(1, whole - 16), whole + 1), 0):
        calls.value, fail_at.value = 0, number
        error = ends_with(lambda: trainer._save_checkpoint(trainer.model, None))
        fail_at.value = 0
        good = trainer.checkpoints.latest()
        found.append({"error": error, "good": good.name if good else None})
    (folder / "results.json").write_text(json.dumps(found))
    os._exit(0)  # to take all modules apart would take a second


if __name__ == "__main__":
    main(Path(sys.argv[1]))
