"""How costs grow with the number of rows: seconds and memory of whole commands, from 1,000 rows up.

python tests/benchmarks/scale.py [--rows 1000 100000]      or: make bench ARGS=--scale

Each command runs as a user would start it, in a process of its own; what it costs beyond the smallest size, by row, is
the slope. Rows are our own JSONL with 200 words each: a question and four responses. Two cases check what is found:
all faults that were planted in one of twelve rows, and all of 100 copies with a replaced word.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import cycle
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from think_as_locals.data.sources import jsonl
from think_as_locals.runtime.files import json_line, write_json
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
CHECK_LEAKS = """
import sys
from dataclasses import replace
from pathlib import Path
from think_as_locals.data.overlap import find_overlaps
from think_as_locals.data.sources import jsonl
items = list(jsonl.read(Path(sys.argv[1])))
test, train = items[:len(items) // 5], items[len(items) // 5:]
for n in range(100):
    words = train[n].prompt.split()
    words[n % len(words)] = "usually"
    test[n] = replace(train[n], id=f"copy-{n}", group=f"copy-{n}", prompt=" ".join(words))
print(*(overlap.item.id for overlap in find_overlaps(train, {"test": test})))
"""
TAL = [sys.executable, "-c", "from think_as_locals.cli import main; main()"]


Row = dict[str, Any]
GERMAN = (
    "Am Sonntag isst man hier zum Frühstück am liebsten Brötchen mit Butter und Marmelade, wenn man Zeit dafür hat."
)
FAULTS: dict[str, Callable[[Row], Row | str]] = {
    "blank": lambda row: row | {"prompt": "  "},
    "missing": lambda row: {key: value for key, value in row.items() if key != "domain"},
    "list_type": lambda row: row | {"responses": {"A": row["responses"][0]}},
    "invalid_item": lambda row: row | {"responses": row["responses"][:1] * 4},
    "unknown_culture": lambda row: row | {"culture": "Tailand"},
    "int_type": lambda row: row | {"best": "A"},
    "repeated_id": lambda row: row | {"id": "q0"},
    "not_json": lambda row: json.dumps(row)[:-9],
    "run_on_turn": lambda row: row | {"responses": [f"{row['prompt']}assistant\n\nNo.", *row["responses"][1:]]},
    "wrong_language": lambda row: row | {"responses": [GERMAN, *row["responses"][1:]]},
}


class Case(NamedTuple):
    """A command, what prepares it, its exit status, and what checks its output."""

    prepare: Callable[[], list[str]]
    status: int = 0
    check: Callable[[str], None] = lambda output: None


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
            file.write(json_line(jsonl.fields(item)))


def plant_faults(rows: Path, path: Path) -> set[tuple[str, str]]:
    """Write rows, one of twelve with a fault; return the number of each such line and the name of its fault."""
    faults, planted = cycle(FAULTS), set()
    with rows.open(encoding="utf-8") as lines, path.open("w", encoding="utf-8") as file:
        for number, line in enumerate(lines, start=1):
            if number % 12 == 0:
                planted.add((str(number), name := next(faults)))
                row = FAULTS[name](json.loads(line))
                line = row + "\n" if isinstance(row, str) else json.dumps(row) + "\n"
            file.write(line)
    return planted


def expect(what: str, found: set[Any], expected: set[Any]) -> None:
    """Raise an error that names what was not found, or found besides."""
    if found != expected:
        missed, others = (sorted(some)[:5] for some in (expected - found, found - expected))
        raise RuntimeError(f"{what}: {len(expected)} planted, not found {missed}, found besides {others}")


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


def cost(case: Case) -> tuple[float, float, float]:
    """Seconds, CPU seconds and megabytes of a command; an error with what it printed if it ends with another status."""
    command = case.prepare()
    with tempfile.TemporaryFile() as output:
        start = time.monotonic()
        actions = [(os.POSIX_SPAWN_DUP2, output.fileno(), 1), (os.POSIX_SPAWN_DUP2, output.fileno(), 2)]
        process = os.posix_spawn(command[0], command, os.environ, file_actions=actions)
        _, status, used = os.wait4(process, 0)
        seconds = time.monotonic() - start
        output.seek(0)
        printed = output.read().decode()
    if os.waitstatus_to_exitcode(status) != case.status:
        raise RuntimeError(f"{command} ended with {status}:\n{printed[-3000:]}")
    case.check(printed)
    return seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1000


def run_in_subprocess(work: Callable[..., None], *arguments: object) -> None:
    """Do work in another process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        pool.submit(work, *arguments).result()


def cases(folder: Path, rows: Path, count: int) -> dict[str, Case]:
    """What is measured, by name."""
    read = ["data=jsonl", f"data.path={rows}"]
    run = [f"run.dir={folder}/run-{{}}-{count}", "run.name=scale"]

    faulty, planted = folder / f"faulty-{count}.jsonl", set[tuple[str, str]]()

    def validate_faults() -> list[str]:
        planted.update(plant_faults(rows, faulty))
        return [*TAL, "data", "validate", str(faulty)]

    def named(output: str) -> None:
        lines = re.findall(rf"^{re.escape(str(faulty))}:(\d+): \w+: (\w+): ", output, re.MULTILINE)
        expect("faults", set(lines), planted)

    def leaks(output: str) -> None:
        expect("copies", set(output.split()), {f"copy-{number}" for number in range(100)})

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
    found = {
        "validate": Case(lambda: [*TAL, "data", "validate", str(rows)]),
        "validate, faults planted": Case(validate_faults, status=1, check=named),
        "leak check of a fifth against the rest": Case(
            lambda: [sys.executable, "-c", CHECK_LEAKS, str(rows)], check=leaks
        ),
        "build": Case(lambda: [*TAL, "data", "build", *read, f"out={folder}/built-{count}.jsonl"]),
        "start of a training, one step": Case(lambda: train),
        "evaluation with a constant model": Case(lambda: measure),
    }
    if count <= MAX_JUDGEMENTS:
        found |= {f"leaderboard of {MODELS} models": Case(leaderboard), "report": Case(report)}
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
            for what, case in cases(Path(name), rows, count).items():
                if what.startswith(tuple(arguments.only)):
                    found.setdefault(what, {})[count] = cost(case)
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
