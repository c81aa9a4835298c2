"""Runs that are killed, told to stop, and go on: `make soak`.

- SIGKILL at random moments, half of them while a checkpoint is being written: afterwards every optimizer step was taken
  once, and the judge is bit for bit the one of a run that nobody disturbed.
- SIGTERM or SIGUSR1 on random ranks of two: both end with the documented status, none hangs, and the run goes on.

Every attempt is forked from one process that has imported everything, so that 200 of them take minutes.
"""

from __future__ import annotations

import argparse
import hashlib
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
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}

from rich.progress import Progress, track

from think_as_locals import cli, pipeline  # noqa: F401  the imports are what is shared
from think_as_locals.files import write_json
from think_as_locals.types import RunStoppedError

SFT_STEPS, GRPO_STEPS = 4, 12
RECIPE = [
    "data.groups=[idiom_heavy_rain,gift_taboo]",
    "data.sets_per_group=6",
    "model.scratch.hidden_size=32",
    "model.scratch.intermediate_size=64",
    "model.scratch.num_hidden_layers=1",
    "model.scratch.num_attention_heads=2",
    "model.scratch.num_key_value_heads=1",
    f"sft.max_steps={SFT_STEPS}",
    "sft.warmup_steps=0",
    "sft.save_steps=1",
    "sft.logging_steps=1",
    f"grpo.max_steps={GRPO_STEPS}",
    "grpo.per_device_train_batch_size=8",
    "grpo.num_generations=4",
    "grpo.max_completion_length=16",
    "grpo.steps_per_generation=2",
    "grpo.num_iterations=2",
    "grpo.warmup_steps=0",
    "grpo.entropy_coef=0.1",  # so that every step moves the policy, whatever the rewards of so poor a judge
    "grpo.save_steps=1",
    "eval.every_steps=5",
    "eval.max_items=4",
    "eval.bootstrap_samples=10",
    "run.resume=auto",
]
STOPPED = 75
LIMIT_S = 180


def start(folder: Path, name: str, rank: int = 0, ranks: int = 1, port: int = 0) -> int:
    """One process of a run; its id."""
    if child := os.fork():
        return child
    os.setpgid(0, 0)
    if ranks > 1:
        where = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ |= {key: str(value) for key, value in where.items()}
    log = os.open(folder / f"{name}-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    status = 1
    try:
        cli.run("recipes/quickstart.yaml", [*RECIPE, f"run.dir={folder}", f"run.name={name}"])
        status = 0
    except RunStoppedError:
        status = STOPPED
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    os._exit(status)


def wait(process: int, seconds: float, until: Callable[[], bool] = lambda: False) -> int | None:
    """The status of a process; None where it still runs after so long, or when something else is so."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not until():
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return None


def kills(folder: Path, count: int, rng: random.Random) -> dict[str, Any]:
    """SIGKILLs over runs that are started again until they end, and what became of them."""
    reference = folder / "reference"
    began = time.monotonic()
    expect(wait(start(folder, "reference"), LIMIT_S) == 0, folder, "reference-0")
    expect(weights(reference) != weights(reference / "cold_start"), folder, "reference-0")
    whole = time.monotonic() - began
    result = {"kills": 0, "while_saving": 0, "runs": 0, "different_weights": 0, "wrong_steps": 0, "did_not_go_on": 0}
    with Progress() as progress:
        task = progress.add_task("SIGKILL", total=count)
        while result["kills"] < count:
            name = f"killed-{result['runs']}"
            writes = partial(_writes, folder / name, _unfinished(folder / name))
            process = start(folder, name)
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
                _judge(folder / name, reference, result)
    name = f"killed-{result['runs']}"
    result["did_not_go_on"] += wait(start(folder, name), LIMIT_S) != 0
    _judge(folder / name, reference, result)
    return result


def _unfinished(run: Path) -> set[int]:
    """The checkpoints that are being written, or that a kill left so."""
    found = set()
    for path in (*run.glob("checkpoints/checkpoint-*"), *run.glob("cold_start/checkpoints/checkpoint-*")):
        with suppress(FileNotFoundError):
            found.add(path.stat().st_ino)
    return found


def _writes(run: Path, old: set[int]) -> bool:
    return bool(_unfinished(run) - old)


def _judge(run: Path, reference: Path, result: dict[str, int]) -> None:
    result["runs"] += 1
    result["different_weights"] += weights(run) != weights(reference)
    result["wrong_steps"] += steps(run) != steps(reference)


def weights(stage: Path) -> str | None:
    """What the finished judge weighs, or None."""
    file = stage / "model" / "model.safetensors"
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None


def steps(run: Path) -> list[tuple[str, int, Any]]:
    """Every logged step of both stages, with its loss."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(line["stage"], line["step"], line["loss"]) for line in lines if "loss" in line]


def stops(folder: Path, count: int, rng: random.Random) -> dict[str, Any]:
    """SIGTERM or SIGUSR1 on random ranks of two, in runs that are continued until they end."""
    result = {"stops": 0, "runs": 0, "hangs": 0, "other_status": 0, "different_weights": 0, "wrong_steps": 0}
    expect(_pair(folder, "pair", None, rng) == [0, 0], folder, "pair-0")
    for _ in track(range(count), description="SIGTERM"):
        name = f"stopped-{result['runs']}"
        status = _pair(folder, name, rng.uniform(0, 4), rng)
        result["stops"] += status == [STOPPED, STOPPED]
        result["hangs"] += None in status
        result["other_status"] += status not in ([0, 0], [STOPPED, STOPPED])
        if status != [STOPPED, STOPPED]:
            _judge(folder / name, folder / "pair", result)
    name = f"stopped-{result['runs']}"
    result["other_status"] += _pair(folder, name, None, rng) != [0, 0]
    _judge(folder / name, folder / "pair", result)
    return result


def _pair(folder: Path, name: str, moment: float | None, rng: random.Random) -> list[int | None]:
    """Two ranks, some of which get a signal so long after both have begun; their statuses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [start(folder, name, rank, 2, port) for rank in range(2)]
    if moment is not None:
        # Before a run has begun there is nothing to save, and a signal ends it as it ends any process.
        wait(processes[0], LIMIT_S, lambda: all(map(_heeds, processes)))
        time.sleep(moment)
        for rank in rng.sample(range(2), rng.choice([1, 2])):
            os.kill(processes[rank], rng.choice([signal.SIGTERM, signal.SIGUSR1]))
    statuses = [wait(process, LIMIT_S) for process in processes]
    for process, status in zip(processes, statuses, strict=True):
        if status is None:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    return statuses


def _heeds(process: int) -> bool:
    """Whether a process has a handler of its own for SIGUSR1."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return bool(int(fields["SigCgt"], 16) >> (signal.SIGUSR1 - 1) & 1)


def _tail(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


def expect(good: bool, folder: Path, name: str) -> None:
    """End where the undisturbed run itself fails."""
    if not good:
        raise SystemExit(
            f"{name} did not end well:\n{_tail(folder / f'{name}-0.log') or _tail(folder / f'{name}.log')}"
        )


def main() -> None:
    """Do it, print the figures, write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("tests/benchmarks/soak.json"))
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--stops", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    folder = Path(tempfile.mkdtemp())
    results = {"sigkill": kills(folder, arguments.kills, rng), "sigterm": stops(folder, arguments.stops, rng)}
    faults = sum(results["sigkill"][name] for name in ("different_weights", "wrong_steps", "did_not_go_on"))
    faults += sum(results["sigterm"][name] for name in ("hangs", "other_status", "different_weights", "wrong_steps"))
    if faults:
        print(f"what went wrong lies in {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder)
    versions = {name: metadata.version(name) for name in ("torch", "transformers", "trl", "accelerate")}
    environment = {"python": platform.python_version(), "machine": platform.machine(), **versions}
    write_json(arguments.out, {"environment": environment, "seed": arguments.seed, **results})
    print(json.dumps(results, indent=2))
    raise SystemExit(faults > 0)


if __name__ == "__main__":
    main()
