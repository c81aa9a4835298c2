"""The typed schema of an SCPO run: a scalar reward model is steered to one country after another."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from think_as_locals.config.schema import (
    DataSection,
    LoraSection,
    MeasureSection,
    ModelSection,
    Recipe,
    RunSection,
    Section,
    Seed,
    Share,
    TrlSection,
)

Variant = Literal["full", "filter", "weight", "scpo", "inverse_weight", "filter_inverse_weight", "scpo_tuned"]
"""Which of a country's pairs are trained on, and their weights; `scpo.select` has the rules."""


class ModeSection(Section):
    """The differences between SCPO's description and its released code, one key each."""

    name: Literal["corrected", "as_released"]
    dropout: bool
    training_text: Literal["as_scored", "joined"]
    long_texts: Literal["left_out", "scored"]
    minority_test: Literal["filter", "disagreement"]
    split: Literal["by_country", "together"]
    steps: Literal["at_most", "exactly"]
    probability: Literal["sigmoid", "exponentials"]
    inverse_weight: Literal["temperature", "ratio"]
    ties: Literal["half", "wrong"]


class GlobalRMSection(TrlSection):
    """Training of a global RM from scratch on all countries' pairs: TRL's RewardConfig.

    `batch_size` is the number of pairs per optimizer step, over all processes.
    """

    OURS = frozenset({"batch_size"})

    batch_size: PositiveInt
    max_steps: PositiveInt


class ScpoSection(GlobalRMSection):
    OURS = frozenset(
        {"variants", "seeds", "pair_counts", "reference", "filter_threshold", "weight_temperature", "batch_size"}
        | {"country_filter_thresholds", "country_learning_rates"}
        | {"num_train_epochs", "max_length", "scoring_batch_size", "keep_models"}
    )

    variants: Annotated[list[Variant], Field(min_length=1)]
    seeds: Annotated[list[Seed], Field(min_length=1)]
    pair_counts: list[PositiveInt]
    reference: Literal["global_rm", "other_countries"]
    filter_threshold: Share
    weight_temperature: PositiveFloat
    country_filter_thresholds: dict[str, Share]
    country_learning_rates: dict[str, PositiveFloat]
    num_train_epochs: PositiveFloat
    max_length: PositiveInt | None
    scoring_batch_size: PositiveInt
    keep_models: list[Variant]
    ddp_timeout: PositiveInt

    def tuned(self, variant: str, country: str) -> tuple[float, float]:
        """Return the filter's threshold and the learning rate with which a variant is trained for a country."""
        if variant != "scpo_tuned":
            return self.filter_threshold, self.learning_rate
        threshold = self.country_filter_thresholds.get(country, self.filter_threshold)
        return threshold, self.country_learning_rates.get(country, self.learning_rate)


class ScpoConfig(Recipe):
    run: RunSection
    model: ModelSection
    data: DataSection
    mode: ModeSection
    global_rm: GlobalRMSection | None
    scpo: ScpoSection
    lora: LoraSection | None
    eval: MeasureSection

    @property
    def sources(self) -> dict[str, DataSection]:
        """As `RunConfig.sources`."""
        return {self.data.source: self.data}
