"""`tal serve`: a judge behind HTTP."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from think_as_locals.commands import Commands


def add(commands: Commands) -> None:
    """How it is called."""
    serve = commands.add_parser(
        "serve",
        help="a judge behind HTTP: /judge, /score (OpenRLHF's remote reward model)",
        epilog="A key in TAL_API_KEY is asked of every request; beyond loopback there has to be one.",
    )
    serve.add_argument("model", help="directory or Hub id of a judge")
    example = "key=value of conf/serve.yaml, e.g. port=9000 judge.backend=vllm"
    serve.add_argument("overrides", nargs="*", default=[], help=example)
    serve.set_defaults(command=_serve)


def _serve(arguments: Namespace) -> None:
    """Answer requests until SIGTERM."""
    from think_as_locals.preflight import preflight
    from think_as_locals.serving.config import load_server

    config = load_server(arguments.model, arguments.overrides)
    preflight(config)

    from think_as_locals.serving.server import serve

    serve(config)
