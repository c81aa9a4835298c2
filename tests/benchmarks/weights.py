"""How fast weights go through a folder, and what they take of the trainer's memory: 1 GB of random weights.

One side writes as a weight sync does, the other reads tensor by tensor as a server does. `whole` copies the model to
the host, writes one file and has it read then; `streamed` is what a sync does (`training/weight_transfer.py`).
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from safetensors import safe_open
from safetensors.torch import save_file

from think_as_locals.runtime.files import write_json
from think_as_locals.runtime.processes import in_background
from think_as_locals.training.weight_transfer import WeightFiles

TENSORS, BYTES = 64, 16_000_000


def read(files: Iterable[Path]) -> int:
    """Read every tensor as a server does; how many bytes they have."""
    total = 0
    for path in files:
        with safe_open(path, "pt") as file:
            total += sum(file.get_tensor(name).nbytes for name in file.keys())  # noqa: SIM118  (a file is no mapping)
    return total


def whole(weights: dict[str, torch.Tensor], folder: Path) -> int:
    copies = {name: tensor.to("cpu", copy=True) for name, tensor in weights.items()}
    save_file(copies, folder / "model.safetensors")
    return read([folder / "model.safetensors"])


def streamed(weights: dict[str, torch.Tensor], folder: Path) -> int:
    files = WeightFiles(folder, limit_s=600)
    reading = in_background(lambda: read(files))
    for name, tensor in weights.items():
        files.add(name, tensor)
    files.close()
    return reading.result()


def measure(name: str) -> dict[str, float]:
    """Megabytes a second, and megabytes of memory beyond the model's own."""
    torch.set_num_threads(1)
    weights = {f"layer.{number}": torch.randn(BYTES // 4) for number in range(TENSORS)}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        assert {"whole": whole, "streamed": streamed}[name](weights, Path(folder)) == TENSORS * BYTES
        seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"megabytes_per_second": TENSORS * BYTES / 1e6 / seconds, "peak_megabytes": peak * 1024 / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/bench/weights.json"))
    out = parser.parse_args().out
    found: dict[str, dict[str, Any]] = {}
    table = Table(
        "", "MB/s", "MB beyond the model", title=f"{TENSORS * BYTES / 1e9:.1f} GB of weights through a folder"
    )
    for name in ("whole", "streamed"):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:  # memory's peak is a process's
            found[name] = process.submit(measure, name).result()
        table.add_row(name, *(f"{value:.0f}" for value in found[name].values()))
    Console().print(table)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, found)


if __name__ == "__main__":
    main()
