"""`tal init`: create a folder with a recipe for the user's data, a reward and its test, and the commands to run."""

from __future__ import annotations

import csv
import json
import os
import shlex
import shutil
from argparse import Namespace
from collections import Counter
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from think_as_locals.runtime.files import naming, write_text
from think_as_locals.types import ConfigError, DataError, first_of

_SAMPLE = "pairs.csv"
_SAMPLED = ["data=quickstart_cards", "data.languages=[own]", "data.num_responses=2", "data.max_items=300"]
_SHOWN = 6  # cultures and languages that are named


def add(commands: Any) -> None:
    """Add the parser of this command."""
    init = commands.add_parser("init", help="create a folder with a recipe for your data, a reward and its test")
    init.add_argument("name", type=Path, help="the folder to create")
    rows = "your rows (.csv, .jsonl, .json, .parquet), whose columns the recipe matches; default: 300 sample pairs"
    init.add_argument("--from", dest="rows", metavar="FILE", type=Path, help=rows)
    init.set_defaults(command=_init)


def _init(arguments: Namespace) -> None:
    from think_as_locals.config.compose import literal

    folder: Path = arguments.name
    if folder.exists() or folder.is_symlink():
        raise ConfigError(f"{folder} already exists; choose another name or move it away")
    if not folder.parent.is_dir():
        raise ConfigError(f"{folder}: the folder {folder.parent} does not exist; create it first")
    from think_as_locals.data.sources import recognise

    rows: Path | None = arguments.rows
    if not (path := _SAMPLE if rows is None else str(rows.resolve())).isprintable():
        raise DataError(f"{path}: its name has unprintable characters, which a recipe cannot hold: rename it")
    if rows is not None and not rows.is_file():
        raise DataError(f"{rows}: no such file")
    made = folder.with_name(f".{folder.name}.{os.getpid()}")  # renamed at the end: it appears as a whole, or not at all
    made.mkdir()
    try:
        if rows is None:
            _write_sample(made / _SAMPLE)
        source = recognise(str(rows or made / _SAMPLE))
        found = _found(source, rows or made / _SAMPLE)
        values = {"path": path, "quoted": json.dumps(literal(path), ensure_ascii=False), "source": source}
        values["in_shell"] = shlex.quote(path)
        for template in files(__package__).joinpath("starter").iterdir():
            text = Template(template.read_text(encoding="utf-8")).substitute(values)
            write_text(made / template.name.removesuffix(".template"), text)
        made.rename(folder)
    except BaseException:
        shutil.rmtree(made)
        raise
    written = ", ".join(sorted(file.name for file in folder.iterdir()))
    print(f"{path}: read as data={source}\n{found}\n{folder} has {written}\n\nNext:\n  cd {shlex.quote(str(folder))}")
    print("  tal run judge.yaml run.name=first  # README.md has the commands in order")


def _write_sample(path: Path) -> None:
    """Write pairs about ten countries, each in its own language."""
    from think_as_locals.config.checks import load_items
    from think_as_locals.data import read

    config = load_items(_SAMPLED)
    with naming(path), path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["prompt", "chosen", "rejected", "culture", "language"])
        for item in read(config.data, config.seed):
            best, other = item.responses[item.best], item.responses[1 - item.best]
            rows.writerow([item.prompt, best, other, item.culture, item.language])


def _found(source: str, path: Path) -> str:
    """Return a summary of a file: rows and faults, cultures and languages."""
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
        faults += "\nsome texts are not in the language of their row (English if it names none): add a column "
        faults += "`language`, or set data.language in the recipe"
    languages = _counted(Counter(item.language for item in items))
    return f"{tally}{faults}\ncultures: {cultures}\nlanguages: {languages}"


def _counted(counts: Counter[str]) -> str:
    return first_of((f"{name} {count:,}" for name, count in counts.most_common()), _SHOWN)
