"""Select the pairs of a country that SCPO trains on, and their weights (arXiv 2606.18606).

With r+ and r- the global RM's scores of the chosen and the rejected response, a pair is kept if
p = sigmoid(r+ - r-) < tau, and its weight is w = min(exp((r+ - r-) / beta), 1): pairs that the global RM agrees with
are dropped, and pairs that it strongly disagrees with have a small weight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from think_as_locals.config.scpo_schema import ModeSection, ScpoSection, Variant

MAX_INVERSE_WEIGHT = 1e4  # an inverse weight is exponential in the disagreement, and otherwise unbounded

Reference = tuple[float, float]
"""(r+, r-): the scores of the chosen and the rejected response by the global RM, or by its replacement."""


def preference_probability(chosen: Tensor, rejected: Tensor, form: str = "sigmoid") -> Tensor:
    """Return p = sigmoid(r+ - r-), elementwise; `exponentials`, as released, is NaN for r+ > 88 or both < -103."""
    if form == "exponentials":
        return chosen.exp() / (chosen.exp() + rejected.exp())
    return torch.sigmoid(chosen - rejected)


def pair_weights(chosen: Tensor, rejected: Tensor, variant: Variant, temperature: float, inverse: str) -> Tensor:
    """Return the weight of each pair; `inverse` is `temperature` (beta and a cap) or `ratio` (as released: neither)."""
    margin = chosen - rejected
    if variant in ("weight", "scpo"):
        return torch.exp((margin / temperature).clamp(max=0))
    if variant.endswith("inverse_weight"):
        if inverse == "ratio":
            return torch.maximum(rejected.exp() / chosen.exp(), torch.ones_like(margin))
        return torch.exp((-margin / temperature).clamp(0, math.log(MAX_INVERSE_WEIGHT)))
    return torch.ones_like(margin)


def select_pairs(
    references: Sequence[Reference], variant: Variant, scpo: ScpoSection, mode: ModeSection
) -> dict[int, float]:
    """Return the weights of the pairs that a variant trains on, by their index in `references`."""
    if not references:
        return {}
    chosen, rejected = torch.tensor(references, dtype=torch.float32).unbind(1)
    kept = torch.ones(len(references), dtype=torch.bool)
    if variant in ("filter", "scpo", "filter_inverse_weight"):
        kept = preference_probability(chosen, rejected, mode.probability) < scpo.filter_threshold
    weights = pair_weights(chosen, rejected, variant, scpo.weight_temperature, mode.inverse_weight)
    return {index: float(weights[index]) for index in kept.nonzero().flatten().tolist()}


def minority_ids(references: Mapping[str, Reference], scpo: ScpoSection, mode: ModeSection) -> frozenset[str]:
    """Return the ids of pairs that count as a minority's view: those with p < tau, or those with r+ < r-."""
    if mode.minority_test == "disagreement":
        return disagreed_ids(references)
    kept = select_pairs(list(references.values()), "filter", scpo, mode)
    return frozenset(name for index, name in enumerate(references) if index in kept)


def disagreed_ids(references: Mapping[str, Reference]) -> frozenset[str]:
    """Return the ids of pairs whose rejected response the global RM scores higher (r+ < r-)."""
    return frozenset(name for name, (chosen, rejected) in references.items() if chosen < rejected)
