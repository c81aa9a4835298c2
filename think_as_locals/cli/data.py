"""`tal init`: a folder with a recipe for the user's data; `tal data`: convert, check and edit rows."""

from __future__ import annotations

import csv
import json
import shlex
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from think_as_locals.cli.run import add_command
from think_as_locals.runtime.files import naming, write_text
from think_as_locals.runtime.output import print_result
from think_as_locals.types import ConfigError, DataError, first_of

if TYPE_CHECKING:
    from think_as_locals.config.schema import DataSection, ItemsConfig

_SAMPLE = "pairs.csv"
_SAMPLE_OVERRIDES = ["data=quickstart_cards", "data.languages=[own]", "data.num_responses=2", "data.max_items=300"]
_MAX_NAMES = 6  # cultures and languages that are named


def add(commands: Any) -> None:
    """Add the parsers of these commands."""
    init = commands.add_parser("init", help="create a folder with a recipe for your data, a reward and its test")
    init.add_argument("name", type=Path, help="the folder to create")
    rows = "your rows (.csv, .jsonl, .json, .parquet), whose columns the recipe matches; default: 300 sample pairs"
    init.add_argument("--from", dest="rows", metavar="FILE", type=Path, help=rows)
    init.add_argument("overrides", nargs="*", help="data.columns=..., data.labels=..., where columns have other names")
    init.set_defaults(command=_init)
    data = commands.add_parser("data", help="validate, convert and edit data").add_subparsers(
        required=True, metavar="COMMAND"
    )
    build = data.add_parser("build", help="write a source's items as JSONL: data=blend data.path=DIR out=FILE")
    build.add_argument("overrides", nargs="+", help="data=..., data.*=..., out=FILE")
    build.add_argument("--strict", action="store_true", help="write nothing if any row has a fault")
    build.set_defaults(command=_build)
    validate = data.add_parser("validate", help="list every fault in the rows of a file; status 1 if there are any")
    validate.add_argument("path", help="file, folder, or owner/name[@revision][:config[:split]] on the Hub")
    validate.add_argument("overrides", nargs="*", help="data=SOURCE, data.*=...; default: detected from the columns")
    validate.add_argument("--strict", action="store_true", help="stop at the first row with a fault")
    validate.add_argument("--quarantine", help="new file for rows that cannot be imported, with the reasons")
    validate.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    validate.set_defaults(command=_validate)
    add_command(data, "edit", "have a model edit items for the probes (eval.probes); keep edits that follow the rules")


def _build(arguments: Namespace) -> None:
    from think_as_locals.config.checks import load_data_config
    from think_as_locals.data import read
    from think_as_locals.data.sources import SOURCES, jsonl
    from think_as_locals.data.validate import build, show

    out = [text for text in arguments.overrides if text.startswith("out=")]
    if len(out) != 1 or not (path := Path(out[0].removeprefix("out="))).name:
        raise ConfigError("give one out=FILE.jsonl, the file to write the items to")
    config = load_data_config([text for text in arguments.overrides if text not in out])
    if SOURCES[config.data.source].outcomes is None:  # generated, not read from rows
        print_result(f"{path}: {jsonl.write(read(config.data, config.seed), path):,} items")
    else:
        show(build(config.data, path, strict=arguments.strict, seed=config.seed))


def _validate(arguments: Namespace) -> None:
    from think_as_locals.data.edits import are_edits, edit_outcomes
    from think_as_locals.data.validate import item_outcomes, show, validate

    if not arguments.overrides and are_edits(arguments.path):  # whether their items exist is checked when they are used
        outcomes, read_as = edit_outcomes(arguments.path, None), "edits"
    else:
        overrides = recognised(arguments.path, arguments.overrides)
        config = rows_config(arguments.path, overrides)
        outcomes, read_as = item_outcomes(config.data, config.seed), shlex.join(overrides)
    quarantine = Path(arguments.quarantine) if arguments.quarantine else None
    tally = validate(outcomes, strict=arguments.strict, quarantine=quarantine)
    if arguments.json:
        print_result(json.dumps(tally.as_dict()))
    else:
        print_result(f"read as {read_as}")
        show(tally)
    raise SystemExit(0 if tally.clean else 1)


def recognised(path: str, overrides: Sequence[str]) -> list[str]:
    """Return how to read rows: as overrides say, or as their columns look, of which some may be given."""
    from think_as_locals.config.compose import read_override
    from think_as_locals.data.sources import recognise

    if any(each.startswith("data=") for each in overrides):
        return [*overrides]
    given = [each for each in overrides if each.startswith("data.columns=")]
    known: Any = read_override(given[-1]).value() if given else None
    found = recognise(path, known if isinstance(known, dict) else None)
    replaced = given if found[1:] else []  # by a guess that holds what is given
    return [*found, *(each for each in overrides if each not in replaced)]


def rows_config(path: str, overrides: Sequence[str]) -> ItemsConfig:
    """Return the configuration of rows."""
    from think_as_locals.config.checks import load_data_config
    from think_as_locals.config.compose import quoted

    return load_data_config([*overrides, f"data.path={quoted(path)}"])


def _init(arguments: Namespace) -> None:
    from think_as_locals.config.compose import literal

    folder: Path = arguments.name
    rows: Path | None = arguments.rows
    if others := [each for each in arguments.overrides if not each.startswith(("data.columns=", "data.labels="))]:
        raise ConfigError(f"{others[0]}: expected data.columns or data.labels; other keys are for the recipe")
    if folder.exists():
        raise ConfigError(f"{folder} already exists: choose another name")
    if rows and not str(rows.resolve()).isprintable():
        raise DataError(f"{rows}: its name has unprintable characters, which a recipe cannot hold: rename it")
    if rows is None:
        folder.mkdir(parents=True)
        _write_sample(folder / _SAMPLE)
    file = str(folder / _SAMPLE if rows is None else rows.resolve())
    path = _SAMPLE if rows is None else file  # in the recipe
    read_as = recognised(file, arguments.overrides)
    data, overrides = rows_config(file, read_as).data, read_as[1:]
    summary = _summarise(data, overrides)
    given = [each.partition("=")[0].removeprefix("data.") for each in overrides]
    values = {"path": path, "quoted": json.dumps(literal(path), ensure_ascii=False), "source": data.source}
    for name, indent in (("columns", 2), ("columns_of_set", 8)):
        lines = (f"{key}: {json.dumps(getattr(data, key), ensure_ascii=False)}" for key in given)
        values[name] = "".join(f"\n{' ' * indent}{line}" for line in lines)
    values["in_shell"] = shlex.join([path, *overrides])
    folder.mkdir(parents=True, exist_ok=True)
    for template in files(__package__).joinpath("starter").iterdir():
        text = Template(template.read_text(encoding="utf-8")).substitute(values)
        write_text(folder / template.name.removesuffix(".template"), text)
    written = ", ".join(sorted(each.name for each in folder.iterdir()))
    print_result(f"{path}: read as {shlex.join(read_as)}\n{summary}\n{folder} has {written}\n")
    print_result(f"Next:\n  cd {shlex.quote(str(folder))}")
    print_result("  tal run judge.yaml run.name=first  # README.md has the commands in order")


def _write_sample(path: Path) -> None:
    """Write pairs about ten countries, each in its own language."""
    from think_as_locals.config.checks import load_data_config
    from think_as_locals.data import read

    config = load_data_config(_SAMPLE_OVERRIDES)
    with naming(path), path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["prompt", "chosen", "rejected", "culture", "language"])
        for item in read(config.data, config.seed):
            best, other = item.responses[item.best], item.responses[1 - item.best]
            rows.writerow([item.prompt, best, other, item.culture, item.language])


def _summarise(data: DataSection, overrides: Sequence[str]) -> str:
    """Return a summary of a file: rows and faults, cultures and languages."""
    from think_as_locals.data.load import has_own_group, join_groups
    from think_as_locals.data.validate import item_outcomes, validate

    path, outcomes = str(data.path), list(item_outcomes(data))
    tally = validate(outcomes)
    tally.require_items(path)
    given = [item for outcome in outcomes for item in outcome.items]
    items = join_groups(given)
    command = f"tal data validate {shlex.join([path, *overrides])}"
    faults = "" if tally.clean else f"\nfaults: {len(tally.faults):,}; {command} lists them"
    for (severity, name), places in tally.places.items():
        if severity != "warning":
            first = next(line for line in tally.faults if f": {severity}: {name}: " in line)
            faults += f"\n  {len(places):,} rows are not imported, such as {first}"
    cultures = _format_counts(Counter(item.culture or "none given" for item in items))
    if any(name == "wrong_language" for _, name in tally.places):
        faults += "\nsome texts are not in the language of their row (English if it names none): add a column "
        faults += "`language`, or set data.language in the recipe"
    languages = _format_counts(Counter(item.language for item in items))
    groups = f"{len({item.group for item in items}):,}"
    if len({item.culture for item in items}) > 1 and not any(map(has_own_group, given)):
        groups += " (rows that ask the same about several cultures need a column `group` with the question)"
    return f"{tally}{faults}\ncultures: {cultures}\nlanguages: {languages}\nquestion groups: {groups}"


def _format_counts(counts: Counter[str]) -> str:
    return first_of((f"{name} {count:,}" for name, count in counts.most_common()), _MAX_NAMES)
