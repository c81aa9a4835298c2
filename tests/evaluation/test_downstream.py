"""Best-of-N selection, and the correlation of CARB accuracy with downstream quality."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from conftest import Tal
from evaluation.judged import flip_items, judge_all, measure
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from think_as_locals.data.load import Candidates
from think_as_locals.evaluation import carb
from think_as_locals.evaluation.downstream import Result, plot, read_results, selection_quality, tournament, validity
from think_as_locals.evaluation.probes import Scorer
from think_as_locals.reward_models.training_items import training_hashes
from think_as_locals.types import DataError, Item


def a_row(texts: Sequence[str], number: int = 0, **changes: Any) -> Candidates:
    fields: dict[str, Any] = {"id": str(number), "prompt": f"? {number}", "culture": "TH", "language": "th"}
    return Candidates(texts=tuple(texts), **fields | changes)


def by_length(items: Sequence[Item]) -> list[tuple[float, ...]]:
    return [tuple(float(len(text)) for text in item.responses) for item in items]


def constant(items: Sequence[Item]) -> list[tuple[float, ...]]:
    return [tuple(1.0 for _ in item.responses) for item in items]


def recorded(calls: list[list[Item]]) -> Scorer:
    """By length; the items of each call are kept."""
    return lambda items: calls.append(list(items)) or by_length(items)  # type: ignore[func-returns-value]


texts = st.lists(st.integers(1, 60).map(lambda n: "x" * n), min_size=1, max_size=40)


@settings(max_examples=100)
@given(st.lists(texts, min_size=1, max_size=4), st.integers(2, 8), st.integers(0, 3))
def test_consistent_scorer_selects_the_best(rows: list[list[str]], group_size: int, seed: int) -> None:
    asked = [a_row(row, number) for number, row in enumerate(rows)]
    expected = [row.index(max(row, key=len)) for row in rows]
    assert tournament(asked, by_length, group_size, seed) == (expected, 0)


@settings(max_examples=50)
@given(texts, st.randoms(), st.integers(2, 8))
def test_selection_does_not_depend_on_order_of_candidates_and_rows(
    row: list[str], mixed: random.Random, group_size: int
) -> None:
    other = sorted(row, key=lambda _: mixed.random())
    (first, _), _ = tournament([a_row(row), a_row("ab", 1)], constant, group_size, 0)
    (_, again), _ = tournament([a_row("ab", 1), a_row(other)], constant, group_size, 0)
    assert row[first] == other[again]


@pytest.mark.parametrize(
    ("number", "group_size", "sizes"),
    [
        *((1, 8, []), (2, 8, [[2]]), (8, 8, [[8]]), (9, 8, [[5, 4], [2]]), (17, 8, [[6, 6, 5], [3]])),
        (16, 2, [[2] * 8, [2] * 4, [2] * 2, [2]]),
    ],
)
def test_tournament_asks_all_rows_in_rounds_of_even_parts(number: int, group_size: int, sizes: list[list[int]]) -> None:
    calls: list[list[Item]] = []
    rows = [a_row(["x" * (i + 1) for i in range(number)], row) for row in range(2)]
    assert tournament(rows, recorded(calls), group_size, 0) == ([number - 1] * 2, 0)
    asked = [[len(item.responses) for item in call] for call in calls]
    assert list(map(sorted, asked)) == [sorted(2 * round_) for round_ in sizes]


def test_tournament_deduplicates_candidates_and_skips_single_ones() -> None:
    calls: list[list[Item]] = []
    rows = [a_row(["a", "bb", "a", "bb"], 5, prompt="What?", culture=None), a_row(["a", "a"], 1)]
    assert tournament(rows, recorded(calls), 8, 0) == ([1, 0], 0)
    ((item,),) = calls
    assert (item.prompt, item.culture, item.language, set(item.responses)) == ("What?", None, "th", {"a", "bb"})
    assert len(item.responses) == 2


def test_ties_are_broken_at_random_by_seed() -> None:
    rows = [a_row([f"{i}" for i in range(16)], number) for number in range(400)]
    chosen, _ = tournament(rows, constant, 4, 0)
    assert set(chosen) == set(range(16))
    assert 6 < sum(chosen) / len(chosen) < 9
    assert chosen != tournament(rows, constant, 4, 1)[0]


def test_without_preferences_the_selection_is_as_good_as_a_random_candidate() -> None:
    """Most of a policy's answers are alike; to draw among distinct ones would favour what it seldom says."""
    rng = random.Random(0)
    rows = []
    for number in range(600):
        answers = ["B" if rng.random() < 0.75 else rng.choice("ACD") for _ in range(16)]
        rows.append(a_row(answers, number, qualities=tuple(float(answer == "B") for answer in answers)))
    for group_size in (2, 8):
        gain = selection_quality(rows, tournament(rows, constant, group_size, 0)[0], 200, 0)["gain"]
        assert abs(gain["mean"]) < 0.05
        assert gain["ci95"][0] < 0 < gain["ci95"][1]


def test_rows_with_candidates_without_a_score_are_counted() -> None:
    def short_ones(items: Sequence[Item]) -> list[tuple[float, ...]]:
        return [tuple(math.nan if score > 4 else score for score in scores) for scores in by_length(items)]

    rows = [a_row(["x" * (first + i) for i in range(4)], first) for first in (1, 3)]
    assert tournament(rows, short_ones, 2, 0) == ([3, 1], 1)


# --- what it is worth ---


def test_selection_quality_lies_between_random_and_oracle() -> None:
    rows = [a_row("abcd", i, qualities=(0.0, 1.0, 2.0, 5.0)) for i in range(10)]
    found = selection_quality(rows, [3] * 5 + [2] * 5, 500, 0)
    assert (found["selected"]["mean"], found["random"]["mean"], found["oracle"]["mean"]) == (3.5, 2.0, 5.0)
    assert found["gain"]["mean"] == 1.5
    assert (found["headroom"], found["gain"]["n"]) == (0.5, 10)
    low, high = found["gain"]["ci95"]
    assert low < 1.5 < high
    rows = [a_row("ab", i, prompt="?", qualities=(0.0, 1.0)) for i in range(10)]
    assert selection_quality(rows, [0, 1] * 5, 500, 0)["selected"]["ci_method"] == "t"


@pytest.mark.parametrize(("quality", "number"), [(1.0, 2), (0.7, 3), (0.99, 10)])
def test_headroom_is_none_if_all_qualities_are_equal(quality: float, number: int) -> None:
    row = a_row("abcdefghij"[:number], qualities=(quality,) * number)
    assert selection_quality([row], [0], 500, 0)["headroom"] is None


# --- validity ---

# Anscombe's first set, accuracies a twentieth: r2 is .667 by the book.
X = [10, 8, 13, 9, 11, 14, 6, 4, 12, 7, 5]
Y = [8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68]
ANSCOMBE = [Result(f"rm {i}", x / 20, y) for i, (x, y) in enumerate(zip(X, Y, strict=True))]


def test_validity_matches_anscombe_reference_values() -> None:
    found = validity(ANSCOMBE)
    pearson, spearman, line = found["pearson"], found["spearman"], found["line"]
    assert (found["n"], found["warning"]) == (11, None)
    assert (pearson["r"], pearson["r2"], pearson["p"]) == pytest.approx((0.81642, 0.66654, 0.00217), abs=1e-5)
    assert pearson["ci95"] == pytest.approx([0.42439, 0.95069], abs=1e-5)
    assert (spearman["rho"], spearman["p"]) == pytest.approx((0.81818, 0.00208), abs=1e-5)
    assert line["slope"] == pytest.approx(20 * 0.50009, abs=1e-4)
    assert line["intercept"] == pytest.approx(3.00009, abs=1e-5)
    few = validity(ANSCOMBE[:9])
    assert few["warning"] == "n = 9: with so few reward models a correlation says little"
    assert validity(ANSCOMBE[:10])["warning"] is None


def test_validity_leaves_each_one_out() -> None:
    found = validity(ANSCOMBE)
    r = stats.pearsonr(X[:4] + X[5:], Y[:4] + Y[5:]).statistic
    assert found["leave_one_out"]["rm 4"] == pytest.approx(r**2)
    # Bonett and Wright 2000: Fisher's z of rho with the variance (1 + rho^2 / 2) / (n - 3).
    rho = found["spearman"]["rho"]
    ends = [math.atanh(rho) + sign * 1.95996 * math.sqrt((1 + rho**2 / 2) / 8) for sign in (-1, 1)]
    assert found["spearman"]["ci95"] == pytest.approx([math.tanh(end) for end in ends], abs=1e-5)


@pytest.mark.parametrize(("n", "correlation"), [(4, 0.8), (5, 0.95), (7, 0.95), (17, 0.8)])
def test_interval_of_rho_contains_the_truth_also_of_few_reward_models_in_order(n: int, correlation: float) -> None:
    rng, truth, holds = np.random.default_rng(n), 6 / math.pi * math.asin(correlation / 2), 0
    for _ in range(200):
        x = rng.normal(size=n)
        y = correlation * x + math.sqrt(1 - correlation**2) * rng.normal(size=n)
        found = validity([Result(f"rm {i}", *pair) for i, pair in enumerate(zip(x, y, strict=True))])["spearman"]
        low, high = found["ci95"]
        assert low <= found["rho"] <= high <= 1
        holds += low <= truth <= high
    assert holds / 200 > 0.92  # a bootstrap's did in 63 to 71 % of the first two, as [1, 1] where all are in order
    assert validity(ANSCOMBE[2:5])["spearman"]["ci95"] == [-1, 1]


def test_spearman_p_of_few_results_is_a_permutation_test() -> None:
    for ranks in (range(3), range(7, 0, -1)):
        found = validity([Result(f"rm {i}", i / 10, float(rank)) for i, rank in enumerate(ranks)])
        assert found["spearman"]["p"] == pytest.approx(2 / math.factorial(len(ranks)))
    rng = np.random.default_rng(5)
    for n in (4, 5, 6):
        x, y = rng.permutation(n), rng.permutation(n)
        found = validity([Result(f"rm {i}", x[i] / 10, float(y[i])) for i in range(n)])["spearman"]
        every = np.array([stats.spearmanr(x, order).statistic for order in permutations(y)])
        assert found["p"] == pytest.approx((np.abs(every) >= abs(found["rho"]) - 1e-9).mean())


def test_leave_one_out_is_none_where_the_rest_has_no_correlation() -> None:
    found = validity(ANSCOMBE[:3])
    assert found["pearson"]["ci95"] == [-1.0, 1.0]
    assert set(found["leave_one_out"].values()) == {None}
    results = [Result("a", 0.1, 1.0), Result("b", 0.2, 1.0), Result("c", 0.3, 1.0), Result("d", 0.4, 2.0)]
    loo = validity(results)["leave_one_out"]
    assert loo["d"] is None
    assert loo["a"] == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("results", "message"),
    [
        (ANSCOMBE[:2], "2 reward models; a correlation needs at least 3"),
        ([], "0 reward models"),
        ([*ANSCOMBE, ANSCOMBE[0]], "several results are called 'rm 0'"),
        ([Result(r.name, 0.5, r.downstream) for r in ANSCOMBE], "accuracy is the same for all 11"),
        ([Result(r.name, r.accuracy, 1.0) for r in ANSCOMBE], "downstream is the same for all 11"),
    ],
)
def test_validity_rejects_too_few_or_constant_results(results: list[Result], message: str) -> None:
    with pytest.raises(DataError, match=message):
        validity(results)


def test_read_results_parses_rows_and_names_invalid_ones(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    row = {"name": "mine", "accuracy": 0.5, "downstream": 61.25}
    file.write_text(json.dumps(row) + "\n", encoding="utf-8")
    assert read_results(file) == [Result("mine", 0.5, 61.25)]
    for change, message in (
        ({"accuracy": 76.5}, "accuracy: "),
        ({"downstream": None}, "downstream: Field required"),
        ({"name": " "}, "name: "),
        ({"accuracy": "much"}, "accuracy: "),
    ):
        file.write_text(f"{json.dumps(row)}\n{json.dumps(row | change)}\n", encoding="utf-8")
        with pytest.raises(DataError, match=rf"results.jsonl:2: .*{message}"):
            read_results(file)


def test_read_results_takes_macro_accuracy_from_an_evaluation(tmp_path: Path) -> None:
    (tmp_path / "selections").mkdir()
    (tmp_path / "selections/mine.json").write_text(json.dumps({"selected": {"mean": 3.5}}))
    with pytest.raises(DataError, match=r"carb/mine\.json: cannot be read \(No such file"):
        read_results(tmp_path)
    table = measure(tmp_path, "mine", judge_all(lambda i: i % 7 > 2, flip_items(last=1)))
    summary = carb.read(table.with_suffix(".json"))
    assert summary["macro"]["accuracy"] != pytest.approx(summary["accuracy"])
    assert read_results(tmp_path) == [Result("mine", summary["macro"]["accuracy"], 3.5, benchmark="cards")]
    unsure = {"selected": {"mean": 3.5}, "n": 40, "unsure": 7}
    (tmp_path / "selections/mine.json").write_text(json.dumps(unsure))
    (tmp_path / "carb/mine.json").write_text(json.dumps(summary | {"too_long": {"exclude": ["a"], "wrong": []}}))
    (found,) = read_results(tmp_path)
    assert "1 items too long for it or refused, left out: a" in found.warning
    assert "some candidates of 7 of 40 rows have no score" in found.warning


def test_validity_command_prints_tables_json_and_warnings(tmp_path: Path, tal: Tal) -> None:
    rows = tmp_path / "rows.jsonl"
    made = [{"name": f"rm {i}", "accuracy": i / 10, "downstream": i * i % 5} for i in range(1, 6)]
    rows.write_text("".join(json.dumps(row) + "\n" for row in made))
    done = tal("validity", str(rows), "--out", str(tmp_path), columns=80)
    assert "-0.42 [-0.95, 0.73], n 5" in done.out
    assert done.out.endswith(f"{tmp_path}/validity.svg\n")
    assert done.err == "tal: warning: n = 5: with so few reward models a correlation says little\n"
    done = tal("validity", str(rows), "--out", str(tmp_path), "--json")
    assert json.loads(done.out) == json.loads((tmp_path / "validity.json").read_text())


def test_plot_is_valid_svg_with_escaped_names() -> None:
    named = [Result("<script>alert(1)</script> & $co$", 0.31, 6.0), Result("a\x0b\x1b\ufffeb", 0.31, 6.0)]
    results = [*ANSCOMBE, *named]
    drawn = plot(results, validity(results))
    text = "".join(ElementTree.fromstring(drawn).itertext())  # noqa: S314
    assert all(result.name in text for result in results[:-1])
    assert "n = 13" in text
    assert "a\ufffd\ufffd\ufffdb" in text
    assert "<script" not in drawn


def test_reward_model_measured_on_training_items_is_marked(tmp_path: Path) -> None:
    (tmp_path / "selections").mkdir()
    items = flip_items()
    for number, name in enumerate("abc"):
        hashes = training_hashes(items[:9], None) if name == "b" else None
        made = judge_all(lambda i, n=number: i % 7 > n, items)
        measure(tmp_path, name, made, dataset="mine.jsonl", training=hashes)
        (tmp_path / "selections" / f"{name}.json").write_text(json.dumps({"selected": {"mean": number + number**2}}))
    results = read_results(tmp_path)
    found = validity(results)
    assert "b was trained on 9 of these 144 items" in found["warning"]
    drawn = plot(results, found)
    assert "accuracy on mine.jsonl, %" in drawn
    assert re.findall(r"(\w+) †</text>", drawn) == ["b"]
