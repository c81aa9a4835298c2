"""RewardBench 2's Ties: rows count once, and the published score from the ratings of whole rows."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Set
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from evaluation.judged import judgement, tied
from hypothesis import given
from hypothesis import strategies as st

from think_as_locals.config.checks import load_data_config
from think_as_locals.data import read
from think_as_locals.data.rows import Row
from think_as_locals.data.sources import rewardbench2
from think_as_locals.data.splits import select
from think_as_locals.evaluation.carb import save
from think_as_locals.evaluation.judgements import composite, merge_rows, row_name, tabulate
from think_as_locals.judging import shuffle_responses
from think_as_locals.reward_models.reward_model import ScoredItem, apply_too_long
from think_as_locals.types import Item

Ratings = tuple[list[float], list[float]]
"""Of the right and of the wrong answers of a row."""


def source_rows(rows: dict[str, Ratings]) -> list[dict[str, Any]]:
    """Rows of the data set, whose answers are numbered."""
    return [
        {"id": name, "subset": "Ties", "prompt": f"Name one of {name}."}
        | {key: [f"{key} {i}" for i in range(len(of))] for key, of in zip(("chosen", "rejected"), ratings, strict=True)}
        for name, ratings in rows.items()
    ]


def scored_items(items: Iterable[Any], rows: dict[str, Ratings]) -> list[ScoredItem]:
    """A scalar reward model's judgements of items of these rows."""
    found = []
    for item in items:
        assert isinstance(item, Item)
        presented, ratings = shuffle_responses(item, 0), rows[item.prompt.removeprefix("Name one of ")[:-1]]
        answers = [text.split() for text in presented.responses]
        scores = tuple(ratings[kind == "rejected"][int(number)] for kind, number in answers)
        found.append(tied(item, scores))
    return found


def judged(rows: dict[str, Ratings]) -> list[ScoredItem]:
    """A scalar reward model's judgements of rows by id."""
    outcomes = (rewardbench2.items(Row("rows.jsonl", 1, value, ""), None) for value in source_rows(rows))
    return scored_items(chain.from_iterable(outcomes), rows)


def published(rows: dict[str, Ratings]) -> float:
    """The score as RewardBench 2's paper and code define it, prompt by prompt."""
    right = {name: min(good) > max(bad) for name, (good, bad) in rows.items()}
    kinds = {kind: [ok for name, ok in right.items() if name.startswith(kind)] for kind in ("tied:", "ref:")}
    preferred, hard, size = [], [], []
    for prompt in {name.partition(":")[2] for name in rows}:
        tied, ref = rows[f"tied:{prompt}"], rows[f"ref:{prompt}"]
        spread = max(tied[0]) - min(tied[0])
        margin, reference = (min(good) - max(bad) for good, bad in (tied, ref))
        least = min(margin, reference)
        preferred.append(margin > spread)
        hard.append(least > spread)
        size.append(math.tanh(least / spread - 1) if spread else math.copysign(1, least))
    parts = (kinds["tied:"], kinds["ref:"], preferred, hard, size)
    return sum(by * statistics.fmean(of) for by, of in zip((0.3, 0.3, 0.2, 0.2, 0.01), parts, strict=True))


EXAMPLE: dict[str, Ratings] = {
    "tied:1": ([9, 9, 9, 5], [6, 2, 2]),
    "ref:1": ([9], [2, 2]),
    "tied:2": ([9, 9], [2, 2]),
    "ref:2": ([9], [2, 2]),
}


ABOUT = {"dataset": "rewardbench2", "split": "all", "model": "m", "seed": 0, "step": 0, "bootstrap_samples": 100}


def test_example_has_the_published_score_and_counts_rows_once(tmp_path: Path) -> None:
    scored = judged(EXAMPLE)
    assert len(scored) == 4 + 1 + 2 + 1
    assert composite(tabulate(scored)) == pytest.approx(published(EXAMPLE), abs=1e-12)
    assert composite(tabulate(scored)) == pytest.approx(0.65, abs=0.005)
    about = {**ABOUT, "queried": [each.item for each in scored]}
    found = save(scored, tmp_path / "m.json", **about, protocol="pointwise, greedy, one order, strict")
    assert (found["n"], found["accuracy"]) == (4, 3 / 4)
    assert found["too_long"] == {"exclude": [], "wrong": []}
    assert found["rewardbench2_ties"] == composite(tabulate(scored))
    for protocol in ("pairwise, greedy, one order, strict", "round_robin, greedy, 2 orders, strict"):
        assert "rewardbench2_ties" not in save(scored, tmp_path / "m.json", **about, protocol=protocol)


def test_baselines_have_to_be_right_about_whole_rows(tmp_path: Path) -> None:
    rows: dict[str, Ratings] = {"tied:1": ([9.0] * 3, [2.0] * 9), "ref:1": ([9.0], [2.0] * 3)}  # 3 x 2 items, and 1
    found = save(judged(rows), tmp_path / "step-0.json", **ABOUT)["baselines"]
    assert found["chance"]["accuracy"] == pytest.approx(((1 / 8 * 1 / 3) ** 3 + 1 / 4) / 2)
    # "chosen 0" is shorter than "rejected 0", so right in all of them; ties of the longest count by chance.
    assert found["shortest"]["accuracy"] == 1.0
    assert found["longest"]["accuracy"] == 0.0


def test_single_rows_and_rows_without_scores_have_no_score() -> None:
    assert composite(tabulate(judged({"tied:1": ([9, 8], [2])}))) is None
    scored = judged(EXAMPLE)
    assert composite(tabulate(scored[1:])) is None  # a row without one of its items
    for part in ("", "tied:1/3-"):  # with those that are left it would be another number
        unread = [replace(each, scores=None) if part in each.item.id else each for each in scored]
        assert composite(tabulate(unread)) is None


def test_a_row_with_an_item_that_was_not_taken_is_left_out_or_wrong_as_a_whole(tmp_path: Path) -> None:
    scored = judged(EXAMPLE)
    scored[3] = replace(scored[3], judgement=judgement(None, "too_long"), scores=None)
    about = {**ABOUT, "queried": [each.item for each in scored]}
    left_out, wrong = (save(apply_too_long(scored, how), tmp_path / "m.json", **about) for how in ("exclude", "wrong"))
    row = [f"rewardbench2/tied:1/{i}-0-of-4x3" for i in range(4)]
    assert (left_out["n"], left_out["accuracy"], left_out["too_long"]["exclude"]) == (3, 1.0, row)
    assert (wrong["n"], wrong["accuracy"], wrong["too_long"]["wrong"]) == (4, 3 / 4, row[3:])
    assert not {"rewardbench2_ties"} & {*left_out, *wrong}


@pytest.mark.parametrize(
    ("reduced", "rows", "has_score"),
    [
        ("as_pairs=true", EXAMPLE.keys(), True),
        ("num_responses=2", EXAMPLE.keys(), False),
        *((f"max_items={n}", {"tied:2", "ref:2"}, True) for n in (3, 4)),  # one prompt has 5 items, the other 3
    ],
)
def test_rows_count_once_and_have_a_score_only_as_a_whole(
    tmp_path: Path, reduced: str, rows: Set[str], has_score: bool
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in source_rows(EXAMPLE)), encoding="utf-8")
    config = load_data_config(["data=rewardbench2", f"data.path={path}", f"data.{reduced}"])
    table = tabulate(scored_items(read(config.data, 0), EXAMPLE))
    assert {row_name(name) for name in merge_rows(table)["id"]} == {f"rewardbench2/{name}" for name in rows}
    assert len(merge_rows(table)) == len(rows)
    expected = published({name: EXAMPLE[name] for name in rows})
    assert composite(table) == (pytest.approx(expected) if has_score else None)
    assert composite(tabulate(judged(EXAMPLE)[1:6])) is None


@pytest.mark.parametrize("limit", [20, 60, 120])
def test_rows_drawn_by_max_items_are_whole(limit: int) -> None:
    """A row is right if all its right answers are: of half of them it would be right more often."""
    rows: dict[str, Ratings] = {}
    for prompt in range(20):
        rows[f"tied:{prompt}"] = ([9.0] * (3 + prompt % 7) + [1.0], [2.0, 3.0])
        rows[f"ref:{prompt}"] = ([9.0], [2.0, 3.0])
    every = [each.item for each in judged(rows)]
    merged = merge_rows(tabulate(scored_items(select(every, limit), rows)))
    assert limit - 12 < len(select(every, limit)) <= limit
    assert merged["id"].map(row_name).str.contains("tied").mean() == 0.5
    assert merged["credit"].mean() == 0.5


ratings = st.lists(st.integers(1, 10).map(float), min_size=1, max_size=9)


@given(st.dictionaries(st.sampled_from("1234"), st.tuples(ratings, ratings, ratings, ratings), min_size=1))
def test_score_is_that_of_the_published_formula(prompts: dict[str, tuple[list[float], ...]]) -> None:
    rows = {}
    for name, (good, bad, ref, ref_bad) in prompts.items():
        rows |= {f"tied:{name}": (good, bad), f"ref:{name}": (ref[:1], ref_bad)}
        if min(good) == max(good) and min(min(good) - max(bad), ref[0] - max(ref_bad)) == 0:
            return  # 0 / 0
    table = tabulate(judged(rows))
    assert composite(table) == pytest.approx(published(rows), abs=1e-9)
    right = [float(min(good) > max(bad)) for good, bad in rows.values()]
    assert merge_rows(table)["credit"].mean() == pytest.approx(statistics.fmean(right))
