"""Sources of items: one module for each kind of row, and `SOURCES`, the table of all of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from think_as_locals.config.schema import DataSection
from think_as_locals.data.cards import read_culture_cards, read_opinion_cards
from think_as_locals.data.languages import culture_fault, language_tag
from think_as_locals.data.rows import Fault, Outcome, Row, name_unread_columns, path_of, read_rows
from think_as_locals.data.sources import blend, carb, care, globalopinionqa, jsonl, prism, rewardbench2
from think_as_locals.data.sources.columns import Columns, guess_columns
from think_as_locals.types import DataError, DataWarning, Item, cut

_SAMPLE = 100  # rows read to recognise a source


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """How to read a data set, given its `data` section and a seed, and how to recognise its rows."""

    about: str  # for the model card
    outcomes: Callable[[DataSection, int], Iterator[Outcome]] | None = None  # of its rows; `None` if it is generated
    # If they are not simply those of the rows; errors of rows go into the list, and without one are raised.
    items: Callable[[DataSection, int, list[str] | None], Iterator[Item]] | None = None
    fields: tuple[str, ...] = ()  # by which its rows are recognised
    files: tuple[str, ...] = ()  # by which a folder of it is recognised, if it has a layout of its own
    applies: frozenset[str] = frozenset()  # selection keys that it applies itself
    # If its rows are recognised by the columns in `conf/data`: what changes in them before they are read.
    in_columns: Callable[[Row], Row] | None = None
    defaults: tuple[str, ...] = ()  # keys of the `data` section that fill in missing fields of its rows
    response_language: str | None = None  # of all responses, if that is not the one of the prompt
    axes: tuple[tuple[str, ...], tuple[str, ...]] | None = None  # its cultures (by language) and domains, if declared
    stands_in: bool = False  # for CARB, so that pages say so


def row_by_row(
    items: Callable[[Row], Iterable[Item | Fault]], about: str, fields: tuple[str, ...], **facts: Any
) -> Source:
    """Return the source of a data set whose rows are independent of one another."""

    def outcomes(data: DataSection, seed: int) -> Iterator[Outcome]:
        return (Outcome.of(row, items) for row in read_rows(path_of(data)))

    return Source(about=about, outcomes=outcomes, fields=fields, **facts)


def by_columns(about: str, prepare: Callable[[Row], Row] = lambda row: row) -> Source:
    """Return a source whose file in `conf/data` names its columns; `prepare` changes what they cannot say."""

    def outcomes(data: DataSection, seed: int) -> Iterator[Outcome]:
        columns = Columns.of(data)
        found = (Outcome.of(prepare(row), columns.items) for row in read_rows(path_of(data)))
        if data.source != "rows":  # of which others name the columns
            return found
        return name_unread_columns(columns.present(found, data.columns or ()), columns.all)

    return Source(about=about, outcomes=outcomes, defaults=("culture", "language", "domain"), in_columns=prepare)


def _in_english(row: Row) -> Row:
    """Read HelpSteer3's code as English: the language of its rows is a programming language."""
    is_code = isinstance(row.value, Mapping) and row.value.get("domain") == "code"
    return row._replace(value={**row.value, "language": "en"}) if is_code else row


SOURCES: dict[str, Source] = {
    "culture_cards": Source(
        about="the culture cards of Think-as-Locals, written for that project (licence: Apache-2.0)",
        items=lambda data, seed, _: read_culture_cards(data, seed),
        applies=frozenset({"languages"}),
        stands_in=True,
    ),
    "opinion_cards": Source(
        about="preferences of simulated people, generated from the culture cards of Think-as-Locals; nobody was asked "
        "(licence: Apache-2.0)",
        items=lambda data, seed, _: read_opinion_cards(data, seed),
        applies=frozenset({"groups"}),
    ),
    "blend": Source(
        about="BLEnD, arXiv 2406.09948 (licence: CC-BY-SA-4.0)",
        outcomes=blend.outcomes,
        items=blend.read,
        files=("annotations/",),
        applies=frozenset({"languages"}),
        response_language="en",
        stands_in=True,
    ),
    "jsonl": row_by_row(jsonl.items, "the authors' own items", jsonl.FIELDS),
    "rows": by_columns("pairs of chosen and rejected responses"),
    "carb": row_by_row(carb.items, "rows in the schema of CARB, arXiv 2509.21798", carb.FIELDS, axes=carb.AXES),
    "rewardbench2": Source(
        about="RewardBench 2, arXiv 2506.01937",
        outcomes=lambda data, seed: (
            Outcome.of(row, partial(rewardbench2.items, culture=data.culture)) for row in read_rows(path_of(data))
        ),
        fields=rewardbench2.FIELDS,
        defaults=("culture",),
    ),
    "helpsteer3": by_columns("HelpSteer3-Preference (licence: CC-BY-4.0)", _in_english),
    "carb_open": row_by_row(carb.open_items, "open rows for CARB's domains", carb.OPEN_FIELDS, stands_in=True),
    "care": Source(
        about="CARE",
        outcomes=lambda data, seed: care.outcomes(read_rows(path_of(data)), data.sets_per_group),
        fields=care.FIELDS,
    ),
    "prism": Source(
        about="PRISM, arXiv 2404.16019 (licence: prompts CC-BY-4.0, responses CC-BY-NC-4.0)",
        outcomes=lambda data, seed: prism.outcomes(path_of(data)),
        files=("survey.*", "utterances.*"),
    ),
    "globalopinionqa": Source(
        about="GlobalOpinionQA, arXiv 2306.16388 (licence: CC-BY-NC-SA-4.0)",
        outcomes=lambda data, seed: globalopinionqa.outcomes(read_rows(path_of(data)), data.min_share_gap),
        fields=globalopinionqa.FIELDS,
    ),
    "m_rewardbench": by_columns("M-RewardBench, arXiv 2410.15522"),
    "crisp_rm": by_columns("CRISP-RM, arXiv 2609.34345"),
    "include": by_columns("INCLUDE, arXiv 2411.19799 (licence: Apache-2.0)"),
}


def response_language(item: Item) -> str:
    """Return the language of an item's responses."""
    source = SOURCES.get(item.source)
    return (source and source.response_language) or item.language


def check_settings(data: DataSection) -> None:
    """Raise a `DataError` if a culture or language is unknown, or if the source does not use such a key."""
    for name in ("culture", "language", "domain"):
        if getattr(data, name) is not None and name not in SOURCES[data.source].defaults:
            users = ", ".join(other for other, source in SOURCES.items() if name in source.defaults)
            raise DataError(
                f"data.{name}: not used by data={data.source}; it is what rows are given that lack it: {users}"
            )
    if data.language is not None and language_tag(data.language) is None:
        raise DataError(f"data.language: got {data.language!r}, expected an English name or a BCP-47 tag")
    for name, cultures in (("culture", [data.culture]), ("countries", data.countries or [])):
        for culture in filter(None, cultures):
            if fault := culture_fault(culture):
                raise DataError(f"data.{name}: got {culture!r}, {fault}")


def row_outcomes(data: DataSection, seed: int = 0) -> Iterator[Outcome]:
    """Return the outcomes of all rows at `data.path`."""
    outcomes = SOURCES[data.source].outcomes
    if outcomes is None:
        raise DataError(f"data={data.source} has no rows: it is generated")
    return outcomes(data, seed)


def recognise(path: str, known: Mapping[str, str | list[str]] | None = None) -> list[str]:
    """Return the overrides that read rows, recognised by their columns: `data=` the source that reads the most of them.

    Where no source knows the columns, or some are `known`, they are those of `data=rows` if their names look like it,
    and `data.columns` says which are what.
    """
    folder = Path(path).expanduser()
    if folder.is_fifo():
        raise DataError(f"{path}: a pipe is read only once: say data=SOURCE")
    for name, source in SOURCES.items():
        if source.files and all(any(folder.glob(pattern)) for pattern in source.files):
            return [f"data={name}"]
    with warnings.catch_warnings(action="ignore", category=DataWarning):  # given again when the rows are loaded
        rows = list(islice(read_rows(path), _SAMPLE))
    given = [set(row.value) for row in rows if isinstance(row.value, Mapping)]
    columns = next((list(row.value) for row in rows if isinstance(row.value, Mapping)), None)
    if known:
        return ["data=rows", *filter(None, [guess_columns(columns or (), known)])]
    if columns is None:
        got = rows[0].fault.detail if rows[0].fault else f"got {type(rows[0].value).__name__}"
        unnamed = "" if folder.suffix else "; a file named without .csv or the like is read as lines of JSON"
        raise DataError(f"{rows[0].place}: expected rows with named columns: {got}{unnamed}")
    scores = {
        name: len(source.fields) * sum(row.issuperset(source.fields) for row in given)
        for name, source in SOURCES.items()
    }
    if not any(scores.values()):  # data sets of a schema of their own come first
        in_columns = [name for name, source in SOURCES.items() if source.in_columns]
        scores = {name: sum(map(Columns.of_conf(name).match, given)) for name in in_columns}
    best = max(scores, key=lambda name: scores[name])
    guessed = guess_columns(columns)
    if scores[best] and not (best == "rows" and guessed and "prompt" not in columns):
        return [f"data={best}"]
    if guessed:
        return ["data=rows", guessed]
    raise DataError(
        f"{path}: no known data set has the columns {cut(', '.join(columns))}.\n"
        "Say which are what: 'data.columns={prompt: NAME, chosen: NAME, rejected: NAME}', or "
        "'data.columns={prompt: NAME, responses: [NAME, NAME], best: NAME}' and what the labels in `best` mean: "
        "'data.labels={1: a, 2: b, 0: tie}'; also `culture: NAME`, and `group: NAME` of the question's own column. "
        "Of ranks or scores write pairs: `chosen`, and `rejected`, a list of the others"
    )
