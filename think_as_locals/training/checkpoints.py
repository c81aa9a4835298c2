"""Checkpoints that are complete or absent: a checkpoint has its name only when every file is, and is verified on load.

    checkpoints/checkpoint-6/             being written; never loaded
    checkpoints/step-6/manifest.json      every file's size and SHA-256; written last, before the folder gets its name
    checkpoints/LATEST                    the name of the one to continue from

All ranks write into one folder (a shared file system, where there are several nodes) and share the hashing; decisions
are taken by all of them together, so that none waits for one that has failed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import gather_object

from think_as_locals.runtime.files import flush, write_json, write_text
from think_as_locals.types import ConfigError, TrainingError

MANIFEST = "manifest.json"
LATEST = "LATEST"
_UNFINISHED = "checkpoint-"  # transformers' name
_NAME = "step-"
_REPLACED = ".step-"

_logger = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one stage: the `keep` newest are kept, and the one of `best_step`."""

    def __init__(self, folder: Path, keep: int, best_step: Callable[[], int | None] = lambda: None) -> None:
        self.folder = folder
        self._keep = keep
        self._best_step = best_step

    def commit(self, step: int, write: Callable[[], None]) -> None:
        """Make a checkpoint of what `write` puts into `checkpoint-N`; where a rank fails, all raise TrainingError."""
        state = PartialState()
        unfinished, named = self.folder / f"{_UNFINISHED}{step}", self.folder / f"{_NAME}{step}"
        last = max(self._committed(), key=step_of, default=None)
        remedy = f"run.resume=auto continues from {last}" if last else "there is none before it"
        together = partial(write_together, f"the checkpoint of step {step}", remedy)
        if state.is_main_process:
            self._clear()
        state.wait_for_everyone()
        try:
            together(write)
            names, *_ = together(lambda: _files(unfinished))  # the main process's list
            parts = together(lambda: _hash_share(unfinished, names))
            files = dict(sorted(entry for part in parts for entry in part))
            manifest = {"step": step, "launch": _launch(), "files": files}
            together(lambda: self._name(unfinished, named, manifest) if state.is_main_process else None)
            together(lambda: _check(named))
        except TrainingError:
            if state.is_main_process:
                self._clear()
            raise
        if state.is_main_process:
            self._rotate(step)

    def latest(self) -> Path | None:
        """Return the newest intact checkpoint, LATEST's first; ConfigError where there are some and none is."""
        candidates = sorted(self._committed(), key=step_of, reverse=True)
        try:
            named = self.folder / (self.folder / LATEST).read_text(encoding="utf-8").strip()
            candidates.sort(key=lambda path: path != named)
        except (OSError, UnicodeDecodeError):
            pass
        for path in candidates:
            faults = gather_object([fault for fault in [_fault_of(path)] if fault])
            if not faults:
                if (launch := _read(path)["launch"]) != _launch():
                    raise ConfigError(f"{path} is from a launch of {launch}, this one is {_launch()}: launch as then")
                return path
            if PartialState().is_main_process:
                _logger.warning("%s is damaged and is passed over: %s", path, "; ".join(faults))
        if candidates:
            raise ConfigError(f"no checkpoint in {self.folder} is intact: repair one, or remove all to start over")
        return None

    def _committed(self) -> list[Path]:
        return [path for path in self.folder.glob(f"{_NAME}*") if path.name.removeprefix(_NAME).isdecimal()]

    def _name(self, unfinished: Path, named: Path, manifest: dict[str, Any]) -> None:
        write_json(unfinished / MANIFEST, manifest)
        for folder in (unfinished, *(path for path in unfinished.rglob("*") if path.is_dir())):
            flush(folder)
        if named.exists():  # from before this run continued from an earlier one
            named.rename(named.with_name(f"{_REPLACED}{step_of(named)}"))
        unfinished.rename(named)
        flush(self.folder)
        write_text(self.folder / LATEST, f"{named.name}\n")
        flush(self.folder)

    def _rotate(self, step: int) -> None:
        """Keep this one, which has been verified, the newest before it and the best."""
        best = self._best_step()
        newest = [step, *sorted((step_of(path) for path in self._committed() if step_of(path) < step), reverse=True)]
        for path in self._committed():
            # Those of later steps are from before the run went back to an earlier one.
            if step_of(path) not in newest[: self._keep] and (step_of(path) != best or step_of(path) > step):
                path.rename(path.with_name(f"{_REPLACED}{step_of(path)}"))
        self._clear()

    def _clear(self) -> None:
        """Remove unfinished and replaced checkpoints."""
        for path in [*self.folder.glob(f"{_UNFINISHED}*"), *self.folder.glob(f"{_REPLACED}*")]:
            shutil.rmtree(path, ignore_errors=True)


def write_together(target: str, remedy: str, work: Callable[[], Any]) -> list[Any]:
    """Return every rank's result of `work`; where one fails, all raise TrainingError."""
    result, fault = None, None
    try:
        result = work()
    except Exception as error:  # torch, safetensors and DeepSpeed each have errors of their own for a full disk
        fault = f"{type(error).__name__}: {error}"
    ranks = gather_object([(result, fault)])
    if bad := [f"rank {rank}: {fault}" for rank, (_, fault) in enumerate(ranks) if fault]:
        raise TrainingError(f"{target} could not be written ({'; '.join(bad)}): {remedy}")
    return [result for result, _ in ranks]


def step_of(checkpoint: Path) -> int:
    """Return the optimizer step that a checkpoint was taken after."""
    return int(checkpoint.name.rpartition("-")[2])


def _launch() -> str:
    """Return the kind of launch, which must be the same to continue a checkpoint."""
    state = PartialState()
    return f"{state.num_processes} x {state.distributed_type.value}"


def _files(folder: Path) -> list[str]:
    files = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in files if name != MANIFEST)


def _rank_share(names: list[str]) -> list[str]:
    state = PartialState()
    return names[state.process_index :: state.num_processes]


def _hash_share(folder: Path, names: list[str], *, to_disk: bool = True) -> list[tuple[str, dict[str, Any]]]:
    """Return size and hash of this rank's share of the files, flushed to the disk first."""

    def entry(name: str) -> tuple[str, dict[str, Any]]:
        path = folder / name
        if to_disk:
            flush(path)
        with path.open("rb") as file:
            return name, {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}

    with ThreadPoolExecutor() as pool:
        return list(pool.map(entry, _rank_share(names)))


def _fault_of(checkpoint: Path) -> str | None:
    """Return what is wrong with this rank's share of a checkpoint."""
    try:
        expected = _read(checkpoint)["files"]
        bad = sorted(set(_files(checkpoint)) - set(expected))
        bad += [
            name for name, found in _hash_share(checkpoint, sorted(expected), to_disk=False) if found != expected[name]
        ]
    except (OSError, ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return f"{', '.join(bad)}: not what was written" if bad else None


def _check(checkpoint: Path) -> None:
    if fault := _fault_of(checkpoint):
        raise OSError(fault)


def _read(checkpoint: Path) -> dict[str, Any]:
    """Return its manifest; raise OSError, ValueError or TypeError where it cannot be read or is incomplete."""
    manifest: dict[str, Any] = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))
    if missing := {"step", "launch", "files"}.difference(manifest):
        raise ValueError(f"{MANIFEST} lacks {', '.join(sorted(missing))}")
    return manifest
