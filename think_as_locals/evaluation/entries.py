"""Runs -> what a leaderboard lists: reward models, each with its CARB file and its judgements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from think_as_locals.evaluation import carb
from think_as_locals.evaluation.compare import judged_rows
from think_as_locals.evaluation.judged import JudgedItem, read_json, read_rows
from think_as_locals.evaluation.probes import DIRECTIONS
from think_as_locals.types import DataError, Item


@dataclass(frozen=True, slots=True)
class Entry:
    """A reward model and what it made of its items.

    Args:
        name: What it is listed as.
        path: Its CARB file.
        summary: What that file holds.
        rows: Its judgements, `Prediction.row()` each.
        judged: The items of these, each once, by id.
        probes: What `probes.probe` found, by name of the probe; empty where it was not probed.
    """

    name: str
    path: Path
    summary: dict[str, Any]
    rows: list[dict[str, Any]]
    judged: tuple[JudgedItem, ...]
    probes: dict[str, Any]

    @property
    def run(self) -> Path:
        """Folder of the run it was measured in."""
        return self.path.parents[1]

    @property
    def items(self) -> tuple[Item, ...]:
        """What it was measured on."""
        return tuple(j.item for j in self.judged)


def read_entries(runs: Sequence[Path]) -> list[Entry]:
    """The reward models of runs, under distinct names.

    An evaluation has a `carb/NAME.json` for each; of a training run, which has `carb/step-N.json`, the last step
    counts, and it is called as the run is. Models of one name are told apart by their runs.

    Raises:
        DataError: a run is given twice, has no CARB file, or one of its files cannot be read; the message names it.
    """
    folders = [run.resolve() for run in runs]
    if twice := [str(run) for run, count in Counter(folders).items() if count > 1]:
        raise DataError(f"{twice[0]}: given {folders.count(Path(twice[0]))} times; each run once")
    entries = [entry for folder in folders for entry in _entries(folder)]
    entries = _told_apart(entries, lambda e: f"{e.name} ({e.run.name}/{e.path.stem})")
    return _told_apart(entries, lambda e: f"{e.name} ({e.path})")


def _told_apart(entries: Sequence[Entry], longer: Callable[[Entry], str]) -> list[Entry]:
    """Entries, those that share a name under a longer one."""
    named = Counter(entry.name for entry in entries)
    return [replace(entry, name=longer(entry)) if named[entry.name] > 1 else entry for entry in entries]


def _entries(run: Path) -> Iterator[Entry]:
    paths = sorted((run / "carb").glob("*.json"))
    if not paths:
        raise DataError(f"{run}: no carb/NAME.json and no carb/step-N.json; expected the folder of a run that measured")
    steps = carb.steps(run / "carb")
    for path in paths:
        if path not in steps.values():
            yield _entry(path)
    if steps:
        yield replace(_entry(steps[max(steps)]), name=run.name)


def _entry(path: Path) -> Entry:
    summary, table = carb.read(path), path.with_suffix(".parquet")
    rows = read_rows(table)
    judged = judged_rows(rows, table)
    if len(judged) != summary["n"]:
        raise DataError(f"{table}: {len(judged)} items, but {path.name} is over {summary['n']}; measure again")
    probes = path.parents[1] / "probes" / path.name
    found = read_json(probes) if probes.is_file() else {}
    return Entry(
        name=str(summary["model"]),
        path=path,
        summary=summary,
        rows=rows,
        judged=tuple(sorted(judged, key=lambda j: j.item.id)),
        probes={name: found[name] for name in DIRECTIONS if name in found},
    )
