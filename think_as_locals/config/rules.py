"""Rules over several keys, or over names defined elsewhere; each returns its faults, one sentence each."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from think_as_locals.config.compose import find_launch, nearest
from think_as_locals.config.schema import (
    DataSection,
    DemonstrationConfig,
    EditConfig,
    EvalSetSection,
    EvaluationConfig,
    GrpoConfig,
    GrpoSection,
    JudgeSection,
    LocalModelSection,
    MixSection,
    ModelSection,
    PolicyConfig,
    PromptSection,
    RewardSection,
    RunConfig,
    RunSection,
    ServerSection,
    TaskSection,
)
from think_as_locals.config.scpo_schema import ScpoConfig
from think_as_locals.types import (
    GRAMMAR_PROMPTS,
    RATING_PROMPTS,
    TEST,
    VALIDATION,
    VERDICT_PROMPTS,
    ConfigError,
    RewardName,
    shown,
)

_NO_STEPS = "grpo.max_steps: got 0, expected at least 1, or -1 for as many as grpo.num_train_epochs takes"


def training_faults(config: RunConfig) -> list[str]:
    faults = _model_faults(config.model) + _sft_faults(config) + _launch_faults(config.run)
    if config.grpo.max_steps == 0:
        faults.append(_NO_STEPS)
    faults += _prompt_faults(config) + _reward_faults(config.reward, config.grpo) + _ahead_faults(config)
    return faults + _items_faults(config)


def _prompt_faults(config: RunConfig) -> list[str]:
    """Check that what the prompt asks for can be rewarded."""
    prompt = config.prompt.template
    if unknown := prompt_faults("prompt.template", prompt):
        return unknown
    faults = _shown_faults("prompt", prompt, config.prompt)
    if prompt in GRAMMAR_PROMPTS:
        return faults
    if prompt in RATING_PROMPTS:
        known = ", ".join((*GRAMMAR_PROMPTS, *VERDICT_PROMPTS))
        why = "asks for a rating of one response, and training presents all responses of an item"
        return [f"prompt.template: {prompt} {why}: choose one that asks for a verdict ({known})"]
    if needs := [name for name in ("criteria_gain", "rubric_quality") if config.reward.weighted().get(name)]:
        faults.append(
            f"reward.weights.{needs[0]}: scores the rubric of our grammar, which prompt {prompt} does not ask for: "
            f"set it to 0, or choose {', '.join(GRAMMAR_PROMPTS)}"
        )
    return faults


def _sft_faults(config: RunConfig) -> list[str]:
    """Check the cold start: deliberate errors, and learning rates of small models, are for models made from scratch."""
    sft, scratch = config.sft, config.model.scratch is not None
    if sft is None:
        needed = "sft: a randomly initialised model needs a cold start (trainer=cold_start_grpo), or set model.path"
        return [needed] if scratch else []
    biased = {name: value for name, value in sft if name.startswith("biased_")}
    if not scratch and any(value is not None for value in biased.values()):
        message = (
            "sft: trainer=cold_start_grpo teaches deliberate errors, with learning rates for random weights; "
            f"{config.model.path} is pretrained: choose trainer=demonstrated_grpo sft.data=FILE, a file that `tal "
            "demonstrate` writes"
        )
        return [message]
    faults = []
    if sft.data is None and (unset := [f"sft.{name}" for name, value in biased.items() if value is None]):
        faults.append(f"sft.data: got null, expected a file that `tal demonstrate` wrote, or set {', '.join(unset)}")
    if sft.max_steps == 0 or (sft.max_steps < 0 and sft.data is None):
        more = "" if sft.data is None else ", or -1 for as many as sft.num_train_epochs takes"
        faults.append(f"sft.max_steps: got {sft.max_steps}, expected at least 1{more}")
    if (sft.biased_wrong or 0.0) + (sft.biased_right or 0.0) > 1:
        faults.append("sft.biased_right: it and sft.biased_wrong are shares of the same mentions and must not exceed 1")
    return faults


def demonstration_faults(config: DemonstrationConfig) -> list[str]:
    teacher, data = config.teacher, config.data
    faults = prompt_faults("teacher.prompt", teacher.prompt) + local_faults("teacher", teacher)
    for key, got, expected in (("protocol", teacher.protocol, "listwise"), ("orders", teacher.orders, 1)):
        if got != expected:
            faults.append(f"teacher.{key}: got {got}, expected {expected}, as judges are trained (see both_orders)")
    untrained = "a run's own data.max_prompt_tokens applies to its training items"
    return faults + _side_faults(config.items, data) + data_faults(data, untrained=untrained)


def edit_faults(config: EditConfig) -> list[str]:
    faults = _side_faults(config.items, config.data) + data_faults(config.data, untrained=_MEASURED)
    if len(set(config.probes)) < len(config.probes):
        faults.append(f"probes: got {', '.join(config.probes)}, expected each once")
    if config.tries > 1 and not config.temperature:
        faults.append(f"tries: got {config.tries}, but at temperature 0 all are the same: raise it, or set tries=1")
    return faults


def _side_faults(items: str, data: DataSection, place: str = "") -> list[str]:
    if items == "validation" and data.validation_share is None:
        remedy = f"set {place}data.validation_share, or {place}items to train or all"
        return [f"{place}items: no validation items are held out: {remedy}"]
    return []


def _ahead_faults(config: GrpoConfig) -> list[str]:
    """Check what sampling ahead of the update needs: a server, and prompts in an order that is known before."""
    if not config.rollout.ahead:
        return []
    got, grpo = f"rollout.ahead: got {config.rollout.ahead}", config.grpo.model_extra or {}
    faults = []
    if config.rollout.backend != "vllm_server":
        faults.append(f"{got}, but only rollout=vllm_server samples while the policy learns: choose it, or set 0")
    if grpo.get("auto_find_batch_size"):
        faults.append(f"{got}, with batches of one size: set grpo.auto_find_batch_size=false")
    if (grpo.get("accelerator_config") or {}).get("split_batches"):
        faults.append(f"{got}, with the ranks' batches in the sampler's order: drop grpo.accelerator_config")
    return faults


def _items_faults(config: RunConfig) -> list[str]:
    """Check what is trained on and measured."""
    data, sets, faults = config.data, config.eval.sets, list[str]()
    if isinstance(data, MixSection):
        if data.weights is not None and data.weights.keys() != data.mix.keys():
            faults.append(f"data.weights: got {', '.join(data.weights)}, expected one of each: {', '.join(data.mix)}")
        faults += [
            f"data.mix.{name}.shuffle_labels: the labels of a mix are shuffled together: set data.shuffle_labels"
            for name, part in data.mix.items()
            if part.shuffle_labels
        ]
    taken = {VALIDATION, TEST, *(data.mix if isinstance(data, MixSection) else ())}
    for name in taken.intersection(sets):
        faults.append(f"eval.sets.{name}: the run measures items of its own under this name: choose another")
    for name, each in sets.items():
        if each.items == "validation" and each.data.validation_share is None:
            remedy = f"set eval.sets.{name}.data.validation_share, or items to all or test"
            faults.append(f"eval.sets.{name}.items: no validation items are held out: {remedy}")
        faults += _orders_faults(f"eval.sets.{name}", each)
    for place, section in config.data_sections.items():
        faults += data_faults(section, place, untrained=_MEASURED if place.startswith("eval.") else None)
    return faults


def _orders_faults(place: str, asked: EvalSetSection | JudgeSection | ServerSection) -> list[str]:
    most = {"listwise": 8, "pairwise": 2, "round_robin": 2, "pointwise": 1}[asked.protocol]
    if asked.orders <= most:
        return []
    return [f"{place}.orders: got {asked.orders}, expected at most {most} with protocol {asked.protocol}"]


def local_faults(place: str, section: Any) -> list[str]:
    """Return which options of vLLM a section gives to a model that transformers runs."""
    if not isinstance(section, LocalModelSection) or section.backend == "vllm":
        return []
    return [f"{place}.{key}: got {value!r}, which only backend=vllm reads" for key, value in section.vllm.items()]


def evaluation_faults(config: EvaluationConfig) -> list[str]:
    launch = config.run.launch
    faults = [f"run.launch: got {shown(launch)}, but an evaluation shards no model: set it to null"] if launch else []
    for name, rm in config.rms.items():
        faults += local_faults(f"rms.{name}", rm)
        if not isinstance(rm, JudgeSection | ServerSection):
            continue
        faults += prompt_faults(f"rms.{name}.prompt", rm.prompt)
        if isinstance(rm, JudgeSection) and rm.prompt is not None:
            faults += _shown_faults(f"rms.{name}", rm.prompt, rm)
        if (config.eval.candidates or config.sample) and rm.protocol in ("pairwise", "round_robin"):
            faults.append(f"rms.{name}.protocol: got {rm.protocol}; eval.candidates needs listwise or pointwise")
        faults += _orders_faults(f"rms.{name}", rm)
    if config.sample is not None:
        faults += task_faults("sample", config.sample)
        if config.eval.candidates is not None:
            faults.append("eval.candidates: the candidates are sampled here: set it to null, or choose sample=none")
        if len(config.rms) < 3:
            faults.append(f"rms: got {len(config.rms)}, expected at least 3 reward models: r2 over fewer says nothing")
    return faults + data_faults(config.data, untrained=_MEASURED)


def task_faults(place: str, section: TaskSection) -> list[str]:
    faults = data_faults(section.data, f"{place}.data", untrained=_MEASURED)
    faults += local_faults(f"{place}.scorer", section.scorer)
    if (section.scorer is not None) != (section.task == "prompts"):
        got = "none" if section.scorer is None else section.scorer.kind
        needs = f"a reward model ({place}.scorer=KIND)" if section.task == "prompts" else "none: the answers are known"
        faults.append(f"{place}.scorer: got {got}, expected with task {section.task} {needs}")
    faults += _side_faults(section.items, section.data, f"{place}.")
    if section.task == "short_answers":
        if section.data.source != "blend":
            faults.append(f"{place}.data: got {section.data.source}, but only blend has votes on short answers")
        if section.items != "all":
            faults.append(f"{place}.items: got {section.items}, expected all: short answers have no split")
    return faults


def policy_faults(config: PolicyConfig) -> list[str]:
    faults = _model_faults(config.model) + _launch_faults(config.run) + _ahead_faults(config)
    faults += local_faults("rm", config.rm)
    if config.model.scratch is not None:
        faults.append("model.scratch: a policy is a chat model that answers already: set model.path")
    if isinstance(config.rm, JudgeSection | ServerSection):
        faults += prompt_faults("rm.prompt", config.rm.prompt) + _orders_faults("rm", config.rm)
    if config.grpo.max_steps == 0:
        faults.append(_NO_STEPS)
    for name, section in config.tasks.items():
        faults += task_faults(f"tasks.{name}", section)
    return faults + data_faults(config.data, untrained="the prompts of a policy are all asked")


def scpo_faults(config: ScpoConfig) -> list[str]:
    faults, scpo = _model_faults(config.model) + _launch_faults(config.run), config.scpo
    if (config.model.scratch is None) != (config.global_rm is None):
        faults.append("global_rm: a randomly initialised reward model needs global_rm=pooled, any other global_rm=none")
    for key, values in (("variants", scpo.variants), ("seeds", scpo.seeds), ("pair_counts", scpo.pair_counts)):
        if len(set(values)) < len(values):
            faults.append(f"scpo.{key}: got {shown(list(values))}, expected each once")
    if unknown := set(scpo.keep_models).difference(scpo.variants):
        faults.append(f"scpo.keep_models: {', '.join(sorted(unknown))} is not among scpo.variants")
    if bool(scpo.country_filter_thresholds or scpo.country_learning_rates) != ("scpo_tuned" in scpo.variants):
        keys = "scpo.country_filter_thresholds or scpo.country_learning_rates"
        faults.append(f"scpo.variants: scpo_tuned alone uses {keys}: give it and one of them, or neither")
    if config.data.split != "group":
        faults.append(f"data.split: got {config.data.split}, expected group: people are split, not pairings")
    if config.data.validation_share is not None:
        faults.append("data.validation_share: SCPO chooses no checkpoint: set it to null")
    if config.lora and config.lora.lora_dropout and not config.mode.dropout:
        faults.append("lora.lora_dropout: mode=corrected turns all dropout off: set it to 0, or mode.dropout=true")
    if scpo.reference == "other_countries" and config.data.source != "globalopinionqa":
        faults.append(f"scpo.reference: other_countries needs data=globalopinionqa, got {config.data.source}")
    return faults + data_faults(config.data, untrained="scpo.max_length is the limit of SCPO")


def _launch_faults(run: RunSection) -> list[str]:
    try:
        if run.launch is not None:
            find_launch(run.launch)
    except ConfigError as error:
        return [f"run.launch: {error}"]
    return []


def _model_faults(model: ModelSection) -> list[str]:
    if (model.path is None) != (model.scratch is None):
        return []
    got = "neither" if model.path is None else "both"
    return [f"model: got {got} of model.path and model.scratch, expected one of them"]


_READ_BY = {  # keys of `data` that only some sources read
    "sets_per_group": ("culture_cards", "blend", "care"),
    "min_share_gap": ("globalopinionqa",),
}


_MEASURED = "items that are measured are all kept"


def data_faults(data: DataSection, place: str = "data", *, untrained: str | None = None) -> list[str]:
    """Check what is read; `untrained` says why no prompt can be left out, where none of it trains a judge."""
    faults = []
    if untrained and data.max_prompt_tokens is not None:
        got = f"{place}.max_prompt_tokens: got {data.max_prompt_tokens}"
        faults.append(f"{got}, which is for a judge's training items: set it to null ({untrained})")
    if data.path is not None and data.source.endswith("_cards"):
        remedy = f"choose {place}=jsonl, or the source of these rows, or set {place}.path=null"
        faults.append(f"{place}.path: got {shown(data.path)}, but {data.source} is embedded: {remedy}")
    for key, sources in _READ_BY.items():
        if (value := getattr(data, key)) is not None and data.source not in sources:
            reads = f"only {', '.join(sources)} can use it, not {data.source}"
            faults.append(
                f"{place}.{key}: got {shown(value)}, but {reads}: set it to null ({place}.max_items limits any source)"
            )
    return faults


def prompt_faults(place: str, name: str | None) -> list[str]:
    """Check the name of a prompt template at a place of the configuration."""
    folder = Path(__file__).parents[1] / "judging" / "prompts"
    known = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    if name is None or name in known:
        return []
    return [f"{place}: no {shown(name)}{nearest(name, known)}; available: {', '.join(known)}"]


def _shown_faults(place: str, prompt: str, section: PromptSection | JudgeSection) -> list[str]:
    """Check that a prompt says what it is to say of culture and language, where that is set."""
    culture, language, faults = section.culture, section.rubric_language, list[str]()
    if language not in (None, "any") and not prompt.startswith("listwise"):
        faults.append(f"{place}.rubric_language: got {language}, but {prompt} asks for none: set it to any")
    if culture not in (None, "hidden") and prompt not in GRAMMAR_PROMPTS:
        faults.append(f"{place}.culture: got {culture}, but {prompt} does not mention culture: set it to hidden")
    return faults


def _reward_faults(reward: RewardSection, grpo: GrpoSection) -> list[str]:
    builtin = get_args(RewardName)
    known = [*builtin, *reward.own]
    faults = [
        f"reward.weights: no component {shown(name)}{nearest(name, known)}; available: {', '.join(known)}, "
        f"and a function of your own by reward.own.{name}=path/to/file.py:function"
        for name in reward.weights
        if name not in known
    ]
    for name in reward.own:
        if name in builtin:
            faults.append(f"reward.own.{name}: a component of this name exists: choose another name")
        if name not in reward.weights:
            faults.append(f"reward.own.{name}: has no weight: set reward.weights.{name}")
    weighted, (low, high) = reward.weighted(), reward.criteria_gain.clip
    if not weighted:
        faults.append(f"reward.weights: all are 0 ({', '.join(reward.weights)}): set one above 0")
    if low >= high:
        faults.append(f"reward.criteria_gain.clip: got [{low}, {high}], expected a low end below the high one")
    if "criteria_gain" in weighted and reward.criteria_gain.scorer == "reference" and not grpo.beta:
        faults.append("reward.criteria_gain.scorer: no reference model with grpo.beta=0: raise it, or set policy")
    if "consistency" in weighted and not reward.both_orders:
        faults.append("reward.weights.consistency: compares both orders of an item: set reward.both_orders=true")
    if reward.both_orders and (got := grpo.num_generations) % 2:
        faults.append(f"grpo.num_generations: got {got}, expected an even number with reward.both_orders=true")
    return faults
