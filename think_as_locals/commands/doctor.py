"""`tal doctor`: what this machine has, and what a recipe needs."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from think_as_locals.commands import Commands


def add(commands: Commands) -> None:
    """How it is called."""
    doctor = commands.add_parser(
        "doctor", help="what this machine has, and what a recipe needs; status 1 where it lacks"
    )
    doctor.add_argument("recipe", nargs="?", help="a recipe file; without one, the machine alone")
    doctor.add_argument("overrides", nargs="*", default=[], help="key=value, as for tal run")
    doctor.add_argument("--launch", default="single", help="accelerate configuration: a name in launch/, or a file")
    doctor.set_defaults(command=_doctor)


def _doctor(arguments: Namespace) -> None:
    """Show all findings; end with status 1 where something is missing."""
    from rich.console import Console
    from rich.table import Table

    from think_as_locals.composition import find_launch
    from think_as_locals.config import load_config
    from think_as_locals.doctor import examine
    from think_as_locals.memory import read_launch

    launch = read_launch(find_launch(arguments.launch))
    config = load_config(arguments.recipe, arguments.overrides) if arguments.recipe else None
    findings = examine(config, launch)
    shown = Table.grid(padding=(0, 2))
    for finding in findings:
        shown.add_row("MISSING" if finding.fault else "", finding.what, finding.found)
    Console(markup=False, highlight=False).print(shown)
    raise SystemExit(any(finding.fault for finding in findings))
