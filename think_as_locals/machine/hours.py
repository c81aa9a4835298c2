"""Estimate how long a run takes, from the work of its steps and the figures of a GPU.

A forward pass of N parameters over T tokens takes 2 N T operations; gradients of activations and of weights take as
many each. Sampling reads the weights and the cached keys and values once for each token of the longest completion. The
share of its published operations that a GPU reaches in training is measured; the share of its bandwidth and the mean
length of completions are assumed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from think_as_locals.config.launch import Launch, read_launch
from think_as_locals.config.model_schema import GrpoConfig, TrainingConfig
from think_as_locals.config.schema import RunConfig
from think_as_locals.machine import memory
from think_as_locals.machine.memory import PROMPT_TOKENS, Counts
from think_as_locals.runtime.gpus import gpus
from think_as_locals.types import ConfigError

MFU, BANDWIDTH = 0.3, 0.6
"""Shares of a GPU's peak operations reached in training, and of its memory bandwidth in sampling.

The first is rounded down from 0.34 and 0.32, measured on an H100: updates of a 7B model with an adapter, prompts of
1,024 and 4,096 tokens, recomputation counted (`tests/gpu/truth.json`). The second is assumed.
"""
MEAN_COMPLETION = 0.4
"""Mean length of completions as a share of the maximum (assumed)."""
ASSUMED = "H100"


@dataclass(frozen=True, slots=True)
class Speed:
    """A GPU's published operations per second (bfloat16, dense), and bytes per second of its memory."""

    operations: float
    bandwidth: float


SPEEDS = {
    "B200": Speed(2250e12, 8.0e12),
    "H200": Speed(989e12, 4.8e12),
    "H100": Speed(989e12, 3.35e12),
    "A100": Speed(312e12, 2.0e12),
    "L40S": Speed(362e12, 0.864e12),
    "A6000": Speed(155e12, 0.768e12),
    "4090": Speed(165e12, 1.008e12),
}


def speed_of(gpu: str) -> tuple[str, Speed]:
    """Return the name and speed of a GPU, or of the one that is assumed instead."""
    known = next((name for name in SPEEDS if name in gpu), ASSUMED)
    return known, SPEEDS[known]


def step_seconds(config: RunConfig, counts: Counts, speed: Speed) -> dict[str, float]:
    """Return the seconds of an optimizer step by part: `sampling` and `update`."""
    grpo, size = config.grpo, memory.element_size(config)
    rows = grpo.per_device_train_batch_size * grpo.gradient_accumulation_steps
    completion = MEAN_COMPLETION * grpo.max_completion_length
    tokens = rows / grpo.num_generations * PROMPT_TOKENS + rows * completion
    passes = 2 * (2 + (config.lora is None))  # forward, gradients of activations, of weights
    passes += 2 * grpo.gradient_checkpointing + 2 * (grpo.beta > 0) + 2 * ("criteria_gain" in config.reward.weighted())
    update = passes * counts.parameters * tokens / (MFU * speed.operations)
    return {"sampling": _decoding(counts, rows, grpo.max_completion_length, size, speed), "update": update}


def _decoding(counts: Counts, rows: int, longest: int, size: int, speed: Speed) -> float:
    """Return the seconds in which one GPU samples `rows` completions at once."""
    read = size * (counts.parameters + rows * counts.cached * (PROMPT_TOKENS + longest / 2))
    return longest * max(read / (BANDWIDTH * speed.bandwidth), 2 * counts.parameters * rows / (MFU * speed.operations))


def evaluation_seconds(config: RunConfig, launch: Launch, counts: Counts, speed: Speed, judgements: int) -> float:
    """Return the seconds in which all GPUs together make so many judgements."""
    from think_as_locals.engines.vllm_engine import AT_ONCE

    rounds = judgements / (AT_ONCE * launch.processes)
    longest, size = config.grpo.max_completion_length, memory.element_size(config)
    return rounds * _decoding(counts, AT_ONCE, round(MEAN_COMPLETION * longest), size, speed)


def steps_of(config: GrpoConfig, launch: Launch, items: int) -> int:
    """Return the optimizer steps of a run on `items` training items, as TRL counts them."""
    grpo, more = config.grpo, config.grpo.model_extra or {}
    if grpo.max_steps > 0:
        return grpo.max_steps
    rows = grpo.per_device_train_batch_size * launch.processes
    sampled = more.get("generation_batch_size")
    sampled = sampled or rows * (more.get("steps_per_generation") or grpo.gradient_accumulation_steps)
    batches = items * grpo.num_generations // sampled  # what does not fill the last one is left out of an epoch
    micro_steps = batches * (sampled // rows) * more.get("num_iterations", 1)
    steps_in_epoch: int = max(1, math.ceil(micro_steps / grpo.gradient_accumulation_steps))
    return math.ceil(grpo.num_train_epochs * steps_in_epoch)


def estimates(config: TrainingConfig, items: int, judgements: int = 0) -> list[tuple[str, str]]:
    """Return a plan's lines about the memory of a training and, for a judge on GPUs, its hours."""
    launch = read_launch(config.run.launch)
    try:
        counts = memory.count(config)
    except ConfigError as error:
        return [("memory", str(error))]
    of = f"each GPU of launch/{launch.name}.yaml" if config.model.requires_gpu else "memory in addition to torch itself"
    needed = f"about {memory.needed_bytes(config, launch, counts) / memory.GB:.1f} GB of {of}"
    rows = [("memory", f"{needed}; for other launch files: tal doctor --launch")]
    if isinstance(config, RunConfig) and config.model.requires_gpu:
        rows.append(("hours", describe_hours(config, launch, counts, gpus(), items, judgements)))
    return rows


def describe_hours(
    config: RunConfig, launch: Launch, counts: Counts, cards: Sequence[str], items: int, judgements: int
) -> str:
    """Return a line about the hours of a run on GPUs like the first of these."""
    card, speed = speed_of(cards[0] if cards else "")
    parts, steps = step_seconds(config, counts, speed), steps_of(config, launch, items)
    training, judging = run_hours(config, launch, counts, speed, items, judgements)
    each = ", ".join(f"{name} {seconds:.0f}" for name, seconds in parts.items())
    return (
        f"about {training + judging:.1f} on {launch.processes} x {card}{'' if cards else ' (assumed)'} for {items:,} "
        f"items: {steps:,} steps of {sum(parts.values()):.0f} s ({each}), evaluations {judging:.1f}; not measured"
    )


def run_hours(
    config: RunConfig, launch: Launch, counts: Counts, speed: Speed, items: int, judgements: int
) -> tuple[float, float]:
    """Return the hours of a run's steps, and of its evaluations with `judgements` each."""
    steps = steps_of(config, launch, items)
    evaluations = 2 + steps // config.eval.every_steps
    step = sum(step_seconds(config, counts, speed).values())
    once = evaluation_seconds(config, launch, counts, speed, judgements)
    return steps * step / 3600, evaluations * once / 3600
