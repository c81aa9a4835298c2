"""RewardBench 2's Ties: rows count once, and the published score from the ratings of whole rows."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from think_as_locals.data.rows import Row
from think_as_locals.data.sources import rewardbench2
from think_as_locals.evaluation.carb import save, summarise
from think_as_locals.evaluation.judgements import Judgements, tabulate
from think_as_locals.evaluation.ties import composite
from think_as_locals.judging import shuffle_responses
from think_as_locals.reward_models.reward_model import ScoredItem, favourite
from think_as_locals.types import Item, Judgement

Ratings = tuple[list[float], list[float]]
"""Of the right and of the wrong answers of a row."""


def judged(rows: dict[str, Ratings]) -> list[ScoredItem]:
    """A scalar reward model's judgements of rows by id."""
    found = []
    for name, (right, wrong) in rows.items():
        chosen, rejected = ([f"{kind} {i}" for i in range(len(of))] for kind, of in (("yes", right), ("no", wrong)))
        value = {"id": name, "subset": "Ties", "prompt": "Name one.", "chosen": chosen, "rejected": rejected}
        scores = dict(zip((*chosen, *rejected), (*right, *wrong), strict=True))
        for item in rewardbench2.items(Row("rows.jsonl", 1, value, ""), None):
            assert isinstance(item, Item)
            presented = shuffle_responses(item, 0)
            given_scores = tuple(scores[text] for text in presented.responses)
            judgement = Judgement(verdict=favourite(given_scores), rubric=None, analysis=None, issues=(), completion="")
            found.append(ScoredItem(item=item, presented=presented, judgement=judgement, scores=given_scores))
    return found


def published(rows: dict[str, Ratings]) -> float:
    """The score as RewardBench 2's paper and code define it, prompt by prompt."""
    right = {name: min(good) > max(bad) for name, (good, bad) in rows.items()}
    kinds = {kind: [ok for name, ok in right.items() if name.startswith(kind)] for kind in ("tied:", "ref:")}
    preferred, hard, size = [], [], []
    for prompt in {name.partition(":")[2] for name in rows}:
        tied, ref = rows[f"tied:{prompt}"], rows[f"ref:{prompt}"]
        spread = max(tied[0]) - min(tied[0])
        margin, reference = (min(good) - max(bad) for good, bad in (tied, ref))
        preferred.append(margin > spread)
        hard.append(min(margin, reference) > spread)
        size.append(
            math.tanh(min(margin, reference) / spread - 1) if spread else math.copysign(1, min(margin, reference))
        )
    mean = statistics.fmean
    return (
        0.3 * mean(kinds["tied:"])
        + 0.3 * mean(kinds["ref:"])
        + 0.2 * mean(preferred)
        + 0.2 * mean(hard)
        + (0.01 * mean(size))
    )


EXAMPLE: dict[str, Ratings] = {
    "tied:1": ([9, 9, 9, 5], [6, 2, 2]),
    "ref:1": ([9], [2, 2]),
    "tied:2": ([9, 9], [2, 2]),
    "ref:2": ([9], [2, 2]),
}


def test_example_has_the_published_score_and_counts_rows_once() -> None:
    scored = judged(EXAMPLE)
    assert len(scored) == 4 + 1 + 2 + 1
    assert composite(tabulate(scored)) == pytest.approx(published(EXAMPLE), abs=1e-12)
    assert composite(tabulate(scored)) == pytest.approx(0.65, abs=0.005)
    about = {"dataset": "rewardbench2", "split": "all", "model": "m", "seed": 0, "step": 0, "bootstrap_samples": 100}
    found = summarise(Judgements.of(tabulate(scored)), **about, queried=[each.item for each in scored])
    assert (found["n"], found["accuracy"]) == (4, 3 / 4)
    assert found["too_long"] == {"exclude": [], "wrong": []}


@pytest.mark.parametrize("protocol", ["pairwise, greedy, one order, strict", "round_robin, greedy, 2 orders, strict"])
def test_comparisons_have_no_published_score(tmp_path: Path, protocol: str) -> None:
    about = {"dataset": "rewardbench2", "split": "all", "model": "m", "seed": 0, "step": 0, "bootstrap_samples": 100}
    queried = [each.item for each in judged(EXAMPLE)]
    for name, expected in (("pointwise, greedy, one order, strict", True), (protocol, False)):
        found = save(judged(EXAMPLE), tmp_path / "m.json", **about, queried=queried, protocol=name)
        assert ("rewardbench2_ties" in found) == expected


ratings = st.lists(st.integers(1, 10).map(float), min_size=1, max_size=9)


@given(st.dictionaries(st.sampled_from("1234"), st.tuples(ratings, ratings, ratings, ratings), min_size=1))
def test_score_is_that_of_the_published_formula(prompts: dict[str, tuple[list[float], ...]]) -> None:
    rows = {}
    for name, (good, bad, ref, ref_bad) in prompts.items():
        rows |= {f"tied:{name}": (good, bad), f"ref:{name}": (ref[:1], ref_bad)}
        if min(good) == max(good) and min(min(good) - max(bad), ref[0] - max(ref_bad)) == 0:
            return  # 0 / 0
    assert composite(tabulate(judged(rows))) == pytest.approx(published(rows), abs=1e-9)


def test_comparisons_and_single_rows_have_no_score() -> None:
    assert composite(tabulate(judged({"tied:1": ([9, 8], [2])}))) is None
    shares = judged(EXAMPLE)
    changed = [ScoredItem(item=s.item, presented=s.presented, judgement=s.judgement) for s in shares]
    assert composite(tabulate(changed)) is None
    unread = [each if "tied:1/3-" not in each.item.id else one for each, one in zip(shares, changed, strict=True)]
    assert composite(tabulate(unread)) is None  # with those that are left it would be another number
