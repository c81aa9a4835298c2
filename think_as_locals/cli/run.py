"""`tal run` and `tal doctor`: a recipe, run or checked against this machine."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from think_as_locals.config.compose import recipes
from think_as_locals.types import ConfigError


def add(commands: Any) -> None:
    """Add the parsers of these commands."""
    known = ", ".join(f"recipes/{path.name}" for path in recipes())
    run = commands.add_parser("run", help="train or evaluate as a recipe says", epilog=f"Recipes here: {known}")
    sweep = "a sweep: one run per combination, e.g. seed=1,2 sweep=joblib"
    run.add_argument("-m", "--multirun", action="store_true", help=sweep)
    run.add_argument("recipe", help="a recipe file")
    example = "key=value, e.g. model=qwen3_8b grpo.beta=0.001 seed=3"
    run.add_argument("overrides", nargs="*", default=[], help=example)
    run.set_defaults(command=_run)

    of_machine = "what this machine has, and what a recipe needs; status 1 if something is missing"
    doctor = commands.add_parser("doctor", help=of_machine)
    doctor.add_argument("recipe", nargs="?", help="a recipe file; without one, the machine alone")
    doctor.add_argument("overrides", nargs="*", default=[], help="key=value, as for tal run")
    doctor.add_argument("--launch", default="single", help="accelerate configuration: a name in launch/, or a file")
    doctor.set_defaults(command=_doctor)


def _run(arguments: Namespace) -> None:
    if arguments.multirun:
        from think_as_locals.sweeps.sweep import sweep

        raise SystemExit(0 if sweep(arguments.recipe, arguments.overrides) else 1)
    if chosen := [text for text in arguments.overrides if text.startswith("sweep=")]:
        raise ConfigError(f"{chosen[0]}: for a sweep only: tal run -m {arguments.recipe} ...")
    from think_as_locals.run import start

    start(arguments.recipe, arguments.overrides)


def _doctor(arguments: Namespace) -> None:
    from rich.console import Console
    from rich.table import Table

    from think_as_locals.config.checks import load_config
    from think_as_locals.config.compose import find_launch, read_launch
    from think_as_locals.machine.doctor import examine

    launch = read_launch(find_launch(arguments.launch))
    config = load_config(arguments.recipe, arguments.overrides) if arguments.recipe else None
    findings = examine(config, launch)
    shown = Table.grid(padding=(0, 2))
    for finding in findings:
        shown.add_row("MISSING" if finding.fault else "", finding.what, finding.found)
    Console(markup=False, highlight=False).print(shown)
    raise SystemExit(any(finding.fault for finding in findings))
