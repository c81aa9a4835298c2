"""Output to the user: results on stdout, progress and logs on stderr, and how much of each (`tal -q`, `tal -v`).

Imports nothing at module level, so that libraries can be configured before they are imported.
"""

from __future__ import annotations

import logging
import os
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

_LEVEL = "TAL_OUTPUT"  # in the environment: ranks and jobs are as quiet as what started them

_QUIETER = {"TRANSFORMERS_VERBOSITY": "error", "VLLM_LOGGING_LEVEL": "ERROR", "TORCH_CPP_LOG_LEVEL": "ERROR"}
"""Set without `-v`, where the environment does not set them already."""

_NOISE = [
    # Names that torch 2.13 deprecates: DeepSpeed 0.19 calls them, vLLM 0.31 looks at every attribute of the module. No
    # issue is known in either.
    ("`torch.distributed", FutureWarning),
    # Names that transformers 5.23 deprecates and TRL 1.16 and PEFT 0.21 use, whatever is configured. No issue is known.
    ("`(is_)?gradient_checkpointing", FutureWarning),
]
"""Warnings of libraries about their own code, which no user can change: shown with `-v` alone."""


def set_output(level: str | None) -> None:
    """Show less (`quiet`) or more (`verbose`); call it before libraries are imported. `None` keeps what is set."""
    if level is not None:
        os.environ[_LEVEL] = level
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    logging.getLogger("DeepSpeed").addFilter(_to_stderr)  # its own handler writes to stdout
    if is_verbose():
        return
    logging.getLogger("vllm").setLevel("ERROR")  # until it sets its own level: what it logs as it is imported
    for name, value in _QUIETER.items():
        os.environ.setdefault(name, value)
    for message, category in _NOISE:
        warnings.filterwarnings("ignore", message, category)


def is_verbose() -> bool:
    """Return whether to show the logs of libraries."""
    return os.environ.get(_LEVEL) == "verbose"


def progress_console(*, is_main: bool = True) -> Console:
    """Return the console for progress and logs of a run: stderr, on the main process."""
    from rich.console import Console

    return Console(stderr=True, quiet=not is_main or os.environ.get(_LEVEL) == "quiet")


def progress_bar(console: Console) -> Progress:
    """Return a progress bar for a known amount of work, with the remaining time."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console)


def quiet_transformers() -> None:
    """Hide what transformers prints about each file of weights; downloads keep their progress bars."""
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
