"""Selection and weights of training pairs, compared with the formulas and the released code."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from scpo.hand_worked import config

from think_as_locals.config.scpo_schema import ModeSection
from think_as_locals.scpo.select import (
    MAX_INVERSE_WEIGHT,
    disagreed_ids,
    minority_ids,
    pair_weights,
    preference_probability,
    select_pairs,
)
from think_as_locals.scpo.trainer import weighted_bradley_terry

GOLDEN = json.loads((ROOT / "tests" / "golden" / "scpo_released.json").read_text(encoding="utf-8"))
COLUMNS = {name: [pair[name] for pair in GOLDEN["pairs"]] for name in GOLDEN["pairs"][0]}
REFERENCES = [(2.0, 0.0), (0.5, 0.0), (0.0, 0.0), (0.0, 1.1), (0.0, 2.2)]
SCORE = st.floats(-1e4, 1e4, width=32)


def tensors(*names: str) -> list[torch.Tensor]:
    return [torch.tensor(COLUMNS[name]) for name in names]


def mode(name: str) -> ModeSection:
    return config(f"mode={name}").mode


# --- the formulas, against 20 pairs that were computed from them in 50 digits ---


def test_threshold_and_temperature_are_those_of_the_paper_or_configured() -> None:
    scpo = config().scpo
    assert (scpo.filter_threshold, scpo.weight_temperature) == (GOLDEN["tau"], GOLDEN["beta"]) == (0.7, 1.1)
    scpo = config("scpo.filter_threshold=0.5", "scpo.weight_temperature=2.2").scpo
    expected = {3: math.exp(-0.5), 4: math.exp(-1)}
    assert select_pairs(REFERENCES, "scpo", scpo, mode("corrected")) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["corrected", "as_released"])
def test_both_modes_match_formula_probabilities_weights_and_losses(name: str) -> None:
    chosen, rejected, s_chosen, s_rejected = tensors("r_chosen", "r_rejected", "s_chosen", "s_rejected")
    found = preference_probability(chosen, rejected, mode(name).probability)
    assert found.tolist() == pytest.approx(COLUMNS["p"], rel=1e-5)
    references = list(zip(COLUMNS["r_chosen"], COLUMNS["r_rejected"], strict=True))
    indices = [index for index, keep in enumerate(COLUMNS["kept"]) if keep]
    assert 0 < len(indices) < len(references) == 20
    for variant in ("filter", "scpo", "filter_inverse_weight"):
        assert list(select_pairs(references, variant, config().scpo, mode(name))) == indices
    weights = pair_weights(chosen, rejected, "scpo", GOLDEN["beta"], mode(name).inverse_weight)
    assert weights.tolist() == pytest.approx(COLUMNS["weight"], rel=1e-5)
    each = [weighted_bradley_terry(s_chosen[i : i + 1], s_rejected[i], weights[i]).item() for i in range(20)]
    assert each == pytest.approx(COLUMNS["loss"], rel=1e-5)
    assert weighted_bradley_terry(s_chosen, s_rejected, weights).item() == pytest.approx(GOLDEN["mean_loss"], rel=1e-6)
    kept = torch.tensor(COLUMNS["kept"])
    loss = weighted_bradley_terry(s_chosen[kept], s_rejected[kept], weights[kept]).item()
    assert loss == pytest.approx(GOLDEN["mean_loss_of_kept"], rel=1e-6)


def test_only_corrected_inverse_weight_has_temperature_and_bound() -> None:
    chosen, rejected = tensors("r_chosen", "r_rejected")
    far = (torch.tensor([0.0]), torch.tensor([1e4]))
    for name, power, highest in (("as_released", 1, math.inf), ("corrected", 1 / GOLDEN["beta"], MAX_INVERSE_WEIGHT)):
        settings = "inverse_weight", GOLDEN["beta"], mode(name).inverse_weight
        expected = [weight**power for weight in COLUMNS["inverse_weight"]]
        assert pair_weights(chosen, rejected, *settings).tolist() == pytest.approx(expected, rel=1e-5)
        assert pair_weights(*far, *settings).item() == pytest.approx(highest)


@pytest.mark.parametrize(
    ("reference", "corrected", "released"),
    [
        ((100.0, 100.5), True, False),  # inf / inf
        ((1e4, 1e4 + 2), True, False),
        ((100.0, 0.0), False, False),
        ((0.0, 100.0), True, True),  # 1 / inf
        ((-1e4, 0.0), True, True),
        ((-200.0, -200.0), True, False),  # 0 / 0
        ((88.0, 88.0), True, True),
    ],
)
def test_exponential_overflow_drops_pairs_only_in_released_mode(
    reference: tuple[float, float], corrected: bool, released: bool
) -> None:
    scpo = config().scpo
    assert bool(select_pairs([reference], "filter", scpo, mode("corrected"))) == corrected
    assert bool(select_pairs([reference], "filter", scpo, mode("as_released"))) == released


# --- which pairs, and with which weights ---


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("full", {0: 1, 1: 1, 2: 1, 3: 1, 4: 1}),
        ("filter", {1: 1, 2: 1, 3: 1, 4: 1}),
        ("weight", {0: 1, 1: 1, 2: 1, 3: math.exp(-1), 4: math.exp(-2)}),
        ("scpo", {1: 1, 2: 1, 3: math.exp(-1), 4: math.exp(-2)}),
        ("inverse_weight", {0: 1, 1: 1, 2: 1, 3: math.e, 4: math.e**2}),
        ("filter_inverse_weight", {1: 1, 2: 1, 3: math.e, 4: math.e**2}),
    ],
)
def test_variant_selects_the_expected_pairs_and_weights(variant: Any, expected: dict[int, float]) -> None:
    assert select_pairs(REFERENCES, variant, config().scpo, mode("corrected")) == pytest.approx(expected, rel=1e-6)
    assert select_pairs([], variant, config().scpo, mode("corrected")) == {}


def test_minority_is_filtered_pairs_or_as_released_disagreed_pairs() -> None:
    references = {f"pair-{index}": scores for index, scores in enumerate(REFERENCES)}
    scpo = config().scpo
    assert minority_ids(references, scpo, mode("corrected")) == {"pair-1", "pair-2", "pair-3", "pair-4"}
    assert minority_ids(references, scpo, mode("as_released")) == {"pair-3", "pair-4"} == disagreed_ids(references)


@given(
    st.lists(st.tuples(SCORE, SCORE), min_size=1, max_size=12),
    st.sampled_from(["full", "filter", "weight", "scpo", "inverse_weight", "filter_inverse_weight"]),
)
def test_corrected_mode_weights_are_finite_and_bounded(references: list[tuple[float, float]], variant: Any) -> None:
    weights = select_pairs(references, variant, config().scpo, config().mode)
    assert all(0 <= weight <= MAX_INVERSE_WEIGHT * (1 + 1e-5) for weight in weights.values())
