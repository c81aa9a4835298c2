"""Sources of items: one module per data set, and the table by which all of them are found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from think_as_locals.data.cards import read_culture_cards, read_opinion_cards
from think_as_locals.data.rows import Outcome, Row, is_stream, path_of, read_rows
from think_as_locals.data.sources import (
    blend,
    carb,
    carb_open,
    care,
    globalopinionqa,
    helpsteer3,
    jsonl,
    pairs,
    prism,
    rewardbench2,
)
from think_as_locals.types import DataError, Item

if TYPE_CHECKING:
    from think_as_locals.config.schema import DataSection

_SAMPLE = 100  # rows by which a source is recognised


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """How the items of one data set are read, and its rows recognised.

    Args:
        outcomes: (`data` section, seed) -> what becomes of every row; `None` if the source has no rows.
        items: (`data` section, seed) -> the items to train on, if they are not simply those of the rows.
        fields: Fields that tell its rows from those of other sources.
        is_folder: Whether a folder holds this data set, if it is more than rows in files.
    """

    outcomes: Callable[[DataSection, int], Iterator[Outcome]] | None = None
    items: Callable[[DataSection, int], Iterator[Item]] | None = None
    fields: tuple[str, ...] = ()
    is_folder: Callable[[Path], bool] | None = None


def row_by_row(outcome: Callable[[Row], Outcome], fields: tuple[str, ...]) -> Source:
    """Return the source of a data set whose rows are independent of one another."""
    return Source(outcomes=lambda data, seed: map(outcome, read_rows(path_of(data))), fields=fields)


SOURCES: dict[str, Source] = {
    "culture_cards": Source(items=read_culture_cards),
    "opinion_cards": Source(items=read_opinion_cards),
    "blend": Source(outcomes=blend.outcomes, items=blend.read, is_folder=blend.is_folder),
    "jsonl": row_by_row(jsonl.outcome, jsonl.REQUIRED),
    "carb": row_by_row(carb.outcome, carb.CarbRow.FIELDS),
    "rewardbench2": row_by_row(rewardbench2.outcome, rewardbench2.RewardBench2Row.FIELDS),
    "helpsteer3": row_by_row(helpsteer3.outcome, helpsteer3.HelpSteerRow.FIELDS),
    "carb_open": row_by_row(carb_open.outcome, carb_open.OpenRow.FIELDS),
    "care": Source(
        outcomes=lambda data, seed: care.outcomes(read_rows(path_of(data)), data.sets_per_group),
        fields=care.CareRow.FIELDS,
    ),
    "prism": Source(outcomes=lambda data, seed: prism.outcomes(path_of(data)), is_folder=prism.has_tables),
    "globalopinionqa": Source(
        outcomes=lambda data, seed: globalopinionqa.outcomes(read_rows(path_of(data)), data.min_share_gap or 0.0),
        fields=globalopinionqa.OpinionRow.FIELDS,
    ),
    "pairs": row_by_row(pairs.outcome, pairs.PairRow.FIELDS),
}


def row_outcomes(data: DataSection, seed: int = 0) -> Iterator[Outcome]:
    """Return what becomes of every row of a source that is read from `data.path`.

    Raises:
        DataError: nothing is there, or a file as a whole cannot be read.
    """
    outcomes = SOURCES[data.source].outcomes
    if outcomes is None:
        raise DataError(f"data={data.source} has no rows: it is generated")
    found, groups = outcomes(data, seed), data.groups
    if groups is None:
        return found
    return (replace(outcome, items=tuple(i for i in outcome.items if i.group in groups)) for outcome in found)


def recognise(path: str) -> str:
    """Return the source that rows are of, by the names of their fields; where several fit, the one with the most.

    Raises:
        DataError: the rows fit none, can be read only once, or as for `row_outcomes`.
    """
    if is_stream(path):
        raise DataError(f"{path}: a pipe is read only once: say --source")
    folder = Path(path).expanduser()
    for name, source in SOURCES.items():
        if source.is_folder and source.is_folder(folder):
            return name
    given = [set(row.value) for row in islice(read_rows(path), _SAMPLE) if isinstance(row.value, Mapping)]
    known = {name: source.fields for name, source in SOURCES.items() if source.fields}
    scores = Counter({name: len(fields) * sum(set(fields) <= row for row in given) for name, fields in known.items()})
    ((best, score),) = scores.most_common(1)
    if not score:
        listed = "; ".join(f"{name} ({', '.join(fields)})" for name, fields in known.items())
        got = ", ".join(sorted(given[0])) if given else "none"
        raise DataError(f"{path}: rows with the fields {got} are of no known source: say --source; known: {listed}")
    return best
