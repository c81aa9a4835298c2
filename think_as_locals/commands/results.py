"""`tal compare`, `tal leaderboard`, `tal validity`: what the results of runs say together."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from think_as_locals.types import ConfigError

if TYPE_CHECKING:
    from think_as_locals.commands import Commands


def add(commands: Commands) -> None:
    """How they are called."""
    compare = commands.add_parser("compare", help="which of two runs judges better on the same items, and where")
    compare.add_argument(
        "a", metavar="RUN_A", help="a training run's folder (its last measurement) or a carb/NAME.parquet"
    )
    compare.add_argument("b", metavar="RUN_B", help="the other one")
    compare.add_argument("--by", default="cell", help="cell (culture and domain), culture, language, script ...")
    compare.set_defaults(command=_compare)
    board = commands.add_parser("leaderboard", help="a table and a page of the reward models of several runs")
    board.add_argument("runs", metavar="RUN", nargs="+", help="folder of an evaluation or of a training run")
    board.add_argument("--out", default=".", help="folder for leaderboard.json, .md and .html")
    board.set_defaults(command=_leaderboard)
    validity = commands.add_parser("validity", help="how well accuracy on CARB foretells what reward models select")
    validity.add_argument("results", help="an evaluation with eval.candidates, or rows of name, accuracy, downstream")
    validity.add_argument("--out", default=".", help="folder for validity.json and validity.svg")
    validity.set_defaults(command=_validity)


def _compare(arguments: Namespace) -> None:
    """Show which of two runs judges better on the same items, and where."""
    from rich.console import Console

    from think_as_locals.evaluation.compare import compare, read, table

    comparisons = compare(read(Path(arguments.a)), read(Path(arguments.b)), arguments.by)
    Console(markup=False, highlight=False).print(table(comparisons, arguments.a, arguments.b))


def _leaderboard(arguments: Namespace) -> None:
    """Write a table, and a page, of the reward models of several runs."""
    from think_as_locals.evaluation.leaderboard import write_leaderboard

    print(write_leaderboard([Path(run) for run in arguments.runs], _folder(arguments.out)))


def _validity(arguments: Namespace) -> None:
    """Show how well accuracy on CARB foretells what reward models select."""
    from think_as_locals.evaluation.validity import read_results, write_validity

    print(write_validity(read_results(Path(arguments.results)), _folder(arguments.out)))


def _folder(out: str) -> Path:
    """Where results go: made, and known to take them, before anything is computed."""
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        raise ConfigError(f"--out {out}: no folder that can be written to")
    return folder
