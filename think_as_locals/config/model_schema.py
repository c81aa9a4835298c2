"""Models that a recipe asks (reward models, teachers, editors, policies), and the recipes that ask them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from think_as_locals.config import schema
from think_as_locals.config.run_schema import RunConfig
from think_as_locals.config.scpo_schema import ScpoConfig
from think_as_locals.types import Convention, CultureShown, ProtocolKind, RubricLanguage, TooLong, shown


class QuerySection(schema.Section):
    """How a generative reward model is queried."""

    protocol: ProtocolKind
    orders: schema.Orders
    convention: Convention
    label_log_probs: bool

    def faults(self) -> Iterator[str]:
        return schema.orders_faults(self.protocol, self.orders)


VLLM_OPTIONS = ("tensor_parallel_size", "max_model_length", "gpu_memory_utilization", "quantization")


class LoadedSection(schema.Section):
    """A model in this process."""

    path: schema.ModelPath
    revision: str | None
    dtype: schema.Dtype | None
    batch_size: PositiveInt

    @property
    def name(self) -> str:
        """The model, for messages and tables."""
        return self.path


class LocalModelSection(LoadedSection):
    """A language model in this process."""

    backend: Literal["transformers", "vllm"]
    chunk_size: PositiveInt
    tensor_parallel_size: PositiveInt
    max_model_length: PositiveInt | None
    gpu_memory_utilization: schema.Share | None
    quantization: str | None

    @property
    def requests_at_once(self) -> int:
        """How many requests are completed before their answers are kept: with transformers at most a batch."""
        return self.chunk_size if self.backend == "vllm" else min(self.chunk_size, self.batch_size)

    @property
    def vllm(self) -> dict[str, Any]:
        """The options of vLLM, without those that it chooses itself."""
        given = self.model_dump(include=set(VLLM_OPTIONS), exclude_none=True)
        return {key: value for key, value in given.items() if (key, value) != ("tensor_parallel_size", 1)}


class JudgeSection(QuerySection, LocalModelSection):
    """A generative reward model in this process."""

    kind: Literal["judge"]
    prompt: schema.PromptName | None
    culture: CultureShown | None
    rubric_language: RubricLanguage | None
    max_completion_length: PositiveInt | None
    chat_template_kwargs: schema.TemplateKwargs | None

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        if self.prompt is not None:
            yield from schema.prompt_faults(self.prompt, self.culture, self.rubric_language)


class PolicyServerSection(schema.Section):
    """A chat model behind an OpenAI-compatible server, whose answers are candidates or edits."""

    kind: Literal["server"]
    url: schema.Url
    model: str
    key_variable: schema.KeyVariable | None
    concurrency: PositiveInt
    deadline_s: PositiveFloat
    max_retries: NonNegativeInt
    fields: dict[str, Any]

    @property
    def name(self) -> str:
        """The model, for messages and tables."""
        return self.model


class ServerSection(QuerySection, PolicyServerSection):
    """A generative reward model behind an OpenAI-compatible server."""

    prompt: schema.PromptName
    culture: CultureShown
    rubric_language: RubricLanguage
    max_completion_length: PositiveInt


class ScorerSection(LoadedSection):
    """A model in this process that scores whole responses."""

    device_map: Literal["auto"] | None
    chat_template_kwargs: schema.TemplateKwargs
    max_length: PositiveInt | None


class ClassifierSection(ScorerSection):
    """A scalar reward model: a classifier head scores each response."""

    kind: Literal["classifier"]


class ImplicitSection(ScorerSection):
    """The implicit reward of a DPO policy."""

    kind: Literal["implicit"]
    reference: schema.ModelPath | None
    reference_revision: str | None
    beta: PositiveFloat
    per_token: bool


class ConstantSection(schema.Section):
    kind: Literal["constant"]
    name: ClassVar[str] = ""


RewardModelSection = Annotated[
    JudgeSection | ServerSection | ClassifierSection | ImplicitSection | ConstantSection, Field(discriminator="kind")
]


TeacherSection = Annotated[JudgeSection | ServerSection, Field(discriminator="kind")]


class DemonstrationConfig(schema.Recipe):
    """Right completions of a teacher, for a cold start: conf/demonstrate.yaml."""

    run: schema.RunSection
    data: schema.AnyOtherData
    teacher: TeacherSection
    items: schema.Side
    tries: PositiveInt
    temperature: PositiveFloat
    both_orders: bool
    hint: bool

    def faults(self) -> Iterator[str]:
        yield from schema.side_faults(self.items, self.data)
        if isinstance(self.data, schema.MixSection) and self.data.weights is not None:
            yield "data.weights: only weights training items, and tal demonstrate uses every item once: set it to null"
        for key, got, expected in (("protocol", self.teacher.protocol, "listwise"), ("orders", self.teacher.orders, 1)):
            if got != expected:
                yield f"teacher.{key}: got {got}, expected {expected}, as judges are trained (see both_orders)"


class PolicySection(LocalModelSection):
    """A chat model in this process, whose answers are candidates or edits."""

    kind: Literal["model"]
    chat_template_kwargs: schema.TemplateKwargs


ChatSection = Annotated[PolicySection | PolicyServerSection, Field(discriminator="kind")]


class EditConfig(schema.Recipe):
    """Edits of items for the probes, by a chat model: conf/edit.yaml."""

    run: schema.RunSection
    data: schema.Data
    editor: ChatSection
    items: schema.Side
    probes: Annotated[list[Literal["CC", "RC", "CL", "RP"]], Field(min_length=1)]
    language: str
    tries: PositiveInt
    temperature: NonNegativeFloat
    max_completion_length: PositiveInt

    def faults(self) -> Iterator[str]:
        yield from schema.side_faults(self.items, self.data)
        if len(set(self.probes)) < len(self.probes):
            yield f"probes: got {', '.join(self.probes)}, expected each once"


class SampleSection(schema.Section):
    """Prompts for a policy, the number of answers, what scores them, and the policy that draws them."""

    task: Literal["multiple_choice", "short_answers", "prompts"]
    data: schema.Data
    items: schema.Side
    num_candidates: PositiveInt
    temperature: PositiveFloat
    max_completion_length: PositiveInt
    scorer: RewardModelSection | None
    policy: ChatSection

    def faults(self) -> Iterator[str]:
        yield from schema.side_faults(self.items, self.data)
        if (self.scorer is not None) != (self.task == "prompts"):
            got = "none" if self.scorer is None else self.scorer.kind
            needs = "a reward model (scorer=KIND)" if self.task == "prompts" else "none: the answers are known"
            yield f"scorer: got {got}, expected with task {self.task} {needs}"
        if self.task == "short_answers" and self.data.source != "blend":
            yield f"data: got {self.data.source}, but only blend has votes on short answers"
        if self.task == "short_answers" and self.items != "all":
            yield f"items: got {self.items}, expected all: short answers have no split"


TrainingConfig = RunConfig | ScpoConfig
"""What trains: its processes share one model."""


class BenchmarkSection(schema.EvaluationSizeSection):
    items: Literal["all", "test"]
    probes: bool | str
    candidates: str | None
    too_long: TooLong


class EvaluationConfig(schema.Recipe):
    run: schema.RunSection
    data: schema.Data
    eval: BenchmarkSection
    rms: Annotated[dict[schema.Name, RewardModelSection], Field(min_length=1)]
    sample: SampleSection | None

    def faults(self) -> Iterator[str]:
        if launch := self.run.launch:
            yield f"run.launch: got {shown(launch)}, but an evaluation shards no model: set it to null"
        for name, rm in self.rms.items() if self.eval.candidates or self.eval.probes or self.sample else ():
            if isinstance(rm, QuerySection) and rm.protocol in ("pairwise", "round_robin"):
                yield f"rms.{name}.protocol: got {rm.protocol}; probes and candidates need listwise or pointwise"
        if self.sample is not None and self.eval.candidates is not None:
            yield "eval.candidates: the candidates are sampled here: set it to null, or choose sample=none"


# A server.


class ScoreSection(schema.Section):
    """How /score rewards the responses to one prompt."""

    protocol: Literal["round_robin", "pointwise"]
    orders: Annotated[int, Field(ge=1, le=2)]
    prompt: schema.PromptName | None
    group_size: PositiveInt
    group_wait_s: PositiveFloat

    def faults(self) -> Iterator[str]:
        if self.protocol == "pointwise" and (self.orders != 1 or self.prompt is None):
            yield "protocol: pointwise needs score.orders=1 and score.prompt=rewardbench2_ratings"


class ServeConfig(schema.Recipe):
    """A judge behind HTTP."""

    host: Annotated[str, Field(min_length=1)]
    port: Annotated[int, Field(ge=0, le=65535)]
    judge: JudgeSection
    score: ScoreSection
    limit_concurrency: PositiveInt
    timeout_keep_alive: PositiveInt
    grace_s: PositiveFloat

    def faults(self) -> Iterator[str]:
        if (got := (self.judge.protocol, self.judge.orders)) != ("listwise", 1):
            yield f"judge.protocol: got {got[0]} in {got[1]} orders, expected listwise in one"
