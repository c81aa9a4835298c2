"""`tal`: one screen per command."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from pathlib import Path

from think_as_locals.commands import data, doctor, judge, push, results, run, serve
from think_as_locals.preflight import missing_module
from think_as_locals.start import start
from think_as_locals.types import RunStoppedError, ThinkAsLocalsError

_ENVIRONMENT = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "WANDB_PROJECT": "think-as-locals",
    # Idle threads sleep instead of spinning: on a machine with few or busy cores that is several times faster.
    "OMP_WAIT_POLICY": "PASSIVE",
}
"""Settings that must stand before torch is imported; what the environment says already is left alone."""


_DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
_STOPPED = 75
"""Exit status of a run that a signal stopped: to be tried again (EX_TEMPFAIL of sysexits.h)."""


def main(recipe: str | None = None) -> None:
    """The command line, or what a launched recipe calls with its own path.

    Ends the process with status 2 and one message where the recipe, the data or the machine is at fault or an extra is
    not installed, with 75 after a signal to stop (saved, to be continued), with 130 after Ctrl-C.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        if recipe is not None:
            start(recipe, sys.argv[1:])
        else:
            arguments = _parser().parse_args(sys.argv[1:] or ["--help"])
            arguments.command(arguments)
    except ThinkAsLocalsError as error:
        print(f"tal: {error}", file=sys.stderr)
        raise SystemExit(_stopped(error) if isinstance(error, RunStoppedError) else 2) from error
    except ModuleNotFoundError as error:
        if not (said := missing_module(error.name or "")):
            raise
        print(f"tal: {said}", file=sys.stderr)
        raise SystemExit(2) from error
    except OSError as error:
        if error.errno not in _DISK_FAULTS:
            raise
        print(f"tal: {error}: free the disk, then go on with run.resume=auto", file=sys.stderr)
        raise SystemExit(2) from error
    except KeyboardInterrupt:
        print("tal: interrupted", file=sys.stderr)
        raise SystemExit(130) from None


def _stopped(error: RunStoppedError) -> int:
    """The status of this end, also said in the file that `launch/node.sh` names: accelerate returns 1 for any."""
    if file := os.environ.get("TAL_STOPPED"):
        Path(file).write_text(f"{error}\n", encoding="utf-8")
    return _STOPPED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tal", description="Train and use generative reward models that think as locals do."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (run, data, judge, serve, push, results, doctor):
        command.add(commands)
    return parser
