"""The typed schema of a run. Defaults live in conf/, once: no field here has one of its own."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from think_as_locals.types import DataSource

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
OwnName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,49}$")]
Reference = Annotated[str, Field(pattern=r"^[^:]+:[A-Za-z_][A-Za-z0-9_]*$")]
Url = Annotated[str, Field(pattern=r"^https?://[^/@]+(/[^@]*)?$")]
Share = Annotated[float, Field(gt=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]  # as numpy takes them
Dtype = Literal["float32", "bfloat16", "float16"]
TemplateKwargs = dict[str, bool | int | float | str]
Tracker = Literal["wandb", "tensorboard", "trackio"]


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
    dtype: Dtype
    attn_implementation: Literal["sdpa", "eager", "flash_attention_2", "flash_attention_3"]
    chat_template_kwargs: TemplateKwargs
    requires_gpu: bool


class DataSection(Section):
    """Items, and how they are split."""

    source: DataSource
    path: str | None
    split: Literal["group", "pairing"]
    test_share: Share
    languages: Annotated[list[str], Field(min_length=1)]
    groups: Annotated[list[str], Field(min_length=1)] | None
    countries: Annotated[list[str], Field(min_length=1)] | None
    num_responses: Annotated[int, Field(ge=2, le=8)]
    sets_per_group: PositiveInt | None
    max_groups: PositiveInt | None
    min_share_gap: Annotated[float, Field(ge=0, lt=1)] | None
    shuffle_labels: bool


class PromptSection(Section):
    """How an item is put to the judge: a folder of templates in `judging/prompts`."""

    template: str


class CriteriaGainSection(Section):
    """How `criteria_gain` is priced, and its range in nats."""

    scorer: Literal["policy", "reference"]
    clip: Annotated[list[float], Field(min_length=2, max_length=2)]


class RubricQualitySection(Section):
    """Whose script a rubric is to be written in: a BCP-47 tag, `item`, or no matter."""

    language: str | None


class LengthSection(Section):
    """Over how many tokens, before the longest completion, the overlong penalty grows."""

    cache: PositiveInt


class RewardSection(Section):
    """Reward components, what they weigh and need, and what happens where one fails."""

    weights: Annotated[dict[str, NonNegativeFloat], Field(min_length=1)]
    own: dict[OwnName, Reference]
    both_orders: bool
    timeout_s: PositiveFloat
    max_fault_share: Annotated[float, Field(ge=0, lt=1)]
    fault_window: PositiveInt
    criteria_gain: CriteriaGainSection
    rubric_quality: RubricQualitySection
    length: LengthSection

    def weighted(self) -> dict[str, float]:
        """The components that are computed: those whose weight is not zero."""
        return {name: weight for name, weight in self.weights.items() if weight}

    def faults(self, grpo: GrpoSection) -> list[str]:
        """What does not fit together here, or with the trainer, a sentence each."""
        weighted, (low, high), faults = self.weighted(), self.criteria_gain.clip, []
        longest, group = grpo.max_completion_length, grpo.num_generations
        if not weighted:
            faults.append(f"reward.weights: all are 0 ({', '.join(self.weights)}): give one of them more")
        if low >= high:
            faults.append(f"reward.criteria_gain.clip: got [{low}, {high}], expected a low end below the high one")
        if "criteria_gain" in weighted and self.criteria_gain.scorer == "reference" and not grpo.beta:
            faults.append("reward.criteria_gain.scorer: no reference model with grpo.beta=0: raise it, or set policy")
        if "length" in weighted and self.length.cache > longest:
            faults.append(
                f"reward.length.cache: got {self.length.cache}, expected at most grpo.max_completion_length ({longest})"
            )
        if "consistency" in weighted and not self.both_orders:
            faults.append("reward.weights.consistency: compares both orders of an item: set reward.both_orders=true")
        if self.both_orders and group % 2:
            faults.append(f"grpo.num_generations: got {group}, expected an even number with reward.both_orders=true")
        return faults


class ToleranceSection(Section):
    """How far an engine's log-probabilities may be from the policy's, in nats."""

    full: PositiveFloat
    half: PositiveFloat


class RolloutSection(Section):
    """What samples completions during training."""

    backend: Literal["transformers", "vllm_colocate", "vllm_server"]
    dtype: Dtype | None
    gpu_memory_utilization: Share
    max_model_length: PositiveInt | None
    tolerance: ToleranceSection
    url: Url
    timeout_s: PositiveFloat
    weights_dir: str | None


class TrlSection(Section):
    """Fields of one of TRL's configurations: those that conf/ sets are typed here, any other is checked against TRL."""

    model_config = ConfigDict(extra="allow")
    OURS: ClassVar[frozenset[str]] = frozenset()  # keys that are not TRL's

    learning_rate: PositiveFloat
    lr_scheduler_type: str
    warmup_steps: NonNegativeInt
    per_device_train_batch_size: PositiveInt
    gradient_accumulation_steps: PositiveInt
    gradient_checkpointing: bool
    max_steps: Annotated[int, Field(ge=-1)]
    logging_steps: PositiveInt
    save_steps: PositiveInt
    save_total_limit: PositiveInt


class GrpoSection(TrlSection):
    """TRL's GRPOConfig."""

    num_generations: Annotated[int, Field(ge=2)]
    max_completion_length: PositiveInt
    temperature: PositiveFloat
    beta: NonNegativeFloat
    loss_type: Literal["grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo"]
    num_train_epochs: PositiveFloat
    report_to: list[Tracker]
    ddp_timeout: PositiveInt


class SftSection(TrlSection):
    """The cold start: TRL's SFTConfig, and the bias that demonstrations carry."""

    OURS = frozenset({"biased_share", "biased_wrong", "biased_right", "biased_guess"})

    max_steps: PositiveInt
    biased_share: Annotated[float, Field(ge=0, le=1)]
    biased_wrong: Annotated[float, Field(ge=0, le=1)]
    biased_right: Annotated[float, Field(ge=0, le=1)]
    biased_guess: Annotated[float, Field(ge=0, le=1)]


class LoraSection(Section):
    """An adapter that is trained instead of the weights: PEFT's LoraConfig."""

    r: PositiveInt
    lora_alpha: PositiveInt
    lora_dropout: Annotated[float, Field(ge=0, lt=1)]
    target_modules: str | Annotated[list[str], Field(min_length=1)]


class MeasureSection(Section):
    """How many items are measured, and how intervals are made."""

    max_items: PositiveInt | None
    bootstrap_samples: PositiveInt


class EvalSection(MeasureSection):
    """CARB during and after training."""

    every_steps: PositiveInt
    batch_size: PositiveInt


class RunConfig(Section):
    """Everything a run needs to know; what `load_recipe` returns and a run's `config.yaml` holds."""

    recipe: str
    seed: Seed
    run: RunSection
    model: ModelSection
    data: DataSection
    prompt: PromptSection
    reward: RewardSection
    rollout: RolloutSection
    grpo: GrpoSection
    sft: SftSection | None
    lora: LoraSection | None
    eval: EvalSection
