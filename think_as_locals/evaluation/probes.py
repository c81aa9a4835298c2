"""Whether a reward model looks at what it should: how far its score moves when one thing about an item changes.

The probes are those of CARB (arXiv 2509.21798); `data/edits.py` makes the edits. What is measured is the margin of the
chosen response: its score less the mean score of the others. The margin does not know where an RM puts its zero; and
unlike one by log-sum-exp, it changes in proportion where scores are stretched. So two forms of relative change:

    relative  100 (m' - m) / spread   m, m': margin before and after; spread: root mean square of the distances of
                                      scores from their item's mean, over all unedited items. The same for any RM
                                      whose scores are a u + b with a > 0.
    paper     100 (s' - s) / |s|      s, s': the chosen response's score itself, as the paper writes it. It hangs on
                                      the RM's zero and says little where that is arbitrary, as with scalar RMs.

0 / 0 is 0: what does not move has not changed. Anything else over 0 has no value, and neither has an item that a judge
wrote no verdict about; such items are left out and counted.

An absolute change alone shows nothing: any RM that reads text moves when text changes, a culture-blind one too. On CC
one that knows the culture moves *down*, one that is blind to it on flip sets as often up as down. (In a culture's own
language its own answers are shorter than others', see `culture_cards.py`.) So the signed change stands beside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from think_as_locals.data.edits import Edit, edited_pairs
from think_as_locals.evaluation.judged import grouped
from think_as_locals.evaluation.means import Mean, estimate_mean
from think_as_locals.types import DataError, Item

Scorer = Callable[[Sequence[Item]], list[tuple[float, ...]]]
"""Items -> for each a score of every response, in the item's own order; NaN for what could not be read.

A scalar RM gives its scores, a generative one the log-probability of each label as its verdict. It must show responses
in the order of the item (`render_shown`): `present` would deal edited responses anew, and the change of place would
count as a change of score.
"""

DIRECTIONS: dict[Edit, Literal["up", "down"]] = {"CC": "up", "RC": "down", "CL": "down", "RP": "down"}
"""Whether a good RM has much change or little. On RC that holds in the language of the culture (see `remove_label`)."""

Scores = Mapping[Item, tuple[float, ...]]
Estimate = Callable[..., Mean]
"""`estimate_mean` of values, groups and bounds."""


@dataclass(frozen=True, slots=True)
class Change:
    """What an edit did to the score of an item's chosen response.

    Args:
        before: The item as it was.
        after: The item as it was edited.
        relative: Signed, in % of the RM's spread; `None` where that is 0 and the margin moved.
        paper: Signed, in % of the response's score; `None` where that is 0 and moved.
    """

    before: Item
    after: Item
    relative: float | None
    paper: float | None


def probe(items: Sequence[Item], scorer: Scorer, *, k: float, samples: int, seed: int) -> dict[str, Any]:
    """Edit items, score them before and after, and tell how far scores moved.

    Args:
        items: In the order in which their responses are to be shown: `present` deals them well.
        scorer: Asked once, about everything.
        k: Of the cross-lingual consistency exp(-k |change|), the change being a fraction of the spread or, in the
            paper's form, of the score. The paper's k is not public.
        samples: Resamples of question groups, for the intervals.
        seed: Of the resampling.

    Returns:
        `n_items`, `spread`, and by probe (`CC`, `RC`, `CL`, `RP`): `direction`; `n`, the pairs; `applicable`, the share
        of items that are a side of one; `relative` and `paper`, each with `absolute` and `signed` (`n`, `mean` in %,
        `ci95`, `interval`) and `undefined`, how many are left out; `by_culture` and `by_language` (relative). `CL` has
        `consistency` as well, in both forms and with its `k`.

    Raises:
        DataError: no items, or not a finite score for every response; the message names the item.

    Example:
        >>> item = Item(id="1", prompt="What do people in Japan eat?", responses=("Rice.", "Toast"), best=0,
        ...             culture="JP", language="en", domain="commonsense", group="breakfast", source="mine")
        >>> blind = lambda items: [tuple(float(len(text)) for text in item.responses) for item in items]
        >>> probe([item], blind, k=1.0, samples=100, seed=0)["RC"]["relative"]["absolute"]["mean"]
        0.0
    """
    if not items:
        raise DataError("no items to probe a reward model with")
    # Sorted: sums are rounded, and of any order of items they shall have the same bits.
    pairs = edited_pairs(sorted(items, key=lambda item: item.id))
    # One call for everything, each item once: an engine does best with all there is.
    every = list(dict.fromkeys([*items, *(item for edited in pairs.values() for pair in edited for item in pair)]))
    scores = dict(zip(every, scored(every, scorer), strict=True))
    spread = _spread([scores[item] for item in items])
    estimate = partial(estimate_mean, samples=samples, seed=seed)
    found: dict[str, Any] = {"n_items": len(items), "spread": spread}
    for name, edited in pairs.items():
        changes = [change(before, after, scores, spread) for before, after in edited]
        found[name] = {
            "direction": DIRECTIONS[name],
            "n": len(changes),
            "applicable": _applicable(name, changes, items),
            **_measured(changes, estimate),
        }
        if name == "CL":
            found[name]["consistency"] = _consistency(changes, k, estimate)
    return found


def scored(items: Sequence[Item], scorer: Scorer) -> list[tuple[float, ...]]:
    """What a scorer makes of items; it is not asked about none.

    Raises:
        DataError: more or fewer scores than responses, or an infinite one; the message names the item.
    """
    scores = scorer(items) if items else []
    if len(scores) != len(items):
        raise DataError(f"the scorer was asked about {len(items)} items and gave scores of {len(scores)}")
    for item, of_item in zip(items, scores, strict=True):
        if len(of_item) != len(item.responses) or any(map(math.isinf, of_item)):
            expected = f"a finite score, or NaN for none, for each of its {len(item.responses)} responses"
            raise DataError(f"item {item.id!r}: expected {expected}, the scorer gave {of_item}")
    return scores


def change(before: Item, after: Item, scores: Scores, spread: float) -> Change:
    """What an edit did, given the scores of both items."""
    was, now = scores[before], scores[after]
    moved = _margin(now, after.best) - _margin(was, before.best)
    return Change(
        before, after, _percent(moved, spread), _percent(now[after.best] - was[before.best], was[before.best])
    )


def _applicable(name: Edit, changes: Sequence[Change], items: Sequence[Item]) -> float:
    """The share of items that are a side of a pair; both sides can be items where they are parallel."""
    sides = {item.id.removesuffix(f"#{name}") for c in changes for item in (c.before, c.after)}
    return sum(item.id in sides for item in items) / len(items)


def _measured(changes: Sequence[Change], estimate: Estimate) -> dict[str, Any]:
    by_culture = grouped(changes, lambda c: c.before.culture or "none")
    by_language = grouped(changes, lambda c: c.after.language)
    return {
        "relative": _summary(changes, _relative, estimate),
        "paper": _summary(changes, _paper, estimate),
        "by_culture": {key: _summary(part, _relative, estimate) for key, part in sorted(by_culture.items())},
        "by_language": {key: _summary(part, _relative, estimate) for key, part in sorted(by_language.items())},
    }


def _summary(changes: Sequence[Change], value: Callable[[Change], float | None], estimate: Estimate) -> dict[str, Any]:
    values, groups = _known(changes, value)
    return {
        "absolute": estimate([abs(v) for v in values], groups, bounds=(0, math.inf)).as_dict(),
        "signed": estimate(values, groups).as_dict(),
        "undefined": len(changes) - len(values),
    }


def _consistency(changes: Sequence[Change], k: float, estimate: Estimate) -> dict[str, Any]:
    """Cross-lingual consistency: 1 where nothing moved, falling to 0."""
    found: dict[str, Any] = {"k": k}
    for form, value in (("relative", _relative), ("paper", _paper)):
        values, groups = _known(changes, value)
        found[form] = estimate([math.exp(-k * abs(v) / 100) for v in values], groups, bounds=(0, 1)).as_dict()
    return found


def _relative(found: Change) -> float | None:
    return found.relative


def _paper(found: Change) -> float | None:
    return found.paper


def _known(changes: Sequence[Change], value: Callable[[Change], float | None]) -> tuple[list[float], list[str]]:
    """The values of those changes that have one, and their question groups."""
    known = [(v, c.before.group) for c in changes if (v := value(c)) is not None]
    return [v for v, _ in known], [group for _, group in known]


def _percent(moved: float, scale: float) -> float | None:
    if moved == 0:
        return 0.0
    return 100 * moved / abs(scale) if scale and not math.isnan(moved) else None


def _margin(scores: Sequence[float], best: int) -> float:
    # Differences first: where all scores are the same, nothing is left of them to round.
    return math.fsum(scores[best] - score for score in scores) / (len(scores) - 1)


def _spread(scores: Sequence[tuple[float, ...]]) -> float:
    squares: list[float] = [0.0]
    for of_item in scores:
        if any(map(math.isnan, of_item)):
            continue
        beside = [score - of_item[0] for score in of_item]  # exactly 0 where all are the same, as in _margin
        squares += [(value - math.fsum(beside) / len(beside)) ** 2 for value in beside]
    return math.sqrt(math.fsum(squares) / max(1, len(squares) - 1))
