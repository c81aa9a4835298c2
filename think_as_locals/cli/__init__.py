"""The command line, `tal`. Commands import their dependencies when they run, so that `tal --help` is fast."""

from __future__ import annotations

import os
import select
import sys
import warnings
from argparse import SUPPRESS, ArgumentParser, Namespace, _SubParsersAction
from importlib.metadata import version
from pathlib import Path
from typing import Any

from think_as_locals.cli import data, judge, results, run
from think_as_locals.runtime.files import explain, file_fault
from think_as_locals.runtime.output import print_error, set_output, visible
from think_as_locals.types import DataWarning, RunStoppedError, ThinkAsLocalsError, TrainingWarning

_ENVIRONMENT = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "WANDB_PROJECT": "think-as-locals",
    # A process that has asked torch for a GPU can still fork vLLM's engine.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    # Idle threads sleep instead of spinning: several times faster on a machine with few or busy cores.
    "OMP_WAIT_POLICY": "PASSIVE",
}
"""Set before torch is imported, unless the environment has them already."""

_DEFAULT_FORMAT_WARNING = warnings.formatwarning
_SIGPIPE_STATUS = 141  # 128 + SIGPIPE
_STOPPED_STATUS = 75
"""Exit status of a run that a signal stopped: try again (EX_TEMPFAIL of sysexits.h)."""


def main(recipe: str | None = None) -> None:
    """Run the command line, or the recipe that was launched as a script.

    Exit status: 2 with a message for a fault of recipe, data, disk or machine, 75 if a signal stopped a run, which can
    be resumed, 130 if Ctrl-C ended anything else or came twice.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    warnings.formatwarning = _format_warning
    try:
        if recipe is not None:
            from think_as_locals.run import start

            set_output(None)
            if start(recipe, sys.argv[1:]).results("failed"):
                raise SystemExit(1)
        else:
            arguments = _parse(sys.argv[1:] or ["--help"])
            set_output(getattr(arguments, "output", None))
            arguments.command(arguments)
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, BrokenPipeError) and _is_pipe_closed():
            raise SystemExit(_SIGPIPE_STATUS) from error
        status, message = _status_and_message(error)
        if not message:
            raise
        print_error(message)
        raise SystemExit(status) from error


def _is_pipe_closed() -> bool:
    """Return whether the reader of the output, such as `head`, has ended; further output is discarded."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Format a warning about data or training as one line, without the code that gave it."""
    if issubclass(category, DataWarning | TrainingWarning):
        return f"tal: warning: {visible(str(message))}\n"
    return visible(_DEFAULT_FORMAT_WARNING(message, category, filename, lineno, line))


def _status_and_message(error: BaseException) -> tuple[int, str | None]:
    """Return the exit status and the message of an error; no message if it is a bug."""
    if isinstance(error, RunStoppedError):
        if file := os.environ.get("TAL_STOPPED"):  # for launch/node.sh: accelerate returns 1 for any status
            # Not emptied first: the launcher ends the other ranks, which are just writing the same.
            with Path(file).open("r+", encoding="utf-8") as stopped:
                stopped.write(f"{error}\n")
        return _STOPPED_STATUS, str(error)
    if isinstance(error, ThinkAsLocalsError):
        return 2, str(error)
    if isinstance(error, ModuleNotFoundError):
        from think_as_locals.machine.doctor import missing_module

        return 2, missing_module(error.name or "")
    if isinstance(error, KeyboardInterrupt):
        return 130, "interrupted"
    fault = file_fault(error)
    return 2, explain(fault) if fault else None


class _Commands(_SubParsersAction):  # type: ignore[type-arg]
    """The commands of a parser, each of which says in its own --help, too, what it does."""

    def add_parser(self, name: str, **options: Any) -> Any:
        return super().add_parser(name, description=options["help"], **options)


class _Parser(ArgumentParser):
    """The parser of `tal`, or of a command: -q and -v may come before or after it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.register("action", "parsers", _Commands)
        both = self.add_mutually_exclusive_group()
        output: dict[str, Any] = {"dest": "output", "action": "store_const", "default": SUPPRESS}
        both.add_argument("-q", "--quiet", const="quiet", help="show only results and errors, no progress", **output)
        both.add_argument("-v", "--verbose", const="verbose", help="also show the logs of libraries", **output)


def _parser() -> ArgumentParser:
    """Return the parser of every command and its arguments."""
    parser = _Parser(
        prog="tal", description="Train and use generative reward models: LLM judges that reason like locals."
    )
    parser.add_argument("--version", action="version", version=f"think-as-locals {version('think-as-locals')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (data, run, judge, results):
        module.add(commands)
    return parser


def _parse(words: list[str]) -> Namespace:
    """Parse a command; key=value may also come after options, where argparse does not accept it."""
    parser = _parser()
    arguments, rest = parser.parse_known_args(words)
    if rest and ("overrides" not in arguments or any(word.startswith("-") for word in rest)):
        settings = "; settings are key=value, without dashes: seed=1" if "overrides" in arguments else ""
        parser.error(f"unrecognized arguments: {' '.join(rest)}{settings}")
    if rest:
        arguments.overrides = [*arguments.overrides, *rest]
    return arguments


if "__mp_main__" in sys.modules:  # in a process that vLLM spawned, multiprocessing names the main module so
    set_output(None)
