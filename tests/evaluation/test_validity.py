"""CARB accuracy against downstream results: scipy's figures, and what is refused."""

from __future__ import annotations

import json
import math
from itertools import permutations
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy import stats

from think_as_locals.evaluation import carb
from think_as_locals.evaluation.validity import Result, plot, read_results, validity
from think_as_locals.types import DataError

# Anscombe's first set, accuracies a twentieth: r2 is .667 by the book.
X = [10, 8, 13, 9, 11, 14, 6, 4, 12, 7, 5]
Y = [8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68]
ANSCOMBE = [Result(f"rm {i}", x / 20, y) for i, (x, y) in enumerate(zip(X, Y, strict=True))]


def seventeen() -> list[Result]:
    """As many reward models as the paper has, and about its correlation."""
    rng = np.random.default_rng(3)
    accuracy = np.linspace(0.35, 0.77, 17)
    downstream = 40 + 30 * accuracy + rng.normal(0, 2.6, 17)
    return [Result(f"rm {i}", float(a), float(d)) for i, (a, d) in enumerate(zip(accuracy, downstream, strict=True))]


def test_a_golden_case() -> None:
    found = validity(ANSCOMBE, samples=200, seed=0)
    assert (found["n"], found["warning"]) == (11, None)
    assert found["pearson"]["r"] == pytest.approx(0.81642, abs=1e-5)
    assert found["pearson"]["r2"] == pytest.approx(0.66654, abs=1e-5)
    assert found["pearson"]["p"] == pytest.approx(0.00217, abs=1e-5)
    assert found["pearson"]["ci95"] == pytest.approx([0.42439, 0.95069], abs=1e-5)
    assert found["spearman"]["rho"] == pytest.approx(0.81818, abs=1e-5)
    assert found["spearman"]["p"] == pytest.approx(0.00208, abs=1e-5)
    assert found["line"]["slope"] == pytest.approx(20 * 0.50009, abs=1e-4)
    assert found["line"]["intercept"] == pytest.approx(3.00009, abs=1e-5)


def test_fishers_interval_by_hand() -> None:
    found = validity(ANSCOMBE, samples=50, seed=0)["pearson"]
    z, reach = math.atanh(found["r"]), stats.norm.ppf(0.975) / math.sqrt(11 - 3)
    assert found["ci95"] == pytest.approx([math.tanh(z - reach), math.tanh(z + reach)])


def test_seventeen_reward_models_as_in_the_paper() -> None:
    results = seventeen()
    found = validity(results, samples=300, seed=0)
    assert (found["n"], found["warning"]) == (17, None)
    assert 0.5 < found["pearson"]["r2"] < 0.85
    assert found["pearson"]["p"] < 1e-3
    low, high = found["spearman"]["ci95"]
    assert low < found["spearman"]["rho"] < high <= 1
    assert found["leave_one_out"].keys() == {result.name for result in results}
    without = [result for result in results if result.name != "rm 4"]
    r = stats.pearsonr([one.accuracy for one in without], [one.downstream for one in without]).statistic
    assert found["leave_one_out"]["rm 4"] == pytest.approx(r**2)
    json.dumps(found, allow_nan=False)


def test_the_rank_interval_is_scipys_bootstrap_and_hangs_on_the_seed() -> None:
    first, again, other = (validity(seventeen(), samples=300, seed=s)["spearman"]["ci95"] for s in (0, 0, 1))
    assert first == again != other
    assert first == pytest.approx(other, abs=0.1)


def test_of_a_few_it_warns() -> None:
    few = validity(ANSCOMBE[:9], samples=50, seed=0)
    assert few["warning"] == "n = 9: of so few reward models a correlation says little"
    assert validity(ANSCOMBE[:10], samples=50, seed=0)["warning"] is None


@pytest.mark.parametrize("n", [3, 5, 7])
@pytest.mark.parametrize("reverse", [False, True])
def test_the_same_order_by_chance_is_as_likely_as_all_orders_say(n: int, reverse: bool) -> None:
    order = range(n, 0, -1) if reverse else range(n)
    found = validity([Result(f"rm {i}", i / 10, float(rank)) for i, rank in enumerate(order)], samples=50, seed=0)
    assert found["spearman"]["p"] == pytest.approx(2 / math.factorial(n))


def test_of_a_few_the_p_value_of_rho_counts_every_order() -> None:
    rng = np.random.default_rng(5)
    for n in (4, 5, 6):
        x, y = rng.permutation(n), rng.permutation(n)
        found = validity([Result(f"rm {i}", x[i] / 10, float(y[i])) for i in range(n)], samples=50, seed=0)["spearman"]
        every = np.array([stats.spearmanr(x, order).statistic for order in permutations(y)])
        assert found["p"] == pytest.approx((np.abs(every) >= abs(found["rho"]) - 1e-9).mean())


def test_of_three_all_is_there_but_what_two_cannot_show() -> None:
    found = validity(ANSCOMBE[:3], samples=50, seed=0)
    assert found["pearson"]["ci95"] == [-1.0, 1.0]
    assert set(found["leave_one_out"].values()) == {None}
    json.dumps(found, allow_nan=False)


def test_where_one_alone_varies_nothing_is_left_without_it() -> None:
    results = [Result("a", 0.1, 1.0), Result("b", 0.2, 1.0), Result("c", 0.3, 1.0), Result("d", 0.4, 2.0)]
    loo = validity(results, samples=50, seed=0)["leave_one_out"]
    assert loo["d"] is None
    assert loo["a"] == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("results", "said"),
    [
        (ANSCOMBE[:2], "2 reward models; a correlation needs at least 3"),
        ([], "0 reward models"),
        ([*ANSCOMBE, ANSCOMBE[0]], "several results are called 'rm 0'"),
        ([Result(r.name, 0.5, r.downstream) for r in ANSCOMBE], "accuracy is the same for all 11"),
        ([Result(r.name, r.accuracy, 1.0) for r in ANSCOMBE], "downstream is the same for all 11"),
    ],
)
def test_what_has_no_correlation_is_refused(results: list[Result], said: str) -> None:
    with pytest.raises(DataError, match=said):
        validity(results, samples=50, seed=0)


def test_results_are_read_from_rows(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    row = {"name": "mine", "accuracy": 0.5, "downstream": 61.25}
    file.write_text(json.dumps(row) + "\n", encoding="utf-8")
    assert read_results(file) == [Result("mine", 0.5, 61.25)]
    for change, said in (
        ({"accuracy": 76.5}, r"accuracy must be a share in \[0, 1\], got 76.5"),
        ({"downstream": None}, "missing downstream"),
        ({"name": " "}, "name must be a non-blank string"),
        ({"accuracy": "much"}, "accuracy must be a number"),
    ):
        file.write_text(f"{json.dumps(row)}\n{json.dumps(row | change)}\n", encoding="utf-8")
        with pytest.raises(DataError, match=rf"results.jsonl:2: .*{said}"):
            read_results(file)


def test_an_evaluation_gives_the_accuracy_that_ranks_its_reward_models(tmp_path: Path) -> None:
    for name in ("carb", "selections"):
        (tmp_path / name).mkdir()
    (tmp_path / "selections/mine.json").write_text(json.dumps({"selected": {"mean": 3.5}}))
    with pytest.raises(DataError, match=r"carb/mine\.json: cannot be read \(No such file"):
        read_results(tmp_path)
    (tmp_path / "carb/mine.json").write_text("{}")
    with pytest.raises(DataError, match=r"carb/mine\.json: a CARB file lacks accuracy"):
        read_results(tmp_path)
    summary = dict.fromkeys(carb.KEYS.split()) | {"accuracy": 0.5, "macro": {"accuracy": 0.25}}
    (tmp_path / "carb/mine.json").write_text(json.dumps(summary))
    assert read_results(tmp_path) == [Result("mine", 0.25, 3.5)]


def test_a_control_character_in_a_name_leaves_the_plot_well_formed() -> None:
    results = [*ANSCOMBE, Result("a\x0b\x1b\ufffeb", 0.31, 6.0)]
    root = ElementTree.fromstring(plot(results, validity(results, samples=50, seed=0), "BLEnD"))  # noqa: S314
    assert "a\ufffd\ufffd\ufffdb" in "".join(root.itertext())


def test_the_plot_is_well_formed_holds_every_name_and_escapes_it() -> None:
    results = [*ANSCOMBE, Result("<script>alert(1)</script> & co", 0.31, 6.0)]
    drawn = plot(results, validity(results, samples=50, seed=0), "BLEnD <16>")
    root = ElementTree.fromstring(drawn)  # noqa: S314
    points = root.findall(".//{*}circle")
    assert len(points) == 12
    assert all(70 <= float(p.attrib["cx"]) <= 600 and 40 <= float(p.attrib["cy"]) <= 350 for p in points)
    said = "".join(root.itertext())
    assert all(result.name in said for result in results)
    assert "BLEnD <16>" in said
    assert "n = 12" in said
    assert "<script" not in drawn
    # A better result stands higher and further to the right.
    best, worst = points[5].attrib, points[7].attrib
    assert float(best["cx"]) > float(worst["cx"])
    assert float(best["cy"]) < float(worst["cy"])
