"""Estimate a training's memory, and its tokens a second by the rate of a matrix product here."""

from __future__ import annotations

from think_as_locals.config.launch import Launch
from think_as_locals.config.model_schema import TrainingConfig
from think_as_locals.config.scpo_schema import ScpoConfig
from think_as_locals.machine.memory import count, describe
from think_as_locals.training.throughput import operations_per_token, product_rate
from think_as_locals.types import ThinkAsLocalsError

_WORTHWHILE = 1.5  # times as fast


def estimates(config: TrainingConfig, launch: Launch) -> list[tuple[str, str]]:
    """Return lines about a training's memory and speed, each behind its name, or why they are not known."""
    try:
        counts = count(config)
    except ThinkAsLocalsError as error:
        return [("memory", f"not known: {error}")]
    section = config.scpo if isinstance(config, ScpoConfig) else config.grpo
    recomputed = 2 * counts.parameters if section.gradient_checkpointing else 0
    each, dtype = operations_per_token(counts.parameters, counts.trained) + recomputed, config.model.dtype
    rate = product_rate(dtype)
    speed = (
        f"about {rate / each:,.0f} tokens/s forward and backward on each device: {each / 1e9:.2g} G operations a "
        f"token, {rate / 1e9:,.0f} G a second in a {dtype} matrix product"
    )
    if config.model.path and dtype == "float32" and (half := product_rate("bfloat16")) > _WORTHWHILE * rate:
        speed += f"; model.dtype=bfloat16 is {half / rate:.1f} times as fast here"
    return [("memory", describe(config, launch, counts)), ("speed", speed)]
