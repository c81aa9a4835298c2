"""Sources of items: one module for each kind of row, and `SOURCES`, the table of all of them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from think_as_locals.config.schema import DataSection
from think_as_locals.data.cards import read_culture_cards, read_opinion_cards
from think_as_locals.data.fields import RowModel
from think_as_locals.data.languages import culture_fault, language_fault
from think_as_locals.data.rows import Defect, Outcome, Row, local_path, name_ignored_columns, path_of, read_rows
from think_as_locals.data.sources import (
    blend,
    carb,
    care,
    crisp_rm,
    globalopinionqa,
    helpsteer3,
    include,
    jsonl,
    pairs,
    prism,
    rewardbench2,
)
from think_as_locals.types import DataError, DataWarning, Item, cut

_SAMPLE = 100  # rows read to recognise a source
_PROMPT = ("question", "instruction", "query", "input")
_OTHER_NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "pairs": {
        "prompt": _PROMPT,
        "chosen": ("preferred", "better", "winner", "response_chosen", "chosen_response", "preferred_answer"),
        "rejected": ("dispreferred", "worse", "loser", "response_rejected", "rejected_response", "other_answer"),
    },
    "preferences": {
        "prompt": _PROMPT,
        "response_a": ("answer_a", "completion_a", "output_a", "response_1", "response1", "answer_1", "answer1"),
        "response_b": ("answer_b", "completion_b", "output_b", "response_2", "response2", "answer_2", "answer2"),
        "preference": ("winner", "preferred", "label", "choice", "better"),
    },
}
"""Other common names of the columns of two responses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """How to read a data set, given its `data` section and a seed, and how to recognise its rows."""

    about: str  # for the model card
    outcomes: Callable[[DataSection, int], Iterator[Outcome]] | None = None  # of its rows; `None` if it is generated
    items: Callable[[DataSection, int], Iterator[Item]] | None = None  # `None` if they are simply those of the rows
    fields: tuple[str, ...] = ()  # by which its rows are recognised
    files: tuple[str, ...] = ()  # by which a folder of it is recognised, if it has a layout of its own
    applies: frozenset[str] = frozenset()  # selection keys that it applies itself
    defaults: tuple[str, ...] = ()  # keys of the `data` section that fill in missing fields of its rows
    response_language: str | None = None  # of all responses, if that is not the one of the prompt
    axes: tuple[tuple[str, ...], tuple[str, ...]] | None = None  # its cultures (by language) and domains, if declared
    stands_in: bool = False  # for CARB, so that pages say so


def row_by_row(outcome: Callable[[Row], Outcome], model: type[RowModel], about: str, **facts: Any) -> Source:
    """Return the source of a data set whose rows are independent of one another."""

    def outcomes(data: DataSection, seed: int) -> Iterator[Outcome]:
        defaults = {name: value for name in model.DEFAULTS if (value := getattr(data, name)) is not None}
        rows = read_rows(path_of(data))
        found = map(outcome, (row._replace(defaults=defaults) for row in rows) if defaults else rows)
        return found if model.IGNORED_COLUMNS is None else name_ignored_columns(found, model.columns())

    return Source(about=about, outcomes=outcomes, fields=model.FIELDS, defaults=model.DEFAULTS, **facts)


SOURCES: dict[str, Source] = {
    "culture_cards": Source(
        about="the culture cards of Think-as-Locals, written for that project (licence: Apache-2.0)",
        items=read_culture_cards,
        applies=frozenset({"languages"}),
        stands_in=True,
    ),
    "opinion_cards": Source(
        about="preferences of simulated people, generated from the culture cards of Think-as-Locals; nobody was asked "
        "(licence: Apache-2.0)",
        items=read_opinion_cards,
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
    "jsonl": Source(
        about="the authors' own items",
        outcomes=lambda data, seed: map(jsonl.outcome, read_rows(path_of(data))),
        fields=jsonl.REQUIRED,
    ),
    "carb": row_by_row(carb.outcome, carb.CarbRow, "rows in the schema of CARB, arXiv 2509.21798", axes=carb.AXES),
    "rewardbench2": row_by_row(rewardbench2.outcome, rewardbench2.RewardBench2Row, "RewardBench 2, arXiv 2506.01937"),
    "helpsteer3": row_by_row(helpsteer3.outcome, helpsteer3.HelpSteerRow, "HelpSteer3-Preference (licence: CC-BY-4.0)"),
    "carb_open": row_by_row(carb.open_outcome, carb.OpenRow, "open rows for CARB's domains", stands_in=True),
    "care": Source(
        about="CARE",
        outcomes=lambda data, seed: care.outcomes(read_rows(path_of(data)), data.sets_per_group),
        fields=care.CareRow.FIELDS,
    ),
    "prism": Source(
        about="PRISM, arXiv 2404.16019 (licence: prompts CC-BY-4.0, responses CC-BY-NC-4.0)",
        outcomes=lambda data, seed: prism.outcomes(path_of(data)),
        files=("survey.*", "utterances.*"),
    ),
    "globalopinionqa": Source(
        about="GlobalOpinionQA, arXiv 2306.16388 (licence: CC-BY-NC-SA-4.0)",
        outcomes=lambda data, seed: globalopinionqa.outcomes(read_rows(path_of(data)), data.min_share_gap),
        fields=globalopinionqa.OpinionRow.FIELDS,
    ),
    "pairs": row_by_row(pairs.outcome, pairs.PairRow, "pairs of chosen and rejected responses"),
    "preferences": row_by_row(
        pairs.preference_outcome, pairs.PreferenceRow, "pairs of responses, one of them preferred"
    ),
    "m_rewardbench": row_by_row(pairs.m_rewardbench_outcome, pairs.MRewardBenchRow, "M-RewardBench, arXiv 2410.15522"),
    "crisp_rm": row_by_row(crisp_rm.outcome, crisp_rm.CrispRow, "CRISP-RM, arXiv 2609.34345"),
    "include": row_by_row(include.outcome, include.IncludeRow, "INCLUDE, arXiv 2411.19799 (licence: Apache-2.0)"),
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
    if data.language is not None and (fault := language_fault(data.language)):
        raise DataError(f"data.language: got {data.language!r}, {fault}")
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


def recognise(path: str) -> str:
    """Return the source of rows, recognised by their fields: the one with the most, then the first of them."""
    folder = local_path(path)
    if folder.exists() and not folder.is_file() and not folder.is_dir():
        raise DataError(f"{path}: a pipe is read only once: say --source")
    for name, source in SOURCES.items():
        if source.files and all(any(folder.glob(pattern)) for pattern in source.files):
            return name
    with warnings.catch_warnings(action="ignore", category=DataWarning):  # given again when the rows are loaded
        rows = list(map(pairs.last_turns, islice(read_rows(path), _SAMPLE)))
    given = [row.value.keys() for row in rows if isinstance(row.value, Mapping)]
    if not given:
        if (fault := rows[0].fault) and fault.defect is Defect.NOT_AN_OBJECT:  # of a CSV, which has named columns
            raise DataError(f"{rows[0].place}: {fault.detail}")
        unnamed = (
            "; a file named without .csv or the like is read as lines of JSON: rename it" if not folder.suffix else ""
        )
        raise DataError(f"{path}: its first rows have no named columns, expected JSON objects{unnamed}")
    known = {name: source.fields for name, source in SOURCES.items() if source.fields}
    scores = Counter({name: len(fields) * sum(set(fields) <= row for row in given) for name, fields in known.items()})
    ((best, score),) = scores.most_common(1)
    if not score:
        raise DataError(f"{path}: {_renaming([*given[0]], known)}")
    return best


def _renaming(names: list[str], known: Mapping[str, tuple[str, ...]]) -> str:
    """Return which columns to rename or add, for the format of two responses that is the closest."""
    given = {"_".join(name.lower().replace("-", " ").split()): name for name in names}
    found = {
        source: {
            wanted: given[name]
            for wanted, others in columns.items()
            for name in (*others[::-1], wanted)
            if name in given
        }
        for source, columns in _OTHER_NAMES.items()
    }
    source = max(found, key=lambda name: len(found[name]))
    changes = [f"rename {got!r} to {wanted!r}" for wanted, got in found[source].items() if wanted != got]
    if lacking := [wanted for wanted in _OTHER_NAMES[source] if wanted not in found[source]]:
        changes.append(f"add {', '.join(map(repr, lacking))}")
    return (
        f"no known data set has the columns {cut(', '.join(names))}.\n"
        f"For {source} ({', '.join(_OTHER_NAMES[source])}): {'; '.join(changes)}.\n"
        f"What another format lacks: tal data validate FILE --source NAME ({', '.join(known)})"
    )
