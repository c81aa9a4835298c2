"""Output to the user: results on stdout, progress and logs on stderr, and how much of each (`tal -q`, `tal -v`).

All that the package prints goes through `print_result`, `print_error` or a `Terminal`, which escape what a terminal
would interpret: names of files, keys and texts may come from strangers.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import unicodedata
import warnings
from contextlib import suppress
from io import TextIOWrapper
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

LEVEL = "TAL_OUTPUT"  # in the environment, so that ranks and jobs inherit it

_OTHERS = re.compile(r"[^ -~\n\t]")  # all but what no terminal interprets
_JOINERS_AND_MARKS = "\u200c\u200d\u200e\u200f\u061c"  # invisible, and needed to write some languages

_REPEATED = re.compile(r"(.{1,80}?)\1{4,}", re.DOTALL)

_QUIETER = {"TRANSFORMERS_VERBOSITY": "error", "VLLM_LOGGING_LEVEL": "ERROR", "TORCH_CPP_LOG_LEVEL": "ERROR"}
"""Environment variables that are set without `-v`, unless they are set already."""

_NOISE = [
    # Names deprecated by torch 2.13: DeepSpeed 0.19 calls them, vLLM 0.31 inspects every attribute of the module. We
    # know of no issue about it in either.
    ("`torch.distributed", FutureWarning),
    # Names deprecated by transformers 5.23: TRL 1.16 and PEFT 0.21 always use them. We know of no issue about it.
    ("`(is_)?gradient_checkpointing", FutureWarning),
]
"""Warnings of libraries about their own code, which users cannot change: shown only with `-v`."""


def set_output(level: str | None) -> None:
    """Set the level, `quiet` or `verbose` (`None`: keep it); call this before libraries are imported."""
    if level is not None:
        os.environ[LEVEL] = level
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            with suppress(OSError):  # which a pipe that is read and written raises
                stream.reconfigure(errors="backslashreplace")  # one in ASCII would end a finished run with a traceback
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    logging.getLogger("DeepSpeed").addFilter(_to_stderr)  # instead of its own handler, which writes to stdout
    if is_verbose():
        return
    logging.getLogger("vllm").setLevel("ERROR")  # for what it logs during its import, before it sets its own level
    for name, value in _QUIETER.items():
        os.environ.setdefault(name, value)
    for message, category in _NOISE:
        warnings.filterwarnings("ignore", message, category)


def is_verbose() -> bool:
    """Return whether to show the logs of libraries."""
    return os.environ.get(LEVEL) == "verbose"


def visible(text: str) -> str:
    """Return a text in which characters that a terminal interprets or hides (control, bidi) are escaped as in JSON."""

    def escape(found: re.Match[str]) -> str:
        hidden = unicodedata.category(found[0]) in ("Cc", "Cf", "Cs", "Zl", "Zp") and found[0] not in _JOINERS_AND_MARKS
        return json.dumps(found[0]).strip('"').replace("\x7f", r"\u007f") if hidden else found[0]

    return _OTHERS.sub(escape, text.replace("\r\n", "\n"))


def print_result(*parts: RenderableType) -> None:
    """Print results on stdout; a text as it is, however narrow the terminal."""
    from think_as_locals.runtime.terminal import Terminal

    for part in parts:
        if isinstance(part, str):
            print(visible(part), flush=True)  # noqa: T201
        else:
            Terminal().print(part)


def print_error(message: str) -> None:
    """Print an error or a warning on stderr."""
    print(f"tal: {visible(message)}", file=sys.stderr, flush=True)  # noqa: T201


def shorten_repeats(text: str) -> str:
    """Return a text in which what is written five times or more in a row stands once, with its number of times."""
    return _REPEATED.sub(lambda found: f"{found[1]}[{len(found[0]) // len(found[1])} times]", text)


def _to_stderr(record: logging.LogRecord) -> bool:
    if logging.lastResort and (record.levelno >= logging.ERROR or is_verbose()):
        logging.lastResort.handle(record)
    return False
