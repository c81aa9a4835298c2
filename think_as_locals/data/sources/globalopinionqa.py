"""GlobalOpinionQA (arXiv 2306.16388, HF Anthropic/llm_global_opinions): shares of countries by option, in English.

Questions of Pew's Global Attitudes (GAS) and the World Values Survey (WVS). In the published file `selections` is the
text of a `defaultdict`, country -> shares, and `options` that of a list; other exports hold objects or JSON. Licence:
CC-BY-NC-SA-4.0, never shipped.

An old national sample counts only if its country has no newer one. Surveys repeat questions: in each country, two
answers to a question are compared only once, in the first row that has both.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from think_as_locals.data.fields import Identifier, RowModel, Text, question_group
from think_as_locals.data.languages import culture_code
from think_as_locals.data.rows import Fault, Outcome, Row, read_rows, unpack
from think_as_locals.types import Item, shown

FIELDS = ("question", "selections", "options", "source")
"""The columns by which its rows are recognised."""

LEAST_SHARE = 1e-3  # assumed for an answer that nobody gave, so that its logarithm is finite
_NO_ANSWER = re.compile(  # a part of an option
    r"(?:i )?(?:dk|na|do(?:n.?t|es not|esn.?t| not) know)|refused(?: to answer)?|declined? to answer|prefer not to \w+"
    r"|no (?:answer|opinion|response)(?: given)?|(?:question |item )?not (?:asked|included)(?: in .*)?"
    r"|not (?:available|applicable|specified)(?: for .*)?|inapplicable|(?:other )?missing|unknown"
    r"|not sure|can(?:.?t|not) (?:choose|say)|hard to say"
)
_MISSING = re.compile(r"(?:other )?missing(?: value)?(?: *;.*)?")  # and why, whatever it says
_PARTS = re.compile(r" *(?:[;,/]| or ) *")
_REMARK = re.compile(r"\([^()]*\)")
_NATIONAL = re.compile(r" \((current|old) national sample[) ]*$", re.IGNORECASE)
_Earlier = defaultdict[tuple[str, str], list[tuple[frozenset[str], str]]]  # question and country: answers, and place


@dataclass(frozen=True, slots=True)
class OpinionQuestion:
    """A survey question and the answers of countries to it."""

    id: str  # the question group of its items: the same for all rows with the same words
    question: str
    options: tuple[str, ...]  # distinct; includes those that are no answer
    shares: Mapping[str, tuple[float, ...]]  # ISO 3166 code -> the share of each option; they sum to 1
    source: str  # the survey, e.g. `GAS`

    def item(self, key: str, responses: tuple[str, str], culture: str | None) -> Item:
        """Return an item of two answers; the first is the best."""
        return Item(
            id=f"globalopinionqa/{self.id}/{key}",
            prompt=self.question,
            responses=responses,
            best=0,
            culture=culture,
            language="en",
            domain=self.source.lower(),
            group=self.id,
            source="globalopinionqa",
        )


def _as_samples(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("defaultdict("):
        value = value[value.find("{") : value.rfind("}") + 1]
    return unpack(value)


class OpinionRow(RowModel):
    """A question, its options (points of a scale may be numbers), and the shares of the options by sample."""

    question: Text
    source: Text
    options: Annotated[tuple[Identifier, ...], BeforeValidator(unpack), Field(min_length=1)]
    selections: Annotated[Mapping[Any, Any], BeforeValidator(_as_samples)]


def read_questions(path: str) -> list[OpinionQuestion]:
    """Return the questions at a path as in `data.path`, but of rows with an error."""
    found: dict[tuple[str, tuple[str, ...]], OpinionQuestion] = {}
    for outcome, question in _read_rows(read_rows(path)):
        if question is not None and not outcome.errors:
            first = found.setdefault((question.id, question.options), question)
            found[question.id, question.options] = replace(first, shares={**first.shares, **question.shares})
    return list(found.values())


def outcomes(rows: Iterable[Row], min_share_gap: float | None) -> Iterator[Outcome]:
    """Yield the outcome of each row: the pairs of all countries in it."""
    for outcome, question in _read_rows(rows):
        items = [pair for c in question.shares for pair in option_pairs(question, c, min_share_gap)] if question else []
        if question and not items:
            gap = "" if min_share_gap is None else f" by {min_share_gap:g} or more"
            outcome = outcome.with_faults(Fault("tie", f"in no country do the shares of two answers differ{gap}"))
        yield outcome._replace(items=tuple(items))


def _read_rows(rows: Iterable[Row]) -> Iterator[tuple[Outcome, OpinionQuestion | None]]:
    """Yield each row and its question, without countries for which an earlier row compares the same answers."""
    earlier: _Earlier = defaultdict(list)
    question: OpinionQuestion | None = None

    def read(row: Row) -> Iterator[Fault]:
        nonlocal question
        asked = row.value.get("question", "?") if isinstance(row.value, Mapping) else "?"
        if asked is None or asked != asked or (isinstance(asked, str) and not asked.strip()):  # NaN: written by pandas
            yield Fault("no_question", "question is missing")
            return
        fields = OpinionRow.model_validate(row.value)
        faults, shares = _new_shares(fields, row.place, earlier)
        yield from faults
        if shares:
            options = tuple(dict.fromkeys(fields.options))
            question = OpinionQuestion(question_group(fields.question), fields.question, options, shares, fields.source)

    for row in rows:
        question = None
        yield Outcome.of(row, read), question


def _new_shares(fields: OpinionRow, place: str, earlier: _Earlier) -> tuple[list[Fault], dict[str, tuple[float, ...]]]:
    """Return what is left out, and the shares of the countries for which no earlier row compares two of the answers."""
    answers = frozenset(filter(is_answer, fields.options))
    shares: dict[str, tuple[float, ...]] = {}
    found, left_out, wrong, repeated = set(), [], [], []
    samples = [(name, given) for name, given in fields.selections.items() if given is not None]  # null: an empty column
    for name, given in sorted(samples, key=lambda sample: "(old national" in str(sample[0]).casefold()):
        country = culture_code(_NATIONAL.sub("", name)) if isinstance(name, str) else None
        if country is None or country in found:
            left_out.append(shown(name))
        elif fault := _share_fault(given, len(fields.options)):
            wrong.append(f"{shown(name)}: {fault}")
        else:
            found.add(country)
            before = earlier[question_group(fields.question), country]
            if first := next((first for options, first in before if len(options & answers) > 1), None):
                repeated.append(f"{country} (as in {first})")
            else:
                before.append((answers, place))
                sums, total = dict.fromkeys(fields.options, 0.0), math.fsum(given)
                for option, share in zip(fields.options, given, strict=True):  # those with the same text are one
                    sums[option] += share / total
                shares[country] = tuple(sums.values())
    named = {
        "left_out_sample": ", ".join(left_out),
        "bad_shares": "; ".join(wrong),
        "asked_before": ", ".join(repeated),
    }
    faults = [Fault(name, f"left out: {names}") for name, names in named.items() if names]
    if not found:
        faults.append(Fault("no_country", "selections has valid shares of no country"))
    elif not shares:
        faults.append(Fault("no_country", "earlier rows asked the same in all its countries"))
    return faults, shares


def _share_fault(shares: object, count: int) -> str | None:
    """Return why shares are not a distribution over `count` options, or `None`."""
    if not isinstance(shares, list | tuple) or len(shares) != count:
        return f"expected a list of {count} shares, got {shown(shares)}"
    if not all(type(share) in (int, float) and 0 <= share <= 1 for share in shares):
        return f"expected shares from 0 to 1, got {shown(shares)}"
    total = math.fsum(shares)
    return None if 0.98 <= total <= 1.02 else f"expected shares that sum to 1, got {total:g}"  # shares are rounded


def option_pairs(question: OpinionQuestion, country: str, min_share_gap: float | None) -> list[Item]:
    """Return a pair of every two answers whose shares in a country differ by at least the gap."""
    shares = question.shares.get(country, ())
    answers = [pair for pair in zip(question.options, shares, strict=False) if is_answer(pair[0])]
    items = []
    for pair in combinations(answers, 2):
        (best, greater), (other, less) = sorted(pair, key=lambda answer: -answer[1])
        if greater == less or (min_share_gap is not None and round(greater - less, 9) < min_share_gap):
            continue
        key = hashlib.sha256(f"{best}\0{other}".encode()).hexdigest()[:12]
        items.append(question.item(f"{country}/{key}", (best, other), country))
    return items


def others_mean(question: OpinionQuestion, country: str) -> tuple[float, ...] | None:
    """Return the mean distribution of all other countries, each counted once; `None` if there is no other."""
    others = [shares for culture, shares in question.shares.items() if culture != country]
    return tuple(math.fsum(column) / len(others) for column in zip(*others, strict=True)) if others else None


def is_answer(option: str) -> bool:
    """Return whether an option answers the question; remarks in brackets are ignored.

    "Don't know / no opinion" does not, since each part of it explains a missing answer, nor does "missing; ...".
    """
    plain = " ".join(_REMARK.sub(" ", option.casefold()).split()).replace("n/a", "na")
    return not (_MISSING.fullmatch(plain) or all(map(_NO_ANSWER.fullmatch, _PARTS.split(plain))))


def others_reference(items: Sequence[Item], questions: Sequence[OpinionQuestion]) -> dict[str, tuple[float, float]]:
    """Return by item id the log shares of the best and the other response in all other countries.

    Their difference takes the place of r+ - r- of a global RM. A question asked in only one country has none.
    """
    by_id: dict[str, list[OpinionQuestion]] = defaultdict(list)
    for question in questions:
        by_id[question.id].append(question)
    found = {}
    for item in items:
        culture = str(item.culture)
        question = next(q for q in by_id[item.group] if culture in q.shares and {*item.responses} <= {*q.options})
        if others := others_mean(question, culture):
            logs = {o: math.log(max(share, LEAST_SHARE)) for o, share in zip(question.options, others, strict=True)}
            found[item.id] = (logs[item.responses[item.best]], logs[item.responses[1 - item.best]])
    return found
