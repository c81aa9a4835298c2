"""Checkpoints that cannot be torn: a name is there only when everything below it is, and what is loaded was verified.

    checkpoints/checkpoint-6/             being written; never loaded
    checkpoints/step-6/manifest.json      every file's size and SHA-256; written last, before the folder gets its name
    checkpoints/LATEST                    the name of the one to go on from

All ranks write into one folder (a shared file system, where there are several nodes) and share the hashing; decisions
are taken by all of them together, so that none waits for one that has failed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import gather_object

from think_as_locals.files import flush, write_json, write_text
from think_as_locals.types import ConfigError, TrainingError

MANIFEST = "manifest.json"
LATEST = "LATEST"
_UNFINISHED = "checkpoint-"  # transformers' name
_NAME = "step-"
_REPLACED = ".step-"

_logger = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one stage of a run.

    Args:
        folder: Where they lie; made with the first one.
        keep: How many of the newest to keep, at least 1.

    Attributes:
        best: Tells the step of the best one, which is kept besides.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.best: Callable[[], int | None] = lambda: None
        self._keep = keep

    def seal(self, step: int, write: Callable[[], None]) -> None:
        """Make a checkpoint of what `write` puts into `checkpoint-N`; all ranks call this together.

        Raises:
            TrainingError: on every rank, where one could not write; the checkpoints before it are untouched.
        """
        state = PartialState()
        last = max(self._sealed(), key=step_of, default=None)
        remedy = f"run.resume=auto goes on from {last}" if last else "there is none before it"
        together = partial(write_together, f"the checkpoint of step {step}", remedy)
        if state.is_main_process:
            self._clear()
        state.wait_for_everyone()
        try:
            together(write)
            names, *_ = together(lambda: _files(self.folder / f"{_UNFINISHED}{step}"))  # the main process's list
            parts = together(lambda: _hash_share(self.folder / f"{_UNFINISHED}{step}", names))
            files = dict(sorted(entry for part in parts for entry in part))
            manifest = {"step": step, "launch": _launch(), "files": files}
            together(lambda: self._name(step, manifest) if state.is_main_process else None)
            together(lambda: self._check(self.folder / f"{_NAME}{step}"))
        except TrainingError:
            if state.is_main_process:
                self._clear()
            raise
        if state.is_main_process:
            self._rotate(step)

    def latest(self) -> Path | None:
        """The newest checkpoint that is whole, from LATEST on; all ranks call this together.

        Raises:
            ConfigError: it is from another kind of launch, or there are some and none is whole.
        """
        candidates = self._candidates()
        for path in candidates:
            faults = gather_object([fault for fault in [_fault_of(path)] if fault])
            if not faults:
                if (launch := _read(path)["launch"]) != _launch():
                    raise ConfigError(f"{path} is from a launch of {launch}, this one is {_launch()}: launch as then")
                return path
            if PartialState().is_main_process:
                _logger.warning("%s is not whole and is passed over: %s", path, "; ".join(faults))
        if candidates:
            raise ConfigError(f"no checkpoint in {self.folder} is whole: mend one, or remove all to begin anew")
        return None

    def _candidates(self) -> list[Path]:
        """LATEST's, then the others from the newest on."""
        newest = sorted(self._sealed(), key=step_of, reverse=True)
        try:
            named = self.folder / (self.folder / LATEST).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return newest
        return sorted(newest, key=lambda path: path != named)

    def _sealed(self) -> Iterator[Path]:
        return (path for path in self.folder.glob(f"{_NAME}*") if path.name.removeprefix(_NAME).isdecimal())

    def _name(self, step: int, manifest: dict[str, Any]) -> None:
        unfinished, named = self.folder / f"{_UNFINISHED}{step}", self.folder / f"{_NAME}{step}"
        write_json(unfinished / MANIFEST, manifest)
        for folder in (unfinished, *(path for path in unfinished.rglob("*") if path.is_dir())):
            flush(folder)
        if named.exists():  # from before this run went on from an earlier one
            named.rename(named.with_name(f"{_REPLACED}{step}"))
        unfinished.rename(named)
        flush(self.folder)
        write_text(self.folder / LATEST, f"{named.name}\n")
        flush(self.folder)

    def _check(self, path: Path) -> None:
        if fault := _fault_of(path):
            raise OSError(fault)

    def _rotate(self, step: int) -> None:
        """Keep this one, which has been verified, the newest before it and the best."""
        best = self.best()
        newest = [step, *sorted((step_of(path) for path in self._sealed() if step_of(path) < step), reverse=True)]
        for path in list(self._sealed()):
            # Those of later steps are from before the run went back to an earlier one.
            if step_of(path) not in newest[: self._keep] and (step_of(path) != best or step_of(path) > step):
                path.rename(path.with_name(f"{_REPLACED}{step_of(path)}"))
        self._clear()

    def _clear(self) -> None:
        """Remove what no name is left for."""
        for path in [*self.folder.glob(f"{_UNFINISHED}*"), *self.folder.glob(f"{_REPLACED}*")]:
            shutil.rmtree(path, ignore_errors=True)


def write_together(what: str, remedy: str, work: Callable[[], Any]) -> list[Any]:
    """Every rank's result of what all ranks write together.

    Raises:
        TrainingError: on every rank, where one failed.
    """
    result, fault = None, None
    try:
        result = work()
    except Exception as error:  # torch, safetensors and DeepSpeed each have errors of their own for a full disk
        fault = f"{type(error).__name__}: {error}"
    ranks = gather_object([(result, fault)])
    if bad := [f"rank {rank}: {fault}" for rank, (_, fault) in enumerate(ranks) if fault]:
        raise TrainingError(f"{what} could not be written ({'; '.join(bad)}): {remedy}")
    return [result for result, _ in ranks]


def step_of(checkpoint: Path) -> int:
    """The optimizer step that a checkpoint was taken after."""
    return int(checkpoint.name.rpartition("-")[2])


def _launch() -> str:
    """What a checkpoint can only be continued by."""
    state = PartialState()
    return f"{state.num_processes} x {state.distributed_type.value}"


def _files(folder: Path) -> list[str]:
    files = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in files if name != MANIFEST)


def _hash_share(folder: Path, names: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """Flush this rank's share of the files to the disk, and say what is in them."""
    mine = _share(names)
    with ThreadPoolExecutor() as pool:
        return list(zip(mine, pool.map(lambda name: _flushed_entry(folder / name), mine), strict=True))


def _fault_of(checkpoint: Path) -> str | None:
    """What is wrong with this rank's share of a checkpoint."""
    try:
        expected = _read(checkpoint)["files"]
        bad = sorted(set(_files(checkpoint)) - set(expected))
        mine = _share(sorted(expected))
        with ThreadPoolExecutor() as pool:
            found = pool.map(lambda name: _entry(checkpoint / name), mine)
            bad += [name for name, entry in zip(mine, found, strict=True) if entry != expected[name]]
    except (OSError, ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return f"{', '.join(bad)}: not what was written" if bad else None


def _read(checkpoint: Path) -> dict[str, Any]:
    """Its manifest.

    Raises:
        OSError, ValueError, TypeError: it cannot be read, or is not all there.
    """
    manifest: dict[str, Any] = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))
    if missing := {"step", "launch", "files"}.difference(manifest):
        raise ValueError(f"{MANIFEST} lacks {', '.join(sorted(missing))}")
    return manifest


def _share(values: list[Any]) -> list[Any]:
    state = PartialState()
    return values[state.process_index :: state.num_processes]


def _flushed_entry(path: Path) -> dict[str, Any]:
    flush(path)
    return _entry(path)


def _entry(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
