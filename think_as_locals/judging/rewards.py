"""Verifiable rewards: pure functions of a judgement, the item as presented, and further evidence.

A policy's fault (a parse failure, a completion cut off) is a penalty, never an excuse: no component abstains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

from think_as_locals.judging.formats import RULES
from think_as_locals.judging.prompt import shuffle_responses
from think_as_locals.judging.rubric import (
    criteria_share,
    language_of,
    rubric_span,
    rubric_text,
    script_share,
    used_share,
    weighed_share,
)
from think_as_locals.types import (
    Item,
    Judgement,
    RewardBreakdown,
    RubricLanguage,
    ThinkAsLocalsError,
    reorder_responses,
)

_UNUSED = 0.6  # of `rubric_quality` where the analysis mentions no criterion

T = TypeVar("T")


class UnknownRewardError(ThinkAsLocalsError, LookupError):
    """No reward component of that name."""


class MissingEvidenceError(ThinkAsLocalsError, ValueError):
    """A reward component lacks the evidence it needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Evidence that components may need in addition to a judgement and its item; `None` if unknown.

    Args:
        log_probabilities: For `criteria_gain`: of the right verdict after the completion's `rubric_span`, and without a
            rubric, in nats.
        gain_clip: For `criteria_gain`: its lowest and highest value, in nats.
        rubric_language: For `rubric_quality`: that of the prompt.
        partner_right: For `consistency`: whether the verdict for the other order is right.
        num_tokens: For `length`: tokens of the completion.
        length_share: For `length`: the share of the maximum length, at its end, over which the penalty grows.
        max_completion_length: For `length`: the length of the full penalty, in tokens.
        num_rules: For `structure`: how many rules the prompt's format has (`Format.rules`); our grammar's by default.
    """

    log_probabilities: tuple[float, float] | None = None
    gain_clip: tuple[float, float] | None = None
    rubric_language: RubricLanguage = "any"
    partner_right: bool | None = None
    num_tokens: int | None = None
    length_share: float | None = None
    max_completion_length: int | None = None
    num_rules: int = len(RULES)


Component = Callable[[Judgement, Item, Evidence], float]
"""A reward component: judgement, item as presented, evidence -> value."""


def correctness(judgement: Judgement, presented: Item, evidence: Evidence) -> float:
    """+1 if the verdict is the best response, else -1; no verdict is -1 (R_corr of arXiv 2509.21798)."""
    return 1.0 if judgement.verdict == presented.best else -1.0


def criteria_gain(judgement: Judgement, presented: Item, evidence: Evidence) -> float:
    """How much the rubric raises the log-probability of the right verdict: log pi(j | q, y, z) - log pi(j | q, y).

    R_appr of arXiv 2509.21798; that it is clipped, and only `rubric_span` scored, is ours. In nats; the lowest value
    without a rubric to score, NaN if a log-probability is not finite.
    """
    low, high = _needed("criteria_gain", "gain_clip", evidence.gain_clip)
    if rubric_span(judgement, len(presented.responses)) is None:
        return low
    with_rubric, without = _needed("criteria_gain", "log_probabilities", evidence.log_probabilities)
    gain = with_rubric - without
    return min(high, max(low, gain)) if math.isfinite(gain) else math.nan


def structure(judgement: Judgement, presented: Item, evidence: Evidence) -> float:
    """Share of the format's rules that the completion follows; 1 if its reader finds no issue. Ours."""
    return 1.0 - len(judgement.issues) / evidence.num_rules


def rubric_quality(judgement: Judgement, presented: Item, evidence: Evidence) -> float:
    """Criteria that say something x responses that the analysis weighs x use of the criteria x script. Ours.

    Shares, but for use: an analysis that mentions no criterion has 0.6 of the rest, one that mentions all the whole.
    The script is that of the language that the prompt asks for. 0 without a rubric of three to seven criteria.
    """
    rubric, analysis = judgement.rubric, judgement.analysis
    if rubric is None or analysis is None or "criterion_count" in judgement.issues:
        return 0.0
    asked = {"item": presented.language, "en": "en", "any": None}[evidence.rubric_language]
    language = asked or language_of(rubric_text(rubric), presented)
    in_script = 1.0 if asked is None else script_share(rubric, asked)
    weighed = weighed_share(analysis, presented, language_of(analysis, presented), rubric)
    used = used_share(rubric, analysis, presented, language)
    return criteria_share(rubric, presented, language) * weighed * (_UNUSED + (1 - _UNUSED) * used) * in_script


def consistency(judgement: Judgement, presented: Item, evidence: Evidence) -> float:
    """1 if the verdict is right in both orders of the responses, so that they agree, else 0 (J1, arXiv 2505.10320)."""
    partner_right = _needed("consistency", "partner_right", evidence.partner_right)
    return 1.0 if judgement.verdict == presented.best and partner_right else 0.0


def length(judgement: Judgement, presented: Item, evidence: Evidence) -> float:
    """Soft overlong penalty (DAPO, arXiv 2503.14476, eq. 13).

    0 up to `(1 - length_share) * max_completion_length` tokens, then falling linearly to -1 at `max_completion_length`;
    -1 beyond and for a completion that was cut off.
    """
    tokens = _needed("length", "num_tokens", evidence.num_tokens)
    share = _needed("length", "length_share", evidence.length_share)
    longest = _needed("length", "max_completion_length", evidence.max_completion_length)
    if "finished" in judgement.issues:
        return -1.0
    return -min(1.0, max(0.0, 1 - (1 - tokens / longest) / share))


_COMPONENTS = (correctness, criteria_gain, structure, rubric_quality, consistency, length)
COMPONENTS: MappingProxyType[str, Component] = MappingProxyType({each.__name__: each for each in _COMPONENTS})


def score(
    judgement: Judgement,
    item: Item,
    seed: int = 0,
    components: Iterable[str] = ("correctness", "structure", "rubric_quality"),
    evidence: Evidence | None = None,
) -> RewardBreakdown:
    """Score a judgement of an item.

    Args:
        judgement: As parsed from a completion of `render(item, seed=seed)`, or as `Judge.judge` gave it.
        item: The item as its source gave it.
        seed: The seed it was rendered with; a judgement of `Judge.judge` knows the order itself.
        components: Which parts to compute; by default those that need no evidence.
        evidence: What the other components need.

    Raises:
        UnknownRewardError: the message lists the components there are.
        MissingEvidenceError: the message says what to pass.

    Example:
        >>> from think_as_locals.judging.formats import parse
        >>> item = Item(id="1", prompt="?", responses=("x", "y"), best=0, culture="TH", language="en",
        ...             domain="value", group="g", source="mine")
        >>> dict(score(parse("nonsense", 2), item, components=["correctness"]).parts)
        {'correctness': -1.0}
    """
    presented, given = shuffle_responses(item, seed), evidence or Evidence()
    if judgement.order is not None:
        presented = reorder_responses(item, judgement.order)
        verdict = None if judgement.verdict is None else judgement.order.index(judgement.verdict)
        judgement = replace(judgement, verdict=verdict, verdict_only=None, order=None)
    for name in (names := list(components)):
        if name not in COMPONENTS:
            raise UnknownRewardError(f"no reward component {name!r}; available: {', '.join(COMPONENTS)}")
    return RewardBreakdown({name: COMPONENTS[name](judgement, presented, given) for name in names})


def _needed(component: str, name: str, value: T | None) -> T:
    if value is None:
        raise MissingEvidenceError(
            f"reward component {component!r} needs {name}: pass evidence=Evidence({name}=...), or leave it out"
        )
    return value
