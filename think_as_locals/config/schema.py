"""The typed schema of every configuration. All defaults live in conf/: no field here has one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from think_as_locals.config.compose import nearest
from think_as_locals.types import (
    GRAMMAR_PROMPTS,
    MAX_ORDERS,
    PUBLISHED_PROMPTS,
    RATING_PROMPTS,
    VERDICT_PROMPTS,
    CultureShown,
    DataSource,
    ProtocolKind,
    RewardName,
    RubricLanguage,
    shown,
)

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
OwnName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,49}$")]
FunctionPath = Annotated[str, Field(pattern=r"^[^:]+:[A-Za-z_][A-Za-z0-9_]*$")]
Url = Annotated[str, Field(pattern=r"^https?://[^\s/@?#]+(/[^\s@?#]*)?$")]
_KEY_VENDORS = (
    *("ANTHROPIC", "AZURE_OPENAI", "CEREBRAS", "COHERE", "DASHSCOPE", "DEEPSEEK", "FIREWORKS", "GEMINI", "GROQ"),
    *("MISTRAL", "MOONSHOT", "NVIDIA", "OPENAI", "OPENROUTER", "SGLANG", "TOGETHER", "VLLM", "XAI"),
)
# A recipe may be somebody else's, and its url theirs: it names none of the other secrets in the environment.
KeyVariable = Annotated[str, Field(pattern=rf"^(TAL_[A-Z0-9_]+|({'|'.join(_KEY_VENDORS)})_API_KEY)$")]
ModelPath = Annotated[str, AfterValidator(os.path.expanduser)]  # or Hub id; a shell leaves ~ behind `key=` as it is
Share = Annotated[float, Field(gt=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]  # as numpy takes them
Dtype = Literal["float32", "bfloat16", "float16"]
TemplateKwargs = dict[str, bool | int | float | str]
Tracker = Literal["wandb", "tensorboard", "trackio"]
Side = Literal["train", "validation", "test", "all"]  # of a split
Orders = Annotated[int, Field(ge=1, le=8)]


def _known_prompt(name: str) -> str:
    if name not in (known := (*GRAMMAR_PROMPTS, *VERDICT_PROMPTS, *RATING_PROMPTS)):
        raise ValueError(f"got {shown(name)}{nearest(name, known)}; available: {', '.join(sorted(known))}")
    return name


PromptName = Annotated[str, AfterValidator(_known_prompt)]  # of a folder in judging/prompts


class Section(BaseModel):
    """A part of the configuration: strict types, no unknown keys, immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with several keys together, each as `KEY: got ..., expected ...`."""
        yield from ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if faults := "\n".join(self.faults()):
            raise ValueError(faults)
        return self


class RunSection(Section):
    name: Name
    dir: str
    resume: Literal["never", "auto"]
    launch: str | None


class ScratchSection(Section):
    """A small, randomly initialised judge: a Qwen3 architecture, and a tokenizer trained on the data's own texts."""

    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    num_subwords: PositiveInt
    num_phrases: NonNegativeInt
    initializer_range: PositiveFloat


class ModelSection(Section):
    """The model to train: a path or Hub id, or a randomly initialised model."""

    path: ModelPath | None
    revision: str | None
    scratch: ScratchSection | None
    dtype: Literal["float32", "bfloat16"]  # float16 would need its loss scaled
    attn_implementation: Literal["sdpa", "eager", "flash_attention_2", "flash_attention_3"]
    chat_template_kwargs: TemplateKwargs
    requires_gpu: bool

    def faults(self) -> Iterator[str]:
        if (self.path is None) == (self.scratch is None):
            got = "neither" if self.path is None else "both"
            yield f"path: got {got} of model.path and model.scratch, expected one of them"


RowField = Literal[
    "prompt", "chosen", "rejected", "responses", "best", "culture", "language", "domain", "group", "id"
]  # fmt: skip
"""The fields of rows whose columns `data.columns` can name."""

ResponseLabel = Literal["a", "b", "c", "d", "e", "f", "g", "h", "tie"]
"""What a label in a column can mean: the first response, the second, ..., or none."""


def _named_by_texts(labels: Any) -> Any:
    """Return labels by their texts: in YAML `1` is a number."""
    return {str(name): meaning for name, meaning in labels.items()} if isinstance(labels, dict) else labels


_SOURCES_OF_KEY = {  # keys that only some sources read
    "sets_per_group": ("culture_cards", "blend", "care"),
    "min_share_gap": ("globalopinionqa",),
    "columns": ("rows", "crisp_rm", "helpsteer3", "include", "m_rewardbench"),
    "labels": ("rows", "crisp_rm", "helpsteer3", "include", "m_rewardbench"),
}


class DataSection(Section):
    weights: ClassVar[None] = None  # of a mix
    source: DataSource
    path: str | None
    columns: dict[RowField, str | Annotated[list[str], Field(min_length=1)]] | None
    labels: Annotated[dict[str, ResponseLabel], BeforeValidator(_named_by_texts)] | None
    faulty_rows: Literal["skip", "error"]
    split: Literal["group", "pairing"]
    test_share: Share
    validation_share: Share | None
    languages: Annotated[list[str], Field(min_length=1)] | None
    groups: Annotated[list[str], Field(min_length=1)] | None
    countries: Annotated[list[str], Field(min_length=1)] | None
    culture: Annotated[str, Field(min_length=1)] | None
    language: Annotated[str, Field(min_length=1)] | None
    domain: Annotated[str, Field(min_length=1)] | None
    max_groups: PositiveInt | None
    num_responses: Annotated[int, Field(ge=2, le=8)] | None
    as_pairs: bool
    max_items: PositiveInt | None
    hide_place: bool
    max_prompt_tokens: PositiveInt | None
    sets_per_group: PositiveInt | None
    min_share_gap: Annotated[float, Field(ge=0, lt=1)] | None
    shuffle_labels: bool

    @property
    def title(self) -> str:
        """Its name on pages: the source, or the file name for a user's own rows."""
        return Path(self.path).name if self.path and self.source in ("jsonl", "rows") else self.source

    @property
    def sources(self) -> dict[str, DataSection]:
        """The sources by name: those of a mix, or this one."""
        return {self.source: self}

    def faults(self) -> Iterator[str]:
        if self.path is not None and self.source.endswith("_cards"):
            remedy = "choose the source of these rows, e.g. jsonl, or set it to null"
            yield f"path: got {shown(self.path)}, but {self.source} is embedded: {remedy}"
        for key, sources in _SOURCES_OF_KEY.items():
            if (value := getattr(self, key)) is not None and self.source not in sources:
                got = f"{key}: got {shown(value)}, but only {', '.join(sources)} can use it, not {self.source}"
                yield f"{got}: set it to null (max_items limits any source)"


class MixSection(Section):
    """Several sources together, for the training or the demonstrations of a judge."""

    source: Literal["mix"]
    mix: Annotated[dict[OwnName, DataSection], Field(min_length=1)]
    weights: dict[OwnName, PositiveFloat] | None
    shuffle_labels: bool

    @property
    def title(self) -> str:
        """Its name on pages: those of its sources."""
        return " + ".join(self.mix)

    @property
    def sources(self) -> dict[str, DataSection]:
        """Its sources by name."""
        return dict(self.mix)

    def faults(self) -> Iterator[str]:
        if self.weights is not None and self.weights.keys() != self.mix.keys():
            yield f"weights: got {', '.join(self.weights)}, expected one of each: {', '.join(self.mix)}"
        for name, part in self.mix.items():
            if part.shuffle_labels:
                yield f"mix.{name}.shuffle_labels: the labels of a mix are shuffled together: set data.shuffle_labels"


def _not_for_a_judge(data: DataSection | MixSection) -> DataSection | MixSection:
    for part in data.sources.values():
        if (most := part.max_prompt_tokens) is not None:
            raise ValueError(f"max_prompt_tokens: got {most}, which is for a judge's training items: set it to null")
    return data


def _not_for_training(data: DataSection | MixSection) -> DataSection | MixSection:
    if data.shuffle_labels:
        raise ValueError("shuffle_labels: a control for training, nothing else shuffles labels: set it to false")
    return _not_for_a_judge(data)


AnyData = Annotated[DataSection | MixSection, Field(discriminator="source")]
"""The data of a judge's training."""
ScpoData = Annotated[DataSection, AfterValidator(_not_for_a_judge)]
Data = Annotated[DataSection, AfterValidator(_not_for_training)]
AnyOtherData = Annotated[AnyData, AfterValidator(_not_for_training)]
"""Data that nothing is trained on."""


def side_faults(side: str, data: DataSection | MixSection) -> Iterator[str]:
    """Yield a fault if the items are to be those of a side that the data do not have."""
    if side == "validation" and None in (part.validation_share for part in data.sources.values()):
        yield "items: no validation items are held out: set validation_share of its data"


def orders_faults(protocol: ProtocolKind, orders: int) -> Iterator[str]:
    """Yield a fault if a protocol has no such number of orders."""
    if orders > (most := MAX_ORDERS[protocol]):
        yield f"orders: got {orders}, expected at most {most} with protocol {protocol}"


def prompt_faults(prompt: str, culture: CultureShown | None, rubric_language: RubricLanguage | None) -> Iterator[str]:
    """Yield a fault for a culture or a language that a prompt has no place for."""
    if rubric_language not in (None, "any") and not prompt.startswith("listwise"):
        yield f"rubric_language: got {rubric_language}, but {prompt} asks for none: set it to any"
    if culture not in (None, "hidden") and prompt in (*PUBLISHED_PROMPTS, *RATING_PROMPTS):
        yield f"culture: got {culture}, but {prompt} does not mention culture: set it to hidden"


class Recipe(Section):
    """The keys that all configurations have."""

    recipe: str
    seed: Seed

    def to_yaml(self) -> str:
        """Return all settings as YAML."""
        return yaml.safe_dump(self.model_dump(), sort_keys=False, allow_unicode=True)


def sections(part: object, place: str = "") -> Iterator[tuple[str, BaseModel]]:
    """Yield every section of a configuration with its place, such as `("eval.sets.own.data", DataSection(...))`."""
    if isinstance(part, BaseModel) and place:
        yield place, part
    for name, inner in part if isinstance(part, BaseModel) else part.items() if isinstance(part, dict) else ():
        yield from sections(inner, f"{place}.{name}".lstrip("."))


class ItemsConfig(Recipe):
    """The configuration of `tal data`: conf/items.yaml."""

    data: Data


class PromptSection(Section):
    """The prompt: a folder of templates in `judging/prompts`, and how it treats culture and language."""

    template: PromptName
    culture: CultureShown
    rubric_language: RubricLanguage

    def faults(self) -> Iterator[str]:
        return prompt_faults(self.template, self.culture, self.rubric_language)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `judging.render` that this section decides."""
        return {"prompt": self.template, "culture": self.culture, "rubric_language": self.rubric_language}


class CriteriaGainSection(Section):
    """The model whose log-probabilities `criteria_gain` uses, and the range of the gain in nats."""

    scorer: Literal["policy", "reference"]
    clip: Annotated[list[float], Field(min_length=2, max_length=2)]

    def faults(self) -> Iterator[str]:
        if self.clip[0] >= self.clip[1]:
            yield f"clip: got {self.clip}, expected the lowest gain before the highest"


class LengthSection(Section):
    """The last part of the maximum length, in which the overlong penalty grows, as a share."""

    share: Annotated[float, Field(gt=0, le=1)]


class RewardSection(Section):
    weights: Annotated[dict[str, NonNegativeFloat], Field(min_length=1)]
    own: dict[OwnName, FunctionPath]
    both_orders: bool
    timeout_s: PositiveFloat
    max_fault_share: Annotated[float, Field(ge=0, lt=1)]
    fault_window: PositiveInt
    max_parse_failure: Annotated[float, Field(ge=0, lt=1)]
    parse_failure_batches: PositiveInt
    on_parse_failure: Literal["warn", "stop"]
    criteria_gain: CriteriaGainSection
    length: LengthSection

    def weighted(self) -> dict[str, float]:
        """Return the components to compute, those with a weight other than 0."""
        return {name: weight for name, weight in self.weights.items() if weight}

    def faults(self) -> Iterator[str]:
        builtin = get_args(RewardName)
        known = [*builtin, *self.own]
        if not self.weighted():
            yield "weights: all are 0: set one of them above 0"
        for name in self.weights:
            if name not in known:
                own = f"a function of your own by reward.own.{name}=path/to/file.py:function"
                listed = f"{nearest(name, known)}; available: {', '.join(known)}, and {own}"
                yield f"weights: no component {shown(name)}{listed}"
        for name in self.own:
            if name in builtin:
                yield f"own.{name}: a component of this name exists: choose another name"
            if name not in self.weights:
                yield f"own.{name}: has no weight: set reward.weights.{name}"
        if "consistency" in self.weighted() and not self.both_orders:
            yield "weights.consistency: compares both orders of an item: set reward.both_orders=true"


class ToleranceSection(Section):
    """The maximum difference between an engine's log-probabilities and the policy's, in nats."""

    full: PositiveFloat
    half: PositiveFloat
    growth: Annotated[float, Field(ge=1)]


class RolloutSection(Section):
    backend: Literal["transformers", "vllm_colocate", "vllm_server"]
    dtype: Dtype | None
    gpu_memory_utilization: Share | None
    max_model_length: PositiveInt | None
    tolerance: ToleranceSection
    url: Url
    timeout_s: PositiveFloat
    weights_dir: str | None
    transfer: Literal["nccl", "folder"] | None
    ahead: NonNegativeInt

    def faults(self) -> Iterator[str]:
        if self.ahead and self.backend != "vllm_server":
            yield f"ahead: got {self.ahead}, but only rollout=vllm_server samples while the policy learns"
        if self.max_model_length and self.backend != "vllm_colocate":
            yield f"max_model_length: got {self.max_model_length}, but only a colocated engine takes it"


class TrlSection(Section):
    """Fields of a TRL configuration: those in conf/ are typed here, `checks.py` checks all others."""

    model_config = ConfigDict(extra="allow")
    OURS: ClassVar[frozenset[str]] = frozenset()  # keys that are not TRL's

    learning_rate: PositiveFloat
    lr_scheduler_type: str
    warmup_steps: NonNegativeInt
    per_device_train_batch_size: PositiveInt
    gradient_checkpointing: bool
    max_steps: Annotated[int, Field(ge=-1)]
    logging_steps: PositiveInt
    save_steps: PositiveInt
    save_total_limit: PositiveInt


class GrpoSection(TrlSection):
    # TRL's way of the former fails under FSDP2, and with LoRA; the latter is ours alone.
    OURS = frozenset({"cast_lm_head_to_fp32", "max_tokens_per_micro_batch"})

    max_tokens_per_micro_batch: PositiveInt | None
    gradient_accumulation_steps: PositiveInt
    num_generations: Annotated[int, Field(ge=2)]
    max_completion_length: PositiveInt
    temperature: PositiveFloat
    beta: NonNegativeFloat
    loss_type: Literal["grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo"]
    cast_lm_head_to_fp32: bool
    vllm_importance_sampling_mode: Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
    num_train_epochs: PositiveFloat
    report_to: list[Tracker]
    vllm_tensor_parallel_size: PositiveInt
    ddp_timeout: PositiveInt

    def faults(self) -> Iterator[str]:
        if self.max_steps == 0:
            yield "max_steps: got 0, expected at least 1, or -1 for num_train_epochs"


class SftSection(TrlSection):
    """The cold start: TRL's SFTConfig, and demonstrations from a file or ours with deliberate errors."""

    OURS = frozenset({"data", "biased_share", "biased_wrong", "biased_right", "biased_guess"})

    gradient_accumulation_steps: PositiveInt
    train_sampling_strategy: Literal["random", "sequential"]
    data: str | None
    num_train_epochs: PositiveFloat
    biased_share: Annotated[float, Field(ge=0, le=1)] | None
    biased_wrong: Annotated[float, Field(ge=0, le=1)] | None
    biased_right: Annotated[float, Field(ge=0, le=1)] | None
    biased_guess: Annotated[float, Field(ge=0, le=1)] | None

    @property
    def length(self) -> str:
        """The length of the training, for messages."""
        return f"{self.max_steps} steps" if self.max_steps > 0 else f"{self.num_train_epochs:g} epochs"

    def faults(self) -> Iterator[str]:
        if (self.biased_wrong or 0.0) + (self.biased_right or 0.0) > 1:
            yield "biased_right: it and biased_wrong are shares of the same mentions and must not exceed 1"


class LoraSection(Section):
    r: PositiveInt
    lora_alpha: PositiveInt
    lora_dropout: Annotated[float, Field(ge=0, lt=1)]
    target_modules: str | Annotated[list[str], Field(min_length=1)]

    def faults(self) -> Iterator[str]:
        names = self.target_modules
        try:
            hit = re.fullmatch(names, "lm_head") if isinstance(names, str) else "lm_head" in names
        except re.error as error:
            yield f"target_modules: not a regular expression: {error}"
            return
        if hit:
            yield "target_modules: log-probabilities are computed from lm_head's own matrix: drop it"


class EvaluationSizeSection(Section):
    """The number of items to evaluate on, and of bootstrap samples for intervals."""

    max_items: PositiveInt | None
    bootstrap_samples: PositiveInt
