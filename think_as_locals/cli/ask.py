"""`tal demonstrate` and `tal sample`: what a teacher or a policy writes, in a file, with where it comes from."""

from __future__ import annotations

import io
import sys
from argparse import Namespace
from contextlib import redirect_stdout
from functools import partial
from typing import Any


def add(commands: Any) -> None:
    """Add the parsers of these commands."""
    again = "A run that was killed continues with run.name=NAME run.resume=auto."
    demonstrate = commands.add_parser(
        "demonstrate", help="have a judge or a server write demonstrations for a cold start (sft.data)", epilog=again
    )
    example = "key=value of conf/demonstrate.yaml, e.g. teacher.path=MODEL data=jsonl data.path=FILE tries=8"
    demonstrate.add_argument("overrides", nargs="*", default=[], help=example)
    hint = "show the best response of items that no try got right, and try these again (the same as hint=true)"
    demonstrate.add_argument("--hint", action="store_true", help=hint)
    demonstrate.set_defaults(command=partial(_run, "demonstrate"))

    sample = commands.add_parser(
        "sample", help="have a policy draw candidates for each prompt, and score them (eval.candidates)", epilog=again
    )
    example = "key=value of conf/sample.yaml, e.g. sample=short_answers sample.data.path=DIR sample.policy.path=MODEL"
    sample.add_argument("overrides", nargs="*", default=[], help=example)
    sample.set_defaults(command=partial(_run, "sample"), hint=False)
    for parser in (demonstrate, sample):
        parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")


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
