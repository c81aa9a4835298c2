"""Rules over several keys, or over names defined elsewhere; each returns its faults, one sentence each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from think_as_locals.config.compose import nearest
from think_as_locals.config.model_schema import (
    DemonstrationConfig,
    EditConfig,
    EvaluationConfig,
    JudgeSection,
    SampleSection,
    ServeConfig,
    ServerSection,
)
from think_as_locals.config.schema import (
    DataSection,
    EvalSetSection,
    GrpoSection,
    LoraSection,
    MixSection,
    ModelSection,
    PromptSection,
    RolloutSection,
    RunConfig,
    ScpoConfig,
    sections,
)
from think_as_locals.types import (
    GRAMMAR_PROMPTS,
    MAX_ORDERS,
    RATING_PROMPTS,
    TEST,
    VALIDATION,
    VERDICT_PROMPTS,
    RewardName,
    shown,
)

_SOURCE_KEYS = {  # keys of `data` that only some sources read
    "sets_per_group": ("culture_cards", "blend", "care"),
    "min_share_gap": ("globalopinionqa",),
    "columns": ("rows", "crisp_rm", "helpsteer3", "include", "m_rewardbench"),
    "labels": ("rows", "crisp_rm", "helpsteer3", "include", "m_rewardbench"),
}
_WITHOUT_RUBRIC = ("compact", "compact_responses_first")  # grammar prompts that ask for no rubric that can be scored


def rule_faults(config: BaseModel) -> list[str]:
    """Return the faults of each section of a configuration by itself, then those of several together."""
    faults = list[str]()
    for place, section in [("", config), *sections(config)]:
        for rule, kind in _SECTION_RULES.items():
            if isinstance(section, kind):
                faults += rule(place, section)
        if isinstance(section, DataSection):
            faults += _data_faults(place, section, isinstance(config, RunConfig) and place.startswith("data"))
    for whole, kind in _RECIPE_RULES.items():
        if isinstance(config, kind):
            faults += whole(config)
    return faults


# Rules of one section, whatever recipe it is in.


def _model_faults(place: str, model: ModelSection) -> Iterator[str]:
    if (model.path is None) == (model.scratch is None):
        got = "neither" if model.path is None else "both"
        yield f"{place}: got {got} of model.path and model.scratch, expected one of them"


def _data_faults(place: str, data: DataSection, are_training_items: bool) -> Iterator[str]:
    """Check keys that a source does not read."""
    if data.max_prompt_tokens is not None and not are_training_items:
        got = f"got {data.max_prompt_tokens}, which is for a judge's training items"
        yield f"{place}.max_prompt_tokens: {got}: set it to null"
    if data.path is not None and data.source.endswith("_cards"):
        remedy = f"choose {place}=jsonl, or the source of these rows, or set {place}.path=null"
        yield f"{place}.path: got {shown(data.path)}, but {data.source} is embedded: {remedy}"
    for key, sources in _SOURCE_KEYS.items():
        if (value := getattr(data, key)) is not None and data.source not in sources:
            got = f"{place}.{key}: got {shown(value)}, but only {', '.join(sources)} can use it, not {data.source}"
            yield f"{got}: set it to null ({place}.max_items limits any source)"


def _side_faults(
    place: str, section: DemonstrationConfig | EditConfig | EvalSetSection | SampleSection
) -> Iterator[str]:
    shares = [data.validation_share for data in section.data.sources.values()]
    if section.items == "validation" and None in shares:
        yield f"{place}.items: no validation items are held out: set validation_share of its data".lstrip(".")


def prompt_faults(place: str, name: str | None) -> list[str]:
    """Check the name of a prompt template at a place of the configuration."""
    folder = Path(__file__).parents[1] / "judging" / "prompts"
    known = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    if name is None or name in known:
        return []
    return [f"{place}: no {shown(name)}{nearest(name, known)}; available: {', '.join(known)}"]


def _query_faults(place: str, section: PromptSection | JudgeSection | ServerSection) -> Iterator[str]:
    """Check that a prompt exists, and that it has a place for the culture and the language that are set."""
    key, prompt = ("template", section.template) if isinstance(section, PromptSection) else ("prompt", section.prompt)
    faults = prompt_faults(f"{place}.{key}", prompt)
    yield from faults
    if faults or prompt is None or isinstance(section, ServerSection):
        return
    if section.rubric_language not in (None, "any") and not prompt.startswith("listwise"):
        got = f"got {section.rubric_language}, but {prompt} asks for none: set it to any"
        yield f"{place}.rubric_language: {got}"
    if section.culture not in (None, "hidden") and prompt not in GRAMMAR_PROMPTS:
        got = f"got {section.culture}, but {prompt} does not mention culture: set it to hidden"
        yield f"{place}.culture: {got}"


def _orders_faults(place: str, query: EvalSetSection | JudgeSection | ServerSection) -> Iterator[str]:
    if query.orders > (most := MAX_ORDERS[query.protocol]):
        yield f"{place}.orders: got {query.orders}, expected at most {most} with protocol {query.protocol}"


def _lora_faults(place: str, lora: LoraSection) -> Iterator[str]:
    if "lm_head" in lora.target_modules:
        yield f"{place}.target_modules: log-probabilities are computed from lm_head's own matrix: drop it"


def _rollout_faults(place: str, rollout: RolloutSection) -> Iterator[str]:
    if rollout.ahead and rollout.backend != "vllm_server":
        yield f"{place}.ahead: got {rollout.ahead}, but only rollout=vllm_server samples while the policy learns"


def _grpo_faults(place: str, grpo: GrpoSection) -> Iterator[str]:
    if grpo.max_steps == 0:
        yield f"{place}.max_steps: got 0, expected at least 1, or -1 for {place}.num_train_epochs"


def _sample_faults(place: str, section: SampleSection) -> Iterator[str]:
    if (section.scorer is not None) != (section.task == "prompts"):
        got = "none" if section.scorer is None else section.scorer.kind
        needs = f"a reward model ({place}.scorer=KIND)" if section.task == "prompts" else "none: the answers are known"
        yield f"{place}.scorer: got {got}, expected with task {section.task} {needs}"
    if section.task == "short_answers" and section.data.source != "blend":
        yield f"{place}.data: got {section.data.source}, but only blend has votes on short answers"
    if section.task == "short_answers" and section.items != "all":
        yield f"{place}.items: got {section.items}, expected all: short answers have no split"


_SECTION_RULES: dict[Callable[[str, Any], Iterator[str]], Any] = {
    _model_faults: ModelSection,
    _query_faults: PromptSection | JudgeSection | ServerSection,
    _orders_faults: EvalSetSection | JudgeSection | ServerSection,
    _side_faults: DemonstrationConfig | EditConfig | EvalSetSection | SampleSection,
    _grpo_faults: GrpoSection,
    _lora_faults: LoraSection,
    _rollout_faults: RolloutSection,
    _sample_faults: SampleSection,
}


# Rules of several sections of a recipe.


def _prompt_faults(config: RunConfig) -> Iterator[str]:
    """Check that what the prompt asks for can be rewarded."""
    prompt = config.prompt.template
    if prompt in RATING_PROMPTS:
        yield f"prompt.template: {prompt} asks for a rating of one response: choose one that asks for a verdict"
    needs = [name for name in ("criteria_gain", "rubric_quality") if config.reward.weighted().get(name)]
    if prompt in VERDICT_PROMPTS and needs:
        scores = f"scores the rubric of our grammar, which prompt {prompt} does not ask for"
        yield f"reward.weights.{needs[0]}: {scores}: set it to 0, or choose prompt=listwise"
    if prompt in _WITHOUT_RUBRIC and "rubric_quality" in needs:
        asks = f"prompt {prompt} does not ask for what it rewards"
        yield f"reward.weights.rubric_quality: {asks}: choose prompt=compact_rubric or listwise, or set it to 0"


def _sft_faults(config: RunConfig) -> Iterator[str]:
    """Check the cold start: deliberate errors, and learning rates of small models, are for models made from scratch."""
    sft, scratch = config.sft, config.model.scratch is not None
    if sft is None:
        if scratch:
            yield "sft: a randomly initialised model needs a cold start (trainer=cold_start_grpo), or set model.path"
        return
    biased = {name: value for name, value in sft if name.startswith("biased_")}
    if not scratch and any(value is not None for value in biased.values()):
        remedy = "choose trainer=demonstrated_grpo"
        yield f"sft: trainer=cold_start_grpo is for random weights; {config.model.path} is pretrained: {remedy}"
        return
    if sft.max_steps == 0 or (sft.max_steps < 0 and sft.data is None and scratch):
        yield f"sft.max_steps: got {sft.max_steps}, expected at least 1, or -1 for epochs of a pretrained model"
    if (sft.biased_wrong or 0.0) + (sft.biased_right or 0.0) > 1:
        yield "sft.biased_right: it and sft.biased_wrong are shares of the same mentions and must not exceed 1"


def _names_faults(config: RunConfig) -> Iterator[str]:
    """Check the names of what is mixed and of evaluation sets."""
    mix = config.data if isinstance(config.data, MixSection) else None
    if mix and mix.weights is not None and mix.weights.keys() != mix.mix.keys():
        yield f"data.weights: got {', '.join(mix.weights)}, expected one of each: {', '.join(mix.mix)}"
    for name, part in mix.mix.items() if mix else ():
        if part.shuffle_labels:
            remedy = "the labels of a mix are shuffled together: set data.shuffle_labels"
            yield f"data.mix.{name}.shuffle_labels: {remedy}"
    for name in {VALIDATION, TEST, *(mix.mix if mix else ())}.intersection(config.eval.sets):
        yield f"eval.sets.{name}: the run measures items of its own under this name: choose another"


def _component_faults(config: RunConfig) -> Iterator[str]:
    """Check the names of reward components."""
    reward, builtin = config.reward, get_args(RewardName)
    known = [*builtin, *reward.own]
    for name in reward.weights:
        if name not in known:
            own = f"a function of your own by reward.own.{name}=path/to/file.py:function"
            listed = f"{nearest(name, known)}; available: {', '.join(known)}, and {own}"
            yield f"reward.weights: no component {shown(name)}{listed}"
    for name in reward.own:
        if name in builtin:
            yield f"reward.own.{name}: a component of this name exists: choose another name"
        if name not in reward.weights:
            yield f"reward.own.{name}: has no weight: set reward.weights.{name}"


def _reward_faults(config: RunConfig) -> Iterator[str]:
    reward, grpo, weighted = config.reward, config.grpo, config.reward.weighted()
    if "criteria_gain" in weighted and reward.criteria_gain.scorer == "reference" and not grpo.beta:
        yield "reward.criteria_gain.scorer: no reference model with grpo.beta=0: raise it, or set policy"
    if "consistency" in weighted and not reward.both_orders:
        yield "reward.weights.consistency: compares both orders of an item: set reward.both_orders=true"
    if reward.both_orders and (got := grpo.num_generations) % 2:
        yield f"grpo.num_generations: got {got}, expected an even number with reward.both_orders=true"
    if reward.both_orders and "criteria_gain" in weighted and grpo.num_generations == 2:
        yield "grpo.num_generations: got 2, expected at least 4: criteria_gain compares rollouts of one order"


def _demonstration_faults(config: DemonstrationConfig) -> Iterator[str]:
    teacher = config.teacher
    if isinstance(config.data, MixSection) and config.data.weights is not None:
        yield "data.weights: only weights training items, and tal demonstrate uses every item once: set it to null"
    if config.data.shuffle_labels:
        yield "data.shuffle_labels: a control for training; demonstrations need the true labels: set it to false"
    for key, got, expected in (("protocol", teacher.protocol, "listwise"), ("orders", teacher.orders, 1)):
        if got != expected:
            yield f"teacher.{key}: got {got}, expected {expected}, as judges are trained (see both_orders)"


def _edit_faults(config: EditConfig) -> Iterator[str]:
    if len(set(config.probes)) < len(config.probes):
        yield f"probes: got {', '.join(config.probes)}, expected each once"


def _evaluation_faults(config: EvaluationConfig) -> Iterator[str]:
    if launch := config.run.launch:
        yield f"run.launch: got {shown(launch)}, but an evaluation shards no model: set it to null"
    for name, rm in config.rms.items() if config.eval.candidates or config.sample else ():
        if isinstance(rm, JudgeSection | ServerSection) and rm.protocol in ("pairwise", "round_robin"):
            yield f"rms.{name}.protocol: got {rm.protocol}; eval.candidates needs listwise or pointwise"
    if config.sample is not None and config.eval.candidates is not None:
        yield "eval.candidates: the candidates are sampled here: set it to null, or choose sample=none"


def _scpo_faults(config: ScpoConfig) -> Iterator[str]:
    scpo = config.scpo
    if (config.model.scratch is None) != (config.global_rm is None):
        yield "global_rm: a randomly initialised reward model needs global_rm=pooled, any other global_rm=none"
    if unknown := set(scpo.keep_models).difference(scpo.variants):
        names, known = ", ".join(sorted(unknown)), ", ".join(scpo.variants)
        yield f"scpo.keep_models: {names} is not among scpo.variants: expected [], or some of {known}"
    if config.data.split != "group":
        yield f"data.split: got {config.data.split}, expected group: people are split, not pairings"
    if config.data.validation_share is not None:
        yield "data.validation_share: SCPO chooses no checkpoint: set it to null"
    if config.lora and config.lora.lora_dropout and not config.mode.dropout:
        yield "lora.lora_dropout: mode=corrected turns all dropout off: set it to 0, or mode.dropout=true"
    if scpo.reference == "other_countries" and config.data.source != "globalopinionqa":
        yield f"scpo.reference: other_countries needs data=globalopinionqa, got {config.data.source}"


def _serve_faults(config: ServeConfig) -> Iterator[str]:
    judge, score = config.judge, config.score
    yield from prompt_faults("score.prompt", score.prompt)
    if (judge.protocol, judge.orders) != ("listwise", 1):
        yield f"judge.protocol: got {judge.protocol} in {judge.orders} orders, expected listwise in one"
    if score.protocol == "pointwise" and (score.orders != 1 or score.prompt is None):
        yield "score.protocol: pointwise needs score.orders=1 and score.prompt=rewardbench2_ratings"


_RECIPE_RULES: dict[Callable[[Any], Iterator[str]], Any] = {
    _sft_faults: RunConfig,
    _prompt_faults: RunConfig,
    _component_faults: RunConfig,
    _reward_faults: RunConfig,
    _names_faults: RunConfig,
    _demonstration_faults: DemonstrationConfig,
    _edit_faults: EditConfig,
    _evaluation_faults: EvaluationConfig,
    _scpo_faults: ScpoConfig,
    _serve_faults: ServeConfig,
}
