"""Results of an SCPO run: hand-computed figures, intervals over people, and training records."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scpo.hand_worked import BEFORE, ITEMS, QUESTIONS, RESULTS, STEERED, answers, held_out, item, scores, variant_result

from think_as_locals.evaluation.statistics import accuracy, estimate_mean
from think_as_locals.scpo.results import VariantResult, VariantSpec, js_distance, read_result, summarise, write_result


def row(
    found: dict[str, Any], country: str | None, variant: str = "scpo", num_pairs: int | None = None
) -> dict[str, Any]:
    """The row of a country, or of the means over countries."""
    rows = found["rows"] if country else found["means"]
    wanted = (country, variant, num_pairs)
    (one,) = (r for r in rows if (r.get("country"), r["variant"], r["num_pairs"]) == wanted)
    return dict(one)


def mean(found: dict[str, Any], num_pairs: int | None = None) -> dict[str, Any]:
    return row(found, None, num_pairs=num_pairs)


def figures(part: dict[str, Any]) -> tuple[int, float, float]:
    return part["n"], part["accuracy"], part["gain"]["mean"]


FOUND = summarise(held_out(), scores(BEFORE), RESULTS)


@pytest.mark.parametrize(
    ("country", "name", "expected"),
    [
        *(("CL, global", "overall", (3, 1 / 2, 0)), ("CL, global", "minority", (2, 1 / 4, 0))),
        ("CL, global", "others", (2, 1 / 2, 0)),
        # Before: 1, 0 and half a point for the tie of c3. Chile's models have c1 right twice, c2 and c3 once each.
        ("CL", "overall", (3, 2 / 3, 2 / 3 - 1 / 2)),
        ("CL", "minority", (2, 1 / 2, 1 / 2 - 1 / 4)),
        ("CL", "disagreed", (1, 1 / 2, 1 / 2)),
        # They have t1 right once, t2 never; before it was t2 alone.
        ("CL", "others", (2, 1 / 4, -1 / 4)),
        # Thailand's models have t1 right once and t2 twice; c1 once, c2 never, c3 once and tied once.
        ("TH", "overall", (2, 3 / 4, 1 / 4)),
        ("TH", "minority", (1, 1 / 2, 1 / 2)),
        ("TH", "disagreed", (1, 1 / 2, 1 / 2)),
        ("TH", "others", (3, 5 / 12, 5 / 12 - 1 / 2)),
        # Means count every country the same.
        (None, "overall", (5, (2 / 3 + 3 / 4) / 2, (1 / 6 + 1 / 4) / 2)),
        (None, "minority", (3, 1 / 2, (1 / 4 + 1 / 2) / 2)),
        (None, "disagreed", (2, 1 / 2, 1 / 2)),
        (None, "others", (5, (1 / 4 + 5 / 12) / 2, -(1 / 4 + 1 / 12) / 2)),
    ],
)
def test_country_figures_and_means_match_hand_computed_values(
    country: str | None, name: str, expected: tuple[int, float, float]
) -> None:
    named, _, variant = (country or "").partition(", ")
    assert figures(row(FOUND, named or None, variant or "scpo")[name]) == pytest.approx(expected)


def test_seed_spread_is_the_stdev_of_means_over_countries() -> None:
    seeds = mean(FOUND)["seeds"]
    assert seeds["n"] == 2
    # Seed 0 has 2/3 of Chile's pairs right and all of Thailand's, seed 1 2/3 and a half.
    assert seeds["overall"] == pytest.approx(statistics.stdev([(2 / 3 + 1) / 2, (2 / 3 + 1 / 2) / 2]))
    assert seeds["minority"] == pytest.approx(statistics.stdev([(1 / 2 + 1) / 2, (1 / 2 + 0) / 2]))
    assert row(FOUND, "TH")["seeds"]["overall"] == pytest.approx(statistics.stdev([1, 1 / 2]))
    assert row(FOUND, "CL", "global")["seeds"] == {"n": 0, "overall": None, "minority": None}
    of_one_seed = summarise(held_out(), scores(BEFORE), RESULTS[::2])
    assert mean(of_one_seed)["seeds"] == {"n": 1, "overall": None, "minority": None}


def test_gain_of_a_single_person_is_not_significant() -> None:
    items = [item(f"c{i}", "CL", "p1") for i in range(3)]
    one = replace(held_out(), items=items, minority=frozenset(i.id for i in items), questions=[])
    before, after = ({f"c{i}": margin for i in range(3)} for margin in (-1.0, 1.0))
    found = summarise(one, scores(before), [variant_result("CL", 0, after)])
    gain = row(found, "CL")["minority"]["gain"]
    assert gain["mean"] == 1
    assert gain["ci95"][0] < 0
    assert (row(found, "CL")["helps"], found["improved"]["scpo"]["significantly"]) == ("yes", 0)


def test_ties_and_countries_without_kept_pairs_gain_nothing() -> None:
    found = summarise(held_out(tie=0.0), scores(BEFORE), RESULTS)
    assert figures(row(found, "CL")["overall"]) == pytest.approx((3, 2 / 3, 2 / 3 - 1 / 3))
    assert figures(row(found, "TH")["others"]) == pytest.approx((3, 1 / 3, 0))
    assert row(found, "CL", "global")["minority"]["accuracy"] == 0
    nothing = {"available": 0, "kept": 0, "steps": 0, "mean_weight": 0.0}
    results = [variant_result(country, 0, BEFORE, **nothing) for country in ("CL", "TH")]
    found = summarise(held_out(), scores(BEFORE), results)
    assert mean(found)["training"] == {"pairs": 0, "kept": 0, "steps": 0, "weight": 0}
    assert mean(found)["overall"]["gain"]["mean"] == 0
    assert row(FOUND, "CL", "global")["training"] == {}


def test_training_figures_are_aggregated_over_countries() -> None:
    results = [
        variant_result("CL", 0, STEERED["CL", 0], available=10, kept=5, steps=4, mean_weight=0.5),
        variant_result("TH", 0, STEERED["TH", 0], available=30, kept=15, steps=2, mean_weight=0.9),
    ]
    found = summarise(held_out(), scores(BEFORE), results)
    assert mean(found)["training"] == {"pairs": 20, "kept": 20 / 40, "steps": 3, "weight": pytest.approx(0.8)}
    assert row(found, "TH")["training"] == {"pairs": 30, "kept": 15 / 30, "steps": 2, "weight": 0.9}


def test_fewer_pair_trainings_get_own_rows_and_do_not_count_as_helped() -> None:
    fewer = [variant_result(c, s, BEFORE, num_pairs=n, available=n) for c, s in STEERED for n in (4, 2)]
    found = summarise(held_out(), scores(BEFORE), [*RESULTS, *fewer])
    assert [(r["variant"], r["num_pairs"]) for r in found["means"]] == [
        *(("global", None), ("scpo", None), ("scpo", 4), ("scpo", 2))
    ]
    assert mean(found, num_pairs=2)["training"]["pairs"] == 2
    assert mean(found, num_pairs=2)["overall"]["gain"]["mean"] == 0
    assert mean(found)["overall"] == mean(FOUND)["overall"]
    assert found["improved"] == FOUND["improved"]
    assert len(found["rows"]) == 8


# --- in how many countries it helps ---


def country_items(country: str, persons: int = 25, pairs: int = 4) -> list[Any]:
    return [item(f"{country}-{p}-{n}", country, f"{country}-{p}") for p in range(persons) for n in range(pairs)]


def helped(turned: dict[str, tuple[int, int]]) -> dict[str, int]:
    """Of 100 pairs of each country a quarter is the minority's, all wrong; so many become right, others wrong."""
    items = [i for country in turned for i in country_items(country)]
    minority = frozenset(i.id for i in items if i.id.endswith("-0"))
    before = {i.id: -1.0 if i.id in minority else 1.0 for i in items}
    results = []
    for country, (won, lost) in turned.items():
        views = [i.id for i in country_items(country) if i.id in minority]
        others = [i.id for i in country_items(country) if i.id not in minority]
        after = before | dict.fromkeys(views[:won], 1.0) | dict.fromkeys(others[:lost], -1.0)
        results.append(variant_result(country, 0, after))
    found = summarise(held_out(items=items, minority=minority), scores(before), results)
    return dict(found["improved"]["scpo"])


@pytest.mark.parametrize(
    ("won", "lost", "better", "surely", "biased", "surely_biased"),
    [
        *((20, 0, 1, 1, 0, 0), (10, 12, 1, 1, 1, 0), (10, 13, 0, 0, 1, 0), (0, 0, 0, 0, 0, 0)),
        *((1, 0, 1, 0, 0, 0), (25, 75, 0, 0, 1, 1), (0, 75, 0, 0, 0, 0)),
    ],
)
def test_helped_requires_minority_gain_and_small_overall_loss(
    won: int, lost: int, better: int, surely: int, biased: int, surely_biased: int
) -> None:
    over_biased = {"over_biased": biased, "surely_over_biased": surely_biased}
    assert helped({"CL": (won, lost)}) == {"countries": 1, "helped": better, "significantly": surely} | over_biased


def test_helped_counts_only_countries_with_minority_pairs() -> None:
    found = helped({"CL": (20, 0), "TH": (1, 0), "EG": (0, 0), "JP": (10, 50)})
    over_biased = {"over_biased": 1, "surely_over_biased": 1}  # Japan
    assert found == {"countries": 4, "helped": 2, "significantly": 1} | over_biased
    without = summarise(held_out(minority=frozenset({"c2"})), scores(BEFORE), RESULTS)
    assert without["improved"]["scpo"]["countries"] == 1
    assert row(without, "TH")["minority"] == {"n": 0}
    assert mean(without)["minority"]["n"] == 1


# --- intervals ---


def test_intervals_cluster_by_person_not_by_pair() -> None:
    """Whoever agrees with a model does so in all ten pairs: forty pairs of a country are four opinions."""
    items = [i for country in ("CL", "TH") for i in country_items(country, persons=8, pairs=10)]
    right = {i.id: 1.0 if int(i.group[-1]) % 2 else -1.0 for i in items}
    before = dict.fromkeys(right, -1.0)
    found = summarise(held_out(items=items), scores(before), [variant_result(c, 0, right) for c in ("CL", "TH")])
    chile = [i for i in items if i.culture == "CL"]
    values = [float(right[i.id] > 0) for i in chile]
    by_person = accuracy(values, [i.group for i in chile], samples=200, seed=0)
    by_pair = accuracy(values, [i.id for i in chile], samples=200, seed=0)
    overall = row(found, "CL")["overall"]
    assert (overall["n"], overall["accuracy"]) == (80, 0.5)
    assert overall["ci95"] == list(by_person.ci95)
    assert overall["gain"]["ci95"] == list(estimate_mean(values, [i.group for i in chile], 200, 0).ci95 or ())
    widths = [high - low for low, high in (by_person.ci95, by_pair.ci95)]
    assert widths[0] > 2.5 * widths[1]


def test_pairs_of_one_person_form_one_cluster_across_models() -> None:
    """The others' pairs count once for each country that is steered to; that makes nobody more people."""
    countries = ("CL", "TH", "EG")
    items = [i for country in countries for i in country_items(country, persons=6, pairs=2)]
    after = {i.id: 1.0 if int(i.group[-1]) % 2 else -1.0 for i in items}
    found = summarise(held_out(items=items), scores(after), [variant_result(c, 0, after) for c in countries])
    others, overall = mean(found)["others"], mean(found)["overall"]
    assert (others["n"], overall["n"]) == (72, 36)
    assert others["ci95"] == pytest.approx(overall["ci95"])


def test_figures_are_in_range_and_independent_of_order() -> None:
    results = survey({"CL": (1, 9), "TH": (5, 1)})
    found = summarise(held_out(questions=QUESTIONS), scores(BEFORE, answers(0, 0)), results)
    for record in (*found["rows"], *found["means"]):
        for name in ("overall", "minority", "others", "distance"):
            low, high = record[name]["gain"]["ci95"] or (-1, 1)
            assert -1 <= low <= record[name]["gain"]["mean"] <= high <= 1
        low, high = record["distance"]["ci95"]
        assert 0 <= low <= record["distance"]["mean"] <= high <= 1
    assert summarise(held_out(items=ITEMS[::-1]), scores(BEFORE), RESULTS[::-1]) == FOUND


# --- a survey's answers ---


def survey(of_country: dict[str, tuple[float, float]]) -> list[VariantResult]:
    """One training for each country, whose softmax over yes and no is as given."""
    found = []
    for country, (yes, no) in of_country.items():
        margins = STEERED[country, 0]
        given = scores(margins, answers(math.log(yes), math.log(no)))
        found.append(variant_result(country, 0, margins, scores=given))
    return found


def test_distance_uses_softmax_and_gain_is_relative_to_global_rm() -> None:
    before = scores(BEFORE, answers(0.0, 0.0))  # softmax: a half each
    results = survey({"CL": (0.2, 0.8), "TH": (1 / 3, 2 / 3)})
    found = summarise(held_out(questions=QUESTIONS), before, results)
    half, fifth, third = (0.5, 0.5), (0.2, 0.8), (1 / 3, 2 / 3)
    chile = [js_distance((0.5, 0.5), fifth), js_distance((0.2, 0.8), fifth)]
    chile_before = [js_distance((0.5, 0.5), half), js_distance((0.2, 0.8), half)]
    thailand = [js_distance((1, 0), third), js_distance((0.2, 0.8), third)]
    thailand_before = [js_distance((1, 0), half), js_distance((0.2, 0.8), half)]
    assert (chile[1], chile_before[0]) == pytest.approx((0, 0), abs=1e-7)
    distance = row(found, "CL")["distance"]
    assert (distance["n"], distance["mean"]) == (2, pytest.approx(sum(chile) / 2))
    assert distance["gain"]["mean"] == pytest.approx((sum(chile) - sum(chile_before)) / 2)
    of_all = mean(found)["distance"]
    assert (of_all["n"], of_all["mean"]) == (4, pytest.approx(sum(chile + thailand) / 4))
    assert of_all["gain"]["mean"] == pytest.approx((sum(chile + thailand) - sum(chile_before + thailand_before)) / 4)
    assert of_all["ci95"] is not None
    assert row(found, "CL", "global")["distance"]["gain"]["mean"] == 0


def test_distance_baseline_is_the_mean_of_the_other_countries() -> None:
    results = survey({"CL": (1, 1), "TH": (1, 1)})
    found = summarise(held_out(questions=QUESTIONS), scores(BEFORE, answers(0, 0)), results)
    # Each country's only other has what it has of the second question, and (1, 0) against (1/2, 1/2) of the first.
    assert found["others_distance"]["mean"] == pytest.approx(js_distance((1, 0), (0.5, 0.5)) / 2)
    assert found["others_distance"]["n"] == 4
    assert mean(FOUND)["distance"]["n"] == FOUND["others_distance"]["n"] == 0


# --- the record of a training ---

RESULT = VariantResult(
    spec=VariantSpec(country="TH", variant="scpo", seed=3, num_pairs=200),
    available=200,
    kept=81,
    steps=31,
    mean_weight=1 / 3,
    scores={"a" * 32: 0.1, "b" * 32: -1e4, "c" * 32: 1 / 3},
)


def test_variant_is_named_by_its_spec_and_read_with_its_record(tmp_path: Path) -> None:
    assert VariantSpec(country="TH", variant="scpo", seed=0).name == "TH/scpo-seed-0"
    assert VariantSpec(country="TH", variant="full", seed=2, num_pairs=100).name == "TH/full-100-seed-2"
    for free in ("../x", "..", "Roma/Sinti"):
        assert Path(VariantSpec(country=free, variant="scpo", seed=0).name).parts[1:] == ("scpo-seed-0",)
        assert ".." not in VariantSpec(country=free, variant="scpo", seed=0).name
    assert read_result(tmp_path / "nowhere") is None
    write_result(tmp_path, RESULT)
    assert read_result(tmp_path) == RESULT
    (tmp_path / "result.json").unlink()  # as where a process is killed between the two files
    assert read_result(tmp_path) is None
