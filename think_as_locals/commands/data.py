"""`tal data`: rows of any source as our own JSONL, and what is wrong with them."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from think_as_locals.config import load_recipe
from think_as_locals.types import DataSource, ThinkAsLocalsError

if TYPE_CHECKING:
    from think_as_locals.commands import Commands


def add(commands: Commands) -> None:
    """How they are called."""
    data = commands.add_parser("data", help="work with data").add_subparsers(required=True, metavar="COMMAND")
    build = data.add_parser("build", help="write a source's items as JSONL: data=blend data.path=DIR out=FILE")
    build.add_argument("overrides", nargs="+", help="data=..., data.*=..., out=FILE")
    build.add_argument("--strict", action="store_true", help="write nothing where a row has a fault")
    build.set_defaults(command=_build)
    validate = data.add_parser("validate", help="name every fault of a file's rows; status 1 where there are any")
    validate.add_argument("path", help="file, folder, or owner/name[@revision][:config[:split]] on the Hub")
    of_rows = [source for source in get_args(DataSource) if not source.endswith("_cards")]
    validate.add_argument("--source", choices=of_rows, help="whose rows they are; else recognised by their fields")
    validate.add_argument("--strict", action="store_true", help="stop at the first row with a fault")
    validate.add_argument("--quarantine", help="a new file for the rows that cannot be imported, with the reasons")
    validate.set_defaults(command=_validate)


def _build(arguments: Namespace) -> None:
    """Write a source's items as our own JSONL."""
    from think_as_locals.data import jsonl, read
    from think_as_locals.data.validate import build, show

    out = [text for text in arguments.overrides if text.startswith("out=")]
    if len(out) != 1:
        raise ThinkAsLocalsError("say where to: out=FILE.jsonl")
    config = load_recipe("recipes/tal_grpo.yaml", [text for text in arguments.overrides if text not in out])
    path = Path(out[0].removeprefix("out="))
    if config.data.source in ("culture_cards", "opinion_cards"):  # of no rows
        print(f"{path}: {jsonl.write(read(config.data, config.seed), path):,} items")
    else:
        show(build(config.data, path, strict=arguments.strict, seed=config.seed))


def _validate(arguments: Namespace) -> None:
    """Name every fault of a source's rows; end with status 1 where there are any."""
    from think_as_locals.data.importers import recognise
    from think_as_locals.data.validate import show, validate

    source = arguments.source or recognise(arguments.path)
    config = load_recipe("recipes/tal_grpo.yaml", [f"data={source}", "data.path=."])
    data = config.data.model_copy(update={"path": arguments.path})
    quarantine = Path(arguments.quarantine) if arguments.quarantine else None
    tally = validate(data, strict=arguments.strict, quarantine=quarantine, seed=config.seed)
    show(tally)
    raise SystemExit(0 if tally.clean else 1)
