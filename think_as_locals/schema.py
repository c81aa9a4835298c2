"""The typed schema of a run. Defaults live in conf/, once: no field here has one of its own."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from think_as_locals.types import RewardName

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Share = Annotated[float, Field(gt=0, lt=1)]


class Section(BaseModel):
    """A part of the configuration: strict types, no unknown keys, immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class RunSection(Section):
    """Where a run's folder is and what it is called."""

    name: Name
    dir: str
    resume: Literal["never", "auto"]


class ScratchSection(Section):
    """A small judge made from nothing: a Qwen3 architecture and a tokenizer trained on the data's own texts."""

    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    num_subwords: PositiveInt
    num_phrases: NonNegativeInt
    initializer_range: PositiveFloat


class ModelSection(Section):
    """The judge that is trained: a path or Hub id, or a model made from scratch."""

    path: str | None
    revision: str | None
    scratch: ScratchSection | None
    dtype: Literal["float32", "bfloat16", "float16"]
    attn_implementation: Literal["sdpa", "eager", "flash_attention_2", "flash_attention_3"]
    chat_template_kwargs: dict[str, bool | int | float | str]
    requires_gpu: bool


class DataSection(Section):
    """Items, and how they are split."""

    source: Literal["culture_cards", "blend", "jsonl"]
    path: str | None
    split: Literal["group", "pairing"]
    test_share: Share
    languages: Annotated[list[str], Field(min_length=1)]
    groups: Annotated[list[str], Field(min_length=1)] | None
    num_responses: Annotated[int, Field(ge=2, le=8)]
    sets_per_group: PositiveInt | None
    max_groups: PositiveInt | None
    shuffle_labels: bool


class PromptSection(Section):
    """How an item is put to the judge: a folder of templates in `judging/prompts`."""

    template: str


class RewardSection(Section):
    """Reward components and what they weigh."""

    weights: Annotated[dict[RewardName, float], Field(min_length=1)]


class RolloutSection(Section):
    """What samples completions during training."""

    backend: Literal["transformers", "vllm"]
    gpu_memory_utilization: Share
    max_model_length: PositiveInt | None
    tensor_parallel_size: PositiveInt


class TrlSection(Section):
    """Fields of one of TRL's configurations: those that conf/ sets are typed here, any other is checked against TRL."""

    model_config = ConfigDict(extra="allow")

    learning_rate: PositiveFloat
    lr_scheduler_type: str
    warmup_steps: NonNegativeInt
    per_device_train_batch_size: PositiveInt
    gradient_accumulation_steps: PositiveInt
    gradient_checkpointing: bool
    max_steps: Annotated[int, Field(ge=-1)]
    logging_steps: PositiveInt


class GrpoSection(TrlSection):
    """TRL's GRPOConfig."""

    num_generations: Annotated[int, Field(ge=2)]
    max_completion_length: PositiveInt
    temperature: PositiveFloat
    beta: NonNegativeFloat
    loss_type: str
    num_train_epochs: PositiveFloat
    save_steps: PositiveInt
    report_to: list[str]


class SftSection(TrlSection):
    """The cold start: TRL's SFTConfig, and the bias that demonstrations carry."""

    biased_share: Annotated[float, Field(ge=0, le=1)]
    biased_wrong: Annotated[float, Field(ge=0, le=1)]
    biased_right: Annotated[float, Field(ge=0, le=1)]


class EvalSection(Section):
    """CARB during and after training."""

    every_steps: PositiveInt
    batch_size: PositiveInt
    max_items: PositiveInt | None
    bootstrap_samples: PositiveInt


class RunConfig(Section):
    """Everything a run needs to know; what `load_recipe` returns and a run's `config.yaml` holds."""

    recipe: str
    seed: NonNegativeInt
    run: RunSection
    model: ModelSection
    data: DataSection
    prompt: PromptSection
    reward: RewardSection
    rollout: RolloutSection
    grpo: GrpoSection
    sft: SftSection | None
    eval: EvalSection
