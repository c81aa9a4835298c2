"""Validation of composed configurations: valid ones load, invalid ones raise one message with every fault."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from config.messages import (
    CARB,
    DEMONSTRATE,
    DOWNSTREAM,
    EDIT,
    GRPO,
    HEAD,
    OPINIONS,
    PRISM,
    QUICKSTART,
    SAMPLE,
    SCPO,
    a_recipe,
    faults,
    message,
    values_of,
)
from conftest import PLANTED
from pydantic import TypeAdapter, ValidationError
from transformers.trainer_utils import SchedulerType

from think_as_locals.config.checks import Config, load_config, load_data_config, load_recipe, validate, validate_as
from think_as_locals.config.compose import group_options, recipes
from think_as_locals.config.model_schema import DemonstrationConfig, EditConfig, EvaluationConfig, SampleConfig
from think_as_locals.config.schema import (
    DataSection,
    ItemsConfig,
    KeyVariable,
    RunConfig,
    Scheduler,
    ScpoConfig,
    Variant,
    sections,
)
from think_as_locals.judging import prompt_names
from think_as_locals.runtime.run_folder import open_run
from think_as_locals.scpo.report import DIFFERENCES
from think_as_locals.types import GRAMMAR_PROMPTS, RATING_PROMPTS, VERDICT_PROMPTS, ConfigError, DataSource, shown

NEEDS = {("data", source): ["data.path=/somewhere"] for source in get_args(DataSource) if not source.endswith("_cards")}
NEEDS["data", "quickstart_blend"] = ["data.path=/somewhere"]
EXCLUDED_GROUPS = {"rm", "sweep", "mode", "global_rm", "sample", "policy"}
"""Groups of which only an evaluation, a sweep, SCPO or samples choose; all but the first two are tested below."""
RM_NEEDS = {
    "judge": ["path=x"],
    "server": ["url=http://127.0.0.1:8000/v1", "model=x"],
    "classifier": ["path=x"],
    "deberta_v3": [],
    "tulu3_8b": [],
    "implicit": ["path=x", "reference=y"],
    "constant": [],
}
NAMED_CLASSIFIERS = ("deberta_v3", "tulu3_8b")  # classifiers
NEEDS["data", "mix"] = ["data.mix.cards=culture_cards"]
_NO_RUBRIC = ["reward.weights.criteria_gain=0", "reward.weights.rubric_quality=0", "reward.weights.correctness=1"]
_NO_COLD_START = ["sft=null", "model.scratch=null", "model.path=x"]
NEEDS |= {("prompt", name): ["reward.weights.rubric_quality=0"] for name in ("compact", "compact_responses_first")}


def scpo_config(path: Path, overrides: Sequence[str] = ()) -> ScpoConfig:
    found = load_config(path, overrides)
    assert isinstance(found, ScpoConfig)
    return found


def reloaded(config: Config) -> Config:
    """What a run's config.yaml holds."""
    return validate(yaml.safe_load(yaml.safe_dump(config.model_dump())))


# --- valid configurations ---


@cache
def built_in(path: Path) -> Config:
    return load_config(path)


@pytest.mark.parametrize("path", recipes(), ids=lambda path: path.stem)
def test_every_recipe_loads_and_is_named_after_its_file(path: Path) -> None:
    loaded = built_in(path)
    assert loaded.recipe == path.stem
    assert loaded.run.name.startswith(f"{path.stem}-")
    assert reloaded(loaded) == loaded
    with pytest.raises(ValueError, match="frozen"):
        loaded.seed = 3  # type: ignore[misc]


PRETRAINED = "Qwen/Qwen2.5-7B-Instruct is pretrained: choose trainer=demonstrated_grpo"


def test_cold_start_reads_demonstrations_from_sft_data() -> None:
    pretrained = load_recipe(GRPO, ["trainer=demonstrated_grpo", "sft.data=x", "lora=rank16"])
    scratch = load_recipe(QUICKSTART, ["sft.data=x"])
    assert pretrained.sft is not None
    assert scratch.sft is not None
    assert (pretrained.sft.data, scratch.sft.data) == ("x", "x")
    assert (pretrained.sft.learning_rate, pretrained.grpo.learning_rate) == (1e-4, 1e-5)  # of adapters
    whole = load_recipe(GRPO, ["trainer=demonstrated_grpo", "sft.data=x"])
    assert whole.sft is not None
    assert (whole.sft.learning_rate, whole.grpo.learning_rate) == (1e-5, 1e-6)
    assert (pretrained.unused_keys.get("sft.data=null"), pretrained.sft.length) == (None, "2 epochs")
    assert scratch.unused_keys["sft.data=null"].startswith("sft.biased_share")
    assert reloaded(pretrained) == pretrained


TEACHER = ["teacher.path=x"]


EDITOR = ["editor.url=http://127.0.0.1:8000/v1", "editor.model=x"]


def test_editor_loads_as_server_or_local_model() -> None:
    served = load_config(EDIT, EDITOR)
    local = load_config(EDIT, ["editor=model", "editor.path=x", "probes=[CL]", "temperature=0", "tries=1"])
    assert isinstance(served, EditConfig)
    assert isinstance(local, EditConfig)
    assert (served.editor.kind, local.editor.kind, local.probes) == ("server", "model", ["CL"])
    assert (reloaded(served), reloaded(local)) == (served, local)


POLICY_NEEDS = {"model": ["path=x"], "server": ["url=http://127.0.0.1:8000/v1", "model=x"], "qwen2_5_7b": []}
TASK_NEEDS = {"short_answers": ["sample.data.path=x"], "prompts": ["sample.scorer=constant"], "multiple_choice": []}
BLEND = ["sample=short_answers", "sample.data.path=x"]
SAMPLED = ["sample.policy.path=x"]


@pytest.mark.parametrize("policy", POLICY_NEEDS)
@pytest.mark.parametrize("task", TASK_NEEDS)
def test_every_sample_task_loads_with_every_policy(task: str, policy: str) -> None:
    assert {*group_options()["sample"]} == {*TASK_NEEDS, "none"}
    assert {*group_options()["policy"]} == {*POLICY_NEEDS}
    given = [f"sample={task}", *TASK_NEEDS[task], f"sample.policy={policy}"]
    given += [f"sample.policy.{need}" for need in POLICY_NEEDS[policy]]
    alone, before = load_config(SAMPLE, given), load_config(DOWNSTREAM, given)
    assert isinstance(alone, SampleConfig)
    assert isinstance(before, EvaluationConfig)
    assert before.sample == alone.sample
    assert (alone.sample.task, reloaded(alone), reloaded(before)) == (task, alone, before)


def test_teacher_loads_as_local_judge_or_server() -> None:
    loaded = load_config(DEMONSTRATE, TEACHER)
    served = load_config(DEMONSTRATE, ["teacher=server", "teacher.url=http://127.0.0.1:8000/v1", "teacher.model=x"])
    assert isinstance(loaded, DemonstrationConfig)
    assert isinstance(served, DemonstrationConfig)
    assert (loaded.teacher.kind, served.teacher.kind) == ("judge", "server")
    assert not loaded.teacher.margins
    assert (reloaded(loaded), reloaded(served)) == (loaded, served)


@pytest.mark.parametrize("turn", range(max(map(len, group_options().values()))))
def test_every_option_of_every_group_loads(turn: int) -> None:
    # In each turn one option of every group, so that all have had theirs in the end.
    groups = {group: options for group, options in group_options().items() if group not in EXCLUDED_GROUPS}
    groups["model"] = [option for option in groups["model"] if not option.endswith("_rm")]  # SCPO's
    scratch = groups["model"][turn % len(groups["model"])] == "quickstart"
    groups["trainer"] = [name for name in groups["trainer"] if (name == "cold_start_grpo") == scratch]
    chosen = [(group, options[turn % len(options)]) for group, options in groups.items()]
    needed = [override for choice in chosen for override in NEEDS.get(choice, [])]
    if dict(chosen)["prompt"] in VERDICT_PROMPTS:
        needed = [*(each for each in needed if not each.startswith("sft.")), *_NO_RUBRIC, *_NO_COLD_START]
    assert isinstance(load_recipe(GRPO, [*(f"{group}={option}" for group, option in chosen), *needed]), RunConfig)


MIX = ["data=mix", "data.mix.cards=quickstart_cards", "data.mix.mine=jsonl", "data.mix.mine.path=x"]
SETS = ["eval.sets.carb=carb", "eval.sets.carb.data.path=y", "eval.sets.carb.protocol=round_robin"]


def test_mix_sources_and_eval_sets_are_added_by_name() -> None:
    loaded = load_recipe(GRPO, [*MIX, "data.weights={cards: 2, mine: 0.5}", *SETS])
    assert {name: (data.source, data.path) for name, data in loaded.data.sources.items()} == {
        "cards": ("culture_cards", None),
        "mine": ("jsonl", "x"),
    }
    assert loaded.data.sources["cards"].groups is not None
    (carb,) = loaded.eval.sets.values()
    assert (carb.data.source, carb.items, carb.protocol, carb.orders) == ("carb", "all", "round_robin", 1)
    data = [place for place, section in sections(loaded) if isinstance(section, DataSection)]
    assert data == ["data.mix.cards", "data.mix.mine", "eval.sets.carb.data"]
    assert reloaded(loaded) == loaded
    (own,) = load_recipe(QUICKSTART).data.sources.items()
    assert own == ("culture_cards", load_recipe(QUICKSTART).data)


MINE = ["rms.mine=judge", "rms.mine.path=x"]
REFUSED: dict[Path, list[tuple[list[str], str]]] = {
    GRPO: [
        (["trainer=cold_start_grpo"], PRETRAINED),
        (["sft.data=x"], "sft: not all of its keys are set: choose an option of conf/ that sets them, or drop sft.*"),
        (["trainer=demonstrated_grpo", "sft.max_steps=0"], "sft.max_steps: got 0, expected at least 1"),
        (["sample.task=prompts"], "sample.* belongs to a recipe that draws candidates"),
        (["data=mix"], "data.mix: Dictionary should have at least 1 item"),
        (["data.mix.mine=blend", "data.mix.mine.path=x"], "data.mix: no such key"),
        (["data=mix", "data.mix.Mine=culture_cards"], "data.mix.Mine: got 'Mine': String should match"),
        ([*MIX, "data.weights={cards: 2}"], "data.weights: got cards, expected one of each: cards, mine"),
        ([*MIX, "data.mix.mine.shuffle_labels=true"], "labels of a mix are shuffled together"),
        ([*MIX, "data.split=group"], "data.split: no such key"),
        ([*SETS, "eval.sets.carb.orders=3"], "eval.sets.carb.orders: got 3, expected at most 2 with protocol"),
        (["eval.sets.test=culture_cards"], "eval.sets.test: the run measures items of its own under this name"),
        ([*MIX, "eval.sets.cards=culture_cards"], "eval.sets.cards: the run measures items of its own"),
        (
            [*SETS, "eval.sets.carb.items=validation", "eval.sets.carb.data.validation_share=null"],
            "eval.sets.carb.items: no validation items are held out",
        ),
    ],
    QUICKSTART: [
        (["model=qwen2_5_7b"], PRETRAINED),
        (["sft.max_steps=-1"], "sft.max_steps: got -1, expected at least 1"),
        (["data.path=x"], "data.path: got 'x', but culture_cards is embedded: choose data=jsonl"),
        (["rollout.ahead=1"], "but only rollout=vllm_server samples while the policy learns"),
        (["rollout=vllm_colocate", "rollout.ahead=1"], "but only rollout=vllm_server samples while the policy learns"),
        (["sft.data=x", "sft.max_steps=0"], "expected at least 1, or -1 for epochs of a pretrained model"),
    ],
    DEMONSTRATE: [
        ([], "no default for teacher.path"),
        ([*TEACHER, "teacher.orders=2"], "teacher.orders: got 2, expected 1, as judges are trained (see both_orders)"),
        ([*TEACHER, *MIX, "data.weights={cards: 1, mine: 2}"], "data.weights: only weights training items"),
        ([*TEACHER, "data.shuffle_labels=true"], "data.shuffle_labels: a control for training"),
        ([*TEACHER, "teacher.protocol=pairwise"], "teacher.protocol: got pairwise, expected listwise"),
        (["teacher=constant"], "teacher: Input tag 'constant'"),
        ([*TEACHER, "items=validation", "data.validation_share=null"], "items: no validation items are held out"),
    ],
    EDIT: [
        ([], "no default for editor.model, editor.url"),
        ([*EDITOR, "probes=[XX]"], "probes.0: got 'XX', expected 'CC', 'RC', 'CL' or 'RP'"),
        ([*EDITOR, "probes=[CL,RC,CL]"], "probes: got CL, RC, CL, expected each once"),
        ([*EDITOR, "items=validation", "data.validation_share=null"], "items: no validation items are held out"),
    ],
    SAMPLE: [
        ([], "no default for sample.policy.path"),
        ([*SAMPLED, "sample=prompts"], "sample.scorer: got none, expected with task prompts a reward model"),
        ([*SAMPLED, "sample.scorer=constant"], "sample.scorer: got constant, expected with task multiple_c"),
        ([*SAMPLED, *BLEND, "sample.items=test"], "sample.items: got test, expected all"),
        ([*SAMPLED, *BLEND, "sample.data=jsonl", "sample.data.path=y"], "sample.data: got jsonl, but only blend"),
    ],
    DOWNSTREAM: [(["eval.candidates=x"], "eval.candidates: the candidates are sampled here")],
    CARB: [
        (["rms.mine=judge"], "no default for rms.mine.path"),
        (
            [*MINE, "rms.mine.prompt=rm_r1", "rms.mine.culture=inferred"],
            "rms.mine.culture: got inferred, but rm_r1 does not mention culture: set it to hidden",
        ),
        (
            [*MINE, "rms.mine.prompt=compact", "rms.mine.rubric_language=en"],
            "rms.mine.rubric_language: got en, but compact asks for none: set it to any",
        ),
        ([*MINE, "rms.mine.protocol=pairwise", "rms.mine.orders=3"], "at most 2"),
        ([*MINE, "rms.mine.protocol=pairwise", "eval.candidates=y"], "needs listwise"),
        (["rms={a b: 1}"], "rms.a b: got 'a b': String should match"),
        (["data.path=x"], "data.path: got 'x', but culture_cards is embedded: choose data=jsonl"),
        (
            ["data=mix", "data.mix.cards=culture_cards"],
            "data=mix is for training a judge or demonstrating; this recipe evaluates",
        ),
    ],
    SCPO: [
        (["data.validation_share=0.1"], "data.validation_share: SCPO chooses no checkpoint: set it to null"),
        (["data.path=x"], "data.path: got 'x', but opinion_cards is embedded: choose data=jsonl"),
    ],
}
"""Overrides of each recipe that cannot be, and what the message says, most with the remedy."""


@pytest.mark.parametrize(
    ("recipe", "overrides", "expected"), [(recipe, *case) for recipe, cases in REFUSED.items() for case in cases]
)
def test_invalid_overrides_are_rejected_with_a_remedy(recipe: Path, overrides: list[str], expected: str) -> None:
    assert expected in message(recipe, *overrides)


@pytest.mark.parametrize("kind", group_options()["rm"])
def test_every_reward_model_kind_can_be_added_to_an_evaluation(kind: str) -> None:
    loaded = load_config(CARB, [f"rms.mine={kind}", *(f"rms.mine.{key}" for key in RM_NEEDS[kind])])
    assert isinstance(loaded, EvaluationConfig)
    assert loaded.rms["mine"].kind == ("classifier" if kind in NAMED_CLASSIFIERS else kind)
    assert {*loaded.rms} == {"constant", "mine"}
    assert reloaded(loaded) == loaded


@pytest.mark.parametrize(
    ("data", "split", "languages", "max_groups"),
    [
        *(("quickstart_cards", "pairing", ["en"], None), ("quickstart_blend", "pairing", ["en"], 16)),
        *((name, "group", None, None) for name in ("jsonl", "carb", "rows")),
    ],
)
def test_quickstart_restricts_embedded_data_but_not_custom_data(
    data: str, split: str, languages: list[str] | None, max_groups: int | None
) -> None:
    chosen = load_recipe(QUICKSTART, [f"data={data}", *NEEDS.get(("data", data), [])]).data
    assert (chosen.split, chosen.languages, chosen.max_groups) == (split, languages, max_groups)


@pytest.mark.parametrize(
    ("load", "place"),
    [
        (load_data_config, "data"),
        (partial(load_config, SCPO), "data"),
        (partial(load_config, QUICKSTART), "eval.sets.own.data"),
    ],
)
def test_max_prompt_tokens_is_rejected_where_no_judge_is_trained(load: Any, place: str) -> None:
    chosen = ["eval.sets.own=culture_cards"] if "sets" in place else []
    with pytest.raises(ConfigError, match=rf"{place}.max_prompt_tokens: got 9, which is for a judge's training items"):
        load([*chosen, f"{place}.max_prompt_tokens=9"])


@pytest.mark.parametrize("source", get_args(DataSource))
@pytest.mark.parametrize(
    ("key", "value", "sources"),
    [("sets_per_group", 3, {"culture_cards", "blend", "care"}), ("min_share_gap", 0.2, {"globalopinionqa"})],
)
def test_data_key_that_the_source_does_not_use_is_rejected(
    source: str, key: str, value: float, sources: set[str]
) -> None:
    values = load_data_config([]).model_dump()  # of the cards, whose path is null
    values["data"] |= {"source": source, "sets_per_group": None, "min_share_gap": None, key: value}
    if source in sources:
        assert validate_as(ItemsConfig, values)
        return
    message = rf"data.{key}: got {value}, but only .* can use it, not {source}: set it to null"
    with pytest.raises(ConfigError, match=message):
        validate_as(ItemsConfig, values)


@pytest.mark.parametrize(
    ("weights", "components"),
    [
        ("correctness_structure", ["correctness", "structure"]),
        ("tal", ["correctness", "criteria_gain", "structure", "rubric_quality"]),
        ("paper", ["correctness", "criteria_gain", "structure"]),
        ("paper_without_gain", ["correctness", "structure"]),
        ("paper_without_correctness", ["criteria_gain", "structure"]),
        ("rm_r1", ["correctness", "structure"]),
        ("j1", ["correctness", "consistency", "structure"]),
        ("full", ["correctness", "criteria_gain", "structure", "rubric_quality", "consistency", "length"]),
    ],
)
def test_reward_option_weights_its_components(weights: str, components: list[str]) -> None:
    reward = load_recipe(GRPO, [f"reward={weights}"]).reward
    assert list(reward.weighted()) == components
    assert reward.both_orders == ("consistency" in components)


def test_load_items_accepts_only_data_settings() -> None:
    config = load_data_config(["data=jsonl", "data.path=mine.jsonl", "data.test_share=0.5", "seed=3"])
    data = config.data
    assert (data.source, data.path, data.test_share, config.seed) == ("jsonl", "mine.jsonl", 0.5, 3)
    with pytest.raises(ConfigError, match=r"grpo: no such key"):
        load_data_config(["grpo.beta=0.1"])
    with pytest.raises(ConfigError, match=r"data\.path: got 'x', but culture_cards is embedded"):
        load_data_config(["data.path=x"])


# --- wrong keys and values ---


@pytest.mark.parametrize(
    ("place", "value", "expected"),
    [
        ("sede", 3, "sede: no such key; did you mean 'seed'?"),
        ("model.scratch.hiden_size", 3, "did you mean 'model.scratch.hidden_size'?"),
        ("zzz", 3, "zzz: no such key"),
        ("seed", "three", "seed: got 'three', expected a valid integer"),
        ("seed", -1, "seed: got -1, expected greater than or equal to 0"),
        ("seed", 2**32, "seed: got 4294967296, expected less than 4294967296"),
        ("grpo.beta", "0.1", "grpo.beta: got '0.1', expected a valid number"),
        ("grpo.beta", -0.1, "grpo.beta: got -0.1, expected greater than or equal to 0"),
        ("grpo.num_generations", 1, "grpo.num_generations: got 1, expected greater than or equal to 2"),
        ("data.groups", [7], "data.groups.0: got 7, expected a valid string"),
        ("data.split", "grouped", "data.split: got 'grouped', expected 'group' or 'pairing'"),
        ("model.dtype", "float16", "model.dtype: got 'float16', expected 'float32' or 'bfloat16'"),
        ("prompt.template", "listwize", "no 'listwize'; did you mean 'listwise'?; available: compact"),
        ("sft", None, "sft: a randomly initialised model needs trainer=cold_start_grpo"),
        ("model.path", "some/model", "model: got both of model.path and model.scratch, expected one of them"),
    ],
)
def test_error_names_the_key_its_value_and_what_is_expected(place: str, value: Any, expected: str) -> None:
    found = faults({place: value})
    assert expected in found
    assert place in found


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *(("seed", None), ("seed", "3"), ("grpo", None), ("data", []), ("data.path", 7), ("data.languages", [])),
        *(("data.as_pairs", "each"), ("data.as_pairs", 1)),
        *(("grpo.beta", True), ("grpo.max_steps", -2), ("grpo.save_steps", 0), ("sft.biased_wrong", 1.1)),
        *(("data.test_share", 0.0), ("data.test_share", 1), ("data.num_responses", 1), ("data.num_responses", 9)),
        *(("data.sets_per_group", 0), ("eval.bootstrap_samples", -2000), ("eval.max_items", 0), ("data.max_items", 0)),
        *(("model.scratch.num_hidden_layers", 0), ("rollout.gpu_memory_utilization", 1.5)),
        *(("reward.criteria_gain.clip", [1.0]), ("reward.timeout_s", 0.0)),
        *(("reward.fault_window", 0), ("reward.length.share", 0.0)),
    ],
)
def test_out_of_range_or_mistyped_value_is_rejected(place: str, value: Any) -> None:
    assert f"{place}: got {value!r}" in faults({place: value})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"reward.timeout_s": float("inf")}, "reward.timeout_s: got inf, expected a finite number"),
        ({"reward.weights": {"consistency": 0.1}}, "set reward.both_orders=true"),
        (
            {"reward.weights": {"criteria_gain": 0.5}, "reward.criteria_gain.scorer": "reference"},
            "reward.criteria_gain.scorer: no reference model with grpo.beta=0",
        ),
        (
            {"reward.both_orders": True, "grpo.num_generations": 7},
            "grpo.num_generations: got 7, expected an even number with reward.both_orders=true",
        ),
        (
            {"reward.both_orders": True, "reward.weights": {"criteria_gain": 0.5}, "grpo.num_generations": 2},
            "grpo.num_generations: got 2, expected at least 4: criteria_gain compares rollouts of one order",
        ),
        (
            {"reward.weights": {"corectness": 1.0}},
            "no component 'corectness'; did you mean 'correctness'?; available: correctness, criteria_gain, ",
        ),
        ({"reward.own": {"brief": "own.py:brief"}}, "reward.own.brief: has no weight: set reward.weights.brief"),
        ({"reward.own": {"length": "own.py:f"}}, "reward.own.length: a component of this name exists"),
        ({"sft.biased_wrong": 0.6, "sft.biased_right": 0.6}, "sft.biased_right"),
        ({"grpo.report_to": ["wandbb"]}, "report_to.0: got 'wandbb', expected 'wandb', 'tensorboard' or 'trackio'"),
    ],
)
def test_conflicting_settings_are_rejected(changes: dict[str, Any], expected: str) -> None:
    found = faults(changes)
    assert expected in found
    assert [*changes][-1] in found


def test_tal_paper_recipe_matches_the_paper() -> None:
    config = load_recipe("recipes/tal_paper.yaml")
    assert config.reward.weighted() == {"correctness": 1.0, "criteria_gain": 0.5}
    assert (config.grpo.loss_type, config.model.path) == ("grpo", "Qwen/Qwen2.5-7B-Instruct")
    assert {name: part.path for name, part in config.data.sources.items()} == {
        "helpsteer3": "nvidia/HelpSteer3:preference",
        "care": "geyang627/CARE",
    }
    assert load_recipe("recipes/tal_paper.yaml", ["reward=paper_without_gain"]).reward.weighted() == {
        "correctness": 1.0
    }


def test_recipes_of_large_models_launch_with_zero3_on_eight_gpus() -> None:
    """As launch/README.md says: a bare `accelerate launch` would otherwise give each GPU the whole of it."""
    configs = [config for recipe in recipes() if isinstance(config := built_in(recipe), RunConfig)]
    large = {config.recipe: config.run.launch for config in configs if config.model.requires_gpu}
    assert large == dict.fromkeys(large, "gpu8_zero3")
    assert {"tal_grpo", "tal_paper", "ablations", "methods"} <= {*large}


def test_reward_weights_dict_replaces_the_weights_of_the_option() -> None:
    def weights(*overrides: str) -> dict[str, float]:
        return load_recipe(GRPO, overrides).reward.weights

    assert weights("reward.weights={correctness: 2.0}") == {"correctness": 2.0}
    assert weights("reward=full", "reward.weights={correctness: 1.0, length: 0.5}") == {
        "correctness": 1.0,
        "length": 0.5,
    }
    assert weights("reward.weights={correctness: 2.0}", "reward.weights.structure=0.1") == {
        "correctness": 2.0,
        "structure": 0.1,
    }
    assert weights("reward.weights.correctness=2.0").keys() == weights().keys()  # a key alone is set among the others


def test_third_party_prompts_allow_only_verdict_rewards() -> None:
    for prompt in VERDICT_PROMPTS:
        overrides = [f"prompt={prompt}", "reward=rm_r1"]
        assert load_recipe("recipes/tal_grpo.yaml", overrides).prompt.template == prompt
        with pytest.raises(ConfigError, match=f"criteria_gain: scores the rubric .* prompt {prompt} does not ask for"):
            load_recipe("recipes/tal_grpo.yaml", overrides[:1])
    for prompt in RATING_PROMPTS:
        with pytest.raises(ConfigError, match=f"{prompt} asks for a rating of one response"):
            load_recipe("recipes/tal_grpo.yaml", ["prompt=rewardbench2", f"prompt.template={prompt}", "reward=rm_r1"])
    for override, expected in (
        ("prompt.template=rm_r1", "prompt.culture: got stated, but rm_r1 does not mention culture: set it to hidden"),
        ("prompt.template=compact", "prompt.rubric_language: got item, but compact asks for none: set it to any"),
    ):
        with pytest.raises(ConfigError, match=expected):
            load_recipe("recipes/tal_grpo.yaml", [override])
    for prompt in ("compact", "compact_responses_first"):
        unasked = f"rubric_quality: prompt {prompt} does not ask for what it rewards: choose prompt=compact_rubric"
        with pytest.raises(ConfigError, match=unasked):
            load_recipe("recipes/tal_grpo.yaml", [f"prompt={prompt}"])
        load_recipe("recipes/tal_grpo.yaml", [f"prompt={prompt}", "reward.weights.rubric_quality=0"])
    load_recipe("recipes/tal_grpo.yaml", ["prompt=compact_rubric"])
    assert {*GRAMMAR_PROMPTS, *VERDICT_PROMPTS, *RATING_PROMPTS} == {*prompt_names()}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")], ids=str)
@pytest.mark.parametrize(
    ("place", "inner"),
    [
        *(("seed", ""), ("grpo.beta", ""), ("grpo.top_p", ""), ("sft.biased_share", "")),
        *(("reward.weights", ".correctness"), ("model.chat_template_kwargs", ".x")),
    ],
)
def test_nan_and_infinity_are_rejected_for_numbers(place: str, inner: str, value: float) -> None:
    found = faults({place: {inner[1:]: value} if inner else value})
    assert f"  - {place}{inner}" in found
    assert f"got {value}, expected a finite number" in found or place == "seed"
    assert f"got {value}" in found


def test_nan_and_infinity_are_rejected_in_overrides_and_recipes(tmp_path: Path) -> None:
    overrides = ["grpo.beta=nan", "grpo.temperature=inf", "grpo.learning_rate=1e400"]
    assert message(GRPO, *overrides).count("expected a finite number") == 3
    found = message(a_recipe(tmp_path, HEAD + "grpo:\n  beta: .nan\n  temperature: -.inf\n"))
    assert "grpo.beta: got nan, expected a finite number" in found
    assert "grpo.temperature: got -inf, expected a finite number" in found


def test_unquoted_no_that_yaml_reads_as_a_boolean_is_explained(tmp_path: Path) -> None:
    expected = "data.languages.0: got the boolean false: YAML reads an unquoted NO, ON or YES as one; quote it"
    assert expected in message(a_recipe(tmp_path, HEAD + "data:\n  languages: [NO]\n"))
    assert load_recipe(a_recipe(tmp_path, HEAD + 'data:\n  languages: ["NO"]\n')).data.languages == ["NO"]


@pytest.mark.parametrize(
    "name",
    ["../elsewhere", "a/b", "/elsewhere/x", "..", ".", "", ".hidden", "a\\b", "a\n", "a b", "~", "x" * 101, "日本", 7],
)
def test_invalid_run_name_is_rejected(name: Any) -> None:
    assert f"run.name: got {shown(name)}" in faults({"run.name": name})


@pytest.mark.parametrize("url", ["http://user:hidden@host:8000", "https://hidden@host/v1", "host:8000", "http://"])
def test_url_with_credentials_is_rejected_without_repeating_them(url: str) -> None:
    found = faults({"rollout.url": url})
    assert "rollout.url: String should match" in found
    assert "hidden" not in found


SERVERS = [  # every place of a recipe that names one
    (DEMONSTRATE, "teacher", []),
    (EDIT, "editor", []),
    (SAMPLE, "sample.policy", []),
    (SAMPLE, "sample.scorer", ["sample=prompts", *SAMPLED]),
    (CARB, "rms.mine", []),
]
ALLOWED = ["OPENAI_API_KEY", "VLLM_API_KEY", "TAL_API_KEY", "ANTHROPIC_API_KEY", "OPENROUTER_API_KEY", "TAL_MY_KEY"]
SECRETS = ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "STRIPE_API_KEY", "XOPENAI_API_KEY"]


@pytest.mark.parametrize(("recipe", "place", "words"), SERVERS)
def test_server_of_any_recipe_is_sent_no_other_secret(recipe: Path, place: str, words: list[str]) -> None:
    server = [*words, f"{place}=server", f"{place}.url=https://there/v1", f"{place}.model=x"]
    assert f"{place}.key_variable: String should match" in message(recipe, *server, f"{place}.key_variable=HF_TOKEN")


@pytest.mark.parametrize(("names", "allowed"), [(ALLOWED, True), ([*SECRETS, "TAL_", "OPENAI_API_KEY\n"], False)])
def test_key_variable_accepts_only_model_server_keys(names: list[str], allowed: bool) -> None:
    for name in names:
        with nullcontext() if allowed else pytest.raises(ValidationError):
            TypeAdapter[str](KeyVariable).validate_python(name)


def test_key_given_as_key_variable_is_not_repeated_in_the_error() -> None:
    words = ["teacher=server", "teacher.url=https://there/v1", "teacher.model=x"]
    with pytest.raises(ConfigError, match=r"teacher\.key_variable: String should match") as raised:
        load_config(DEMONSTRATE, [*words, f"teacher.key_variable={PLANTED['HF_TOKEN']}"])
    assert PLANTED["HF_TOKEN"] not in str(raised.value)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(ConfigError, match=r"data: missing[\s\S]*eval: missing"):
        validate({key: value for key, value in values_of(QUICKSTART).items() if key not in ("data", "eval")})


LONG: dict[str, Any] = {
    "a text": "x" * 100_000,
    "a path": "/a" * 50_000,
    "a list": [["y" * 900] * 9] * 9,
    "a mapping": {f"{'k' * 9_000}{number}": number for number in range(90)},
    "a key": {"z" * 100_000: 1},
}


@pytest.mark.parametrize("kind", LONG)
def test_error_shortens_long_recipe_values(tmp_path: Path, kind: str) -> None:
    value = json.dumps(LONG[kind])
    for place in ("grpo.top_p", "nowhere"):
        keys = place.split(".")
        text = "".join(f"{'  ' * depth}{key}:\n" for depth, key in enumerate(keys)).rstrip()
        found = message(a_recipe(tmp_path, f"{HEAD}{text} {value}\n"))
        assert len(found) < 12_000, place
        assert max(map(len, found.split("\n"))) < 1_600, place


def test_one_error_lists_every_fault_once() -> None:
    nan = float("nan")
    wrong = {"data.pathh": "y", "eval.batch_size": "many", "grpo.beta": nan, "run.name": "../x", "seed": nan}
    assert sorted(line.split(":")[0] for line in faults(wrong).splitlines()[1:]) == [f"  - {place}" for place in wrong]


@pytest.mark.parametrize(
    ("recipe", "override", "expected"),
    [
        (GRPO, "sft.max_steps=10", "sft: not all of its keys are set"),
        (GRPO, "model.scratch.hidden_size=64", "model.scratch: not all of its keys are set"),
        (PRISM, "global_rm.learning_rate=0.1", "global_rm: not all of its keys are set"),
        (PRISM, "lora.r=4", "lora: not all of its keys are set: choose an option of conf/ that sets them"),
    ],
)
def test_key_of_a_disabled_section_error_says_how_to_enable_it(recipe: Path, override: str, expected: str) -> None:
    found = message(recipe, override)
    assert expected in found
    assert found.count("\n") == 1


# --- an evaluation ---


def test_evaluation_without_reward_models_is_rejected() -> None:
    values = load_config(CARB).model_dump() | {"rms": {}}
    with pytest.raises(ConfigError, match="rms: Dictionary should have at least 1 item"):
        validate(values)


@pytest.mark.parametrize(("recipe", "does"), [(CARB, "evaluates reward models"), (SCPO, "steers a reward model")])
def test_load_recipe_rejects_recipes_that_train_no_judge(recipe: Path, does: str) -> None:
    with pytest.raises(ConfigError, match=f"{recipe.stem} {does} and trains no judge: use `tal run`"):
        load_recipe(recipe)


# --- SCPO ---


def test_scpo_recipes_set_model_data_and_hyperparameters() -> None:
    configs = quick, prism, opinions = [scpo_config(path) for path in (SCPO, PRISM, OPINIONS)]
    assert [config.data.source for config in configs] == ["opinion_cards", "prism", "globalopinionqa"]
    assert (quick.model.path, prism.model.path) == (None, "OpenAssistant/reward-model-deberta-v3-base")
    assert [config.scpo.reference for config in configs] == ["global_rm", "global_rm", "other_countries"]
    for config in configs:
        scpo = config.scpo
        assert (config.mode.name, scpo.filter_threshold, scpo.weight_temperature) == ("corrected", 0.7, 1.1)
        assert scpo.seeds == [0, 1, 2]
        assert set(get_args(Variant)) - set(scpo.variants) == {"filter_inverse_weight"}
    for config in (prism, opinions):
        scpo = config.scpo
        assert set(config.data.countries or ()) == {"CL", "ZA", "NZ", "AU", "MX", "IL", "CA"}
        assert (config.data.test_share, scpo.max_steps) == (0.15, 1024)
        assert (scpo.learning_rate, scpo.batch_size, scpo.num_train_epochs) == (1e-6, 8, 3)


@pytest.mark.parametrize("group", ["data", "model", "mode", "lora"])
def test_every_option_of_the_scpo_groups_loads(group: str) -> None:
    for option in group_options()[group]:
        if option == "mix":
            with pytest.raises(
                ConfigError,
                match="data=mix is for training a judge or demonstrating; this recipe steers a reward model",
            ):
                scpo_config(PRISM, ["data=mix"])
            continue
        path = "null" if option.endswith("_cards") else "x"
        global_rm = "pooled" if group == "model" and "quickstart" in option else "none"
        config = scpo_config(PRISM, [f"{group}={option}", f"data.path={path}", f"global_rm={global_rm}"])
        assert reloaded(config) == config


def test_global_rm_is_none_or_pooled() -> None:
    assert set(group_options()["global_rm"]) == {"none", "pooled"}
    assert scpo_config(PRISM, ["global_rm=none"]).global_rm is None
    assert scpo_config(PRISM, ["model=quickstart_rm", "global_rm=pooled"]).global_rm is not None


def test_as_released_mode_differs_only_in_documented_keys() -> None:
    corrected, released = (
        scpo_config(SCPO, [f"mode={name}"]).mode.model_dump() for name in ("corrected", "as_released")
    )
    differing = {(key, value) for key, value in released.items() if corrected[key] != value}
    assert differing - {("name", "as_released")} == set(DIFFERENCES)
    one = scpo_config(SCPO, ["mode.dropout=true"]).mode.model_dump()
    assert one == corrected | {"dropout": True}


def test_resume_rejects_changed_settings(tmp_path: Path) -> None:
    where = [f"run.dir={tmp_path}", "run.name=run", "run.resume=auto"]
    folder = open_run(scpo_config(SCPO, where)).path
    assert yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))["mode"]["name"] == "corrected"
    assert open_run(scpo_config(SCPO, [*where, "scpo.ddp_timeout=60"])).path == folder
    changes = {"mode=as_released": "mode", "scpo.seeds=[1]": "scpo", "global_rm.max_steps=9": "global_rm"}
    for changed, named in changes.items():
        with pytest.raises(ConfigError, match=f"started with another {named}"):
            open_run(scpo_config(SCPO, [*where, changed]))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"scpo.variants": ["scpo", "filters"]}, "scpo.variants.1: got 'filters', expected 'full', 'filter', 'weight'"),
        ({"scpo.filter_threshold": 1.0}, "scpo.filter_threshold: got 1.0, expected less than 1"),
        ({"scpo.weight_temperature": 0.0}, "scpo.weight_temperature: got 0.0, expected greater than 0"),
        ({"scpo.max_steps": -1}, "scpo.max_steps: got -1, expected greater than 0"),
        ({"scpo.filter_treshold": 0.5}, "that a recipe may set; did you mean 'filter_threshold'?"),
        ({"mode.dropuot": True}, "mode.dropuot: no such key; did you mean 'mode.dropout'?"),
        (
            {"global_rm": None},
            "global_rm: a randomly initialised reward model needs global_rm=pooled, any other global_rm",
        ),
        (
            {"scpo.variants": ["full"], "scpo.keep_models": ["scpo"]},
            "keep_models: scpo is not among scpo.variants: expected [], or some of full",
        ),
        ({"scpo.reference": "other_countries"}, "other_countries needs data=globalopinionqa, got opinion_cards"),
        ({"data.split": "pairing"}, "data.split: got pairing, expected group: people are split, not pairings"),
    ],
)
def test_invalid_scpo_setting_is_rejected(changes: dict[str, Any], expected: str) -> None:
    found = faults(changes, SCPO)
    assert expected in found
    assert [*changes][-1].split(".")[0] in found


def test_lora_dropout_is_rejected_where_the_mode_disables_dropout() -> None:
    overrides = ["lora=rank16", "lora.lora_dropout=0.1"]
    assert "lora.lora_dropout: mode=corrected turns all dropout off" in message(SCPO, *overrides)
    assert scpo_config(SCPO, [*overrides, "mode=as_released"]).lora is not None


# --- fields of TRL's that our schema does not type ---


def named(recipe: Path, key: str, value: Any) -> str:
    """Return the line of the message about a key that is set to a value."""
    (line,) = (line for line in faults({key: value}, recipe).splitlines() if line.startswith(f"  - {key}: "))
    return line.removeprefix(f"  - {key}: ")


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        *(
            (key, value, f"none of the fields of TRL's {name} that a recipe may set")
            for key, value, name in (
                ("grpo.push_to_hub", True, "GRPOConfig"),
                ("grpo.hub_token", PLANTED["HF_TOKEN"], "GRPOConfig"),
                ("grpo.trackio_space_id", "attacker/space", "GRPOConfig"),
                ("grpo.trackio_bucket_id", "attacker/bucket", "GRPOConfig"),
                ("grpo.log_completions_hub_repo", "attacker/rows", "GRPOConfig"),
                ("grpo.trust_remote_code", True, "GRPOConfig"),
                ("grpo.deepspeed", "zero.json", "GRPOConfig"),
                ("grpo.neftune_noise_alpha", 5.0, "GRPOConfig"),
                ("sft.packing", True, "SFTConfig"),
                ("sft.ddp_timeout", 9, "SFTConfig"),
                ("global_rm.max_length", 9, "RewardConfig"),
                ("scpo.gradient_accumulation_steps", 2, "RewardConfig"),
                ("scpo.disable_dropout", True, "RewardConfig"),
            )
        ),
        (
            "grpo.num_generation",
            4,
            "none of the fields of TRL's GRPOConfig that a recipe may set; did you mean 'num_ge",
        ),
        ("grpo.top_p", "high", "got 'high', expected"),
        ("grpo.top_p", float("nan"), "got nan, expected a finite number"),
    ],
)
def test_trl_field_that_is_not_allowed_or_a_value_of_another_type_is_rejected(
    key: str, value: Any, expected: str
) -> None:
    found = named(SCPO if key.startswith(("scpo", "global_rm")) else QUICKSTART, key, value)
    assert found.startswith(expected)
    assert PLANTED["HF_TOKEN"] not in found


def test_schedulers_are_those_of_transformers_without_metric_based_ones() -> None:
    others = {"reduce_lr_on_plateau", "greedy"}
    assert set(get_args(Scheduler)) == {each.value for each in SchedulerType} - others


def test_trl_fields_missing_from_conf_can_be_set() -> None:
    loaded = load_recipe(GRPO, ["grpo.top_p=0.9", "grpo.epsilon=0.1", "grpo.scale_rewards=batch"])
    assert loaded.grpo.model_extra == {"top_p": 0.9, "epsilon": 0.1, "scale_rewards": "batch"}
    scpo = load_config(SCPO, ["scpo.center_rewards_coefficient=0.01", "global_rm.weight_decay=0.1"])
    assert scpo.scpo.model_extra == {"center_rewards_coefficient": 0.01}
    assert scpo.global_rm.model_extra == {"weight_decay": 0.1}


def test_tilde_in_model_path_expands_to_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/local")
    words = ["trainer=grpo", "model.scratch=null", 'model.path="~/judge"']
    assert load_recipe(QUICKSTART, words).model.path == "/home/local/judge"
