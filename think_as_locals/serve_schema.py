"""The typed schema of a server. Defaults live in conf/serve.yaml, once."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from think_as_locals.rm_schema import JudgeSection
from think_as_locals.schema import Section, Seed


class ScoreSection(Section):
    """How responses of one prompt are rewarded."""

    protocol: Literal["round_robin", "pointwise"]
    orders: Annotated[int, Field(ge=1, le=2)]
    prompt: str | None
    group_size: PositiveInt
    group_wait_s: PositiveFloat


class LimitsSection(Section):
    """How much a request, and a client, may ask for."""

    body_bytes: PositiveInt
    body_s: PositiveFloat
    items: PositiveInt
    responses: PositiveInt
    text_characters: PositiveInt
    requests_per_minute: PositiveInt
    requests_at_once: PositiveInt


class ServeConfig(Section):
    """Everything a server needs to know."""

    recipe: str
    seed: Seed
    host: Annotated[str, Field(min_length=1)]
    port: Annotated[int, Field(ge=0, le=65535)]
    judge: JudgeSection
    score: ScoreSection
    limits: LimitsSection
    window_s: NonNegativeFloat
    grace_s: PositiveFloat
