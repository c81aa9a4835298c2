"""The typed schema of the training of a judge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import PositiveInt

from think_as_locals.config import schema
from think_as_locals.types import RATING_PROMPTS, TEST, VALIDATION, VERDICT_PROMPTS, TooLong


class EvalSetSection(schema.Section):
    """Further items that a training run evaluates on, and how the judge is asked about them."""

    data: schema.Data
    items: Literal["all", "validation", "test"]
    protocol: Literal["listwise", "pairwise", "round_robin"]
    orders: schema.Orders

    def faults(self) -> Iterator[str]:
        yield from schema.side_faults(self.items, self.data)
        yield from schema.orders_faults(self.protocol, self.orders)


class EvalSection(schema.EvaluationSizeSection):
    every_steps: PositiveInt
    batch_size: PositiveInt
    leaks: Literal["refuse", "report"]
    too_long: TooLong
    sets: dict[schema.OwnName, EvalSetSection]


class RunConfig(schema.Recipe):
    """The training of a judge."""

    run: schema.RunSection
    model: schema.ModelSection
    data: schema.AnyData
    prompt: schema.PromptSection
    reward: schema.RewardSection
    rollout: schema.RolloutSection
    grpo: schema.GrpoSection
    sft: schema.SftSection | None
    lora: schema.LoraSection | None
    eval: EvalSection
    variants: dict[schema.Name, list[str]]

    def faults(self) -> Iterator[str]:
        yield from self._start_faults()
        yield from self._reward_faults()
        mixed = self.data.mix if isinstance(self.data, schema.MixSection) else ()
        for name in {VALIDATION, TEST, *mixed}.intersection(self.eval.sets):
            yield f"eval.sets.{name}: the run measures items of its own under this name: choose another"

    def _start_faults(self) -> Iterator[str]:
        """Check the cold start: deliberate errors and few steps are for models made from scratch."""
        sft, scratch = self.sft, self.model.scratch is not None
        if sft is None:
            if scratch:
                yield "sft: a randomly initialised model needs trainer=cold_start_grpo, or set model.path"
        elif not scratch and any(value is not None for name, value in sft if name.startswith("biased_")):
            remedy = "choose trainer=demonstrated_grpo"
            yield f"sft: trainer=cold_start_grpo is for random weights; {self.model.path} is pretrained: {remedy}"
        elif sft.max_steps == 0 or (sft.max_steps < 0 and sft.data is None and scratch):
            yield f"sft.max_steps: got {sft.max_steps}, expected at least 1, or -1 for epochs of a pretrained model"

    def _reward_faults(self) -> Iterator[str]:
        """Check that what is rewarded is asked for, and can be computed."""
        prompt, reward, generations = self.prompt.template, self.reward, self.grpo.num_generations
        gain, rubric = (name in reward.weighted() for name in ("criteria_gain", "rubric_quality"))
        if prompt in RATING_PROMPTS:
            yield f"prompt.template: {prompt} asks for a rating of one response: choose one that asks for a verdict"
        if prompt in VERDICT_PROMPTS and (gain or rubric):
            scores = f"scores the rubric of our grammar, which prompt {prompt} does not ask for"
            name = "criteria_gain" if gain else "rubric_quality"
            yield f"reward.weights.{name}: {scores}: set it to 0, or choose prompt=listwise"
        if rubric and prompt in ("compact", "compact_responses_first"):  # none that can be scored
            asks = f"prompt {prompt} does not ask for what it rewards"
            yield f"reward.weights.rubric_quality: {asks}: choose prompt=compact_rubric or listwise, or set it to 0"
        if gain and reward.criteria_gain.scorer == "reference" and not self.grpo.beta:
            yield "reward.criteria_gain.scorer: no reference model with grpo.beta=0: raise it, or set policy"
        if reward.both_orders and generations % 2:
            yield f"grpo.num_generations: got {generations}, expected an even number with reward.both_orders=true"
        if reward.both_orders and gain and generations == 2:
            yield "grpo.num_generations: got 2, expected at least 4: criteria_gain compares rollouts of one order"
