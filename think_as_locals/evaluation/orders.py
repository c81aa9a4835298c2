"""What the order of an item's responses does to the verdict: favourite slots, and verdicts that move with the order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from think_as_locals.evaluation.judged import grouped
from think_as_locals.evaluation.paired import difference
from think_as_locals.evaluation.statistics import accuracy
from think_as_locals.models.prediction import Prediction
from think_as_locals.types import LABELS


def slot_bias(predictions: Sequence[Prediction], samples: int, seed: int) -> dict[str, Any]:
    """By label, how much more often its slot is chosen than the best response lies in it.

    Args:
        predictions: Any; without a verdict, or of a model that scores and sees no slots, they count for nothing.
        samples: Resamples of question groups, for the intervals.
        seed: Of the resampling.

    Returns:
        For each slot that was on offer: `n` (judgements with a verdict that could name it), `chosen` and `best` (the
        shares of them), `bias` = chosen - best with `ci95`. A judge without a favourite slot has 0 everywhere.
    """
    read = [p for p in predictions if p.judgement.verdict is not None and p.scores is None]
    found = {}
    for slot in range(max((len(p.shown.responses) for p in read), default=0)):
        offered = [p for p in read if slot < len(p.shown.responses)]
        bias = difference(
            [float(p.shown.best == slot) for p in offered],
            [float(p.judgement.verdict == slot) for p in offered],
            [p.item.group for p in offered],
            samples,
            seed,
        )
        found[LABELS[slot]] = {
            "n": bias.n,
            "chosen": bias.b,
            "best": bias.a,
            "bias": bias.difference,
            "ci95": list(bias.ci95),
            "interval": bias.interval,
        }
    return found


def order_consistency(predictions: Sequence[Prediction], samples: int, seed: int) -> dict[str, Any]:
    """Of items that were judged in several orders, the share with the same response chosen in all of them.

    An unparsable judgement is consistent with none. J1 (arXiv 2505.10320) calls `all_right`, the share that is right in
    every order, consistent accuracy.

    Args:
        predictions: One for each order that an item was shown in.
        samples: Resamples of question groups, for the intervals.
        seed: Of the resampling.

    Returns:
        `n`, the number of such items; where there are any `consistent` and `all_right` with their intervals.
    """
    several = [
        judgements
        for judgements in grouped(predictions, lambda p: p.item.id).values()
        if len({p.shown.responses for p in judgements}) > 1
    ]
    if not several:
        return {"n": 0}
    groups = [judgements[0].item.group for judgements in several]
    measured = partial(accuracy, groups=groups, samples=samples, seed=seed)
    consistent = measured([float(_one_choice(judgements)) for judgements in several])
    all_right = measured([float(all(p.correct for p in judgements)) for judgements in several])
    return {
        "n": len(several),
        "consistent": consistent.accuracy,
        "ci95": list(consistent.ci95),
        "interval": consistent.interval,
        "all_right": all_right.as_dict(),
    }


def _one_choice(judgements: Sequence[Prediction]) -> bool:
    chosen = {None if (v := p.judgement.verdict) is None else p.shown.responses[v] for p in judgements}
    return len(chosen) == 1 and None not in chosen
