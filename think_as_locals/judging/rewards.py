"""Verifiable rewards: pure functions of a judgement, the item as it was shown, and what evidence there is besides.

A policy's fault (a text that cannot be parsed, a completion cut off) is a penalty, never an excuse: no component
abstains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from think_as_locals.judging.grammar import RULES
from think_as_locals.judging.present import present
from think_as_locals.judging.rubric import OF_ITEM, distinct_share, rubric_span, script_share, used_share
from think_as_locals.types import Item, Judgement, RewardBreakdown, ThinkAsLocalsError

T = TypeVar("T")


class UnknownRewardError(ThinkAsLocalsError, LookupError):
    """No reward component of that name."""


class MissingEvidenceError(ThinkAsLocalsError, ValueError):
    """A reward component was asked for without what it needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What components may need beside a judgement and its item; `None` where it is not known.

    Args:
        log_probabilities: For `criteria_gain`: that of the right verdict after the completion's `rubric_span`, and that
            without a rubric, in nats.
        gain_clip: For `criteria_gain`: its lowest and highest value, in nats.
        rubric_language: For `rubric_quality`: a BCP-47 tag, `"item"` for the language of the item, `None` for any.
        partner_right: For `consistency`: whether the verdict on the same item in the other order is right.
        num_tokens: For `length`: tokens of the completion.
        length_cache: For `length`: over how many tokens the penalty grows.
        max_completion_length: For `length`: where it is full, in tokens.

    Example:
        >>> Evidence(num_tokens=900, length_cache=200, max_completion_length=1000).num_tokens
        900
    """

    log_probabilities: tuple[float, float] | None = None
    gain_clip: tuple[float, float] | None = None
    rubric_language: str | None = None
    partner_right: bool | None = None
    num_tokens: int | None = None
    length_cache: int | None = None
    max_completion_length: int | None = None


Component = Callable[[Judgement, Item, Evidence], float]
"""A reward component: judgement, the item as it was shown, evidence -> value."""


def correctness(judgement: Judgement, shown: Item, evidence: Evidence) -> float:
    """+1 where the verdict is the best response, else -1; no verdict is -1 (R_corr of arXiv 2509.21798).

    Range: {-1, 1}. Example: the verdict B where B is best gives 1.
    """
    return 1.0 if judgement.verdict == shown.best else -1.0


def criteria_gain(judgement: Judgement, shown: Item, evidence: Evidence) -> float:
    """How much the rubric raises the log-probability of the right verdict: log pi(j | q, y, z) - log pi(j | q, y).

    R_appr of arXiv 2509.21798; the clip, and that only `rubric_span` is priced, are ours.

    Range: `gain_clip`, in nats; its low end without a rubric to price; NaN where a log-probability is not finite.
    Example: log-probabilities of -0.2 with the rubric and -0.9 without give 0.7.

    Raises:
        MissingEvidenceError: no `gain_clip`, or no `log_probabilities` of a rubric that can be priced.
    """
    low, high = _needed("criteria_gain", "gain_clip", evidence.gain_clip)
    if rubric_span(judgement, len(shown.responses)) is None:
        return low
    with_rubric, without = _needed("criteria_gain", "log_probabilities", evidence.log_probabilities)
    gain = with_rubric - without
    return min(high, max(low, gain)) if math.isfinite(gain) else math.nan


def structure(judgement: Judgement, shown: Item, evidence: Evidence) -> float:
    """Share of the grammar's rules that the completion keeps. Ours.

    Range: [0, 1]; 1 exactly where the parser finds no issue. Example: with one of the eleven rules broken, 10/11.
    """
    return 1.0 - len(judgement.issues) / len(RULES)


def rubric_quality(judgement: Judgement, shown: Item, evidence: Evidence) -> float:
    """Distinct criteria x criteria that the analysis names x letters in the script of the language, as shares. Ours.

    Range: [0, 1]; 0 without a readable rubric of as many criteria as the grammar asks for. Example: three distinct
    criteria, two of them named in the analysis, all in the right script: 2/3.

    Raises:
        DataError: the script of the language is not known.
    """
    rubric = judgement.rubric
    if rubric is None or "criterion_count" in judgement.issues:
        return 0.0
    language = shown.language if evidence.rubric_language == OF_ITEM else evidence.rubric_language
    in_script = 1.0 if language is None else script_share(rubric, language)
    return distinct_share(rubric) * used_share(rubric, judgement.analysis) * in_script


def consistency(judgement: Judgement, shown: Item, evidence: Evidence) -> float:
    """1 where the verdict is right in both orders of the responses, so that the two agree, else 0.

    J1, arXiv 2505.10320.

    Range: {0, 1}. Example: right in this order and wrong in the other gives 0.

    Raises:
        MissingEvidenceError: no `partner_right`.
    """
    partner_right = _needed("consistency", "partner_right", evidence.partner_right)
    return 1.0 if judgement.verdict == shown.best and partner_right else 0.0


def length(judgement: Judgement, shown: Item, evidence: Evidence) -> float:
    """Soft overlong penalty (DAPO, arXiv 2503.14476, eq. 13).

    0 up to `max_completion_length - length_cache` tokens, then falling on a line to -1 at `max_completion_length`; -1
    beyond and where the completion was cut off.

    Range: [-1, 0]. Example: 900 tokens, of at most 1000 with a cache of 200, give -0.5.

    Raises:
        MissingEvidenceError: no `num_tokens`, `length_cache` or `max_completion_length`.
    """
    tokens = _needed("length", "num_tokens", evidence.num_tokens)
    cache = _needed("length", "length_cache", evidence.length_cache)
    longest = _needed("length", "max_completion_length", evidence.max_completion_length)
    if "finished" in judgement.issues:
        return -1.0
    return -min(1.0, max(0.0, (tokens - (longest - cache)) / cache))


COMPONENTS: MappingProxyType[str, Component] = MappingProxyType(
    {
        "correctness": correctness,
        "criteria_gain": criteria_gain,
        "structure": structure,
        "rubric_quality": rubric_quality,
        "consistency": consistency,
        "length": length,
    }
)

WITHOUT_EVIDENCE = ("correctness", "structure", "rubric_quality")
"""The components that a judgement and its item are enough for."""


def score(
    judgement: Judgement,
    item: Item,
    seed: int = 0,
    components: Iterable[str] = WITHOUT_EVIDENCE,
    evidence: Evidence | None = None,
) -> RewardBreakdown:
    """Score a judgement of an item.

    Args:
        judgement: As parsed from a completion of `render(item, seed=seed)`.
        item: The item as its source gave it.
        seed: The seed it was rendered with.
        components: Which parts to compute.
        evidence: What the other components need.

    Raises:
        UnknownRewardError: the message lists the components there are.
        MissingEvidenceError: the message says what to pass.

    Example:
        >>> from think_as_locals.judging.parse import parse
        >>> item = Item(id="1", prompt="?", responses=("x", "y"), best=0, culture="TH", language="en",
        ...             domain="value", group="g", source="mine")
        >>> dict(score(parse("nonsense", 2), item, components=["correctness"]).parts)
        {'correctness': -1.0}
    """
    shown, given = present(item, seed), evidence or Evidence()
    for name in (names := list(components)):
        if name not in COMPONENTS:
            raise UnknownRewardError(f"no reward component {name!r}; available: {', '.join(COMPONENTS)}")
    return RewardBreakdown({name: COMPONENTS[name](judgement, shown, given) for name in names})


def _needed(component: str, name: str, value: T | None) -> T:
    if value is None:
        raise MissingEvidenceError(
            f"reward component {component!r} needs {name}: pass evidence=Evidence({name}=...), or leave it out"
        )
    return value
