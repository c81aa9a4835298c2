"""Start-up times: CPU seconds and wall-clock seconds of each start, the minimum of several.

    python tests/benchmarks/startup.py

Each start is a process of its own, with files in the page cache: the first of each does not count.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from think_as_locals.data.sources import jsonl
from think_as_locals.runtime.files import write_json

TAL = [sys.executable, "-c", "from think_as_locals.cli import main; main()"]
QUICKSTART = "recipes/quickstart.yaml"
MAKE_JUDGE = """
import sys, pathlib
from think_as_locals.config.checks import load_recipe
from think_as_locals.data import load
from think_as_locals.judging import render
from think_as_locals.reward_models.scratch import make_judge
from think_as_locals.train import settings_of
config, folder = load_recipe(sys.argv[1], []), pathlib.Path(sys.argv[2])
items = load(config.data, config.seed).train[:64]
texts = [message["content"] for item in items for message in render(item, config.prompt.template)]
make_judge(folder, texts, config.model.scratch, config.seed)
settings_of(config).save(folder)
"""


def ended(command: list[str]) -> Callable[[Path], None]:
    """Wait until a command has ended; 1 is the status of `tal judge` where a completion cannot be parsed."""

    def wait(_: Path) -> None:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode not in (0, 1):
            raise RuntimeError(f"ended with {done.returncode}: {' '.join(command)}\n{done.stderr}")

    return wait


def first_step(folder: Path) -> None:
    """Start the quick start, wait for its first logged step, and stop it."""
    command = [*TAL, "run", QUICKSTART, f"run.dir={folder}", "run.name=first", "sft.logging_steps=1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    metrics = folder / "first" / "metrics.jsonl"
    while not (metrics.is_file() and metrics.stat().st_size):
        if process.poll() is not None:
            raise RuntimeError(f"ended with {process.returncode} before its first step: {' '.join(command)}")
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()


def cost(start: Callable[[Path], None]) -> tuple[float, float]:
    """CPU seconds and seconds of one start."""
    with tempfile.TemporaryDirectory() as folder:
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        start(Path(folder))
        seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/bench/startup.json"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        judge, rows, items = Path(name) / "judge", Path(name) / "rows.jsonl", Path(name) / "item.jsonl"
        subprocess.run([sys.executable, "-c", MAKE_JUDGE, QUICKSTART, str(judge)], check=True, capture_output=True)
        build = [*TAL, "data", "build", "data=culture_cards", "data.max_items=10", f"out={rows}"]
        subprocess.run(build, check=True, capture_output=True)
        jsonl.write(list(jsonl.read(rows))[:1], items)
        starts = {
            "import think_as_locals": ended([sys.executable, "-c", "import think_as_locals"]),
            "import think_as_locals.train": ended([sys.executable, "-c", "import think_as_locals.train"]),
            "tal data validate, ten rows": ended([*TAL, "data", "validate", str(rows)]),
            "tal judge, one item": ended([*TAL, "judge", str(judge), str(items)]),
            "quick start, until its first step is logged": first_step,
        }
        found = {}
        for what, start in starts.items():
            costs = [cost(start) for _ in range(arguments.repetitions + 1)][1:]
            found[what] = dict(zip(("cpu_s", "s"), map(min, zip(*costs, strict=True)), strict=True))
            print(json.dumps({what: found[what]}), file=sys.stderr, flush=True)
    table = Table("", "CPU seconds", "seconds", title="Starts")
    for what, least in found.items():
        table.add_row(what, f"{least['cpu_s']:.1f}", f"{least['s']:.1f}")
    Console().print(table)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(arguments.out, found)


if __name__ == "__main__":
    main()
