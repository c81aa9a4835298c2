"""`tal data`: convert rows to items, list their faults, and edit items for the probes."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

from think_as_locals.cli.run import add_asking
from think_as_locals.types import ConfigError

_EDITS = "edits"  # the `--source` of rows written by `tal data edit`


def add(commands: Any) -> None:
    """Add the parsers of these commands."""
    data = commands.add_parser("data", help="validate, convert and edit data").add_subparsers(
        required=True, metavar="COMMAND"
    )
    build = data.add_parser("build", help="write a source's items as JSONL: data=blend data.path=DIR out=FILE")
    build.add_argument("overrides", nargs="+", help="data=..., data.*=..., out=FILE")
    build.add_argument("--strict", action="store_true", help="write nothing if any row has a fault")
    build.set_defaults(command=_build)
    validate = data.add_parser("validate", help="list every fault in the rows of a file; status 1 if there are any")
    validate.add_argument("path", help="file, folder, or owner/name[@revision][:config[:split]] on the Hub")
    validate.add_argument("--source", help="format of the rows; default: detected from their fields")
    validate.add_argument("--strict", action="store_true", help="stop at the first row with a fault")
    validate.add_argument("--quarantine", help="new file for rows that cannot be imported, with the reasons")
    validate.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    validate.set_defaults(command=_validate)
    add_asking(data, "edit", "have a model edit items for the probes (eval.probes); keep edits that follow the rules")


def _build(arguments: Namespace) -> None:
    from think_as_locals.config.checks import load_items
    from think_as_locals.data import read
    from think_as_locals.data.sources import SOURCES, jsonl
    from think_as_locals.data.validate import build, show

    out = [text for text in arguments.overrides if text.startswith("out=")]
    if len(out) != 1:
        raise ConfigError("give one out=FILE.jsonl, the file to write the items to")
    config = load_items([text for text in arguments.overrides if text not in out])
    path = Path(out[0].removeprefix("out="))
    if SOURCES[config.data.source].outcomes is None:  # generated, not read from rows
        print(f"{path}: {jsonl.write(read(config.data, config.seed), path):,} items")
    else:
        show(build(config.data, path, strict=arguments.strict, seed=config.seed))


def _validate(arguments: Namespace) -> None:
    from think_as_locals.config.checks import load_items
    from think_as_locals.config.compose import quoted
    from think_as_locals.data.edits import are_edits
    from think_as_locals.data.sources import SOURCES, recognise
    from think_as_locals.data.validate import show, validate, validate_edits

    aside = {"strict": arguments.strict, "quarantine": Path(arguments.quarantine) if arguments.quarantine else None}
    if arguments.source == _EDITS or (arguments.source is None and are_edits(arguments.path)):
        tally = validate_edits(arguments.path, **aside)
    else:
        source = arguments.source or recognise(arguments.path)
        if source not in (known := [name for name in SOURCES if SOURCES[name].outcomes]):
            raise ConfigError(f"--source {source}: no such format of rows; known: {', '.join([*known, _EDITS])}")
        config = load_items([f"data={source}", f"data.path={quoted(arguments.path)}"])
        tally = validate(config.data, seed=config.seed, **aside)
    if arguments.json:
        print(json.dumps(tally.as_dict()))
    else:
        show(tally)
    raise SystemExit(0 if tally.clean else 1)
