"""How costs grow with the number of rows: seconds and memory of whole commands, from 1,000 rows up.

python tests/benchmarks/scale.py [--rows 1000 100000]      or: make bench ARGS=--scale

Each command runs as a user would start it, in a process of its own; what it costs beyond the smallest size, by row, is
the slope. Rows are our own JSONL with 200 words each: a question and four responses.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.table import Table

from think_as_locals.data.sources import jsonl
from think_as_locals.runtime.files import write_json
from think_as_locals.types import Item

MODELS = 100  # of the leaderboard
MAX_JUDGEMENTS = 10_000  # items of the leaderboard and the report: they show what people look at
CULTURES = ("SA", "CN", "US", "DE", "JP", "KR", "RU", "ES", "TH", "VN")
DOMAINS = ("commonsense", "value", "safety", "linguistic")
# Function words are so frequent that the language is recognised; the others are made up, as many as a corpus has.
FUNCTION_WORDS = (
    "the of and to in is that for it as with be by on not at are this have from or one had but what all were"
)
WRITE_REPORT = (
    "import sys, pathlib; from think_as_locals.evaluation.report import write_report as write; "
    "write(pathlib.Path(sys.argv[1]))"
)
TAL = [sys.executable, "-c", "from think_as_locals.cli import main; main()"]


def words(count: int) -> list[str]:
    """Made-up words."""
    rng = random.Random(1)
    syllables = [a + b for a in "bcdfghlmnprstvw" for b in ("a", "e", "i", "o", "u", "an", "er", "on")]
    return ["".join(rng.choices(syllables, k=rng.randint(2, 4))) for _ in range(count)]


def make_items(path: Path, count: int) -> None:
    """Write items of 200 words; four in a row ask about the same question group."""
    rng, function, others = random.Random(0), FUNCTION_WORDS.split(), words(20_000)

    def half() -> str:
        of_text = [*rng.choices(function, k=12), *rng.choices(others, k=8)]
        rng.shuffle(of_text)
        return " ".join(of_text)

    halves = [half() for _ in range(min(4 * count, 100_000))]  # a text has two: to draw all words takes minutes

    def text() -> str:
        return f"{rng.choice(halves)} {rng.choice(halves)}.".capitalize()

    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            fields = {"prompt": text(), "responses": tuple(text() for _ in range(4)), "best": number % 4}
            fields |= {"culture": CULTURES[number % 10], "domain": DOMAINS[number // 10 % 4], "language": "en"}
            item = Item(id=f"q{number}", group=f"g{number // 4}", source="generated", **fields)  # type: ignore[arg-type]
            file.write(jsonl.line(item))


def make_judgements(rows: Path, folder: Path, names: list[str], steps: list[int]) -> None:
    """Write the CARB files of models, or of steps, which score responses at random."""
    # Not in the process that starts the commands: a command's memory would begin with that of torch.
    from think_as_locals.evaluation import carb
    from think_as_locals.reward_models.scalar import ConstantRM

    items, rm = list(jsonl.read(rows)), ConstantRM()
    for number, (name, step) in enumerate(zip(names, steps, strict=True)):
        rng = random.Random(number)
        scored = [s for i in items for s in rm.predictions(i, [{"score": rng.random()} for _ in i.responses])]
        settings = {"dataset": "generated", "split": "all", "model": name, "seed": 0, "step": step}
        path = folder / "carb" / f"{f'step-{step}' if len(set(steps)) > 1 else name}.json"
        carb.save(scored, path, bootstrap_samples=200, **settings)  # type: ignore[arg-type]


def cost(command: list[str]) -> tuple[float, float, float]:
    """Seconds, CPU seconds and megabytes of a command; an error with what it printed if it fails."""
    with tempfile.TemporaryFile() as output:
        start = time.monotonic()
        actions = [(os.POSIX_SPAWN_DUP2, output.fileno(), 1), (os.POSIX_SPAWN_DUP2, output.fileno(), 2)]
        process = os.posix_spawn(command[0], command, os.environ, file_actions=actions)
        _, status, used = os.wait4(process, 0)
        seconds = time.monotonic() - start
        if status:
            output.seek(0)
            raise RuntimeError(f"{command} ended with {status}:\n{output.read().decode()[-3000:]}")
    return seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1000


def run_in_subprocess(work: Callable[..., None], *arguments: object) -> None:
    """Do work in another process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        pool.submit(work, *arguments).result()


def commands(folder: Path, rows: Path, count: int) -> dict[str, Callable[[], list[str]]]:
    """What is measured, by name: what prepares each returns its command."""
    read = ["data=jsonl", f"data.path={rows}"]
    run = [f"run.dir={folder}/run-{{}}-{count}", "run.name=scale"]

    def leaderboard() -> list[str]:
        models = [f"model-{number}" for number in range(MODELS)]
        run_in_subprocess(make_judgements, rows, folder / f"board-{count}", models, [0] * MODELS)
        return [*TAL, "leaderboard", str(folder / f"board-{count}"), "--out", str(folder / f"page-{count}")]

    def report() -> list[str]:
        run_in_subprocess(make_judgements, rows, folder / f"report-{count}", ["run", "run"], [0, 10])
        return [sys.executable, "-c", WRITE_REPORT, str(folder / f"report-{count}")]

    one_step = ["sft.max_steps=1", "grpo.max_steps=1", "eval.max_items=2", "eval.every_steps=1000"]
    # As little of the model as can be: what grows with the rows is measured.
    one_step += ["sft.per_device_train_batch_size=2", "grpo.num_generations=2", "grpo.max_completion_length=8"]
    one_step += ["grpo.per_device_train_batch_size=2", "grpo.gradient_accumulation_steps=1"]
    quickstart, evaluation = "recipes/quickstart.yaml", "recipes/carb.yaml"
    train = [*TAL, "run", quickstart, "data=jsonl", *read[1:], *one_step, *(s.format("train") for s in run)]
    measure = [*TAL, "run", evaluation, *read, "eval.items=all", *(s.format("carb") for s in run)]
    found: dict[str, Callable[[], list[str]]] = {
        "validate": lambda: [*TAL, "data", "validate", str(rows)],
        "build": lambda: [*TAL, "data", "build", *read, f"out={folder}/built-{count}.jsonl"],
        "start of a training, one step": lambda: train,
        "evaluation with a constant model": lambda: measure,
    }
    if count <= MAX_JUDGEMENTS:
        found |= {f"leaderboard of {MODELS} models": leaderboard, "report": report}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="+", type=int, default=[1000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--only", nargs="+", default=[""], help="measure what begins with one of these")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/scale.json"))
    arguments = parser.parse_args()
    found: dict[str, dict[int, tuple[float, float, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        for count in arguments.rows:
            rows = Path(name) / f"rows-{count}.jsonl"
            make_items(rows, count)
            for what, prepare in commands(Path(name), rows, count).items():
                if what.startswith(tuple(arguments.only)):
                    found.setdefault(what, {})[count] = cost(prepare())
                    print(json.dumps({what: {count: found[what][count]}}), file=sys.stderr, flush=True)
            rows.unlink()
    table = Table("", "rows", "seconds", "CPU s", "MB", "CPU ms a row", "kB a row", title="Costs of whole commands")
    slopes = {}
    for what, by_size in found.items():
        (first, (_, *least)), (last, (_, *most)) = min(by_size.items()), max(by_size.items())
        slope = [(m - n) / (last - first) * 1000 if last > first else 0.0 for m, n in zip(most, least, strict=True)]
        slopes[what] = dict(zip(("ms", "kB"), slope, strict=True))
        for count, (seconds, cpu, megabytes) in by_size.items():
            ends = [f"{slope[0]:.3f}", f"{slope[1]:.2f}"] if count == last else ["", ""]
            costs = f"{seconds:.1f}", f"{cpu:.1f}", f"{megabytes:,.0f}"
            table.add_row(what if count == first else "", f"{count:,}", *costs, *ends)
    Console().print(table)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(arguments.out, {"costs": found, "slopes": slopes, "cores": len(os.sched_getaffinity(0))})


if __name__ == "__main__":
    main()
