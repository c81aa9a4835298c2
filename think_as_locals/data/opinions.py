"""GlobalOpinionQA (arXiv 2306.16388, HF Anthropic/llm_global_opinions): what shares of countries chose which option.

Questions of two surveys, `question, selections, options, source` (GAS: Pew's Global Attitudes, WVS: World Values). In
the published file `selections` is the text of a `defaultdict`, country -> shares, and `options` that of a list; other
exports hold objects or JSON. It is in English, and CC-BY-NC-SA-4.0: read from the user's own copy, never shipped.

Some samples are marked: `(Non-national sample)` speaks for no country and is left out, `(Old national sample)` counts
where there is no newer one of the country, `(Current national sample)` as any other. What is no country of its own
(Northern Ireland) is left out too; each row names what it leaves out.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType
from typing import Any

from think_as_locals.data.defects import Defect
from think_as_locals.data.fields import Fields, question_group, shown, unpacked
from think_as_locals.data.names import culture_code
from think_as_locals.data.outcomes import Outcome, require
from think_as_locals.data.rows import Row, read_rows
from think_as_locals.types import Item, is_text

FIELDS = ("question", "selections", "options", "source")
NON_ANSWERS = frozenset(
    {
        *("dk", "dk/refused", "don't know", "don't know/refused", "refused", "no answer", "decline to answer"),
        *("not asked", "not asked in survey", "not applicable", "missing", "missing; unknown", "other missing"),
    }
)
"""Options that say nothing about the question, in lower case; remarks in brackets do not count."""

_REMARK = re.compile(r"\([^()]*\)")
_SAMPLES = {"current national sample": 0, "old national sample": 1}  # which one of a country goes before
_SUMS = (0.98, 1.02)  # shares are rounded


@dataclass(frozen=True, slots=True)
class OpinionQuestion:
    """A question of a survey, and how countries answered it.

    Args:
        id: The same for all rows that ask it in the same words: the question group of its items.
        question: Its text.
        options: What could be answered, `NON_ANSWERS` among them.
        shares: ISO 3166 code -> the share of each option, in their order; they sum to 1.
        source: The survey, e.g. `GAS`.
    """

    id: str
    question: str
    options: tuple[str, ...]
    shares: Mapping[str, tuple[float, ...]]
    source: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "shares", MappingProxyType(dict(self.shares)))


def read_questions(path: str) -> Iterator[OpinionQuestion]:
    """The questions of a file, a folder or a data set on the Hub; rows that ask nothing are passed over.

    Raises:
        DataError: the first row with an error, as `file:row: what is wrong`, or nothing is there.
    """
    for row in read_rows(path):
        fields = Fields(row, FIELDS)
        question = _question(fields)
        require(fields.outcome())
        if question is not None:
            yield question


def outcome(row: Row, min_share_gap: float) -> Outcome:
    """The pairs of all countries that a row has shares of."""
    fields = Fields(row, FIELDS)
    question = _question(fields)
    if question is None:
        return fields.outcome()
    items = [item for country in question.shares for item in option_pairs(question, country, min_share_gap)]
    if not items:
        fields.add(Defect.TIE, f"in no country do the shares of two answers differ by {min_share_gap:g} or more")
    return fields.outcome(*items)


def option_pairs(question: OpinionQuestion, country: str, min_share_gap: float) -> list[Item]:
    """Every two answers whose shares in a country differ by at least the gap (and differ at all), the greater the best.

    None of a country without shares, none with one of `NON_ANSWERS`, and none of two options of the same text.

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
        if one[0] != other[0] and one[1] != other[1] and round(abs(one[1] - other[1]), 9) >= min_share_gap
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


def _question(fields: Fields) -> OpinionQuestion | None:
    """A row as a question; `None` where it is none."""
    said = fields.row.value.get("question", "") if isinstance(fields.row.value, Mapping) else ""
    if said is None or (isinstance(said, float) and math.isnan(said)):  # pandas writes a missing text as NaN
        fields.add(Defect.NO_QUESTION, "question is missing")
        return None
    text, source = fields.text("question", Defect.NO_QUESTION), fields.text("source")
    options, samples = _options(fields), _samples(fields)
    if not all(fault.imports for fault in fields.faults):
        return None
    shares = _shares(fields, samples, len(options))
    if not shares:
        fields.add(Defect.NO_COUNTRY, "selections has sound shares of no country")
        return None
    distinct = tuple(dict.fromkeys(options))  # of options with the same text nobody can tell which one was chosen
    if len(distinct) < len(options):
        shares = {country: _summed(options, given) for country, given in shares.items()}
    return OpinionQuestion(question_group(text), text, distinct, shares, source)


def _summed(options: Sequence[str], shares: Sequence[float]) -> tuple[float, ...]:
    """The share of each text, in the order in which they come first."""
    of_text: dict[str, float] = defaultdict(float)
    for option, share in zip(options, shares, strict=True):
        of_text[option] += share
    return tuple(of_text.values())


def _options(fields: Fields) -> tuple[str, ...]:
    """The options as texts; the points of a scale may be numbers."""
    value = unpacked(fields.value("options"))
    listed = value if isinstance(value, list | tuple) else ()
    options = tuple(str(option) if type(option) in (int, float) else option for option in listed)
    if fields.has("options") and not (options and all(map(is_text, options))):
        fields.add(Defect.WRONG_TYPE, f"options must be a list of texts, none of them blank, got {shown(value)}")
    return options


def _samples(fields: Fields) -> Mapping[Any, Any]:
    """The shares by the name of their sample."""
    value = fields.value("selections")
    if isinstance(value, str) and value.startswith("defaultdict("):
        value = value[value.find("{") : value.rfind("}") + 1]
    samples = unpacked(value)
    if isinstance(samples, Mapping):
        return samples
    if fields.has("selections"):
        fields.add(Defect.WRONG_TYPE, f"selections must be an object, country -> shares, got {shown(value)}")
    return {}


def _shares(fields: Fields, samples: Mapping[Any, Any], count: int) -> dict[str, tuple[float, ...]]:
    """Country -> shares that sum to 1; faults name the samples that are of no country, and the shares that fail."""
    shares: dict[str, tuple[float, ...]] = {}
    left_out, wrong = [], []
    whose = {name: _whose(name) for name, given in samples.items() if given is not None}  # null: a column of a table
    for name, (culture, _) in sorted(whose.items(), key=lambda sample: sample[1][1]):
        if culture is None or culture in shares:
            left_out.append(shown(name))
        elif fault := _fault(samples[name], count):
            wrong.append(f"{shown(name)}: {fault}")
        else:
            total = math.fsum(samples[name])
            shares[culture] = tuple(share / total for share in samples[name])
    if left_out:
        fields.add(Defect.LEFT_OUT_SAMPLE, f"left out: {', '.join(left_out)}")
    if wrong:
        fields.add(Defect.BAD_SHARES, f"left out: {'; '.join(wrong)}")
    return shares


def _whose(sample: object) -> tuple[str | None, int]:
    """The country that a sample speaks for, and its place among those of the country."""
    name = sample if isinstance(sample, str) else ""
    country, _, remark = name.partition(" (")
    kind = remark.rstrip(") ").casefold()
    if not kind.endswith("sample"):
        return culture_code(name), 0
    return (culture_code(country), _SAMPLES[kind]) if kind in _SAMPLES else (None, 0)


def _fault(shares: object, count: int) -> str | None:
    """What keeps shares from being a distribution over so many options."""
    if not isinstance(shares, list | tuple) or len(shares) != count:
        return f"expected a list of {count} shares, got {shown(shares)}"
    if not all(type(share) in (int, float) and 0 <= share <= 1 for share in shares):
        return f"expected shares from 0 to 1, got {shown(shares)}"
    total = math.fsum(shares)
    return None if _SUMS[0] <= total <= _SUMS[1] else f"expected shares that sum to 1, got {total:g}"
