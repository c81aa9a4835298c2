"""What shares of a country's people chose which answer to a survey's questions, and the pairs of answers they make."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType

from think_as_locals.types import Item

NON_ANSWERS = frozenset(
    {
        *("dk", "dk/refused", "don't know", "don't know/refused", "refused", "no answer", "decline to answer"),
        *("not asked", "not asked in survey", "not applicable", "missing", "missing; unknown", "other missing"),
    }
)
"""Options that say nothing about the question, in lower case; remarks in brackets do not count."""

_REMARK = re.compile(r"\([^()]*\)")


@dataclass(frozen=True, slots=True)
class OpinionQuestion:
    """A question of a survey, and how countries answered it.

    Args:
        id: The same for all rows that ask it in the same words: the question group of its items.
        question: Its text.
        options: What could be answered, `NON_ANSWERS` among them. Those of the same text are one: their shares add up.
        shares: ISO 3166 code -> the share of each option, in their order; they sum to 1.
        source: The survey, e.g. `GAS`.
    """

    id: str
    question: str
    options: tuple[str, ...]
    shares: Mapping[str, tuple[float, ...]]
    source: str

    def __post_init__(self) -> None:
        texts = tuple(dict.fromkeys(self.options))
        shares = dict(self.shares)
        if len(texts) < len(self.options):
            shares = {country: _added_up(self.options, texts, given) for country, given in shares.items()}
        object.__setattr__(self, "options", texts)
        object.__setattr__(self, "shares", MappingProxyType(shares))


def _added_up(options: Sequence[str], texts: Sequence[str], given: Sequence[float]) -> tuple[float, ...]:
    return tuple(
        math.fsum(share for option, share in zip(options, given, strict=True) if option == text) for text in texts
    )


def option_pairs(question: OpinionQuestion, country: str, min_share_gap: float) -> list[Item]:
    """Every two answers whose shares in a country differ by at least the gap (and differ at all), the greater the best.

    None of a country without shares, and none with one of `NON_ANSWERS`.

    Example:
        >>> asked = OpinionQuestion("q1", "Is it?", ("Yes", "No", "DK/Refused"), {"CL": (0.6, 0.3, 0.1)}, "WVS")
        >>> [item.responses for item in option_pairs(asked, "CL", 0.1)], option_pairs(asked, "CL", 0.4)
        ([('Yes', 'No')], [])
    """
    chosen = [
        pair for pair in zip(question.options, question.shares.get(country, ()), strict=False) if is_answer(pair[0])
    ]
    return [
        _pair(question, country, *sorted((one, other), key=lambda pair: -pair[1]))
        for one, other in combinations(chosen, 2)
        if one[1] != other[1] and round(abs(one[1] - other[1]), 9) >= min_share_gap
    ]


def others_mean(question: OpinionQuestion, country: str) -> tuple[float, ...] | None:
    """The mean distribution of all other countries, each counted once; `None` where there is no other.

    Example:
        >>> shares = {"CL": (1.0, 0.0), "TH": (0.5, 0.5), "EG": (0.0, 1.0)}
        >>> asked = OpinionQuestion("q1", "Is it?", ("Yes", "No"), shares, "WVS")
        >>> others_mean(asked, "CL")
        (0.25, 0.75)
    """
    others = [shares for culture, shares in question.shares.items() if culture != country]
    return tuple(math.fsum(column) / len(others) for column in zip(*others, strict=True)) if others else None


def _pair(question: OpinionQuestion, country: str, best: tuple[str, float], other: tuple[str, float]) -> Item:
    responses = (best[0], other[0])
    key = hashlib.sha256("\0".join(responses).encode()).hexdigest()[:12]
    return Item(
        id=f"globalopinionqa/{question.id}/{country}/{key}",
        prompt=question.question,
        responses=responses,
        best=0,
        culture=country,
        language="en",
        domain=question.source.lower(),
        group=question.id,
        source="globalopinionqa",
    )


def is_answer(option: str) -> bool:
    """Whether an option is an answer."""
    plain = _REMARK.sub(" ", option.casefold().replace("’", "'").replace("´", "'"))
    return " ".join(plain.split()) not in NON_ANSWERS
