"""The typed schema of an SCPO run: a scalar reward model is steered to one country after the other."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from think_as_locals.schema import (
    DataSection,
    LoraSection,
    MeasureSection,
    ModelSection,
    RunSection,
    Section,
    Seed,
    TrlSection,
)

Variant = Literal["full", "filter", "weight", "scpo", "inverse_weight"]
"""What of a country's pairs is learnt from, and how much each counts; `training.pair_choice` has the rules."""


class ModeSection(Section):
    """Where the released code differs from its description, each difference by itself."""

    name: Literal["corrected", "as_released"]
    dropout: bool
    training_text: Literal["as_scored", "joined"]
    minority_test: Literal["filter", "disagreement"]
    split: Literal["by_country", "together"]
    steps: Literal["at_most", "exactly"]
    probability: Literal["sigmoid", "exponentials"]
    inverse_weight: Literal["temperature", "ratio"]
    ties: Literal["half", "wrong"]


class GlobalRMSection(TrlSection):
    """How a global RM that is made from nothing learns from all countries' pairs: TRL's RewardConfig."""

    max_steps: PositiveInt


class ScpoSection(TrlSection):
    """The method, what it is compared with, and TRL's RewardConfig."""

    OURS = frozenset(
        {"variants", "seeds", "pair_counts", "reference", "filter_threshold", "weight_temperature"}
        | {"num_train_epochs", "max_length", "scoring_batch_size", "keep_models"}
    )

    variants: Annotated[list[Variant], Field(min_length=1)]
    seeds: Annotated[list[Seed], Field(min_length=1)]
    pair_counts: list[PositiveInt]
    reference: Literal["global_rm", "other_countries"]
    filter_threshold: Annotated[float, Field(gt=0, lt=1)]
    weight_temperature: PositiveFloat
    num_train_epochs: PositiveFloat
    max_steps: PositiveInt
    max_length: PositiveInt | None
    scoring_batch_size: PositiveInt
    keep_models: list[Variant]
    ddp_timeout: PositiveInt


class ScpoConfig(Section):
    """Everything an SCPO run needs to know; what its `config.yaml` holds."""

    recipe: str
    seed: Seed
    run: RunSection
    model: ModelSection
    data: DataSection
    mode: ModeSection
    global_rm: GlobalRMSection | None
    scpo: ScpoSection
    lora: LoraSection | None
    eval: MeasureSection

    def faults(self) -> list[str]:
        """Faults that only several keys together have, a sentence each."""
        faults, scpo = [], self.scpo
        if (self.model.path is None) == (self.model.scratch is None):
            got = "neither" if self.model.path is None else "both"
            faults.append(f"model: got {got} of model.path and model.scratch, expected one of them")
        if (self.model.scratch is None) != (self.global_rm is None):
            faults.append(
                "global_rm: a reward model made from nothing needs global_rm=pooled, any other global_rm=none"
            )
        for key, values in (("variants", scpo.variants), ("seeds", scpo.seeds), ("pair_counts", scpo.pair_counts)):
            if len(set(values)) < len(values):
                faults.append(f"scpo.{key}: got {list(values)}, expected each once")
        if spare := set(scpo.keep_models).difference(scpo.variants):
            faults.append(f"scpo.keep_models: {', '.join(sorted(spare))} is not among scpo.variants")
        if self.data.split != "group":
            faults.append(f"data.split: got {self.data.split}, expected group: people are split, not pairings")
        if self.lora and self.lora.lora_dropout and not self.mode.dropout:
            faults.append("lora.lora_dropout: mode=corrected turns all dropout off: set it to 0, or mode.dropout=true")
        if scpo.reference == "other_countries" and self.data.source != "globalopinionqa":
            faults.append(f"scpo.reference: other_countries needs data=globalopinionqa, got {self.data.source}")
        return faults
