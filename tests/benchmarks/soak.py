"""Runs that are killed, stopped or lose their server, and then resume: `make soak`.

- SIGKILL at random moments, half of them while a checkpoint is being written: afterwards every optimizer step was taken
  once, and the judge is bit for bit the one of a run that nobody disturbed.
- SIGTERM or SIGUSR1 on random ranks of two: both end with the documented status, none hangs, and the run goes on.
- SIGKILL of the vLLM server that a run samples from: no batch is stale (soak_server.py).
- SIGKILL of trainer or server of a run that samples ahead: each item is used once, no batch is too old (soak_ahead.py).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.progress import Progress, track
from soak_ahead import ahead_kills
from soak_runs import COLD_START, LIMIT_S, STOPPED, expect, logged, start, wait, weights
from soak_server import server_kills

from think_as_locals.runtime.files import write_json

WORDS = [
    *COLD_START,
    "model.scratch.hidden_size=32",
    "grpo.max_steps=12",
    "grpo.steps_per_generation=2",
    "grpo.num_iterations=2",
    "eval.every_steps=5",
]


def kills(folder: Path, count: int, rng: random.Random) -> dict[str, Any]:
    """SIGKILLs over runs that are started again until they end, and what became of them."""
    reference = folder / "reference"
    began = time.monotonic()
    expect(wait(start(folder, "reference", WORDS), LIMIT_S) == 0, folder, "reference")
    expect(weights(reference) != weights(reference / "cold_start"), folder, "reference")
    whole = time.monotonic() - began
    result = {"kills": 0, "while_saving": 0, "runs": 0, "different_weights": 0, "wrong_steps": 0, "did_not_go_on": 0}
    with Progress() as progress:
        task = progress.add_task("SIGKILL", total=count)
        while result["kills"] < count:
            name = f"killed-{result['runs']}"
            writes = partial(_is_saving, folder / name, _unfinished(folder / name))
            process = start(folder, name, WORDS)
            saving = rng.random() < 0.5
            status = wait(process, rng.uniform(0.2, whole), writes if saving else lambda: False)
            if saving and status is None:
                time.sleep(rng.uniform(0, 0.03))
            if status is None:
                result["while_saving"] += writes()
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
                result["kills"] += 1
                progress.advance(task)
            else:
                result["did_not_go_on"] += status != 0
                _record_outcome(folder / name, reference, result)
    name = f"killed-{result['runs']}"
    result["did_not_go_on"] += wait(start(folder, name, WORDS), LIMIT_S) != 0
    _record_outcome(folder / name, reference, result)
    return result


def _unfinished(run: Path) -> set[int]:
    """The checkpoints that are being written, or that a kill left so."""
    found = set()
    for path in (*run.glob("checkpoints/checkpoint-*"), *run.glob("cold_start/checkpoints/checkpoint-*")):
        with suppress(FileNotFoundError):
            found.add(path.stat().st_ino)
    return found


def _is_saving(run: Path, old: set[int]) -> bool:
    return bool(_unfinished(run) - old)


def _record_outcome(run: Path, reference: Path, result: dict[str, int]) -> None:
    result["runs"] += 1
    result["different_weights"] += weights(run) != weights(reference)
    result["wrong_steps"] += steps(run) != steps(reference)


def steps(run: Path) -> list[tuple[str, int, Any]]:
    """Every logged step of both stages, with its loss."""
    return [(line["stage"], line["step"], line["loss"]) for line in logged(run)]


def stops(folder: Path, count: int, rng: random.Random) -> dict[str, Any]:
    """SIGTERM or SIGUSR1 on random ranks of two, in runs that are continued until they end."""
    result = {"stops": 0, "runs": 0, "hangs": 0, "other_status": 0, "different_weights": 0, "wrong_steps": 0}
    expect(_run_two_ranks(folder, "pair", None, rng) == [0, 0], folder, "pair-0")
    for _ in track(range(count), description="SIGTERM"):
        name = f"stopped-{result['runs']}"
        status = _run_two_ranks(folder, name, rng.uniform(0, 4), rng)
        result["stops"] += status == [STOPPED, STOPPED]
        result["hangs"] += None in status
        result["other_status"] += status not in ([0, 0], [STOPPED, STOPPED])
        if status != [STOPPED, STOPPED]:
            _record_outcome(folder / name, folder / "pair", result)
    name = f"stopped-{result['runs']}"
    result["other_status"] += _run_two_ranks(folder, name, None, rng) != [0, 0]
    _record_outcome(folder / name, folder / "pair", result)
    return result


def _run_two_ranks(folder: Path, name: str, moment: float | None, rng: random.Random) -> list[int | None]:
    """Two ranks, some of which get a signal so long after both have begun; their statuses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = [
        start(folder, name, WORDS, {**where, "RANK": str(rank), "LOCAL_RANK": str(rank)}, f"{name}-{rank}")
        for rank in range(2)
    ]
    if moment is not None:
        # Before a run has begun there is nothing to save, and a signal ends it as it ends any process.
        wait(processes[0], LIMIT_S, lambda: all(map(_handles_sigusr1, processes)))
        time.sleep(moment)
        for rank in rng.sample(range(2), rng.choice([1, 2])):
            os.kill(processes[rank], rng.choice([signal.SIGTERM, signal.SIGUSR1]))
    statuses = [wait(process, LIMIT_S) for process in processes]
    for process, status in zip(processes, statuses, strict=True):
        if status is None:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    return statuses


def _handles_sigusr1(process: int) -> bool:
    """Whether a process has a handler of its own for SIGUSR1."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return bool(int(fields["SigCgt"], 16) >> (signal.SIGUSR1 - 1) & 1)


PARTS = {
    "sigkill": ("kills", kills),
    "sigterm": ("stops", stops),
    "server": ("server_kills", server_kills),
    "ahead": ("ahead_kills", ahead_kills),
}
"""Part -> the option with its number of kills or stops, and what does it."""
FAULTS = (
    *("different_weights", "wrong_steps", "did_not_go_on", "hangs", "other_status", "stale_batches", "unclear_errors"),
    *("control_missed", "wrong_items", "too_old", "of_other_weights"),
)


def main() -> None:
    """Do it, print the figures, write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("tests/benchmarks/soak.json"))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="the others' figures are kept")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--stops", type=int, default=50)
    parser.add_argument("--server-kills", type=int, default=20)
    parser.add_argument("--ahead-kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    versions = {name: metadata.version(name) for name in ("torch", "transformers", "trl", "accelerate")}
    environment = {"python": platform.python_version(), "machine": platform.machine(), **versions}
    head = {"environment": environment, "seed": arguments.seed}
    kept = _earlier_results(arguments.out, arguments.parts, head)
    folder = Path(tempfile.mkdtemp())
    rng = random.Random(arguments.seed)
    measured = {}
    for part in arguments.parts:
        option, harm = PARTS[part]
        measured[part] = harm(folder, vars(arguments)[option], rng)
    faults = sum(figures.get(name, 0) for figures in measured.values() for name in FAULTS)
    if faults:
        print(f"what went wrong lies in {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder)
    found = kept | measured
    write_json(arguments.out, {**head, **{part: found[part] for part in PARTS if part in found}})
    print(json.dumps(measured, indent=2))
    raise SystemExit(faults > 0)


def _earlier_results(out: Path, parts: list[str], head: dict[str, Any]) -> dict[str, Any]:
    """What is known of the parts that are not measured now, if it is from the same environment."""
    known = json.loads(out.read_text()) if out.is_file() else {}
    others = {part: known[part] for part in PARTS if part in known and part not in parts}
    if others and (then := {name: known[name] for name in head}) != head:
        raise SystemExit(f"{out} has {', '.join(others)} of {then}, this is {head}: measure all, or give another --out")
    return others


if __name__ == "__main__":
    main()
