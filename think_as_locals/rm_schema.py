"""The typed schema of an evaluation: which reward models are measured, on what. Defaults live in conf/, once."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from think_as_locals.schema import (
    DataSection,
    Dtype,
    MeasureSection,
    Name,
    RunSection,
    Section,
    Seed,
    TemplateKwargs,
    Url,
)
from think_as_locals.types import Convention, ProtocolKind


class AskedSection(Section):
    """How a generative reward model is asked about the responses of an item."""

    protocol: ProtocolKind
    orders: Annotated[int, Field(ge=1, le=8)]
    convention: Convention
    margins: bool


class JudgeSection(AskedSection):
    """A generative reward model in this process."""

    kind: Literal["judge"]
    path: str
    revision: str | None
    backend: Literal["transformers", "vllm"]
    dtype: Dtype | None
    prompt: str | None
    max_completion_length: PositiveInt | None
    chat_template_kwargs: TemplateKwargs | None
    chunk_size: PositiveInt
    batch_size: PositiveInt


class ServerSection(AskedSection):
    """A generative reward model behind an OpenAI-compatible server."""

    kind: Literal["server"]
    url: Url
    model: str
    key_variable: str | None
    prompt: str
    max_completion_length: PositiveInt
    concurrency: PositiveInt
    deadline_s: PositiveFloat
    timeout_s: PositiveFloat
    fields: dict[str, Any]


class ClassifierSection(Section):
    """A model with a head that scores a response."""

    kind: Literal["classifier"]
    path: str
    revision: str | None
    dtype: Dtype | None
    chat_template_kwargs: TemplateKwargs
    batch_size: PositiveInt
    max_length: PositiveInt | None
    new_head_seed: Seed | None


class ImplicitSection(Section):
    """The reward that a DPO policy implies."""

    kind: Literal["implicit"]
    path: str
    revision: str | None
    reference: str | None
    reference_revision: str | None
    dtype: Dtype | None
    chat_template_kwargs: TemplateKwargs
    batch_size: PositiveInt
    max_length: PositiveInt | None
    beta: PositiveFloat
    per_token: bool


class ConstantSection(Section):
    """Every response is worth the same."""

    kind: Literal["constant"]


RewardModelSection = Annotated[
    JudgeSection | ServerSection | ClassifierSection | ImplicitSection | ConstantSection, Field(discriminator="kind")
]


class BenchmarkSection(MeasureSection):
    """What of the data is measured on, and what beside accuracy is measured."""

    items: Literal["all", "test"]
    probes: bool
    consistency_k: PositiveFloat
    candidates: str | None
    tournament_size: Annotated[int, Field(ge=2, le=8)]


class EvaluationConfig(Section):
    """Everything an evaluation needs to know; what its `config.yaml` holds."""

    recipe: str
    seed: Seed
    run: RunSection
    data: DataSection
    eval: BenchmarkSection
    rms: Annotated[dict[Name, RewardModelSection], Field(min_length=1)]
