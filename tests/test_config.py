"""A recipe, conf/ and overrides -> a RunConfig, or one message that says what is wrong."""

from __future__ import annotations

import copy
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from conftest import PLANTED

from think_as_locals import composition
from think_as_locals.composition import ASSETS, group_options, recipes
from think_as_locals.config import load_config, load_recipe, validate, validate_evaluation
from think_as_locals.rm_schema import EvaluationConfig
from think_as_locals.schema import RunConfig
from think_as_locals.types import ConfigError, DataSource

GRPO = ASSETS / "recipes" / "tal_grpo.yaml"
CARB = ASSETS / "recipes" / "carb.yaml"
QUICKSTART = ASSETS / "recipes" / "quickstart.yaml"
HEAD = "defaults:\n  - /config\n  - override /model: qwen2_5_7b\n  - _self_\n"
NEEDS = {("data", source): ["data.path=/somewhere"] for source in get_args(DataSource) if not source.endswith("_cards")}
APART = {"rm", "sweep", "mode", "global_rm"}
"""Groups of which only an evaluation, a sweep or SCPO chooses; `test_scpo_config.py` has the last two."""
RM_NEEDS = {
    "judge": ["path=x"],
    "server": ["url=http://127.0.0.1:8000/v1", "model=x"],
    "classifier": ["path=x"],
    "implicit": ["path=x", "reference=y"],
    "constant": [],
}
NEEDS["reward", "full"] = ["reward.length.cache=60"]  # the cold start's completions are shorter than its default


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    """A configuration that holds, as a mapping."""
    return load_recipe(QUICKSTART, ["run.name=whole"]).model_dump()


Fault = Callable[..., str]


@pytest.fixture
def fault(whole: dict[str, Any]) -> Fault:
    """What `validate` says of the configuration with one key, or several, set to something else."""

    def say(**changes: Any) -> str:
        values = copy.deepcopy(whole)
        for place, value in changes.items():
            *path, last = place.split("__")
            part = values
            for name in path:
                part = part[name]
            part[last] = value
        with pytest.raises(ConfigError) as caught:
            validate(values)
        return str(caught.value)

    return say


def a_recipe(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def message(path: Path | str, overrides: Sequence[str] = ()) -> str:
    with pytest.raises(ConfigError) as caught:
        load_recipe(path, overrides)
    return str(caught.value)


# --- what holds ---


@pytest.mark.parametrize("path", recipes(), ids=lambda path: path.stem)
def test_every_recipe_loads_and_is_called_after_its_file(path: Path) -> None:
    loaded = load_config(path)
    assert loaded.recipe == path.stem
    assert loaded.run.name.startswith(f"{path.stem}-")


def test_there_are_recipes_and_options_to_test() -> None:
    assert {path.stem for path in recipes()} >= {"quickstart", "tal_grpo"}
    assert sum(map(len, group_options().values())) >= 12


@pytest.mark.parametrize("turn", range(max(map(len, group_options().values()))))
def test_every_option_of_every_group_loads(turn: int) -> None:
    # In each turn one option of every group, so that all have had theirs in the end.
    groups = {group: options for group, options in group_options().items() if group not in APART}
    groups["model"] = [option for option in groups["model"] if not option.endswith("_rm")]  # SCPO's
    chosen = [(group, options[turn % len(options)]) for group, options in groups.items()]
    needed = [override for choice in chosen for override in NEEDS.get(choice, [])]
    loaded = load_recipe(GRPO, [*(f"{group}={option}" for group, option in chosen), *needed])
    assert isinstance(loaded, RunConfig)


@pytest.mark.parametrize("kind", group_options()["rm"])
def test_every_kind_of_reward_model_loads_beside_the_others(kind: str) -> None:
    loaded = load_config(CARB, [f"rms.mine={kind}", *(f"rms.mine.{key}" for key in RM_NEEDS[kind])])
    assert isinstance(loaded, EvaluationConfig)
    assert {name: rm.kind for name, rm in loaded.rms.items()} == {"constant": "constant", "mine": kind}
    assert validate_evaluation(yaml.safe_load(yaml.safe_dump(loaded.model_dump()))) == loaded


def test_a_resolved_configuration_validates_to_itself(whole: dict[str, Any]) -> None:
    there = validate(whole)
    assert validate(yaml.safe_load(yaml.safe_dump(there.model_dump()))) == there


def test_overrides_are_set_and_the_last_one_wins() -> None:
    loaded = load_recipe(GRPO, ["seed=1", "grpo.beta=0.5", "data.languages=[en,de]", "seed=7", "run.name=mine"])
    assert (loaded.seed, loaded.grpo.beta, loaded.data.languages, loaded.run.name) == (7, 0.5, ["en", "de"], "mine")


def test_a_recipe_says_how_it_differs_and_the_rest_comes_from_conf() -> None:
    conf = yaml.safe_load((ASSETS / "conf" / "trainer" / "grpo.yaml").read_text(encoding="utf-8"))["grpo"]
    loaded = load_recipe(GRPO)
    assert loaded.model.path == "Qwen/Qwen2.5-7B-Instruct"
    assert loaded.grpo.num_generations == conf["num_generations"]
    assert loaded.sft is None
    assert load_recipe(QUICKSTART).sft is not None


def test_a_recipe_of_ones_own_may_lie_anywhere(tmp_path: Path) -> None:
    loaded = load_recipe(a_recipe(tmp_path, HEAD + "seed: 11\ngrpo:\n  learning_rate: 2e-6\n"))
    assert (loaded.recipe, loaded.seed, loaded.grpo.learning_rate) == ("mine", 11, 2e-6)


def test_the_first_line_that_launches_a_recipe_is_no_key_of_it() -> None:
    assert QUICKSTART.read_text(encoding="utf-8").startswith("if __name__")
    assert "recipe" in load_recipe(QUICKSTART).model_dump()


def test_a_path_below_the_checkout_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_recipe("recipes/quickstart.yaml").recipe == "quickstart"


def test_two_runs_of_a_recipe_have_two_names() -> None:
    assert load_recipe(GRPO).run.name != load_recipe(GRPO).run.name


def test_a_configuration_cannot_be_changed() -> None:
    loaded = load_recipe(GRPO)
    with pytest.raises(ValueError, match="frozen"):
        loaded.seed = 3  # type: ignore[misc]


@pytest.mark.parametrize("name", ["7", "true", "1e3", "null"])
def test_a_recipe_may_be_called_what_yaml_would_take_for_something_else(tmp_path: Path, name: str) -> None:
    assert load_recipe(a_recipe(tmp_path, HEAD, f"{name}.yaml"), ["run.name=x"]).recipe == name


@pytest.mark.parametrize("name", ["with space", "Größe", "a(1)", "it's"])
def test_the_checkout_may_lie_in_a_folder_of_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for part in ("conf", "recipes"):
        shutil.copytree(ASSETS / part, tmp_path / name / part)
    monkeypatch.setattr(composition, "ASSETS", tmp_path / name)
    assert load_recipe(tmp_path / name / "recipes" / "quickstart.yaml").recipe == "quickstart"


def test_files_beside_a_recipe_do_not_take_the_place_of_conf(tmp_path: Path) -> None:
    # A run's own folder holds a config.yaml; a project of one's own may hold folders called data or model.
    a_recipe(tmp_path, "seed: 99\n", "config.yaml")
    (tmp_path / "model").mkdir()
    a_recipe(tmp_path / "model", "path: somebody/else\n", "qwen2_5_7b.yaml")
    loaded = load_recipe(a_recipe(tmp_path, HEAD))
    assert (loaded.seed, loaded.model.path) == (0, "Qwen/Qwen2.5-7B-Instruct")


# --- unknown names ---


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("sede", "sede: no such key; did you mean 'seed'?"),
        ("data__pathh", "data.pathh: no such key; did you mean 'data.path'?"),
        ("run__nam", "run.nam: no such key; did you mean 'run.name'?"),
        ("model__scratch__hiden_size", "did you mean 'model.scratch.hidden_size'?"),
        ("eval__evry_steps", "did you mean 'eval.every_steps'?"),
        ("rollout__backends", "did you mean 'rollout.backend'?"),
        ("zzz", "zzz: no such key"),
    ],
)
def test_an_unknown_key_is_an_error_that_suggests_the_nearest(fault: Fault, place: str, said: str) -> None:
    assert said in fault(**{place: 3})


@pytest.mark.parametrize("recipe", [QUICKSTART, "recipes/carb.yaml", "recipes/scpo_quickstart.yaml"])
def test_a_path_that_embedded_data_would_not_read_is_an_error(recipe: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.path: got 'mine\.jsonl', but .* is embedded: choose data=jsonl"):
        load_config(recipe, ["data.path=mine.jsonl"])


def test_an_unknown_key_of_an_override_is_an_error_too() -> None:
    assert "data.pathh: no such key; did you mean 'data.path'?" in message(QUICKSTART, ["data.pathh=x"])


def test_an_unknown_key_of_a_recipe_is_an_error_too(tmp_path: Path) -> None:
    said = message(a_recipe(tmp_path, HEAD + "grpo:\n  beta: 0.1\nevals:\n  every_steps: 3\n"))
    assert "evals: no such key; did you mean 'eval'?" in said


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("model=qwen3_8", "did you mean 'qwen3_8b'?"),
        ("trainer=grop", "did you mean 'grpo'?"),
        ("data=nothing", "available: blend, carb, carb_open, care, culture_cards, globalopinionqa, helpsteer3, jsonl"),
        ("eval=", "available: carb"),
    ],
)
def test_an_unknown_option_of_a_group_is_an_error_that_lists_the_known_ones(override: str, said: str) -> None:
    found = message(GRPO, [override])
    assert said in found
    assert "no such option" in found


def test_an_unknown_option_in_a_recipe_is_an_error_that_lists_the_known_ones(tmp_path: Path) -> None:
    said = message(a_recipe(tmp_path, HEAD.replace("qwen2_5_7b", "qwen3_8")))
    assert "qwen3_8" in said
    assert all(option in said for option in group_options()["model"])


def test_an_unknown_recipe_is_an_error_that_suggests_the_nearest_and_lists_them() -> None:
    said = message("recipes/quikstart.yaml")
    assert "recipes/quikstart.yaml: no such recipe; did you mean 'recipes/quickstart.yaml'?" in said
    assert "recipes/tal_grpo.yaml" in said
    assert "did you mean 'recipes/quickstart.yaml'?" in message("quickstart")


def test_a_recipe_that_is_not_there_is_not_taken_from_elsewhere(tmp_path: Path) -> None:
    assert "no such recipe" in message(tmp_path / "quickstart.yaml")


def test_an_unknown_prompt_is_an_error_that_suggests_the_nearest(fault: Fault) -> None:
    said = fault(prompt__template="listwize")
    assert "prompt.template: no 'listwize'; did you mean 'listwise'?; " in said
    assert "available: compact, compact_responses_first, listwise" in said


def test_a_prompt_cannot_be_taken_from_another_folder(fault: Fault) -> None:
    assert "prompt.template" in fault(prompt__template="../prompts/listwise")


def test_an_unknown_reward_is_an_error_that_names_the_known_ones(fault: Fault) -> None:
    said = fault(reward__weights={"corectness": 1.0})
    assert "reward.weights: no component 'corectness'; did you mean 'correctness'?" in said
    assert "available: correctness, criteria_gain, structure, rubric_quality, consistency, length" in said


@pytest.mark.parametrize("url", ["http://user:hidden@host:8000", "https://hidden@host/v1", "host:8000", "http://"])
def test_an_address_holds_no_secret_and_a_message_repeats_none(fault: Fault, url: str) -> None:
    said = fault(rollout__url=url)
    assert "rollout.url: expected http[s]://HOST[:PORT][/PATH] without user or key" in said
    assert "hidden" not in said


def test_a_token_is_no_setting(fault: Fault) -> None:
    said = fault(grpo__hub_token=PLANTED["HF_TOKEN"])
    assert "grpo.hub_token: set HF_TOKEN in the environment" in said
    assert PLANTED["HF_TOKEN"] not in said


@pytest.mark.parametrize("field", ["push_to_hub", "hub_model_id", "hub_always_push"])
@pytest.mark.parametrize("section", ["grpo", "sft"])
def test_no_trainer_uploads_a_run(fault: Fault, section: str, field: str) -> None:
    said = fault(**{f"{section}__{field}": True})
    assert f"{section}.{field}: drop it: TRL would upload its whole folder, for all to see; `tal push` sends" in said


def test_an_unknown_tracker_is_an_error_that_names_the_known_ones(fault: Fault) -> None:
    said = fault(grpo__report_to=["wandbb"])
    assert "grpo.report_to.0: got 'wandbb', expected 'wandb', 'tensorboard' or 'trackio'" in said


# --- wrong values ---


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("seed", "three", "seed: got 'three', expected a valid integer"),
        ("seed", 1.5, "seed: got 1.5, expected a valid integer"),
        ("seed", True, "seed: got True, expected a valid integer"),
        ("seed", None, "seed: got None"),
        ("seed", "3", "seed: got '3'"),
        ("seed", -1, "seed: got -1, expected greater than or equal to 0"),
        ("seed", 2**32, "seed: got 4294967296, expected less than 4294967296"),
        ("grpo__beta", "0.1", "grpo.beta: got '0.1', expected a valid number"),
        ("grpo__beta", True, "grpo.beta: got True"),
        ("grpo__beta", -0.1, "grpo.beta: got -0.1, expected greater than or equal to 0"),
        ("grpo__learning_rate", 0, "grpo.learning_rate: got 0, expected greater than 0"),
        ("grpo__temperature", -1.0, "grpo.temperature: got -1.0, expected greater than 0"),
        ("grpo__num_generations", 1, "grpo.num_generations: got 1, expected greater than or equal to 2"),
        ("grpo__max_steps", -2, "grpo.max_steps: got -2"),
        ("grpo__save_steps", 0, "grpo.save_steps: got 0"),
        ("grpo__report_to", "wandb", "grpo.report_to: got 'wandb', expected a valid list"),
        ("grpo__gradient_checkpointing", 1, "grpo.gradient_checkpointing: got 1, expected a valid boolean"),
        ("sft__biased_wrong", 1.1, "sft.biased_wrong: got 1.1"),
        ("data__test_share", 0.0, "data.test_share: got 0.0"),
        ("data__test_share", 1, "data.test_share: got 1"),
        ("data__num_responses", 1, "data.num_responses: got 1"),
        ("data__num_responses", 9, "data.num_responses: got 9"),
        ("data__sets_per_group", 0, "data.sets_per_group: got 0"),
        ("data__sets_per_group", -5, "data.sets_per_group: got -5"),
        ("data__languages", "en", "data.languages: got 'en', expected a valid list"),
        ("data__languages", [], "data.languages: got []"),
        ("data__groups", [7], "data.groups.0: got 7, expected a valid string"),
        ("data__split", "grouped", "data.split: got 'grouped', expected 'group' or 'pairing'"),
        ("data__shuffle_labels", "yes", "data.shuffle_labels: got 'yes', expected a valid boolean"),
        ("data__path", 7, "data.path: got 7"),
        ("eval__bootstrap_samples", -2000, "eval.bootstrap_samples: got -2000"),
        ("eval__max_items", 0, "eval.max_items: got 0"),
        ("model__dtype", "fp32", "model.dtype: got 'fp32', expected 'float32', 'bfloat16' or 'float16'"),
        ("model__scratch__num_hidden_layers", 0, "model.scratch.num_hidden_layers: got 0"),
        ("rollout__gpu_memory_utilization", 1.5, "rollout.gpu_memory_utilization: got 1.5"),
        (
            "rollout__backend",
            "vLLM",
            "rollout.backend: got 'vLLM', expected 'transformers', 'vllm_colocate' or 'vllm_server'",
        ),
        ("run__resume", "always", "run.resume: got 'always', expected 'never' or 'auto'"),
        ("grpo", None, "grpo: got None"),
        ("data", [], "data: got []"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_got_and_expected(fault: Fault, place: str, value: Any, said: str) -> None:
    assert said in fault(**{place: value})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")], ids=str)
@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("seed", "seed"),
        ("grpo__beta", "grpo.beta"),
        ("grpo__top_p", "grpo.top_p"),
        ("sft__biased_share", "sft.biased_share"),
        ("reward__weights", "reward.weights.correctness"),
        ("model__chat_template_kwargs", "model.chat_template_kwargs.x"),
        ("grpo__lr_scheduler_kwargs", "grpo.lr_scheduler_kwargs"),
    ],
)
def test_no_number_may_be_infinite_or_none_at_all(fault: Fault, place: str, name: str, value: float) -> None:
    wrapped = {
        "reward__weights": {"correctness": value},
        "model__chat_template_kwargs": {"x": value},
        "grpo__lr_scheduler_kwargs": {"x": [value]},
    }
    said = fault(**{place: wrapped.get(place, value)})
    assert f"  - {name}" in said
    assert f"got {value}" in said


@pytest.mark.parametrize("override", ["grpo.beta=nan", "grpo.temperature=inf", "grpo.learning_rate=1e400"])
def test_no_override_may_be_infinite_or_none_at_all(override: str) -> None:
    assert "expected a finite number" in message(GRPO, [override])


def test_not_a_number_in_a_recipe_is_found_too(tmp_path: Path) -> None:
    said = message(a_recipe(tmp_path, HEAD + "grpo:\n  beta: .nan\n  temperature: -.inf\n"))
    assert "grpo.beta: got nan, expected a finite number" in said
    assert "grpo.temperature: got -inf, expected a finite number" in said


def test_an_unquoted_country_code_that_yaml_reads_as_a_boolean_is_explained(tmp_path: Path) -> None:
    said = message(a_recipe(tmp_path, HEAD + "data:\n  languages: [NO]\n"))
    assert "data.languages.0: got the boolean false" in said
    assert "NO" in said
    assert "quotes" in said
    assert load_recipe(a_recipe(tmp_path, HEAD + 'data:\n  languages: ["NO"]\n')).data.languages == ["NO"]


@pytest.mark.parametrize(
    "name",
    ["../elsewhere", "a/b", "/elsewhere/x", "..", ".", "", ".hidden", "a\\b", "a\n", "a b", "~", "x" * 101, "日本", 7],
)
def test_a_run_name_that_leaves_its_folder_or_is_no_plain_name_is_an_error(fault: Fault, name: Any) -> None:
    assert f"run.name: got {name!r}" in fault(run__name=name)


@pytest.mark.parametrize("name", ["a", "run-1", "v1.2_final", "2025-01-01", "x" * 100, "7"])
def test_a_plain_run_name_is_taken(whole: dict[str, Any], name: str) -> None:
    assert validate(whole | {"run": whole["run"] | {"name": name}}).run.name == name


def test_a_missing_value_is_named() -> None:
    assert "data.path" in message(GRPO, ["data=jsonl"])


def test_a_missing_key_is_named(whole: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"data: missing[\s\S]*eval: missing"):
        validate({key: value for key, value in whole.items() if key not in ("data", "eval")})


# --- several at once ---


def test_several_faults_are_told_in_one_message(fault: Fault) -> None:
    said = fault(seed=-1, run__name="../x", data__pathh="y", grpo__beta=float("nan"), eval__batch_size="many")
    lines = [line for line in said.splitlines() if line.startswith("  - ")]
    assert len(lines) == 5
    for place in ("seed", "run.name", "data.pathh", "grpo.beta", "eval.batch_size"):
        assert sum(line.startswith(f"  - {place}: ") for line in lines) == 1


def test_one_fault_is_told_once(fault: Fault) -> None:
    assert fault(seed=float("nan")).count("  - seed: ") == 1


def test_faults_of_our_keys_and_of_trls_are_told_in_one_message(fault: Fault) -> None:
    said = fault(seed=-1, grpo__num_generation=4, sft__learning_rat=0.1)
    for found in ("seed: got -1", "num_generations", "learning_rate"):
        assert found in said


@pytest.mark.parametrize("data", ["quickstart_cards", "culture_cards", "blend", "jsonl"])
def test_the_quick_start_asks_for_what_a_judge_from_nothing_can_learn_whatever_the_data(data: str) -> None:
    choice = [f"data={data}", *([] if data.endswith("_cards") else ["data.path=somewhere"])]
    chosen = load_recipe(QUICKSTART, choice).data
    assert (chosen.split, chosen.languages, chosen.max_groups) == ("pairing", ["en"], 16)
    assert load_recipe(GRPO, choice).data.max_groups is None


# --- faults of several keys together ---


@pytest.mark.parametrize(
    ("changes", "got"), [({"model__path": "some/model"}, "both"), ({"model__scratch": None}, "neither")]
)
def test_a_model_is_either_loaded_or_made(fault: Fault, changes: dict[str, Any], got: str) -> None:
    assert f"model: got {got} of model.path and model.scratch, expected one of them" in fault(**changes)


def test_a_model_made_from_nothing_must_be_taught(fault: Fault) -> None:
    assert "sft: a model made from scratch needs a cold start (trainer=cold_start_grpo)" in fault(sft=None)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("sft.max_steps=10", "sft: this recipe has no cold start (sft is null): choose trainer=cold_start_grpo"),
        ("model.scratch.hidden_size=64", "model.scratch: null here (the model is loaded): choose model=quickstart"),
    ],
)
def test_a_key_of_what_the_recipe_does_without_says_how_to_have_it(override: str, said: str) -> None:
    whole = message(GRPO, [override])
    assert said in whole
    assert whole.count("\n") == 1


def test_shares_of_a_bias_cannot_sum_to_more_than_one(fault: Fault) -> None:
    assert "biased_right" in fault(sft__biased_wrong=0.6, sft__biased_right=0.6)


@pytest.mark.parametrize(
    ("weights", "components"),
    [
        ("correctness_structure", ["correctness", "structure"]),
        ("paper", ["correctness", "criteria_gain"]),
        ("rm_r1", ["correctness"]),
        ("j1", ["correctness", "consistency"]),
        ("full", ["correctness", "criteria_gain", "structure", "rubric_quality", "consistency", "length"]),
    ],
)
def test_each_choice_of_rewards_weighs_its_components(weights: str, components: list[str]) -> None:
    reward = load_recipe(GRPO, [f"reward={weights}"]).reward
    assert list(reward.weighted()) == components
    assert reward.both_orders == ("consistency" in components)


def test_the_flagship_is_paid_as_in_the_paper_and_the_quick_start_for_structure() -> None:
    assert load_recipe(GRPO).reward.weights == {"correctness": 1.0, "criteria_gain": 0.5}
    assert load_recipe(QUICKSTART).reward.weights == {"correctness": 1.0, "structure": 0.2}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"reward__weights": {"correctness": 0.0, "structure": 0.0}},
            "reward.weights: all are 0 (correctness, structure)",
        ),
        ({"reward__weights": {"correctness": -1.0}}, "reward.weights.correctness: got -1.0"),
        ({"reward__weights": {}}, "reward.weights: got {}"),
        ({"reward__criteria_gain__clip": [1.0, -1.0]}, "reward.criteria_gain.clip: got [1.0, -1.0]"),
        ({"reward__criteria_gain__clip": [1.0]}, "reward.criteria_gain.clip: got [1.0]"),
        ({"reward__criteria_gain__scorer": "judge"}, "expected 'policy' or 'reference'"),
        ({"reward__max_fault_share": 1.0}, "reward.max_fault_share: got 1.0, expected less than 1"),
        ({"reward__timeout_s": 0.0}, "reward.timeout_s: got 0.0"),
        ({"reward__timeout_s": float("inf")}, "reward.timeout_s: got inf, expected a finite number"),
        ({"reward__fault_window": 0}, "reward.fault_window: got 0"),
        ({"reward__length__cache": 0}, "reward.length.cache: got 0"),
        (
            {"reward__weights": {"length": 1.0}, "reward__length__cache": 73},
            "reward.length.cache: got 73, expected at most grpo.max_completion_length (72)",
        ),
        ({"reward__weights": {"consistency": 0.1}}, "set reward.both_orders=true"),
        (
            {"reward__weights": {"criteria_gain": 0.5}, "reward__criteria_gain__scorer": "reference"},
            "reward.criteria_gain.scorer: no reference model with grpo.beta=0",
        ),
        (
            {"reward__both_orders": True, "grpo__num_generations": 7},
            "grpo.num_generations: got 7, expected an even number with reward.both_orders=true",
        ),
    ],
)
def test_rewards_that_cannot_work_are_named(fault: Fault, changes: dict[str, Any], said: str) -> None:
    assert said in fault(**changes)


def test_a_component_of_weight_zero_needs_nothing(whole: dict[str, Any]) -> None:
    weights = {"correctness": 1.0, "consistency": 0.0, "length": 0.0}
    there = validate(whole | {"reward": whole["reward"] | {"weights": weights}})
    assert there.reward.weighted() == {"correctness": 1.0}


# --- TRL's own fields ---


def test_an_unknown_field_of_trl_is_an_error_that_suggests_the_nearest(fault: Fault) -> None:
    said = fault(grpo__num_generation=4)
    assert "grpo.num_generation: no such field of TRL's GRPOConfig; did you mean 'num_generations'?" in said


def test_sft_fields_are_those_of_sft(fault: Fault) -> None:
    said = fault(sft__num_generations=4, grpo__packing=True)
    assert "sft.num_generations: no such field of TRL's SFTConfig" in said
    assert "grpo.packing: no such field of TRL's GRPOConfig" in said


@pytest.mark.parametrize(
    ("field", "value"),
    [("top_p", "high"), ("max_grad_norm", True), ("steps_per_generation", 1.5), ("mask_truncated_completions", "no")],
)
def test_a_field_of_trl_has_trls_type(fault: Fault, field: str, value: Any) -> None:
    assert f"grpo.{field}: got {value!r}, expected" in fault(**{f"grpo__{field}": value})


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("push_to_hub", True, "drop it: TRL would upload its whole folder"),
        ("log_completions_hub_repo", "me/mine", "drop it: TRL would upload its whole folder"),
        ("trust_remote_code", True, "drop it: code that comes with a model is not run"),
        ("enable_jit_checkpoint", True, "drop it: SIGTERM saves and stops as it is"),
        ("vllm_mode", "server", "set rollout instead"),
        ("vllm_gpu_memory_utilization", 0.9, "set rollout.gpu_memory_utilization instead"),
        ("vllm_server_base_url", "http://there:8000", "set rollout.url instead"),
        ("resume_from_checkpoint", "runs/other/checkpoints/step-3", "set run.resume instead"),
        ("eval_strategy", "steps", "set eval.* instead"),
        ("remove_unused_columns", True, "set data.* (the rewards need its columns) instead"),
    ],
)
def test_a_field_of_trl_that_would_do_nothing_or_harm_is_refused(
    fault: Fault, field: str, value: Any, said: str
) -> None:
    assert f"grpo.{field}: {said}" in fault(**{f"grpo__{field}": value})


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("loss_type", "gspo", "expected 'grpo', 'bnpo', 'dr_grpo', 'dapo', 'luspo', 'cispo', 'sapo' or 'vespo'"),
        ("importance_sampling_level", "word", "expected token or sequence"),
        ("scale_rewards", "max", "expected group or batch or none"),
        ("multi_objective_aggregation", "sum", "expected sum_then_normalize or normalize_then_sum"),
        ("vllm_importance_sampling_mode", "mask", "expected token_truncate or token_mask or"),
        ("num_iterations", 0, "expected at least 1"),
        ("steps_per_generation", 0, "expected at least 1"),
        ("epsilon", -0.1, "expected at least 0"),
        ("max_steps", 0, "expected at least 1, or -1 for as many as grpo.num_train_epochs takes"),
    ],
)
def test_a_value_that_trl_would_trip_over_late_or_not_at_all(fault: Fault, field: str, value: Any, said: str) -> None:
    assert f"grpo.{field}: got {value!r}, {said}" in fault(**{f"grpo__{field}": value})


def test_a_cold_start_has_steps_and_cuts_no_demonstration(fault: Fault) -> None:
    said = fault(sft__max_steps=-1, sft__max_length=512)
    assert "sft.max_steps: got -1, expected greater than 0" in said
    assert "sft.max_length: set data (no demonstration is cut) instead" in said


def test_a_field_of_trl_that_conf_does_not_name_can_be_set() -> None:
    loaded = load_recipe(GRPO, ["grpo.top_p=0.9", "grpo.epsilon=0.1", "grpo.scale_rewards=batch"])
    assert loaded.grpo.model_extra == {"top_p": 0.9, "epsilon": 0.1, "scale_rewards": "batch"}


# --- what is no recipe or no override ---


def test_no_value_is_taken_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", PLANTED["HF_TOKEN"])
    for value in ("${oc.env:HF_TOKEN}", "'x/${oc.decode:${oc.env:HF_TOKEN}}'", "${ oc.env:NO_SUCH_VARIABLE,x}"):
        said = message(GRPO, [f"data.path={value}"])
        assert "data.path: a value from the environment" in said
        assert PLANTED["HF_TOKEN"] not in said
    recipe = a_recipe(tmp_path, HEAD + "model:\n  chat_template_kwargs: {key: '${oc.env:HF_TOKEN}'}\n")
    assert "mine.yaml: line 6: a value from the environment" in message(recipe)
    said = message(a_recipe(tmp_path, HEAD.replace("qwen2_5_7b", "${oc.env:HF_TOKEN}")))
    assert "line 3: a value from the environment" in said
    assert PLANTED["HF_TOKEN"] not in said
    assert load_recipe(a_recipe(tmp_path, HEAD + "# not ${oc.env:HF_TOKEN}\n")).seed == 0
    assert load_recipe(GRPO, ["data=jsonl", "data.path=${recipe}/x"]).data.path == "tal_grpo/x"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("seed=1,2", "several values, as only a sweep has them (tal run -m); a list is seed=[...]"),
        ("model=qwen3_8b,qwen2_5_7b", "several values"),
        ("seed=range(1,3)", "several values"),
        ("hydra.run.dir=x", "hydra.run.dir=x: for a sweep only"),
        ("++hydra/launcher=joblib", "for a sweep only"),
        ("sweep.seed=3", "for a sweep only"),
        ("recipe=../x", "recipe is the name of the recipe's file; run.name"),
        ("data.path=grüße", "override data.path: cannot be read"),
        ("data.path=a=b", "'data.path=\"...\"'"),
        ("=3", "override '=3': expected key=value"),
        ("scpo.filter_threshold=0.5", "scpo.* is of a recipe that steers a reward model"),
        ("rms.x=constant", "rms.* is of a recipe that measures reward models"),
        ("reward.own.Mine=a.b:c", "reward.own.Mine: got the name 'Mine', expected lower-case letters"),
    ],
)
def test_what_an_override_cannot_be_is_said_with_what_it_can(override: str, said: str) -> None:
    assert said in message(GRPO, [override])


@pytest.mark.parametrize("override", ["seed", "", "a b=3", "=3", "seed='", "run.name=${nope}", "data.languages=[en"])
def test_an_override_that_cannot_be_read_is_an_error(override: str) -> None:
    assert message(GRPO, [override])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "just text",
        "- a\n- b\n",
        "a: [",
        "seed: 1\nseed: 2\n",
        "seed: 3\n",
        HEAD + "seed: ${nope}\n",
        HEAD + "\tseed: 3\n",
        HEAD + "null: 3\n",
        HEAD + f"seed: {'9' * 5000}\n",
        HEAD + f"seed: {'[' * 3000}\n",
    ],
    ids=[
        *("empty", "a text", "a list", "cut off", "a key twice", "no defaults", "a broken reference", "a tab"),
        *("a key of null", "a long number", "a deep list"),
    ],
)
def test_a_file_that_is_no_recipe_is_named(tmp_path: Path, text: str) -> None:
    said = message(a_recipe(tmp_path, text))
    assert re.search(r"mine\.yaml[ :]+\S", said)
    assert "a_recipe" not in said


def test_a_recipe_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_bytes(HEAD.encode() + b"# gr\xfc\xdfe\n")
    assert "mine.yaml" in message(tmp_path / "mine.yaml")


def test_a_recipe_called_as_the_defaults_are_does_not_go_round_in_circles(tmp_path: Path) -> None:
    path = a_recipe(tmp_path, HEAD, "config.yaml")
    try:
        assert load_recipe(path).recipe == "config"
    except ConfigError as error:
        assert "config.yaml" in str(error)  # noqa: PT017


# --- an evaluation ---


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["rms.mine=clasifier"], "did you mean 'classifier'"),
        (["rms.mine=judge"], "no default for rms.mine.path"),
        (["rms.mine.kind=jud"], "rms.mine: got .*each added by rms.NAME=KIND: judge, server"),
        (["rms.mine=judge", "rms.mine.path=x", "rms.mine.ordes=3"], "did you mean 'rms.mine.orders'"),
        (["rms.mine=judge", "rms.mine.path=x", "rms.mine.prompt=lstwise"], "did you mean 'listwise'"),
        (["rms.mine=judge", "rms.mine.path=x", "rms.mine.protocol=pairwise", "rms.mine.orders=3"], "at most 2"),
        (["rms.mine=judge", "rms.mine.path=x", "rms.mine.orders=nan"], "rms.mine.orders: got nan"),
        (["rms.mine=judge", "rms.mine.path=x", "rms.mine.protocol=pairwise", "eval.candidates=y"], "needs listwise"),
        (["eval.every_steps=3"], "eval.every_steps: no such key"),
    ],
)
def test_what_does_not_hold_in_an_evaluation_is_said(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(CARB, overrides)


def test_an_evaluation_is_no_training_run() -> None:
    assert "measures reward models and trains no judge" in message(CARB)


def test_an_evaluation_of_nothing_is_refused() -> None:
    values = load_config(CARB).model_dump() | {"rms": {}}
    with pytest.raises(ConfigError, match=r"rms: got \{\}, expected reward models by name"):
        validate_evaluation(values)
