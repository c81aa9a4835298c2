"""`tal init`: a folder with a recipe for one's own data, a reward with its test, and the commands in order."""

from __future__ import annotations

import csv
import json
import os
import shutil
from argparse import Namespace
from collections import Counter
from importlib.resources import files
from pathlib import Path
from string import Template
from tempfile import mkdtemp
from typing import Any

from think_as_locals.types import ConfigError, DataError

_SAMPLE = "pairs.csv"
_SAMPLED = ["data=quickstart_cards", "data.languages=[own]", "data.num_responses=2", "data.max_items=300"]
_PROMPT = ("question", "instruction", "query", "input")
_OTHER_NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "pairs": {
        "prompt": _PROMPT,
        "chosen": ("preferred", "better", "winner", "response_chosen", "chosen_response", "preferred_answer"),
        "rejected": ("dispreferred", "worse", "loser", "response_rejected", "rejected_response", "other_answer"),
    },
    "preferences": {
        "prompt": _PROMPT,
        "response_a": ("answer_a", "completion_a", "output_a", "response_1", "response1", "answer_1", "answer1"),
        "response_b": ("answer_b", "completion_b", "output_b", "response_2", "response2", "answer_2", "answer2"),
        "preference": ("winner", "preferred", "label", "choice", "better"),
    },
}
"""What other data sets call the columns of two responses."""
_SHOWN = 6  # cultures and languages that are named


def add(commands: Any) -> None:
    """Add the parser of this command."""
    init = commands.add_parser("init", help="make a folder: a recipe for your data, a reward with its test, a README")
    init.add_argument("name", type=Path, help="the folder to make")
    rows = "your rows (.csv, .jsonl, .json, .parquet): the recipe fits their columns; without it, 300 pairs as a sample"
    init.add_argument("--from", dest="rows", metavar="FILE", type=Path, help=rows)
    init.set_defaults(command=_init)


def _init(arguments: Namespace) -> None:
    folder: Path = arguments.name
    if folder.exists() or folder.is_symlink():
        raise ConfigError(f"{folder} is there already; give another name or move it away")
    if not folder.parent.is_dir():
        raise ConfigError(f"{folder}: there is no folder {folder.parent}")
    rows: Path | None = arguments.rows
    if rows is not None and not rows.is_file():
        raise DataError(f"{rows}: no such file")
    made = Path(mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))  # the folder appears as a whole, or not at all
    try:
        path = _SAMPLE if rows is None else str(rows.resolve())
        if rows is None:
            _write_sample(made / _SAMPLE)
        source = _source_of(rows or made / _SAMPLE)
        found = _found(source, rows or made / _SAMPLE)
        values = {"path": path, "quoted": json.dumps(path, ensure_ascii=False), "source": source}
        for template in files(__package__).joinpath("starter").iterdir():
            text = Template(template.read_text(encoding="utf-8")).substitute(values)
            (made / template.name.removesuffix(".template")).write_text(text, encoding="utf-8")
        made.chmod(0o777 & ~_umask())
        made.rename(folder)
    except BaseException:
        shutil.rmtree(made)
        raise
    print(f"{path}: {source}\n{found}\n{folder}: {', '.join(sorted(file.name for file in folder.iterdir()))}")
    print(f"\nNext:\n  cd {folder}\n  tal run judge.yaml run.name=first  # README.md has the commands in order")


def _umask() -> int:
    os.umask(mask := os.umask(0))
    return mask


def _write_sample(path: Path) -> None:
    """Write pairs about ten countries, each in its language, as somebody who collects them would."""
    from think_as_locals.config.checks import load_items
    from think_as_locals.data import read

    config = load_items(_SAMPLED)
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["prompt", "chosen", "rejected", "culture", "language"])
        for item in read(config.data, config.seed):
            best, other = item.responses[item.best], item.responses[1 - item.best]
            rows.writerow([item.prompt, best, other, item.culture, item.language])


def _source_of(path: Path) -> str:
    """Return the source that rows are of; a `DataError` says what to rename."""
    from think_as_locals.data.rows import read_rows
    from think_as_locals.data.sources import recognise

    try:
        return recognise(str(path))
    except DataError as error:
        row = next(iter(read_rows(str(path))), None)
        names = [str(name) for name in row.value] if row and isinstance(row.value, dict) else []
        given = {"_".join(name.lower().replace("-", " ").split()): name for name in names}
        advice = {name: _renamed(given, columns) for name, columns in _OTHER_NAMES.items()}
        source = min(advice, key=lambda name: len(advice[name][1]))
        renamed, lacking = advice[source]
        changes = [f"rename {got!r} to {wanted!r}" for wanted, got in renamed.items()]
        changes += [f"add {', '.join(map(repr, lacking))}"] if lacking else []
        other = "tal data validate FILE --source NAME names what another format lacks"
        raise DataError(
            f"{path}: no known data set has the columns {', '.join(names) or 'that it has'}.\n"
            f"For {source} ({', '.join(_OTHER_NAMES[source])}): {'; '.join(changes)}; {other}"
        ) from error


def _renamed(given: dict[str, str], columns: dict[str, tuple[str, ...]]) -> tuple[dict[str, str], list[str]]:
    """Return which given columns to rename for which, and those that are lacking."""
    found = {
        wanted: given[name] for wanted, others in columns.items() for name in (*others[::-1], wanted) if name in given
    }
    return {wanted: got for wanted, got in found.items() if got != wanted}, [n for n in columns if n not in found]


def _found(source: str, path: Path) -> str:
    """Return what a file of rows holds: rows and faults, cultures and languages."""
    from think_as_locals.config.checks import load_items
    from think_as_locals.config.compose import quoted
    from think_as_locals.data.rows import Defect
    from think_as_locals.data.sources import row_outcomes
    from think_as_locals.data.validate import validate

    data = load_items([f"data={source}", f"data.path={quoted(str(path))}"]).data
    tally = validate(data, strict=False, quarantine=None)
    if not tally.items:
        raise DataError(f"{path}: no row can be imported:\n" + "\n".join(tally.faults[:3]))
    items = [item for outcome in row_outcomes(data) for item in outcome.items]
    faults = "" if tally.clean else f"\nfaults: {len(tally.faults):,}; tal data validate {path} lists them"
    cultures = _counted(Counter(item.culture or "none given" for item in items))
    if Defect.WRONG_LANGUAGE in tally.places:
        faults += "\nsome texts are in another language than their row says (where it says none: English): a column "
        faults += "`language`, or data.language in the recipe, says which"
    languages = _counted(Counter(item.language for item in items))
    return f"{tally}{faults}\ncultures: {cultures}\nlanguages: {languages}"


def _counted(counts: Counter[str]) -> str:
    more = f" and {len(counts) - _SHOWN:,} more" if len(counts) > _SHOWN else ""
    return ", ".join(f"{name} {count:,}" for name, count in counts.most_common(_SHOWN)) + more
