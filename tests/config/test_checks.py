"""Validation of composed configurations: every recipe and option loads, and what cannot be is refused by its key."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cache, reduce
from operator import getitem
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from conftest import PLANTED
from pydantic import TypeAdapter

from think_as_locals.config.checks import Config, load_config, load_data_config, load_recipe, validate
from think_as_locals.config.compose import ASSETS, group_options, recipes
from think_as_locals.config.run_schema import RunConfig
from think_as_locals.config.schema import DataSection, KeyVariable, sections
from think_as_locals.config.scpo_schema import ScpoConfig, Variant
from think_as_locals.judging.formats import FORMATS
from think_as_locals.scpo.report import DIFFERENCES
from think_as_locals.types import GRAMMAR_PROMPTS, RATING_PROMPTS, VERDICT_PROMPTS, ConfigError, DataSource

GRPO, CARB, QUICKSTART, SCPO, PRISM, OPINIONS = (
    ASSETS / "recipes" / f"{name}.yaml"
    for name in ("tal_grpo", "carb", "quickstart", "scpo_quickstart", "scpo_prism", "scpo_globalopinionqa")
)
DEMONSTRATE, EDIT = (ASSETS / "conf" / f"{name}.yaml" for name in ("demonstrate", "edit"))
DOWNSTREAM = ASSETS / "recipes" / "downstream.yaml"
HEAD = "defaults:\n  - /config\n  - override /model: qwen2_5_7b\n  - _self_\n"


def a_recipe(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def message(path: Path | str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return str(caught.value)


@cache
def values_of(recipe: Path, *overrides: str) -> dict[str, Any]:
    return load_config(recipe, ["run.name=whole", *overrides]).model_dump()


def faults(changes: Mapping[str, Any], recipe: Path = QUICKSTART, *overrides: str) -> str:
    """The message about a recipe's configuration with some keys set to something else."""
    values = copy.deepcopy(values_of(recipe, *overrides))
    for key, value in changes.items():
        *path, last = key.split(".")
        reduce(getitem, path, values)[last] = value
    with pytest.raises(ConfigError) as caught:
        validate(values)
    return str(caught.value)


NEEDS = {("data", source): ["data.path=/somewhere"] for source in get_args(DataSource) if not source.endswith("_cards")}
NEEDS |= {("data", name): ["data.path=/somewhere"] for name in ("quickstart_blend", "blend_pairs")}
NEEDS["data", "mix"] = ["data.mix.cards=culture_cards"]
NEEDS |= {("prompt", name): ["reward.weights.rubric_quality=0"] for name in ("compact", "compact_responses_first")}
EXCLUDED_GROUPS = {"rm", "sweep", "mode", "global_rm", "sample", "policy"}
"""Groups of which only an evaluation, a sweep, SCPO or samples choose; all but the first two are tested below."""
SERVER = ["url=http://127.0.0.1:8000/v1", "model=x"]
RM_NEEDS = {"judge": ["path=x"], "server": SERVER, "classifier": ["path=x"], "deberta_v3": [], "tulu3_8b": []}
RM_NEEDS |= {"implicit": ["path=x", "reference=y"], "constant": []}
_NO_RUBRIC = ["reward.weights.criteria_gain=0", "reward.weights.rubric_quality=0", "reward.weights.correctness=1"]
_NO_COLD_START = ["sft=null", "model.scratch=null", "model.path=x"]


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


def test_cold_start_reads_demonstrations_from_sft_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/local")
    demonstrated = ["trainer=demonstrated_grpo", "sft.data=x", 'model.path="~/judge"']
    rates = {"adapters": (1e-4, 1e-5), "a whole model": (1e-5, 1e-6)}
    for more, expected in zip((["lora=rank16"], []), rates.values(), strict=True):
        loaded = load_recipe(GRPO, [*demonstrated, *more])
        assert loaded.sft
        assert (loaded.sft.data, loaded.sft.length, loaded.model.path) == ("x", "2 epochs", "/home/local/judge")
        assert (loaded.sft.learning_rate, loaded.grpo.learning_rate) == expected
    assert (scratch := load_recipe(QUICKSTART, ["sft.data=x"]).sft)
    assert scratch.data == "x"


TEACHER = ["teacher.path=x"]
EDITOR = [f"editor.{need}" for need in SERVER]


@pytest.mark.parametrize(
    ("recipe", "place", "option", "needs", "more"),
    [
        *((CARB, "rms.mine", option, needs, []) for option, needs in RM_NEEDS.items()),
        *((DEMONSTRATE, "teacher", kind, RM_NEEDS[kind], []) for kind in ("judge", "server")),
        (EDIT, "editor", "server", SERVER, []),
        (EDIT, "editor", "model", ["path=x"], ["probes=[CL]", "temperature=0", "tries=1"]),
    ],
)
def test_every_kind_of_model_that_a_recipe_asks_loads(
    recipe: Path, place: str, option: str, needs: list[str], more: list[str]
) -> None:
    assert {*group_options()["rm"]} == {*RM_NEEDS}
    loaded = load_config(recipe, [f"{place}={option}", *(f"{place}.{need}" for need in needs), *more])
    asked = reduce(getitem, place.split("."), loaded.model_dump())
    assert asked["kind"] == ("classifier" if option in ("deberta_v3", "tulu3_8b") else option)
    assert recipe != CARB or {*loaded.model_dump()["rms"]} == {"constant", "mine"}
    assert reloaded(loaded) == loaded


BLEND = ["sample=short_answers", "sample.data.path=x"]
SAMPLED = ["sample.policy.path=x"]


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
    sources = {name: (data.source, data.path) for name, data in loaded.data.sources.items()}
    assert sources == {"cards": ("culture_cards", None), "mine": ("jsonl", "x")}
    assert loaded.data.sources["cards"].groups is not None
    (carb,) = loaded.eval.sets.values()
    assert (carb.data.source, carb.items, carb.protocol, carb.orders) == ("carb", "all", "round_robin", 1)
    data = [place for place, section in sections(loaded) if isinstance(section, DataSection)]
    assert data == ["data.mix.cards", "data.mix.mine", "eval.sets.carb.data"]
    assert reloaded(loaded) == loaded
    # The names of a mix alone are taken.
    quickstart = load_recipe(QUICKSTART, ["eval.sets.culture_cards=culture_cards"])
    assert quickstart.data.sources == {"culture_cards": quickstart.data}


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


def test_reward_weights_dict_replaces_the_weights_of_the_option() -> None:
    def weights(*overrides: str) -> dict[str, float]:
        return load_recipe(GRPO, overrides).reward.weights

    assert weights("reward=full", "reward.weights={correctness: 1.0, length: 0.5}") == {"correctness": 1, "length": 0.5}
    more = weights("reward.weights={correctness: 2.0}", "reward.weights.structure=0.1")
    assert more == {"correctness": 2, "structure": 0.1}
    assert weights("reward.weights.correctness=2.0").keys() == weights().keys()  # a key alone is set among the others


def test_tal_data_takes_data_settings_alone() -> None:
    config = load_data_config(["data=jsonl", "data.path=mine.jsonl", "data.test_share=0.5", "seed=3"])
    data = config.data
    assert (data.source, data.path, data.test_share, config.seed) == ("jsonl", "mine.jsonl", 0.5, 3)
    for override, key in (
        ("grpo.beta=0.1", "grpo: no such key"),
        ("data.path=x", "data.path: got 'x'"),
        ("data.max_prompt_tokens=9", "data.max_prompt_tokens: got 9"),
        ("data.sets_per_group=0", "data.sets_per_group: got 0"),
    ):
        with pytest.raises(ConfigError, match=f"- {key}"):
            load_data_config([override])


def test_paper_recipe_has_its_reward_loss_model_and_data() -> None:
    config = load_recipe("recipes/tal_paper.yaml")
    assert config.reward.weighted() == {"correctness": 1.0, "criteria_gain": 0.5}
    assert (config.grpo.loss_type, config.model.path) == ("grpo", "Qwen/Qwen2.5-7B-Instruct")
    paths = {name: part.path for name, part in config.data.sources.items()}
    assert paths == {"helpsteer3": "nvidia/HelpSteer3:preference", "care": "geyang627/CARE"}
    only = load_recipe("recipes/tal_paper.yaml", ["reward=paper_without_gain"])
    assert only.reward.weighted() == {"correctness": 1.0}


def test_large_models_are_launched_on_eight_gpus() -> None:
    """As launch/README.md says: a bare `accelerate launch` would otherwise give each GPU the whole of it."""
    configs = [config for recipe in recipes() if isinstance(config := built_in(recipe), RunConfig)]
    large = {config.recipe: config.run.launch for config in configs if config.model.requires_gpu}
    assert large == dict.fromkeys(large, "gpu8_zero3")
    assert {"tal_grpo", "tal_paper", "ablations", "methods"} <= {*large}


NOWHERE = {"culture": "hidden", "rubric_language": "any"}


def test_every_prompt_has_its_kind_and_rewards_that_it_asks_for() -> None:
    assert {*GRAMMAR_PROMPTS, *VERDICT_PROMPTS, *RATING_PROMPTS} == {*FORMATS}
    for prompt in VERDICT_PROMPTS:
        assert f"which prompt {prompt} does not ask for" in faults({"prompt": {"template": prompt} | NOWHERE}, GRPO)
    for prompt in ("compact", "compact_responses_first"):
        found = faults({"prompt": {"template": prompt} | NOWHERE}, GRPO)
        assert f"reward.weights.rubric_quality: prompt {prompt} does not" in found
    load_recipe(GRPO, ["prompt=compact_rubric"])


def test_trl_fields_missing_from_conf_can_be_set() -> None:
    loaded = load_recipe(GRPO, ["grpo.top_p=0.9", "grpo.epsilon=0.1", "grpo.scale_rewards=batch"])
    assert loaded.grpo.model_extra == {"top_p": 0.9, "epsilon": 0.1, "scale_rewards": "batch"}
    scpo = load_config(SCPO, ["scpo.center_rewards_coefficient=0.01", "global_rm.weight_decay=0.1"])
    assert scpo.scpo.model_extra == {"center_rewards_coefficient": 0.01}
    assert scpo.global_rm.model_extra == {"weight_decay": 0.1}


# --- what is refused ---

MINE = ["rms.mine=judge", "rms.mine.path=x"]
GAIN = {"reward.weights": {"criteria_gain": 0.5}}
Given = list[str] | dict[str, Any]
"""More overrides, or keys of the composed configuration that are set to something else, which takes less time."""
REFUSED: dict[tuple[Any, ...], list[tuple[Given, str]]] = {
    (GRPO,): [
        (["trainer=cold_start_grpo"], "sft: trainer=cold_start_grpo is for random weights"),
        (["sft.data=x"], "sft: not all of its keys are set"),
        (["trainer=demonstrated_grpo", "sft.max_steps=0"], "sft.max_steps: got 0"),
        (["data=mix"], "data.mix: Dictionary should have at least 1 item"),
        (["data=mix", "data.mix.Mine=culture_cards"], "data.mix.Mine: got 'Mine'"),
        (["eval.sets.test=culture_cards"], "eval.sets.test: "),
        (["prompt=rewardbench2", "prompt.template=rewardbench2_ratings", "reward=rm_r1"], "prompt.template: "),
        ({"prompt.template": "rm_r1"}, "prompt.culture: got stated, but rm_r1 does not mention culture"),
        ({"prompt.template": "compact"}, "prompt.rubric_language: got item, but compact asks for none"),
    ],
    (GRPO, *MIX): [
        ({"data.weights": {"cards": 2}}, "data.weights: got cards, expected one of each: cards, mine"),
        ({"data.mix.mine.shuffle_labels": True}, "data.mix.mine.shuffle_labels: "),
        ({"data.split": "group"}, "data.split: no such key with data.source=mix"),
        (["eval.sets.cards=culture_cards"], "eval.sets.cards: "),
    ],
    (GRPO, *SETS): [
        ({"eval.sets.carb.orders": 3}, "eval.sets.carb.orders: got 3, expected at most 2"),
        ({"eval.sets.carb.items": "validation", "eval.sets.carb.data.validation_share": None}, "eval.sets.carb.items:"),
        ({"eval.sets.carb.data.max_prompt_tokens": 9}, "eval.sets.carb.data.max_prompt_tokens: got 9"),
        ({"eval.sets.carb.data.shuffle_labels": True}, "eval.sets.carb.data.shuffle_labels: a control for training"),
    ],
    (GRPO, "lora=rank16"): [
        ({"lora.target_modules": names}, "lora.target_modules: ") for names in (["lm_head"], ".*(q_proj|head)", "*")
    ],
    (QUICKSTART,): [
        ({"sft.max_steps": -1}, "sft.max_steps: got -1"),
        ({"sft": None}, "sft: a randomly initialised model needs trainer=cold_start_grpo"),
        ({"sft.biased_wrong": 0.6, "sft.biased_right": 0.6}, "sft.biased_right: "),
        ({"model.path": "some/model"}, "model.path: got both of model.path and model.scratch"),
        ({"data.path": "x"}, "data.path: got 'x', but culture_cards is embedded: choose the source"),
        ({"data.min_share_gap": 0.2}, "data.min_share_gap: got 0.2, but only globalopinionqa can use it"),
        ({"rollout.ahead": 1}, "rollout.ahead: got 1"),
        ({"rollout.max_model_length": 512}, "rollout.max_model_length: got 512, but only a colocated engine takes it"),
        ({"grpo.max_steps": 0}, "grpo.max_steps: got 0, expected at least 1, or -1"),
        ({"sede": 3}, "sede: no such key; did you mean 'seed'?"),
        ({"model.scratch.hiden_size": 3}, "no such key; did you mean 'model.scratch.hidden_size'?"),
        ({"seed": "three"}, "seed: got 'three', expected a valid integer"),
        *(({"run.name": name}, f"run.name: got {name!r}") for name in ("../elsewhere", "..", "", "a b")),
        ({"seed": 2**32}, "seed: got 4294967296, expected less than 4294967296"),
        ({"grpo.beta": "0.1"}, "grpo.beta: got '0.1', expected a valid number"),
        ({"prompt.template": "listwize"}, "prompt.template: got 'listwize'; did you mean 'listwise'?; avail"),
        ({"reward.weights": {"consistency": 0.1}}, "reward.weights.consistency: "),
        (GAIN | {"reward.criteria_gain.scorer": "reference"}, "reward.criteria_gain.scorer: no reference model with"),
        ({"reward.both_orders": True, "grpo.num_generations": 7}, "grpo.num_generations: got 7, expected an even"),
        (GAIN | {"reward.both_orders": True, "grpo.num_generations": 2}, "grpo.num_generations: got 2, expected at l"),
        ({"reward.criteria_gain.clip": [1.0, -1.0]}, "reward.criteria_gain.clip: got [1.0, -1.0], expected the lowest"),
        ({"reward.own": {"brief": "own.py:brief"}}, "reward.own.brief: has no weight: set reward.weights.brief"),
        ({"reward.own": {"length": "own.py:f"}}, "reward.own.length: a component of this name exists"),
        ({"reward.own": {"brief": "own.py"}}, "reward.own.brief: got 'own.py'"),
        ({"reward.own": {"Brief": "own.py:brief"}}, "reward.own.Brief"),
        ({"reward.weights": {"correctness": 0.0}}, "reward.weights: all are 0: set one of them above 0"),
        ({"grpo.report_to": ["wandbb"]}, "grpo.report_to.0: got 'wandbb', expected 'wandb', 'tensorboard' or"),
    ],
    (DEMONSTRATE,): [([], "no default for teacher.path"), (["teacher=constant"], "teacher: Input tag 'constant'")],
    (DEMONSTRATE, *TEACHER): [
        ({"teacher.orders": 2}, "teacher.orders: got 2, expected 1, as judges are trained"),
        ({"teacher.protocol": "pairwise"}, "teacher.protocol: got pairwise"),
        ({"items": "validation", "data.validation_share": None}, "items: no validation items are held out"),
    ],
    (DEMONSTRATE, *TEACHER, *MIX): [
        ({"data.weights": {"cards": 1, "mine": 2}}, "data.weights: only weights training items"),
        ({"data.mix.mine.max_prompt_tokens": 9}, "data.max_prompt_tokens: got 9"),
    ],
    (EDIT, *EDITOR): [({"probes": ["CL", "RC", "CL"]}, "probes: got CL, RC, CL, expected each once")],
    (DOWNSTREAM,): [(["eval.candidates=x"], "eval.candidates: the candidates are sampled here")],
    (DOWNSTREAM, *SAMPLED): [
        (["sample=prompts"], "sample.scorer: got none, expected with task prompts a reward model"),
        (["sample.scorer=constant"], "sample.scorer: got constant, expected with task multiple_choice none"),
    ],
    (DOWNSTREAM, *SAMPLED, *BLEND): [
        ({"sample.items": "test"}, "sample.items: got test, expected all"),
        (["sample.data=jsonl", "sample.data.path=y"], "sample.data: got jsonl, but only blend"),
    ],
    (CARB,): [
        (["data=mix", "data.mix.cards=culture_cards"], "data.source: got 'mix', expected 'culture_cards'"),
        ({"rms": {"a b": 1}}, "rms.a b: got 'a b': String should match"),
        ({"run.launch": "single"}, "run.launch: got 'single', but an evaluation shards no model"),
        ({"rms": {}}, "rms: Dictionary should have at least 1 item"),
    ],
    (CARB, *MINE): [
        ({"rms.mine.prompt": "rm_r1", "rms.mine.culture": "inferred"}, "rms.mine.culture: got inferred"),
        ({"rms.mine.prompt": "compact", "rms.mine.rubric_language": "en"}, "rms.mine.rubric_language: got en"),
        ({"rms.mine.protocol": "pairwise", "rms.mine.orders": 3}, "rms.mine.orders: got 3, expected at most 2"),
        ({"rms.mine.protocol": "pairwise", "eval.candidates": "y"}, "rms.mine.protocol: got pairwise"),
        ({"rms.mine.protocol": "round_robin", "eval.probes": True}, "rms.mine.protocol: got round_robin"),
    ],
    (SCPO,): [
        ({"data.validation_share": 0.1}, "data.validation_share: SCPO chooses no checkpoint: set it to null"),
        ({"data.max_prompt_tokens": 9}, "data.max_prompt_tokens: got 9"),
        ({"scpo.filter_threshold": 1.0}, "scpo.filter_threshold: got 1.0, expected less than 1"),
        ({"scpo.max_steps": -1}, "scpo.max_steps: got -1, expected greater than 0"),
        ({"global_rm": None}, "global_rm: a randomly initialised reward model needs global_rm=pooled"),
        ({"scpo.variants": ["full"], "scpo.keep_models": ["scpo"]}, "scpo.keep_models: scpo is not among"),
        ({"scpo.reference": "other_countries"}, "scpo.reference: other_countries needs data=globalopinionqa"),
        ({"data.split": "pairing"}, "data.split: got pairing, expected group"),
    ],
    (SCPO, "lora=rank16"): [({"lora.lora_dropout": 0.1}, "lora.lora_dropout: mode=corrected turns all dropout off")],
    (PRISM,): [
        ({"scpo.variants": [], "scpo.keep_models": []}, "global_rm: without variants it takes global_rm=pooled"),
        (["data=mix", "data.mix.cards=culture_cards"], "data.source: got 'mix', expected 'culture_cards'"),
    ],
}
"""What cannot be in each recipe, and how the line of the message about it begins."""
FOREIGN = {  # fields of TRL's that a recipe may not set: what sends anything anywhere, runs code, or would do nothing
    **dict.fromkeys(("push_to_hub", "trust_remote_code"), True),
    **dict.fromkeys(("trackio_space_id", "trackio_bucket_id", "log_completions_hub_repo"), "attacker/space"),
    "hub_token": PLANTED["HF_TOKEN"],
    "deepspeed": "zero.json",
    "neftune_noise_alpha": 5.0,
    "cache_implementation": "static",
    "num_completions_to_print": 3,
}
REFUSED[QUICKSTART,] += [
    ({f"grpo.{key}": value}, f"grpo.{key}: none of the fields of TRL's GRPOConfig that a recipe may set")
    for key, value in FOREIGN.items()
]
NAN, INFINITE = float("nan"), float("inf")
REFUSED[QUICKSTART,] += [
    ({"grpo.num_generation": 4}, "grpo.num_generation: none of the fields of TRL's GRPOConfig that"),
    ({"sft.packing": True}, "sft.packing: none of the fields of TRL's SFTConfig"),
    ({"sft.shuffle_dataset": True}, "sft.shuffle_dataset: none of the fields of TRL's SFTConfig"),
    ({"grpo.top_p": INFINITE}, "grpo.top_p: got inf, expected a finite number"),  # a field of TRL's
    ({"sft.biased_share": -INFINITE}, "sft.biased_share: got -inf, expected a finite number"),
    ({"reward.weights": {"correctness": NAN}}, "reward.weights.correctness: got nan, expected a finite number"),
    ({"model.chat_template_kwargs": {"x": INFINITE}}, "model.chat_template_kwargs.x"),
]
REFUSED[SCPO,] += [
    ({"global_rm.max_length": 9}, "global_rm.max_length: none of the fields of TRL's RewardConfig"),
    ({"scpo.router_aux_loss_coef": 0.0}, "scpo.router_aux_loss_coef: none of the fields of TRL's RewardConfig"),
    ({"scpo.gradient_accumulation_steps": 2}, "scpo.gradient_accumulation_steps: none of the fields of TRL's RewardC"),
    ({"scpo.filter_treshold": 0.5}, "that a recipe may set; did you mean 'filter_threshold'?"),
]


@pytest.mark.parametrize(
    ("composed", "given", "expected"), [(composed, *case) for composed, cases in REFUSED.items() for case in cases]
)
def test_what_cannot_be_is_refused_by_its_key(composed: tuple[Any, ...], given: Given, expected: str) -> None:
    found = faults(given, *composed) if isinstance(given, dict) else message(*composed, *given)
    assert expected in found
    assert PLANTED["HF_TOKEN"] not in found


def test_values_that_yaml_takes_for_others_are_explained(tmp_path: Path) -> None:
    overrides = ["grpo.beta=nan", "grpo.temperature=inf", "grpo.learning_rate=1e400"]
    assert message(GRPO, *overrides).count("expected a finite number") == 3
    found = message(a_recipe(tmp_path, HEAD + "grpo:\n  beta: .nan\n  temperature: -.inf\n"))
    assert found.count("expected a finite number") == 2
    expected = "data.languages.0: got the boolean false: YAML reads an unquoted NO, ON or YES as one; quote it"
    assert expected in message(a_recipe(tmp_path, HEAD + "data:\n  languages: [NO]\n"))
    assert load_recipe(a_recipe(tmp_path, HEAD + 'data:\n  languages: ["NO"]\n')).data.languages == ["NO"]


@pytest.mark.parametrize("url", ["http://user:hidden@host:8000", "https://hidden@host/v1", "host:8000", "http://"])
def test_url_with_credentials_is_rejected_without_repeating_them(url: str) -> None:
    found = faults({"rollout.url": url})
    assert "rollout.url: String should match" in found
    assert "hidden" not in found


@pytest.mark.parametrize(("recipe", "place"), [(EDIT, "editor"), (CARB, "rms.mine")])
def test_server_is_sent_no_other_secret(recipe: Path, place: str) -> None:
    server = [f"{place}=server", *(f"{place}.{need}" for need in SERVER)]
    for name in ("OPENAI_API_KEY", "VLLM_API_KEY", "TAL_API_KEY", "ANTHROPIC_API_KEY", "TAL_MY_KEY"):
        assert TypeAdapter[str](KeyVariable).validate_python(name) == name
    secrets = ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "STRIPE_API_KEY")
    # The key itself in place of its name is not repeated.
    for name in (*secrets, "XOPENAI_API_KEY", "TAL_", "OPENAI_API_KEY\n", PLANTED["HF_TOKEN"]):
        found = faults({f"{place}.key_variable": name}, recipe, *server)
        assert f"{place}.key_variable: String should match" in found
        assert PLANTED["HF_TOKEN"] not in found


def test_a_missing_key_is_named() -> None:
    with pytest.raises(ConfigError, match=r"data: missing[\s\S]*eval: missing"):
        validate({key: value for key, value in values_of(QUICKSTART).items() if key not in ("data", "eval")})


def test_one_error_lists_every_fault_once() -> None:
    wrong = {"data.pathh": "y", "eval.batch_size": "many", "grpo.beta": NAN, "run.name": "../x", "seed": NAN}
    wrong |= {"rollout.ahead": 1, "sft.biased_wrong": 0.6, "sft.biased_right": 0.6}
    places = [f"  - {place}" for place in sorted({*wrong} - {"sft.biased_wrong"})]
    assert sorted(line.split(":")[0] for line in faults(wrong).splitlines()[1:]) == places


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


SCPO_GROUPS = {group: group_options()[group] for group in ("data", "model", "mode", "lora")}
SCPO_GROUPS["data"].remove("mix")  # for judges


@pytest.mark.parametrize("turn", range(max(map(len, SCPO_GROUPS.values()))))
def test_every_option_of_the_scpo_groups_loads(turn: int) -> None:
    assert set(group_options()["global_rm"]) == {"none", "pooled", "pretrained"}
    chosen = {group: options[turn % len(options)] for group, options in SCPO_GROUPS.items()}
    chosen["data.path"] = "null" if chosen["data"].endswith("_cards") else "x"
    chosen["global_rm"] = "pooled" if "quickstart" in chosen["model"] else "none"
    config = scpo_config(PRISM, [f"{name}={option}" for name, option in chosen.items()])
    assert (config.global_rm is None) == (chosen["global_rm"] == "none")
    assert reloaded(config) == config


def test_as_released_mode_differs_only_in_documented_keys() -> None:
    corrected, released = (
        scpo_config(SCPO, [f"mode={name}"]).mode.model_dump() for name in ("corrected", "as_released")
    )
    differing = {(key, value) for key, value in released.items() if corrected[key] != value}
    assert differing - {("name", "as_released")} == set(DIFFERENCES)
    one = scpo_config(SCPO, ["mode.dropout=true"]).mode.model_dump()
    assert one == corrected | {"dropout": True}
    adapted = ["lora=rank16", "lora.lora_dropout=0.1", "mode=as_released"]
    assert scpo_config(SCPO, adapted).lora is not None
