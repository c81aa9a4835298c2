"""Output to the user: results on stdout, progress and logs on stderr, and how much of each (`tal -q`, `tal -v`).

Imports only the standard library at module level, so that other libraries can be configured before their import.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import warnings
from contextlib import suppress
from io import TextIOWrapper
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress

_LEVEL = "TAL_OUTPUT"  # in the environment, so that ranks and jobs inherit it

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
        os.environ[_LEVEL] = level
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
    return os.environ.get(_LEVEL) == "verbose"


def progress_console(*, is_main: bool = True) -> Console:
    """Return the console for progress and logs of a run: stderr, of the main process only."""
    from rich.console import Console

    return Console(stderr=True, quiet=not is_main or os.environ.get(_LEVEL) == "quiet")


def print_result(*parts: RenderableType) -> None:
    """Print results on stdout: texts in them are no markup."""
    from rich.console import Console

    Console(markup=False, highlight=False, emoji=False).print(*parts)


def shorten_repeats(text: str) -> str:
    """Return a text in which what is written five times or more in a row stands once, with its number of times."""
    return _REPEATED.sub(lambda found: f"{found[1]}[{len(found[0]) // len(found[1])} times]", text)


def progress_bar(console: Console) -> Progress:
    """Return a progress bar with counts and the remaining time."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console)


def quiet_transformers() -> None:
    """Hide the logs of transformers and its progress bars for loading weights, but not those of downloads."""
    if is_verbose():
        return
    from huggingface_hub.utils.tqdm import enable_progress_bars
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    if os.environ.get(_LEVEL) != "quiet":
        enable_progress_bars()


def _to_stderr(record: logging.LogRecord) -> bool:
    if logging.lastResort and (record.levelno >= logging.ERROR or is_verbose()):
        logging.lastResort.handle(record)
    return False
