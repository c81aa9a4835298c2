"""The typed schema of a server: conf/serve.yaml."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from think_as_locals.config.schema import JudgeSection, Recipe, Section


class ScoreSection(Section):
    """How /score rewards the responses to one prompt."""

    protocol: Literal["round_robin", "pointwise"]
    orders: Annotated[int, Field(ge=1, le=2)]
    prompt: str | None
    group_size: PositiveInt
    group_wait_s: PositiveFloat


class LimitsSection(Section):
    connections: PositiveInt
    headers_s: PositiveFloat
    body_bytes: PositiveInt
    body_s: PositiveFloat
    items: PositiveInt
    responses: PositiveInt
    text_characters: PositiveInt
    requests_per_minute: PositiveInt
    requests_at_once: PositiveInt


class ServeConfig(Recipe):
    """A judge behind HTTP."""

    host: Annotated[str, Field(min_length=1)]
    port: Annotated[int, Field(ge=0, le=65535)]
    judge: JudgeSection
    score: ScoreSection
    limits: LimitsSection
    window_s: NonNegativeFloat
    grace_s: PositiveFloat
