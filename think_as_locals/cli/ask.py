"""`tal demonstrate`, `tal sample`, `tal data edit`: commands that write a model's texts to a file, with provenance."""

from __future__ import annotations

import io
import sys
from argparse import ArgumentParser, Namespace
from contextlib import redirect_stdout
from functools import partial
from typing import Any

_EXAMPLES = {
    "demonstrate": "teacher.path=MODEL data=jsonl data.path=FILE tries=8",
    "sample": "sample=short_answers sample.data.path=DIR sample.policy.path=MODEL",
    "edit": "data=carb data.path=FILE editor.url=URL editor.model=MODEL",
}


def add(commands: Any) -> None:
    """Add the parsers of these commands."""
    demonstrate = add_asking(commands, "demonstrate", "have a model write demonstrations for a cold start (sft.data)")
    hint = "retry items that no try got right, with the best response in the prompt (hint=true)"
    demonstrate.add_argument("--hint", action="store_true", help=hint)
    add_asking(commands, "sample", "sample candidates from a policy for each prompt, and score them (eval.candidates)")


def add_asking(commands: Any, name: str, does: str) -> ArgumentParser:
    """Add the parser of a command that is configured by conf/NAME.yaml, and return it."""
    again = "To continue a killed run, add run.name=NAME run.resume=auto."
    parser: ArgumentParser = commands.add_parser(name, help=does, epilog=again)
    example = f"key=value of conf/{name}.yaml, e.g. {_EXAMPLES[name]}"
    parser.add_argument("overrides", nargs="*", default=[], help=example)
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    parser.set_defaults(command=partial(_run, name), hint=False)
    return parser


def _run(name: str, arguments: Namespace) -> None:
    from think_as_locals.config.compose import ASSETS
    from think_as_locals.run import start

    recipe = str(ASSETS / "conf" / f"{name}.yaml")
    overrides = [*arguments.overrides, *(["hint=true"] if arguments.hint else [])]
    if not arguments.json:
        start(recipe, overrides)
        return
    with redirect_stdout(io.StringIO()):
        run = start(recipe, overrides)
    sys.stdout.write(run.findings.read_text(encoding="utf-8"))
