"""Rows that name the best of several responses: CARB, open rows for its domains, RewardBench 2, HelpSteer3, pairs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Annotated, Any, ClassVar

from pydantic import Field

from think_as_locals.data.fields import (
    Country,
    Identifier,
    Language,
    Prompt,
    Response,
    Responses,
    RowModel,
    Text,
    check_country,
    check_number,
    check_text,
    field,
    shown,
)
from think_as_locals.data.languages import countries_named
from think_as_locals.data.rows import Defect, Fault, Outcome, Row
from think_as_locals.types import LABELS, Item, is_text

_SUBSETS = {
    "cultural_commonsense": "commonsense",
    "cultural_value": "value",
    "cultural_toxicity": "safety",
    "cultural_linguistic": "linguistic",
}
_OPEN_DOMAINS = {"commonsense": "commonsense", "value": "value", "safety": "safety", "linguistics": "linguistic"}
_OPEN_CULTURES = {"English": None, "Spanish-speaking": None, "Arab (Qatar)": "QA"}  # XSafety's, beside countries
_TIES = "Ties"
_ROLES = ("system", "user", "assistant")
_BOTH = ("chosen", "rejected")
_COUNTS = {"num_correct": _BOTH[:1], "num_rejected": _BOTH[1:], "num_incorrect": _BOTH[1:], "total_completions": _BOTH}


def _check_domain(name: str, value: Any, faults: list[Fault], domains: Mapping[str, str]) -> str:
    given = check_text(name, value, faults)
    if given and given not in domains:
        faults.append(Fault(Defect.UNKNOWN_DOMAIN, f"{name} {shown(given)}; known: {', '.join(domains)}"))
    return domains.get(given, given)


def _check_open_culture(name: str, value: Any, faults: list[Fault]) -> str | None:
    known = isinstance(value, str) and value in _OPEN_CULTURES
    return _OPEN_CULTURES[value] if known else check_country(name, value, faults)


class CarbRow(RowModel):
    """CARB as published (arXiv 2509.21798): Best-of-4. The language is an English name, the country may be null."""

    FIELDS: ClassVar = ("language", "country", "prompt", "chosen", "rejected", "subset")
    id: Identifier
    domain: Annotated[str, field(partial(_check_domain, domains=_SUBSETS), "")] = Field(validation_alias="subset")
    prompt: Prompt
    language: Language
    culture: Country = Field(None, validation_alias="country")
    chosen: Responses
    rejected: Responses
    additional_metadata: Any = None


class OpenRow(RowModel):
    """Open rows for CARB's domains, from JMMLU, EXAMS, FORK, XSafety, SQuARe and Wikiquote: two to four responses."""

    FIELDS: ClassVar = ("id", "culture", "language", "domain", "source", "group", "prompt", "chosen", "rejected")
    id: Identifier
    group: Text
    prompt: Prompt
    chosen: Response
    domain: Annotated[str, field(partial(_check_domain, domains=_OPEN_DOMAINS), "")]
    source: Text
    rejected: Responses
    culture: Annotated[str | None, field(_check_open_culture, None)]
    language: Language


class RewardBench2Row(RowModel):
    """RewardBench 2 (arXiv 2506.01937, HF allenai/reward-bench-2), in English: Best-of-4, but for the subset Ties.

    A row of Ties has several right answers (its `ref:K` one), and a model is right where *every* right answer scores
    above *every* wrong one. So it becomes one item per right answer and up to seven wrong ones, all in one group: the
    row is right where all of them are.
    """

    FIELDS: ClassVar = ("id", "prompt", "chosen", "rejected", "num_correct", "num_incorrect", "subset")
    id: Identifier
    subset: Text
    prompt: Prompt
    chosen: Responses
    rejected: Responses


def carb_outcome(row: Row) -> Outcome:
    """Return one item; a prompt about another country is a warning, so that results stay comparable."""
    fields = CarbRow.read(row)
    if fields.count_texts("chosen") not in (None, 1):
        fields.add(Defect.WRONG_COUNT, f"expected 1 chosen response, got {len(fields.chosen)}")
    fields.check_counts(**_COUNTS)
    if isinstance(fields.additional_metadata, str):
        try:
            json.loads(fields.additional_metadata)
        except (ValueError, RecursionError) as error:
            fields.add(Defect.BAD_METADATA, f"additional_metadata: {error}")
    if fields.culture and fields.language:
        named = countries_named(fields.prompt, fields.language)
        if named and fields.culture not in named:
            message = f"the prompt names {', '.join(sorted(named))}, the row's country is {fields.culture}"
            fields.add(Defect.COUNTRY_MISMATCH, message)
    key = f"carb/{fields.domain}/{fields.language}/{fields.id}"
    best = fields.chosen[0] if fields.chosen else ""
    return fields.outcome(*fields.best_first(best, fields.rejected, id=key, source="carb"))


def open_outcome(row: Row) -> Outcome:
    """Return one item."""
    fields = OpenRow.read(row)
    fields.check_counts(n=_BOTH)
    source = f"carb_open/{fields.source}"
    return fields.outcome(*fields.best_first(fields.chosen, fields.rejected, id=fields.id, source=source))


def rewardbench2_outcome(row: Row) -> Outcome:
    """Return one item, or for a row of Ties one per right answer and up to seven wrong ones."""
    fields = RewardBench2Row.read(row)
    chosen, rejected, is_ties = fields.chosen, fields.rejected, fields.subset == _TIES
    if fields.count_texts("chosen") not in (None, 1) and not (chosen and is_ties):
        fields.add(Defect.WRONG_COUNT, f"expected 1 chosen response (several in {_TIES}), got {len(chosen)}")
    fields.check_counts(**_COUNTS)
    key = f"rewardbench2/{fields.id}"
    common = {"domain": fields.subset.lower(), "source": "rewardbench2"}
    if not is_ties:
        best = chosen[0] if chosen else ""
        return fields.outcome(*fields.best_first(best, rejected, id=key, **common))
    fields.check_distinct((*chosen, *rejected))  # of the whole row: an item holds only some of them
    items: list[Item] = []
    step, group = len(LABELS) - 1, f"ties:{fields.id.rpartition(':')[2]}"
    for i, start in product(range(len(chosen)), range(0, max(1, len(rejected)), step)):
        wrong = rejected[start : start + step]
        items += fields.best_first(chosen[i], wrong, id=f"{key}/{i}-{start}", group=group, **common)
    return fields.outcome(*items)


class PairRow(RowModel):
    """RewardBench (arXiv 2403.13787, HF allenai/reward-bench), or any chosen and rejected; English if they do not say.

    M-RewardBench (arXiv 2410.15522, HF CohereLabsCommunity/multilingual-reward-bench) translates its rows and adds
    `language`. A translation keeps the id, and so is in the question group of its original.
    """

    FIELDS: ClassVar = ("prompt", "chosen", "rejected")
    prompt: Prompt
    chosen: Response
    rejected: Response
    language: Language = "en"
    domain: Text = Field("pairs", validation_alias="subset")
    id: Identifier = ""


def pair_outcome(row: Row) -> Outcome:
    """Return one pair, the chosen response the best."""
    fields = PairRow.read(row)
    key = f"{fields.domain}/{fields.id}" if fields.id else ""
    place = {"id": f"pairs/{fields.language}/{key}", "group": key} if key else {"id": f"pairs/{row.name}"}
    return fields.outcome(*fields.best_first(fields.chosen, [fields.rejected], source="pairs", **place))


def _check_context(name: str, value: Any, faults: list[Fault]) -> str:
    """Read a conversation as a prompt: the text of a single message, else every turn after its role."""
    turns: list[tuple[str, str]] = []
    for i, message in enumerate(value if isinstance(value, list) else [value]):
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, str) and message.get("role") in _ROLES:
            turns.append((message["role"], content))
        else:
            reason = f"{name}[{i}] must be a message with a role ({', '.join(_ROLES)}) and its content"
            faults.append(Fault(Defect.WRONG_TYPE, reason))
    if texts := [content for _, content in turns if content.strip()]:
        check_text(name, min(texts, key=is_text), faults)  # the first that is broken, if any
    else:
        faults.append(Fault(Defect.EMPTY_PROMPT, f"{name} is empty"))
    return turns[0][1] if len(turns) == 1 else "\n\n".join(f"{role}: {content}" for role, content in turns)


def _check_preference(name: str, value: Any, faults: list[Fault]) -> float:
    number = check_number(name, value, faults)
    if number not in range(-3, 4) and not math.isnan(number):
        faults.append(Fault(Defect.BAD_RATING, f"{name} must be a whole number from -3 to 3, got {number:g}"))
    elif number == 0:
        faults.append(Fault(Defect.TIE, f"{name} is 0: about the same"))
    return number


class HelpSteerRow(RowModel):
    """HelpSteer3-Preference (arXiv 2505.11475, HF nvidia/HelpSteer3, config `preference`).

    A preference is a whole number from -3 (the first is much better) to 3 (the second is), 0 if about the same.
    """

    FIELDS: ClassVar = ("context", "response1", "response2", "overall_preference")
    domain: Text
    language: Language
    prompt: Annotated[str, field(_check_context, "")] = Field(validation_alias="context")
    response1: Response
    response2: Response
    overall_preference: Annotated[float, field(_check_preference, math.nan)]


def helpsteer3_outcome(row: Row) -> Outcome:
    """Return one pair, the preferred response the best."""
    if isinstance(row.value, Mapping) and row.value.get("domain") == "code":  # the language is a programming language
        row = replace(row, value={**row.value, "language": "en"})
    fields = HelpSteerRow.read(row)
    better, worse = fields.response1, fields.response2
    if fields.overall_preference > 0:
        better, worse = worse, better
    return fields.outcome(*fields.best_first(better, [worse], id=f"helpsteer3/{row.name}", source="helpsteer3"))
