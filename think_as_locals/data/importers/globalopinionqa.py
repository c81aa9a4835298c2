"""GlobalOpinionQA (arXiv 2306.16388, HF Anthropic/llm_global_opinions): what shares of countries chose which option.

Questions of two surveys, `question, selections, options, source` (GAS: Pew's Global Attitudes, WVS: World Values). In
the published file `selections` is the text of a `defaultdict`, country -> shares, and `options` that of a list; other
exports hold objects or JSON. It is in English, and CC-BY-NC-SA-4.0: read from the user's own copy, never shipped.

Some samples are marked: `(Non-national sample)` speaks for no country and is left out, `(Old national sample)` counts
where there is no newer one of the country, `(Current national sample)` as any other. What is no country of its own
(Northern Ireland) is left out too; each row names what it leaves out.

Surveys ask again in the same words. In each country two answers to a question are compared once, by the first row that
does; a later row with both of them leaves the country out. Rows in the same words with the same options are one
question.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from think_as_locals.data.defects import Defect
from think_as_locals.data.fields import Fields, question_group, shown, unpacked
from think_as_locals.data.names import culture_code
from think_as_locals.data.opinions import OpinionQuestion, is_answer, option_pairs
from think_as_locals.data.outcomes import Outcome, require
from think_as_locals.data.rows import Row, read_rows
from think_as_locals.types import is_text

FIELDS = ("question", "selections", "options", "source")
_SAMPLES = {"current national sample": 0, "old national sample": 1}  # which one of a country goes before
_SUMS = (0.98, 1.02)  # shares are rounded
_Earlier = defaultdict[tuple[str, str], list[tuple[frozenset[str], str]]]  # question and country: answers, and where


def read_questions(path: str) -> list[OpinionQuestion]:
    """The questions of a file, a folder or a data set on the Hub; rows that ask nothing are passed over.

    Raises:
        DataError: the first row with an error, as `file:row: what is wrong`, or nothing is there.
    """
    found: dict[tuple[str, tuple[str, ...]], OpinionQuestion] = {}
    for fields, question in _questions(read_rows(path)):
        require(fields.outcome())
        if question is not None:
            first = found.setdefault((question.id, question.options), question)
            found[question.id, question.options] = replace(first, shares={**first.shares, **question.shares})
    return list(found.values())


def outcomes(rows: Iterable[Row], min_share_gap: float) -> Iterator[Outcome]:
    """Of each row the pairs of all countries that it has shares of."""
    for fields, question in _questions(rows):
        items = [pair for c in question.shares for pair in option_pairs(question, c, min_share_gap)] if question else []
        if question and not items:
            fields.add(Defect.TIE, f"in no country do the shares of two answers differ by {min_share_gap:g} or more")
        yield fields.outcome(*items)


def _questions(rows: Iterable[Row]) -> Iterator[tuple[Fields, OpinionQuestion | None]]:
    """Each row, and the question that it is, in the countries in which it compares what no earlier row does."""
    earlier: _Earlier = defaultdict(list)
    for row in rows:
        fields = Fields(row, FIELDS)
        question = _question(fields)
        yield fields, question and _not_asked_before(fields, question, earlier)


def _not_asked_before(fields: Fields, question: OpinionQuestion, earlier: _Earlier) -> OpinionQuestion | None:
    answers = frozenset(filter(is_answer, question.options))
    repeated = []
    for country in question.shares:
        before = earlier[question.id, country]
        if place := next((place for asked, place in before if len(asked & answers) > 1), None):
            repeated.append((country, place))
        else:
            before.append((answers, fields.row.place))
    if not repeated:
        return question
    fields.add(
        Defect.ASKED_BEFORE, f"left out: {', '.join(f'{country} (as in {place})' for country, place in repeated)}"
    )
    shares = {country: given for country, given in question.shares.items() if country not in dict(repeated)}
    if not shares:
        fields.add(Defect.NO_COUNTRY, "earlier rows asked the same in all its countries")
    return replace(question, shares=shares) if shares else None


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
    return OpinionQuestion(question_group(text), text, options, shares, source)


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
