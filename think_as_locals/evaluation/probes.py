"""Spurious-feature probes of CARB (arXiv 2509.21798): how much a score changes when one aspect of an item changes.

The margin of the best response is its score minus the mean score of the others. There are two forms of relative change:

    relative  100 (m' - m) / spread   m, m': margin before and after; spread: root mean square of the distances of
                                      scores from their item's mean, over all unedited items. Invariant under
                                      scores a u + b with a > 0.
    paper     100 (s' - s) / |s|      s, s': the best response's score itself, as in the paper. It depends on the RM's
                                      zero, which is arbitrary for scalar RMs.

0 / 0 is 0; anything else over 0 is undefined, as is an item without a verdict: these are left out and counted. On CC
the scores of an RM that knows the culture move *down*; those of one that ignores it move up as often as down. So the
signed change is given too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from pandas import DataFrame

from think_as_locals.data.edits import Edit, Edits, no_edit_reason
from think_as_locals.evaluation.breakdowns import BREAKDOWNS
from think_as_locals.evaluation.statistics import Estimate, estimate_mean
from think_as_locals.types import DataError, Item

Scorer = Callable[[Sequence[Item]], list[tuple[float, ...]]]
"""Takes items and returns the scores of each item's responses, in its own order; NaN for a parse failure.

Responses must be presented in the item's order (`render_presented`): if edited responses were shuffled anew, the change
of their places would count as a change of score.
"""

DIRECTIONS: dict[Edit, Literal["up", "down"]] = {"CC": "up", "RC": "down", "CL": "down", "RP": "down"}
"""Whether a good RM changes much or little. On RC this holds in the language of the culture (see `remove_label`)."""

_K = 1.0  # of cross-lingual consistency, exp(-k |change|), the change as a fraction; the paper does not publish its k

_FORMS = ("relative", "paper")


def probe(
    items: Sequence[Item],
    edits: Edits,
    scorer: Scorer,
    *,
    samples: int,
    seed: int,
    reason: Callable[[Edit, Item], str] = no_edit_reason,
) -> dict[str, Any]:
    """Score items before and after their edits, all in one call, and return the changes of scores by probe.

    Items and edits have their responses in the order in which they are presented, as by `shuffle_responses`. `reason`
    says why there is no edit of an item.
    """
    if not items:
        raise DataError("no items to probe a reward model with")
    # Sorted, since sums are rounded: the result must not depend on the order of items.
    pairs = {edit: sorted(of_edit, key=lambda pair: pair.before.id) for edit, of_edit in edits.items()}
    edited_items = (item for edited in pairs.values() for pair in edited for item in pair[:2])
    every = list(dict.fromkeys((item, item.turns) for item in (*items, *edited_items)))
    scores = dict(zip(every, scorer([item for item, _ in every]), strict=True))
    spread = _spread([scores[item, item.turns] for item in items])
    estimate = partial(estimate_mean, samples=samples, seed=seed)
    found: dict[str, Any] = {"n_items": len(items), "spread": spread}
    ids = {item.id for item in items}
    for name, edited in pairs.items():
        rows = []
        for before, after, language in edited:
            old, new = scores[before, before.turns], scores[after, after.turns]
            relative = _percent(_margin(new, after.best) - _margin(old, before.best), spread)
            paper = _percent(new[after.best] - old[before.best], old[before.best])
            rows.append((before.id, before.group, BREAKDOWNS["culture"](before), language, relative, paper))
        changes = DataFrame(rows, columns=["id", "group", "culture", "language", *_FORMS])
        edited_ids = set(changes["id"])
        others = [item for item in items if item.id not in edited_ids]
        found[name] = {
            "direction": DIRECTIONS[name],
            "n": len(changes),
            "applicable": 1 - len(others) / len(items),
            "not_applicable": dict(Counter(reason(name, item) for item in others).most_common()),
            "of_other_items": sum(before not in ids for before in changes["id"]),
            **{form: _summary(changes, form, estimate) for form in _FORMS},
            **{
                f"by_{key}": {part: _summary(of_part, "relative", estimate) for part, of_part in changes.groupby(key)}
                for key in ("culture", "language")
            },
        }
        if name == "CL":
            found[name]["consistency"] = {"k": _K}
            for form in _FORMS:  # 1 where nothing moved, falling to 0
                values, groups = _defined(changes, form)
                kept = estimate([math.exp(-_K * abs(v) / 100) for v in values], groups, bounds=(0, 1))
                found[name]["consistency"][form] = kept.as_dict("mean")
    return found


def applied(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each probe in a result: the share of items that it applies to, and why not to others.

    A file may also have edits of items of its own, which its figures then include.
    """
    for name in DIRECTIONS:
        part = found[name]
        reasons = [f"{reason} ({count:,})" for reason, count in part["not_applicable"].items()]
        if part["of_other_items"]:
            reasons.append(f"its figures include edits of items that are not evaluated ({part['of_other_items']:,})")
        why = "; ".join(reasons)
        share = f"{name} applies to {100 * part['applicable']:.1f} % of {found['n_items']:,} items"
        yield f"{share}: {why}" if why else share


def _summary(changes: DataFrame, form: str, estimate: Callable[..., Estimate]) -> dict[str, Any]:
    values, groups = _defined(changes, form)
    return {
        "absolute": estimate([abs(v) for v in values], groups, bounds=(0, math.inf)).as_dict("mean"),
        "signed": estimate(values, groups).as_dict("mean"),
        "undefined": len(changes) - len(values),
    }


def _defined(changes: DataFrame, form: str) -> tuple[list[float], list[str]]:
    """Return the values of those changes that have one, and their question groups."""
    known = changes.dropna(subset=form)
    return known[form].tolist(), known["group"].tolist()


def _percent(moved: float, scale: float) -> float:
    """Return a change in per cent, NaN if it is undefined."""
    if moved == 0:
        return 0.0
    return 100 * moved / abs(scale) if scale else math.nan


def _margin(scores: Sequence[float], best: int) -> float:
    # Differences first, so that equal scores leave no rounding error.
    return math.fsum(scores[best] - score for score in scores) / (len(scores) - 1)


def _spread(scores: Sequence[tuple[float, ...]]) -> float:
    squares: list[float] = [0.0]
    for of_item in (each for each in scores if not any(map(math.isnan, each))):
        differences = [score - of_item[0] for score in of_item]  # exactly 0 where all are the same, as in _margin
        squares += [(value - math.fsum(differences) / len(differences)) ** 2 for value in differences]
    return math.sqrt(math.fsum(squares) / max(1, len(squares) - 1))
