"""`tal demonstrate`: what a teacher writes about items, where it is right, to be trained on."""

from __future__ import annotations

import io
import sys
from argparse import Namespace
from contextlib import redirect_stdout
from typing import Any


def add(commands: Any) -> None:
    """Add the parser of this command."""
    demonstrate = commands.add_parser(
        "demonstrate",
        help="have a judge or a server write demonstrations for a cold start (sft.data)",
        epilog="A run that was killed continues with run.name=NAME run.resume=auto.",
    )
    example = "key=value of conf/demonstrate.yaml, e.g. teacher.path=MODEL data=jsonl data.path=FILE tries=8"
    demonstrate.add_argument("overrides", nargs="*", default=[], help=example)
    hint = "show the best response of items that no try got right, and try these again (the same as hint=true)"
    demonstrate.add_argument("--hint", action="store_true", help=hint)
    demonstrate.add_argument("--json", action="store_true", help="print the yield as one JSON document alone")
    demonstrate.set_defaults(command=_demonstrate)


def _demonstrate(arguments: Namespace) -> None:
    from think_as_locals.config.compose import ASSETS
    from think_as_locals.run import start

    recipe = str(ASSETS / "conf" / "demonstrate.yaml")
    overrides = [*arguments.overrides, *(["hint=true"] if arguments.hint else [])]
    if not arguments.json:
        start(recipe, overrides)
        return
    with redirect_stdout(io.StringIO()):
        run = start(recipe, overrides)
    sys.stdout.write(run.demonstrations_yield.read_text(encoding="utf-8"))
