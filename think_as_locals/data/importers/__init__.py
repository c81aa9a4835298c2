"""Foreign rows -> items: a module for every family of data sets, and the names they are chosen by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from think_as_locals.data import jsonl, prism
from think_as_locals.data.flips import richest
from think_as_locals.data.importers import (
    blend,
    carb,
    carb_open,
    care,
    globalopinionqa,
    helpsteer3,
    pairs,
    rewardbench2,
)
from think_as_locals.data.outcomes import Outcome
from think_as_locals.data.places import read_once
from think_as_locals.data.rows import Row, read_rows
from think_as_locals.data.spec import DataSpec, path_of
from think_as_locals.types import DataError, DataSource

_FIELDS: Mapping[DataSource, tuple[str, ...]] = {
    "jsonl": jsonl.REQUIRED,
    "carb": carb.FIELDS,
    "rewardbench2": rewardbench2.FIELDS,
    "helpsteer3": helpsteer3.FIELDS,
    "carb_open": carb_open.FIELDS,
    "care": care.FIELDS,
    "globalopinionqa": globalopinionqa.FIELDS,
    "pairs": pairs.FIELDS,
}
"""What tells the rows of one source from those of another."""

_ROW_BY_ROW: Mapping[DataSource, Callable[[Row], Outcome]] = {
    "jsonl": jsonl.outcome,
    "carb": carb.outcome,
    "rewardbench2": rewardbench2.outcome,
    "helpsteer3": helpsteer3.outcome,
    "carb_open": carb_open.outcome,
    "pairs": pairs.outcome,
}

_SAMPLE = 100  # rows by which a source is recognised


def row_outcomes(data: DataSpec, seed: int = 0) -> Iterator[Outcome]:
    """What becomes of every row of a source that is read from `data.path`.

    Raises:
        DataError: nothing is there, or a file as a whole cannot be read.
    """
    path = path_of(data)
    if data.source == "blend":
        outcomes = blend.outcomes(
            Path(path).expanduser(),
            languages=data.languages,
            num_responses=data.num_responses,
            sets_per_group=data.sets_per_group,
            seed=seed,
        )
    elif data.source == "care":
        outcomes = care.outcomes(read_rows(path), data.sets_per_group)
    elif data.source == "prism":
        outcomes = prism.outcomes(path)
    elif data.source == "globalopinionqa":
        outcomes = globalopinionqa.outcomes(read_rows(path), data.min_share_gap or 0.0)
    else:
        outcomes = map(_ROW_BY_ROW[data.source], read_rows(path))
    if data.groups is not None:
        outcomes = _of_groups(outcomes, data.groups)
    if data.source == "blend" and data.max_groups is not None:
        every = tuple(outcomes)
        outcomes = _of_groups(every, richest([item for outcome in every for item in outcome.items], data.max_groups))
    return outcomes


def _of_groups(outcomes: Iterable[Outcome], groups: Container[str]) -> Iterator[Outcome]:
    return (outcome.of_groups(groups) for outcome in outcomes)


def recognise(path: str) -> DataSource:
    """The source that rows are of, by the names of their fields; where several fit, the one with the most.

    Raises:
        DataError: they are of none, can be read only once, or as for `row_outcomes`.
    """
    if read_once(path):
        raise DataError(f"{path}: a pipe is read only once: say --source")
    folder = Path(path).expanduser()
    if (folder / "annotations").is_dir():
        return "blend"
    if all(prism.tables(folder).values()):
        return "prism"
    names = [set(row.value) for row in islice(read_rows(path), _SAMPLE) if isinstance(row.value, Mapping)]
    fitting = Counter(
        {source: len(fields) * sum(set(fields) <= row for row in names) for source, fields in _FIELDS.items()}
    )
    ((source, score),) = fitting.most_common(1)
    if not score:
        known = "; ".join(f"{source} ({', '.join(fields)})" for source, fields in _FIELDS.items())
        got = ", ".join(sorted(names[0])) if names else "none"
        raise DataError(f"{path}: rows with the fields {got} are of no known source: say --source; known: {known}")
    return source
