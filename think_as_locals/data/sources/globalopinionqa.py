"""GlobalOpinionQA (arXiv 2306.16388, HF Anthropic/llm_global_opinions): shares of countries by option.

Questions of two surveys, `question, selections, options, source` (GAS: Pew's Global Attitudes, WVS: World Values). In
the published file `selections` is the text of a `defaultdict`, country -> shares, and `options` that of a list; other
exports hold objects or JSON. It is in English, and CC-BY-NC-SA-4.0: read from the user's own copy, never shipped.

Some samples are marked: `(Non-national sample)` represents no country and is left out, `(Old national sample)` counts
only if the country has no newer one, `(Current national sample)` counts like any other. Regions that are no country of
their own (Northern Ireland) are left out too; a warning names what is left out.

Surveys repeat questions. For each country two answers to a question are compared once, by the first row that has both;
a later one leaves the country out. Rows with the same words and the same options are one question.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

from think_as_locals.data.fields import RowModel, Text, check_text, field, question_group, shown
from think_as_locals.data.languages import culture_code
from think_as_locals.data.rows import Defect, Fault, Outcome, Row, importable, read_rows, unpack
from think_as_locals.types import Item, is_text

NON_ANSWERS = frozenset(
    {
        *("dk", "dk/refused", "don't know", "don't know/refused", "refused", "no answer", "decline to answer"),
        *("not asked", "not asked in survey", "not applicable", "missing", "missing; unknown", "other missing"),
    }
)
"""Options that are no answer to the question, in lower case; remarks in brackets do not count."""

LEAST_SHARE = 1e-3
"""The share of an answer that nobody gave: its logarithm must be finite."""

_REMARK = re.compile(r"\([^()]*\)")
_SAMPLES = {"current national sample": 0, "old national sample": 1}  # which sample of a country comes first
_SUMS = (0.98, 1.02)  # shares are rounded
_Earlier = defaultdict[tuple[str, str], list[tuple[frozenset[str], str]]]  # question and country: answers, and place


@dataclass(frozen=True, slots=True)
class OpinionQuestion:
    """A question of a survey, and how countries answered it.

    Args:
        id: The same for all rows that ask it in the same words: the question group of its items.
        question: Its text.
        options: The possible answers, `NON_ANSWERS` among them. Options with the same text are merged, shares summed.
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
            shares = {
                country: tuple(
                    math.fsum(share for option, share in zip(self.options, given, strict=True) if option == text)
                    for text in texts
                )
                for country, given in shares.items()
            }
        object.__setattr__(self, "options", texts)
        object.__setattr__(self, "shares", MappingProxyType(shares))


def _check_options(name: str, value: Any, faults: list[Fault]) -> tuple[str, ...]:
    """Read the options as texts; the points of a scale may be numbers."""
    value = unpack(value)
    options = value if isinstance(value, list | tuple) else ()
    texts = tuple(str(option) if type(option) in (int, float) else option for option in options)
    if not (texts and all(map(is_text, texts))):
        faults.append(
            Fault(Defect.WRONG_TYPE, f"{name} must be a list of texts, none of them blank, got {shown(value)}")
        )
    return texts


def _check_selections(name: str, value: Any, faults: list[Fault]) -> Mapping[Any, Any]:
    """Read the shares by the name of their sample."""
    if isinstance(value, str) and value.startswith("defaultdict("):
        value = value[value.find("{") : value.rfind("}") + 1]
    samples = unpack(value)
    if isinstance(samples, Mapping):
        return samples
    faults.append(Fault(Defect.WRONG_TYPE, f"{name} must be an object, country -> shares, got {shown(value)}"))
    return {}


class OpinionRow(RowModel):
    """The fields of a row."""

    FIELDS: ClassVar = ("question", "selections", "options", "source")

    question: Annotated[str, field(partial(check_text, blank=Defect.NO_QUESTION), "")]
    source: Text
    options: Annotated[tuple[str, ...], field(_check_options, ())]
    selections: Annotated[Mapping[Any, Any], field(_check_selections, {})]


def read_questions(path: str) -> list[OpinionQuestion]:
    """Return the questions of a file, a folder or a data set on the Hub, without rows that have no question.

    Raises:
        DataError: at the first row with an error, as `file:row: what is wrong`, or nothing is there.
    """
    found: dict[tuple[str, tuple[str, ...]], OpinionQuestion] = {}
    for fields, question in _read_rows(read_rows(path)):
        fields.outcome().raise_errors()
        if question is not None:
            first = found.setdefault((question.id, question.options), question)
            found[question.id, question.options] = replace(first, shares={**first.shares, **question.shares})
    return list(found.values())


def outcomes(rows: Iterable[Row], min_share_gap: float) -> Iterator[Outcome]:
    """Yield, for each row, the pairs of all countries that it has shares of."""
    for fields, question in _read_rows(rows):
        items = [pair for c in question.shares for pair in option_pairs(question, c, min_share_gap)] if question else []
        if question and not items:
            fields.add(Defect.TIE, f"in no country do the shares of two answers differ by {min_share_gap:g} or more")
        yield fields.outcome(*items)


def _read_rows(rows: Iterable[Row]) -> Iterator[tuple[OpinionRow, OpinionQuestion | None]]:
    """Yield each row and its question, with the countries for which no earlier row compares the same answers."""
    earlier: _Earlier = defaultdict(list)
    for row in rows:
        asked = row.value.get("question", "") if isinstance(row.value, Mapping) else ""
        if asked is None or (isinstance(asked, float) and math.isnan(asked)):  # pandas writes a missing text as NaN
            row = replace(row, value=None, fault=Fault(Defect.NO_QUESTION, "question is missing"))
        fields = OpinionRow.read(row)
        if not importable(fields.faults):
            yield fields, None
            continue
        if shares := _shares(fields):
            shares = _drop_earlier(fields, shares, earlier)
        else:
            fields.add(Defect.NO_COUNTRY, "selections has valid shares of no country")
        text = fields.question
        question = OpinionQuestion(question_group(text), text, fields.options, shares, fields.source)
        yield fields, question if shares else None


def _drop_earlier(
    fields: OpinionRow, shares: dict[str, tuple[float, ...]], earlier: _Earlier
) -> dict[str, tuple[float, ...]]:
    """Return the shares of those countries for which no earlier row has the question and two of its answers."""
    answers = frozenset(filter(is_answer, fields.options))
    repeated = {}
    for country in shares:
        before = earlier[question_group(fields.question), country]
        if place := next((place for options, place in before if len(options & answers) > 1), None):
            repeated[country] = place
        else:
            before.append((answers, fields.row.place))
    if repeated:
        places = ", ".join(f"{country} (as in {place})" for country, place in repeated.items())
        fields.add(Defect.ASKED_BEFORE, f"left out: {places}")
        if len(repeated) == len(shares):
            fields.add(Defect.NO_COUNTRY, "earlier rows asked the same in all its countries")
    return {country: given for country, given in shares.items() if country not in repeated}


def _shares(fields: OpinionRow) -> dict[str, tuple[float, ...]]:
    """Return country -> shares that sum to 1; record the samples without a country, and shares that are invalid."""
    shares: dict[str, tuple[float, ...]] = {}
    left_out, wrong = [], []
    samples = {name: given for name, given in fields.selections.items() if given is not None}  # null: an empty column
    countries = {name: _sample_country(name) for name in samples}
    for name, (country, _) in sorted(countries.items(), key=lambda sample: sample[1][1]):
        if country is None or country in shares:
            left_out.append(shown(name))
        elif fault := _share_fault(samples[name], len(fields.options)):
            wrong.append(f"{shown(name)}: {fault}")
        else:
            total = math.fsum(samples[name])
            shares[country] = tuple(share / total for share in samples[name])
    if left_out:
        fields.add(Defect.LEFT_OUT_SAMPLE, f"left out: {', '.join(left_out)}")
    if wrong:
        fields.add(Defect.BAD_SHARES, f"left out: {'; '.join(wrong)}")
    return shares


def _sample_country(sample: object) -> tuple[str | None, int]:
    """Return the country that a sample represents, and its rank among the samples of the country."""
    name = sample if isinstance(sample, str) else ""
    country, _, remark = name.partition(" (")
    kind = remark.rstrip(") ").casefold()
    if not kind.endswith("sample"):
        return culture_code(name), 0
    return (culture_code(country), _SAMPLES[kind]) if kind in _SAMPLES else (None, 0)


def _share_fault(shares: object, count: int) -> str | None:
    """Return why shares are no distribution over so many options, or `None`."""
    if not isinstance(shares, list | tuple) or len(shares) != count:
        return f"expected a list of {count} shares, got {shown(shares)}"
    if not all(type(share) in (int, float) and 0 <= share <= 1 for share in shares):
        return f"expected shares from 0 to 1, got {shown(shares)}"
    total = math.fsum(shares)
    return None if _SUMS[0] <= total <= _SUMS[1] else f"expected shares that sum to 1, got {total:g}"


def option_pairs(question: OpinionQuestion, country: str, min_share_gap: float) -> list[Item]:
    """Return a pair of every two answers whose shares in a country differ by at least the gap, the greater one best.

    Equal shares make no pair, nor does one of `NON_ANSWERS`; a country without shares has no pairs.
    """
    shares = question.shares.get(country, ())
    answers = [pair for pair in zip(question.options, shares, strict=False) if is_answer(pair[0])]
    items = []
    for one, other in combinations(answers, 2):
        if one[1] == other[1] or round(abs(one[1] - other[1]), 9) < min_share_gap:
            continue
        responses = (one[0], other[0]) if one[1] > other[1] else (other[0], one[0])
        key = hashlib.sha256("\0".join(responses).encode()).hexdigest()[:12]
        items.append(
            Item(
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
        )
    return items


def others_mean(question: OpinionQuestion, country: str) -> tuple[float, ...] | None:
    """Return the mean distribution of all other countries, each counted once; `None` if there is no other."""
    others = [shares for culture, shares in question.shares.items() if culture != country]
    return tuple(math.fsum(column) / len(others) for column in zip(*others, strict=True)) if others else None


def is_answer(option: str) -> bool:
    """Return whether an option is an answer to the question."""
    plain = _REMARK.sub(" ", option.casefold().replace("’", "'").replace("´", "'"))
    return " ".join(plain.split()) not in NON_ANSWERS


def others_reference(items: Sequence[Item], questions: Sequence[OpinionQuestion]) -> dict[str, tuple[float, float]]:
    """Return, by id of a pair, the log shares of its best and its other response in all other countries.

    This is the reference that a survey gives without a reward model: the difference of the two stands for r+ - r- of a
    global RM, and its sigmoid is the share of the best response among both. A pair of a question that was asked in one
    country alone has none.

    Args:
        items: Pairs of options, from `option_pairs`.
        questions: Their questions; several may have the same words and other options.

    Example:
        >>> asked = OpinionQuestion("q1", "Is it?", ("Yes", "No"), {"CL": (1.0, 0.0), "TH": (0.25, 0.75)}, "WVS")
        >>> yes, no = others_reference(option_pairs(asked, "CL", 0.1), [asked]).popitem()[1]
        >>> round(math.exp(yes), 6), round(math.exp(no), 6)
        (0.25, 0.75)
    """
    asked: dict[str, list[OpinionQuestion]] = defaultdict(list)
    for question in questions:
        asked[question.id].append(question)
    found = {}
    for item in items:
        culture = str(item.culture)
        own = (q for q in asked[item.group] if culture in q.shares and {*item.responses} <= {*q.options})
        question = next(own)
        if others := others_mean(question, culture):
            logs = {o: math.log(max(share, LEAST_SHARE)) for o, share in zip(question.options, others, strict=True)}
            found[item.id] = (logs[item.responses[item.best]], logs[item.responses[1 - item.best]])
    return found
