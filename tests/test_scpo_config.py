"""A recipe of SCPO -> an ScpoConfig, or one message that says what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import pytest
import yaml

from think_as_locals.composition import ASSETS, group_options
from think_as_locals.config import load_config, load_recipe, validate_scpo
from think_as_locals.evaluation.steering_report import DIFFERENCES
from think_as_locals.scpo_schema import ScpoConfig, Variant
from think_as_locals.types import ConfigError
from think_as_locals.workspace import open_run

QUICKSTART, PRISM, OPINIONS = (
    ASSETS / "recipes" / f"scpo_{name}.yaml" for name in ("quickstart", "prism", "globalopinionqa")
)
GROUPS = ("data", "model", "mode", "lora")


def loaded(path: Path, overrides: Sequence[str] = ()) -> ScpoConfig:
    found = load_config(path, overrides)
    assert isinstance(found, ScpoConfig)
    return found


def message(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return str(caught.value)


# --- what holds ---


def test_the_recipes_say_what_is_steered_on_what() -> None:
    quick, prism, opinions = map(loaded, (QUICKSTART, PRISM, OPINIONS))
    assert [config.data.source for config in (quick, prism, opinions)] == ["opinion_cards", "prism", "globalopinionqa"]
    assert (quick.model.path, prism.model.path) == (None, "OpenAssistant/reward-model-deberta-v3-base")
    assert [config.scpo.reference for config in (quick, prism, opinions)] == [
        "global_rm",
        "global_rm",
        "other_countries",
    ]
    assert [config.scpo.seeds for config in (quick, prism, opinions)] == [[0, 1, 2]] * 3
    for config in (quick, prism, opinions):
        assert (config.mode.name, config.scpo.filter_threshold, config.scpo.weight_temperature) == (
            "corrected",
            0.7,
            1.1,
        )
        assert set(config.scpo.variants) == set(get_args(Variant))
    for config in (prism, opinions):
        assert set(config.data.countries or ()) == {"CL", "ZA", "NZ", "AU", "MX", "IL", "CA"}
        assert config.data.test_share == 0.15
        scpo = config.scpo
        assert (scpo.learning_rate, scpo.per_device_train_batch_size, scpo.num_train_epochs) == (1e-6, 8, 3)
        assert scpo.max_steps == 1024


@pytest.mark.parametrize("group", GROUPS)
def test_every_option_of_its_groups_loads(group: str) -> None:
    for option in group_options()[group]:
        path = ["data.path=null" if option.endswith("_cards") else "data.path=x"]
        config = loaded(PRISM, [f"{group}={option}", *path, f"global_rm={needs(group, option)}"])
        assert validate_scpo(yaml.safe_load(yaml.safe_dump(config.model_dump()))) == config


def needs(group: str, option: str) -> str:
    """The option of `global_rm` that goes with another one."""
    return "pooled" if group == "model" and "quickstart" in option else "none"


def test_global_rms_are_made_where_there_is_nothing_to_load() -> None:
    assert set(group_options()["global_rm"]) == {"none", "pooled"}
    assert loaded(PRISM, ["global_rm=none"]).global_rm is None
    assert loaded(PRISM, ["model=quickstart_rm", "global_rm=pooled"]).global_rm is not None


def test_each_difference_of_the_released_code_is_a_key_of_its_mode_and_has_a_sentence() -> None:
    corrected, released = (
        loaded(QUICKSTART, [f"mode={name}"]).mode.model_dump() for name in ("corrected", "as_released")
    )
    differing = {(key, value) for key, value in released.items() if corrected[key] != value}
    assert differing - {("name", "as_released")} == set(DIFFERENCES)
    one = loaded(QUICKSTART, ["mode.dropout=true"]).mode.model_dump()
    assert one == corrected | {"dropout": True}


def test_fields_of_trls_reward_config_can_be_set_in_both_sections() -> None:
    config = loaded(QUICKSTART, ["scpo.center_rewards_coefficient=0.01", "global_rm.weight_decay=0.1"])
    assert config.scpo.model_extra == {"center_rewards_coefficient": 0.01}
    assert config.global_rm is not None
    assert config.global_rm.model_extra == {"weight_decay": 0.1}


def test_a_run_is_continued_with_its_own_settings_alone(tmp_path: Path) -> None:
    where = [f"run.dir={tmp_path}", "run.name=run", "run.resume=auto"]
    folder = open_run(loaded(QUICKSTART, where))
    assert yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))["mode"]["name"] == "corrected"
    assert open_run(loaded(QUICKSTART, [*where, "scpo.ddp_timeout=60"])) == folder
    for changed, named in (
        ("mode=as_released", "mode"),
        ("scpo.seeds=[1]", "scpo"),
        ("global_rm.max_steps=9", "global_rm"),
    ):
        with pytest.raises(ConfigError, match=f"started with another {named}"):
            open_run(loaded(QUICKSTART, [*where, changed]))


# --- what does not ---


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["scpo.variants=[scpo,filters]"], "scpo.variants.1: got 'filters', expected 'full', 'filter', 'weight'"),
        (["scpo.variants=[]"], "scpo.variants: got []"),
        (["scpo.seeds=[]"], "scpo.seeds: got []"),
        (["scpo.seeds=[-1]"], "scpo.seeds.0: got -1"),
        (["scpo.pair_counts=[0]"], "scpo.pair_counts.0: got 0"),
        (["scpo.filter_threshold=1.0"], "scpo.filter_threshold: got 1.0, expected less than 1"),
        (["scpo.weight_temperature=0.0"], "scpo.weight_temperature: got 0.0, expected greater than 0"),
        (["scpo.weight_temperature=nan"], "scpo.weight_temperature: got nan, expected a finite number"),
        (["scpo.max_steps=-1"], "scpo.max_steps: got -1, expected greater than 0"),
        (["scpo.max_steps=0"], "scpo.max_steps: got 0, expected greater than 0"),
        (["global_rm.max_steps=-1"], "global_rm.max_steps: got -1, expected greater than 0"),
        (["scpo.reference=others"], "scpo.reference: got 'others', expected 'global_rm' or 'other_countries'"),
        (
            ["scpo.filter_treshold=0.5"],
            "scpo.filter_treshold: no such field of TRL's RewardConfig; did you mean 'filter",
        ),
        (["scpo.beta=0.1"], "scpo.beta: no such field of TRL's RewardConfig"),
        (["global_rm.num_generations=4"], "global_rm.num_generations: no such field of TRL's RewardConfig"),
        (["scpo.center_rewards_coefficient=high"], "scpo.center_rewards_coefficient: got 'high', expected"),
        (["mode.dropuot=true"], "mode.dropuot: no such key; did you mean 'mode.dropout'?"),
        (["mode.ties=none"], "mode.ties: got 'none', expected 'half' or 'wrong'"),
        (["eval.every_steps=3"], "eval.every_steps: no such key"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_what_was_expected(overrides: list[str], said: str) -> None:
    assert said in message(QUICKSTART, *overrides)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["model.path=some/model"], "model: got both of model.path and model.scratch, expected one of them"),
        (["model.scratch=null"], "model: got neither of model.path and model.scratch"),
        (
            ["global_rm=none"],
            "global_rm: a reward model made from nothing needs global_rm=pooled, any other global_rm=none",
        ),
        (["scpo.variants=[scpo,scpo]"], "scpo.variants: got ['scpo', 'scpo'], expected each once"),
        (["scpo.seeds=[1,1]"], "scpo.seeds: got [1, 1], expected each once"),
        (["scpo.pair_counts=[5,5]"], "scpo.pair_counts: got [5, 5], expected each once"),
        (["scpo.variants=[full]", "scpo.keep_models=[scpo]"], "scpo.keep_models: scpo is not among scpo.variants"),
        (["scpo.reference=other_countries"], "scpo.reference: other_countries needs data=globalopinionqa, got opinion"),
        (["data.split=pairing"], "data.split: got pairing, expected group: people are split, not pairings"),
        (["lora=rank16", "lora.lora_dropout=0.1"], "lora.lora_dropout: mode=corrected turns all dropout off"),
    ],
)
def test_faults_of_several_keys_together_are_named(overrides: list[str], said: str) -> None:
    assert said in message(QUICKSTART, *overrides)


def test_dropout_of_lora_may_be_on_where_dropout_is() -> None:
    overrides = ["lora=rank16", "lora.lora_dropout=0.1", "mode=as_released"]
    assert loaded(QUICKSTART, overrides).lora is not None


@pytest.mark.parametrize("section", ["scpo", "global_rm"])
@pytest.mark.parametrize(
    ("setting", "instead"),
    [
        ("report_to=[wandb]", "nothing (many trainings in one process have no tracker: metrics.jsonl and scpo.json"),
        ("output_dir=x", "run.dir and run.name"),
        ("seed=3", "seed and scpo.seeds"),
        ("data_seed=3", "seed and scpo.seeds"),
        ("bf16=true", "model.dtype"),
        ("disable_dropout=true", "mode.dropout"),
        ("save_only_model=true", "save_steps of this section"),
        ("dataloader_drop_last=true", "per_device_train_batch_size of this section (every batch is full"),
        ("pad_to_multiple_of=8", "per_device_train_batch_size of this section"),
        ("train_sampling_strategy=sequential", "per_device_train_batch_size of this section"),
        ("chat_template_path=x", "model (its texts are read as it was made for)"),
        ("pad_token=x", "model ("),
        ("deepspeed=zero.json", "a --config_file of accelerate launch"),
    ],
)
def test_what_other_keys_decide_is_not_set_past_them(section: str, setting: str, instead: str) -> None:
    name = setting.partition("=")[0]
    assert f"  - {section}.{name}: set {instead}" in message(QUICKSTART, f"{section}.{setting}")


@pytest.mark.parametrize(
    ("override", "instead"),
    [
        ("global_rm.max_length=9", "scpo.max_length"),
        ("global_rm.num_train_epochs=3.0", "max_steps of this section"),
        ("global_rm.ddp_timeout=9", "scpo.ddp_timeout"),
    ],
)
def test_the_global_rm_shares_what_there_is_one_of(override: str, instead: str) -> None:
    assert f"{override.partition('=')[0]}: set {instead} instead" in message(QUICKSTART, override)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("global_rm.learning_rate=0.1", "this recipe loads its global RM (global_rm is null): choose global_rm=pooled"),
        ("lora.r=4", "this run trains all weights (lora is null): choose lora=rank16"),
    ],
)
def test_a_key_of_what_the_recipe_does_without_says_how_to_have_it(override: str, said: str) -> None:
    assert said in message(PRISM, override)


def test_several_faults_are_told_in_one_message() -> None:
    said = message(QUICKSTART, "scpo.max_steps=0", "scpo.report_to=[wandb]", "mode.ties=none", "seed=-1")
    assert sum(line.startswith("  - ") for line in said.splitlines()) == 4


def test_steering_is_no_training_of_a_judge() -> None:
    with pytest.raises(ConfigError, match="scpo_quickstart steers a reward model and trains no judge: `tal run` takes"):
        load_recipe(QUICKSTART)
