"""The typed schema of SCPO: a scalar reward model is steered to one country after another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from think_as_locals.config.schema import (
    EvaluationSizeSection,
    LoraSection,
    ModelSection,
    Recipe,
    RunSection,
    ScpoData,
    Section,
    Seed,
    Share,
    TrlSection,
)
from think_as_locals.types import ConfigError

Variant = Literal["full", "filter", "weight", "scpo", "inverse_weight", "filter_inverse_weight"]
"""How a country's pairs are filtered and weighted (`scpo.select`)."""


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
    """Training of a global RM on all countries' pairs: TRL's RewardConfig.

    `batch_size` is the number of pairs per optimizer step, over all processes.
    """

    OURS = frozenset({"batch_size"})

    batch_size: PositiveInt
    max_steps: PositiveInt

    def micro_steps(self, num_processes: int) -> tuple[int, int]:
        """Return the pairs per process and micro-step, and the micro-steps of an optimizer step.

        16 pairs with at most 8 at a time are (8, 2) on one process, (8, 1) on two and (4, 1) on four.
        """
        share, rest = divmod(size := self.batch_size, num_processes)
        if rest:
            near = " or ".join(str(n * num_processes) for n in (share, share + 1) if n)
            divisors = ", ".join(str(n) for n in range(1, size + 1) if size % n == 0)
            raise ConfigError(
                f"got {size} pairs per optimizer step for {num_processes} processes, expected a multiple of "
                f"{num_processes}: set batch_size to {near}, or start as many processes as divide {size}: {divisors}"
            )
        most = min(share, self.per_device_train_batch_size)
        pairs = next(n for n in range(most, 0, -1) if share % n == 0)
        return pairs, share // pairs


class ScpoSection(GlobalRMSection):
    OURS = frozenset(
        {"variants", "seeds", "pair_counts", "reference", "filter_threshold", "weight_temperature", "batch_size"}
        | {"num_train_epochs", "max_length", "scoring_batch_size", "keep_models"}
    )

    variants: list[Variant]
    seeds: Annotated[list[Seed], Field(min_length=1)]
    pair_counts: list[PositiveInt]
    reference: Literal["global_rm", "other_countries"]
    filter_threshold: Share
    weight_temperature: PositiveFloat
    num_train_epochs: PositiveFloat
    max_length: PositiveInt | None
    scoring_batch_size: PositiveInt
    keep_models: list[Variant]
    ddp_timeout: PositiveInt

    def faults(self) -> Iterator[str]:
        if unknown := set(self.keep_models).difference(self.variants):
            names, known = ", ".join(sorted(unknown)), ", ".join(self.variants)
            yield f"keep_models: {names} is not among scpo.variants: expected [], or some of {known}"


class ScpoConfig(Recipe):
    run: RunSection
    model: ModelSection
    data: ScpoData
    mode: ModeSection
    global_rm: GlobalRMSection | None
    scpo: ScpoSection
    lora: LoraSection | None
    eval: EvaluationSizeSection

    def faults(self) -> Iterator[str]:
        data, scpo = self.data, self.scpo
        if self.global_rm is None and (self.model.scratch or not scpo.variants):
            why = "a randomly initialised reward model needs" if self.model.scratch else "without variants it takes"
            yield f"global_rm: {why} global_rm=pooled (a pretrained one: global_rm=pretrained)"
        if data.split != "group":
            yield f"data.split: got {data.split}, expected group: people are split, not pairings"
        if data.validation_share is not None:
            yield "data.validation_share: SCPO chooses no checkpoint: set it to null"
        if self.lora and self.lora.lora_dropout and not self.mode.dropout:
            yield "lora.lora_dropout: mode=corrected turns all dropout off: set it to 0, or mode.dropout=true"
        if scpo.reference == "other_countries" and data.source != "globalopinionqa":
            yield f"scpo.reference: other_countries needs data=globalopinionqa, got {data.source}"
