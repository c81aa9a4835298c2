"""`tal run`: what a recipe says, trained or measured."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from think_as_locals.composition import recipes
from think_as_locals.start import start
from think_as_locals.types import ConfigError

if TYPE_CHECKING:
    from think_as_locals.commands import Commands


def add(commands: Commands) -> None:
    """How it is called."""
    known = ", ".join(f"recipes/{path.name}" for path in recipes())
    command = commands.add_parser("run", help="train or measure as a recipe says", epilog=f"Recipes here: {known}")
    command.add_argument(
        "-m", "--multirun", action="store_true", help="a sweep: a run for every combination, e.g. seed=1,2 sweep=joblib"
    )
    command.add_argument("recipe", help="a recipe file")
    example = "key=value, e.g. model=qwen3_8b grpo.beta=0.001 seed=3"
    command.add_argument("overrides", nargs="*", default=[], help=example)
    command.set_defaults(command=_run)


def _run(arguments: Namespace) -> None:
    if arguments.multirun:
        from think_as_locals.sweeps.sweep import sweep

        raise SystemExit(0 if sweep(arguments.recipe, arguments.overrides) else 1)
    if chosen := [text for text in arguments.overrides if text.startswith("sweep=")]:
        raise ConfigError(f"{chosen[0]}: for a sweep only: tal run -m {arguments.recipe} ...")
    start(arguments.recipe, arguments.overrides)
