"""Brier score and calibration error: hand-made cases, scikit-learn, and what a calibrated judge shows by chance."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logit, ndtr
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss

from think_as_locals.evaluation.calibration import BINS, calibration

quick = settings(deadline=None, max_examples=40)


def measured(margins: list[float], scores: list[float], groups: list[str] | None = None) -> dict[str, Any]:
    return calibration(margins, scores, groups or [str(i) for i in range(len(scores))], samples=200, seed=0)


# --- golden cases ---


def test_sure_and_right_is_perfect_sure_and_wrong_is_the_worst() -> None:
    perfect = measured([math.inf] * 8, [1.0] * 8)
    assert (perfect["brier"], perfect["ece"], perfect["ece_calibrated"]) == (0, 0, 0)
    worst = measured([50.0] * 8, [0.0] * 8)
    assert worst["brier"] == pytest.approx(1)
    assert worst["ece"] == pytest.approx(1)


def test_a_hand_made_case() -> None:
    # Half of the choices at 90 % of which 3 of 4 are right, half at 60 % of which 2 of 4 are.
    margins = [float(logit(0.9))] * 4 + [float(logit(0.6))] * 4
    found = measured(margins, [1, 1, 1, 0, 1, 1, 0, 0])
    assert (found["n"], found["accuracy"], found["confidence"]) == (8, 5 / 8, pytest.approx(0.75))
    assert found["brier"] == pytest.approx((3 * 0.01 + 0.81 + 2 * 0.16 + 2 * 0.36) / 8)
    assert found["ece"] == pytest.approx((0.15 + 0.10) / 2)
    assert found["brier_constant"] == pytest.approx(5 / 8 * 3 / 8)
    noise = math.sqrt(2 / math.pi) * (math.sqrt(4 * 0.09) + math.sqrt(4 * 0.24)) / 8
    assert found["ece_calibrated"] == pytest.approx(noise)
    assert [(b["n"], b["accuracy"]) for b in found["bins"]] == [(4, 0.5), (4, 0.75)]
    assert [b["confidence"] for b in found["bins"]] == pytest.approx([0.6, 0.9])


def test_it_is_what_scikit_learn_computes() -> None:
    rng = np.random.default_rng(3)
    confidence = rng.uniform(0.02, 0.98, 400)
    right = (rng.random(400) < confidence**2).astype(float)
    found = measured(logit(confidence).tolist(), right.tolist())
    assert found["brier"] == pytest.approx(brier_score_loss(right, confidence))
    truth, said = calibration_curve(right, confidence, n_bins=BINS)
    sizes = np.bincount((confidence * BINS).astype(int), minlength=BINS)
    assert found["ece"] == pytest.approx(float(np.abs(truth - said) @ sizes[sizes > 0]) / 400)


def test_a_calibrated_judge_shows_about_the_error_that_stands_beside_its_own() -> None:
    rng = np.random.default_rng(4)
    found = []
    for _ in range(40):
        confidence = rng.uniform(0.3, 0.95, 200)
        right = (rng.random(200) < confidence).astype(float)
        found.append(measured(logit(confidence).tolist(), right.tolist()))
    shown, expected = (np.mean([one[key] for one in found]) for key in ("ece", "ece_calibrated"))
    assert shown == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("gap", [0.0, 0.1, 0.25])
def test_the_interval_of_the_error_holds_the_true_one_about_as_often_as_it_says(gap: float) -> None:
    rng, hits = np.random.default_rng(6), 0
    for _ in range(60):
        group = np.repeat(np.arange(12), rng.integers(1, 13, 12))
        confidence = rng.uniform(0.4, 0.95, len(group))
        shared, own = rng.normal(size=12)[group], rng.normal(size=len(group))
        right = (ndtr(math.sqrt(0.2) * shared + math.sqrt(0.8) * own) < confidence - gap).astype(float)
        low, high = measured(logit(confidence).tolist(), right.tolist(), list(map(str, group)))["ece_ci95"]
        hits += low <= gap <= high
    assert hits >= 50


@pytest.mark.parametrize("groups", [1, 4])
def test_a_few_question_groups_say_nothing_of_the_error(groups: int) -> None:
    found = measured([1.0] * 20, [1.0, 0.0] * 10, [str(i % groups) for i in range(20)])
    assert (found["n"], found["ece_ci95"]) == (20, [0.0, 1.0])


# --- what holds of any ---


@quick
@given(
    st.lists(
        st.tuples(st.floats(-6, 6), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from("abcdefgh")),
        min_size=1,
        max_size=40,
    )
)
def test_figures_lie_in_0_to_1_within_their_intervals_in_any_order(rows: list[tuple[float, float, str]]) -> None:
    there, back = (measured(*(list(column) for column in zip(*some, strict=True))) for some in (rows, rows[::-1]))
    for name in ("brier", "ece"):
        low, high = there[f"{name}_ci95"]
        assert -1e-9 <= low <= there[name] + 1e-9 <= high + 2e-9 <= 1 + 3e-9
        assert there[name] == pytest.approx(back[name])
        assert there[f"{name}_ci95"] == pytest.approx(back[f"{name}_ci95"])


def test_no_judgements_are_an_error() -> None:
    with pytest.raises(ValueError, match="no items"):
        calibration([], [], [], samples=10, seed=0)
