"""Verifiable rewards, ours and users' own: pure functions of a judgement, the item as presented, and further evidence.

A parse failure or a completion that is cut off is penalised: no component leaves it without a reward.
"""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from runpy import run_path
from typing import TypeVar

from think_as_locals.judging.formats import RULES, Format
from think_as_locals.judging.prompt import shuffle_responses
from think_as_locals.judging.rubric import distinct_share, rubric_span, script_share, weighed_share
from think_as_locals.runtime.files import write_text
from think_as_locals.runtime.processes import time_limit
from think_as_locals.types import (
    ConfigError,
    Criterion,
    Item,
    Judgement,
    RewardBreakdown,
    Rubric,
    RubricLanguage,
    ThinkAsLocalsError,
    reorder_responses,
    shown,
)

T = TypeVar("T")


class UnknownRewardError(ThinkAsLocalsError, LookupError):
    """There is no reward component of that name."""


class MissingEvidenceError(ThinkAsLocalsError, ValueError):
    """A reward component lacks the evidence that it needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What components may need besides a judgement and its item; `None` if unknown.

    Args:
        log_probabilities: For `criteria_gain`: log-probabilities of the right verdict after the completion's
            `rubric_span` and without a rubric, in nats.
        gain_clip: For `criteria_gain`: its lowest and highest value, in nats.
        rubric_language: For `rubric_quality`: the language that the prompt asks for.
        partner_right: For `consistency`: whether the verdict in the other order of responses is right.
        num_tokens: For `length`: tokens of the completion.
        length_share: For `length`: the last part of the maximum length, in which the penalty grows, as a share.
        max_completion_length: For `length`: the maximum length in tokens, from which the penalty is full.
        num_rules: For `structure`: number of rules of the prompt's format (`Format.rules`); that of our grammar by
            default.
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
"""A reward component: a function of a judgement, the item as presented, and evidence."""


def correctness(judgement: Judgement, presented: Item, evidence: Evidence) -> float:
    """+1 if the verdict is the best response, -1 if it is another one or missing (R_corr of arXiv 2509.21798)."""
    return 1.0 if judgement.verdict == presented.best else -1.0


def criteria_gain(judgement: Judgement, presented: Item, evidence: Evidence) -> float:
    """How much the rubric raises the log-probability of the right verdict: log pi(j | q, y, z) - log pi(j | q, y).

    R_appr of arXiv 2509.21798, in nats; clipping it and scoring only `rubric_span` are ours. Without a rubric to score
    it has its lowest value; if a log-probability is not finite it is NaN.
    """
    low, high = _needed("criteria_gain", "gain_clip", evidence.gain_clip)
    if rubric_span(judgement, len(presented.responses)) is None:
        return low
    with_rubric, without = _needed("criteria_gain", "log_probabilities", evidence.log_probabilities)
    gain = with_rubric - without
    return min(high, max(low, gain)) if math.isfinite(gain) else math.nan


def structure(judgement: Judgement, presented: Item, evidence: Evidence) -> float:
    """Share of the format's rules that the completion follows. Ours."""
    return 1.0 - len(judgement.issues) / evidence.num_rules


def rubric_quality(judgement: Judgement, presented: Item, evidence: Evidence) -> float:
    """Product of three shares, from 0 to 1. Ours.

    The share of criteria that differ from the earlier ones, of responses that the analysis weighs, and of letters in
    the script of the language that the prompt asks for. 0 without a rubric of three to seven criteria.

    It cannot see whether a criterion is true, fits the question or is used, whether a word exists, nor which of two
    languages of one script is written: a constant text earns it in full. So keep its weight small, and read rubrics.
    """
    rubric = judgement.rubric
    if rubric is None or "criterion_count" in judgement.issues:
        return 0.0
    language = {"item": presented.language, "en": "en", "any": None}[evidence.rubric_language]
    in_script = 1.0 if language is None else script_share(rubric, language)
    return distinct_share(rubric) * weighed_share(judgement.analysis, presented.responses) * in_script


def consistency(judgement: Judgement, presented: Item, evidence: Evidence) -> float:
    """1 if the verdicts in both orders of the responses are right, else 0 (J1, arXiv 2505.10320)."""
    partner_right = _needed("consistency", "partner_right", evidence.partner_right)
    return 1.0 if judgement.verdict == presented.best and partner_right else 0.0


def length(judgement: Judgement, presented: Item, evidence: Evidence) -> float:
    """Soft overlong penalty (DAPO, arXiv 2503.14476, eq. 13).

    0 up to `(1 - length_share) * max_completion_length` tokens, then falling linearly to -1 at `max_completion_length`;
    -1 for a completion that was cut off.
    """
    tokens = _needed("length", "num_tokens", evidence.num_tokens)
    share = _needed("length", "length_share", evidence.length_share)
    longest = _needed("length", "max_completion_length", evidence.max_completion_length)
    if "finished" in judgement.issues:
        return -1.0
    return -min(1.0, max(0.0, 1 - (1 - tokens / longest) / share))


_COMPONENTS = (correctness, criteria_gain, structure, rubric_quality, consistency, length)
COMPONENTS: Mapping[str, Component] = {each.__name__: each for each in _COMPONENTS}


def score(
    judgement: Judgement,
    item: Item,
    seed: int = 0,
    components: Iterable[str] = ("correctness", "structure", "rubric_quality"),
    evidence: Evidence | None = None,
) -> RewardBreakdown:
    """Score a judgement of an item.

    Args:
        judgement: A parsed completion of `render(item, seed=seed)`, or the result of `Judge.judge`.
        item: The item in the order of its source.
        seed: The seed that it was rendered with; the result of `Judge.judge` has the order itself.
        components: The parts to compute; by default those that need no evidence.
        evidence: What the other components need.

    Raises:
        UnknownRewardError: no such component; the message lists the known ones.
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
        judgement = replace(judgement, verdict=verdict, order=None)
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


# --- Users' own, as `path/to/file.py:function` or `package.module:function` ---

OwnReward = Callable[[Judgement, Item], float]
"""A function of a judgement and its item as presented."""


def load_custom_rewards(references: Mapping[str, str]) -> dict[str, Component]:
    """Import custom components by name, or raise a ConfigError; called in each process of a run."""

    def as_component(name: str, function: OwnReward) -> Component:
        def component(judgement: Judgement, presented: Item, evidence: Evidence) -> float:
            return function(judgement, presented)

        component.__name__ = name
        return component

    return {name: as_component(name, _import_function(name, reference)) for name, reference in references.items()}


def try_custom_rewards(references: Mapping[str, str], seconds: float, format_: Format, item: Item) -> None:
    """Raise a ConfigError if a custom component fails or takes longer, for a completion in a format or an empty one."""
    criteria = tuple(Criterion(weight, f"criterion {weight}", "what it says") for weight in (50, 30, 20))
    for text in (format_.write(Rubric(criteria), "A: fits", item.best), ""):
        judgement = format_.read(text, len(item.responses), "stop")
        for name, component in load_custom_rewards(references).items():
            try:
                with time_limit(seconds):
                    float(component(judgement, item, Evidence()))
            except Exception as error:
                raise ConfigError(f"reward.own.{name}: {described(error)}, for the completion {shown(text)}") from error


def described(error: Exception) -> str:
    """Return an error that a custom component raised, and where."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"


def keep_sources(references: Mapping[str, str], folder: Path) -> None:
    """Copy the files of custom components to `folder/NAME.py`; raise a ConfigError if those of a resumed run differ."""
    for name, reference in references.items():
        kept = folder / f"{name}.py"
        source = Path(inspect.getfile(inspect.unwrap(_import_function(name, reference)))).read_text(encoding="utf-8")
        if not kept.is_file():
            folder.mkdir(exist_ok=True)
            write_text(kept, source)
        elif kept.read_text(encoding="utf-8") != source:
            raise ConfigError(
                f"reward.own.{name}: {reference} has changed since this run was started with {kept}: "
                "change it back to continue the run, or choose another run.name"
            )


_run = cache(run_path)  # once, for all functions of a file


@cache
def _import_function(name: str, reference: str) -> OwnReward:
    file, _, attribute = reference.rpartition(":")
    try:
        if file.endswith(".py"):
            found = _run(str(Path(file).expanduser().resolve()), run_name="own_reward")
            if attribute not in found:
                functions = [known for known, value in found.items() if inspect.isfunction(value)]
                raise LookupError(f"no {attribute} in it; functions there: {', '.join(functions) or 'none'}")
            function = found[attribute]
        else:
            function = resolve_name(reference)
    except Exception as error:  # whatever the user's own code raises
        raise ConfigError(f"reward.own.{name}: {reference}: {type(error).__name__}: {error}") from error
    if not inspect.isfunction(function):
        raise ConfigError(f"reward.own.{name}: {reference}: expected a function, got {function!r}")
    return function
