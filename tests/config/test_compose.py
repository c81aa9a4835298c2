"""Composition of a recipe, conf/ and overrides by Hydra, and the errors for what cannot be composed."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
import yaml
from config.messages import GRPO, HEAD, QUICKSTART, a_recipe, message
from conftest import PLANTED, cpu_seconds
from omegaconf import OmegaConf

from think_as_locals.config import compose as composition
from think_as_locals.config.checks import load_recipe
from think_as_locals.config.compose import ASSETS, group_options
from think_as_locals.types import ConfigError


def test_overrides_are_set_and_the_last_one_wins() -> None:
    loaded = load_recipe(GRPO, ["seed=1", "grpo.beta=0.5", "data.languages=[en,de]", "seed=7", "run.name=mine"])
    assert (loaded.seed, loaded.grpo.beta, loaded.data.languages, loaded.run.name) == (7, 0.5, ["en", "de"], "mine")


@pytest.mark.parametrize(
    "overrides",
    [
        [
            "seed=1",
            "grpo.beta=0.5",
            "seed=7",
            "run.name='a, b'",
            "data.languages=[en,de]",
            "grpo.unknown={a: 1, b: [x]}",
        ],
        ["reward.weights={correctness: 2}", "rollout=vllm", "run.name=${recipe}-x", "sft=null", "grpo.report_to=wandb"],
        ["data=mix", "data.mix.a=jsonl", "data.mix.a.path=x.jsonl", "eval.sets.b=rows", "eval.sets.b.data.path=y.csv"],
        ["~sft", "grpo.beta=1", "+grpo.new=2", "grpo.new=3"],
    ],
)
def test_overrides_give_the_same_values_as_hydra(overrides: list[str]) -> None:
    text = QUICKSTART.read_text(encoding="utf-8")
    groups = group_options()
    given = [override for word in overrides for override in composition._as_overrides(word, groups)]
    expected = OmegaConf.to_container(composition._compose_with_hydra.__wrapped__(ASSETS, "quickstart", text, given))
    for _ in range(2):
        assert OmegaConf.to_container(composition._composed("quickstart", text, given, groups)) == expected


@pytest.mark.parametrize(
    ("recipe", "removed", "message"),
    [
        ("downstream", "rms.debert", "rms has no debert; did you mean 'deberta'\\?; available: constant, deberta"),
        ("quickstart", "rms.deberta", "rms has no deberta, as it has no keys"),
        ("quickstart", "evl", "the recipe has no evl; did you mean 'eval'\\?; available: recipe, seed, .*, eval"),
    ],
)
def test_removing_a_key_that_the_recipe_lacks_lists_those_it_has(recipe: str, removed: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"{recipe}.yaml: ~{removed}: {message}"):
        load_recipe(recipe, ["seed=1", f"~{removed}"])


def test_removing_a_key_beside_another_wrong_override_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="~evl: the recipe has no evl"):
        load_recipe(QUICKSTART, ["~evl", "+seed=3"])


def test_key_that_stands_twice_is_named_with_the_recipe_and_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mine\.yaml: .*in the recipe, line \d+.* duplicate key seed"):
        load_recipe(a_recipe(tmp_path, f"{HEAD}seed: 1\nseed: 2\n"))


def test_recipe_overrides_the_defaults_in_conf() -> None:
    conf = yaml.safe_load((ASSETS / "conf/trainer/shared/grpo.yaml").read_text(encoding="utf-8"))
    loaded, quickstart = load_recipe(GRPO), load_recipe(QUICKSTART)
    assert loaded.model.path == "Qwen/Qwen2.5-7B-Instruct"
    assert loaded.grpo.num_generations == conf["num_generations"]
    assert (loaded.sft is None, quickstart.sft is None) == (True, False)
    assert loaded.run.name != load_recipe(GRPO).run.name  # two runs of a recipe have two names
    assert QUICKSTART.read_text(encoding="utf-8").startswith("if __name__")
    assert "recipe" in quickstart.model_dump()  # the line that launches a recipe is no key of it


def test_recipe_outside_the_checkout_loads(tmp_path: Path) -> None:
    loaded = load_recipe(a_recipe(tmp_path, HEAD + "seed: 11\ngrpo:\n  learning_rate: 2e-6\n"))
    assert (loaded.recipe, loaded.seed, loaded.grpo.learning_rate) == ("mine", 11, 2e-6)


def test_recipe_path_is_found_from_any_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_recipe("recipes/quickstart.yaml").recipe == "quickstart"


@pytest.mark.parametrize("name", ["7", "true", "1e3", "null"])
def test_recipe_name_that_yaml_would_parse_stays_a_string(tmp_path: Path, name: str) -> None:
    assert load_recipe(a_recipe(tmp_path, HEAD, f"{name}.yaml"), ["run.name=x"]).recipe == name


@pytest.mark.parametrize("name", ["with space", "Größe", "a(1)", "it's"])
def test_checkout_path_may_contain_special_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for part in ("conf", "recipes"):
        shutil.copytree(ASSETS / part, tmp_path / name / part)
    monkeypatch.setattr(composition, "ASSETS", tmp_path / name)
    assert load_recipe(tmp_path / name / "recipes" / "quickstart.yaml").recipe == "quickstart"


@pytest.mark.parametrize(
    ("file", "name"), [("my judge é.yaml", "my-judge"), ("日本.yaml", "recipe"), (f"{'x' * 200}.yaml", "x" * 60)]
)
def test_runs_of_a_recipe_have_a_valid_name_whatever_its_file_is_called(tmp_path: Path, file: str, name: str) -> None:
    (tmp_path / file).write_text("defaults: [/recipes/quickstart, _self_]\n")
    config = load_recipe(tmp_path / file)
    assert (config.recipe, config.run.name.startswith(f"{name}-2")) == (name, True)


def test_files_next_to_a_recipe_do_not_shadow_conf(tmp_path: Path) -> None:
    # A run's own folder holds a config.yaml; a project of one's own may hold folders called data or model.
    a_recipe(tmp_path, "seed: 99\n", "config.yaml")
    (tmp_path / "model").mkdir()
    a_recipe(tmp_path / "model", "path: somebody/else\n", "qwen2_5_7b.yaml")
    loaded = load_recipe(a_recipe(tmp_path, HEAD))
    assert (loaded.seed, loaded.model.path) == (0, "Qwen/Qwen2.5-7B-Instruct")


def test_unknown_option_in_a_recipe_error_lists_the_known_ones(tmp_path: Path) -> None:
    found = message(a_recipe(tmp_path, HEAD.replace("qwen2_5_7b", "qwen3_8")))
    assert all(option in found for option in ["qwen3_8", *group_options()["model"]])


def test_unknown_recipe_error_suggests_the_nearest_or_lists_all(tmp_path: Path) -> None:
    found = message("recipes/quikstart.yaml")
    assert "recipes/quikstart.yaml: no such file; did you mean 'quickstart'?" in found
    unlike = message("nofile.yaml")
    assert ("did you mean" in unlike, "tal_grpo" in unlike) == (False, True)
    assert "no such file" in message(tmp_path / "quickstart.yaml")  # it is not taken from elsewhere


def test_recipe_inherits_from_a_packaged_recipe(tmp_path: Path) -> None:
    child = "defaults:\n  - /recipes/quickstart\n  - override /data: jsonl\n  - _self_\n\ngrpo: {max_steps: 7}\n"
    values = a_recipe(tmp_path, child + "data: {path: mine.jsonl}\n")
    loaded, parent = load_recipe(values), load_recipe("quickstart")
    assert (loaded.recipe, loaded.data.source, loaded.data.path) == ("mine", "jsonl", "mine.jsonl")
    assert (loaded.grpo.max_steps, parent.grpo.max_steps) == (7, 30)
    assert (loaded.sft, loaded.prompt, loaded.rollout, loaded.eval) == (
        *(parent.sft, parent.prompt, parent.rollout),
        parent.eval,
    )
    assert load_recipe(values, ["prompt=listwise", "grpo.max_steps=9"]).grpo.max_steps == 9
    assert load_recipe("quickstart", ["run.name=x"]) == load_recipe(QUICKSTART, ["run.name=x"])


@pytest.mark.parametrize(("parent", "near"), [("/recipes/quikstart", "did you mean 'quickstart'?"), ("mine", "")])
def test_unknown_parent_recipe_error_lists_the_available_ones(tmp_path: Path, parent: str, near: str) -> None:
    found = message(a_recipe(tmp_path, f"defaults:\n  - {parent}\n  - _self_\n"))
    assert near in found
    assert "(/recipes/NAME: ablations, ablations_quickstart, carb, " in found


FORBIDDEN_INTERPOLATIONS = [
    "${oc.env:HF_TOKEN}",
    "x/${oc.decode:${oc.env:HF_TOKEN}}",
    "${ oc.env:NO_SUCH_VARIABLE,x}",
    "${oc.${recipe}:HF_TOKEN}",
    "${oc.create:{a: '${oc.env:HF_TOKEN}'}}",
    "${oc.dict.values:model}",
    "${hydra:runtime.cwd}",
]


@pytest.mark.parametrize("value", FORBIDDEN_INTERPOLATIONS)
def test_interpolations_cannot_read_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", PLANTED["HF_TOKEN"])
    inherited = "defaults:\n  - /recipes/quickstart\n  - _self_\n"
    keys = f'model:\n  chat_template_kwargs: {{key: "{value}"}}\n'
    found = [
        message(a_recipe(tmp_path, HEAD + keys, "env.yaml")),
        message(a_recipe(tmp_path, inherited + keys, "env.yaml")),
        message(a_recipe(tmp_path, HEAD, "env.yaml"), f'data.path="{value}"'),
    ]
    for text in found:
        assert "may refer to other keys (${run.name})" in text
        assert "KEY=$NAME sets a key" in text  # not cut off
        assert PLANTED["HF_TOKEN"] not in text
    in_defaults = message(a_recipe(tmp_path, HEAD.replace("qwen2_5_7b", f'"{value}"'), "env.yaml"))
    assert PLANTED["HF_TOKEN"] not in in_defaults


def test_interpolations_can_use_other_keys_and_the_time(tmp_path: Path) -> None:
    assert load_recipe(a_recipe(tmp_path, HEAD + "# not ${oc.env:HF_TOKEN}\n")).seed == 0
    assert load_recipe(GRPO, ["data=jsonl", "data.path=${recipe}/x"]).data.path == "tal_grpo/x"
    assert re.fullmatch(r"tal_grpo-\d{8}-\d{6}-\d{6}", load_recipe(GRPO).run.name)
    assert OmegaConf.create({"home": "${oc.env:HOME}"}).home == os.environ["HOME"]  # elsewhere it works as before


def test_exponential_or_recursive_yaml_aliases_are_rejected_quickly(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    long = f"a: &a {'x' * 100_000}\nb: [{'*a, ' * 9_000}]"
    for bad in ("\n".join(lines), "a: &a [*a]", "a: &a {b: *a}", long):
        seconds = cpu_seconds(lambda bad=bad: message(a_recipe(tmp_path, f"{HEAD}{bad}\n")), 5)
        assert "more than 20,000 values" in message(a_recipe(tmp_path, f"{HEAD}{bad}\n"))
        assert seconds < 5
    assert load_recipe(a_recipe(tmp_path, HEAD + "grpo: &g {max_steps: 7}\n")).grpo.max_steps == 7


@pytest.mark.parametrize(
    "values",
    [
        ["x" * 90, *(f"${{a{i - 1}}}${{a{i - 1}}}" for i in range(1, 40))],
        [["x"] * 10, *([f"${{a{i - 1}}}"] * 4 for i in range(1, 14))],
        [["x"] * 300, ["${a0}"] * 10],
        ["x" * 10_000, "${a0}" * 30],
    ],
    ids=["texts", "lists", "a long list", "a long text"],
)
def test_exponential_interpolations_are_rejected(tmp_path: Path, values: list[object]) -> None:
    recipe = a_recipe(tmp_path, HEAD + yaml.safe_dump({f"a{i}": value for i, value in enumerate(values)}))
    assert "expand to more than 2,000 values" in message(recipe)


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "hydra:\n  callbacks: {x: {_target_: os.system, command: 'true'}}\n",
        HEAD.replace("  - _self_", "  - override hydra/launcher: joblib\n  - _self_"),
        "# @package hydra\n" + HEAD,
    ],
)
def test_hydra_keys_in_a_recipe_are_rejected(tmp_path: Path, text: str) -> None:
    assert "Hydra's own keys (hydra, hydra/..., @package) have no effect" in message(a_recipe(tmp_path, text))


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("model=qwen3_8", "did you mean 'qwen3_8b'?"),
        ("trainer=grop", "did you mean 'grpo'?"),
        ("data=nothing", f"available: {', '.join(group_options()['data'])}"),
        ("eval=", "available: carb"),
        ("seed=1,2", "several values are only for sweeps (tal run -m); a list is seed=[...]"),
        ("model=qwen3_8b,qwen2_5_7b", "several values"),
        ("seed=range(1,3)", "several values"),
        ("hydra.run.dir=x", "hydra.run.dir=x: only for sweeps"),
        ("++hydra/launcher=joblib", "only for sweeps"),
        ("+hydra={searchpath: [x]}", "only for sweeps"),
        ("sweep.seed=3", "only for sweeps"),
        ("recipe=../x", "recipe is the name of the recipe's file; use run.name"),
        ("data.path=grüße", "override data.path: cannot be read"),
        ("data.path=a=b", "'data.path=\"...\"'"),
        ("=3", "override '=3': expected key=value"),
        ("scpo.filter_threshold=0.5", "scpo.* belongs to a recipe that steers a reward model"),
        ("rms.x=constant", "rms.* belongs to a recipe that evaluates reward models"),
        ("reward.own.Mine=a.b:c", "reward.own.Mine: got the name 'Mine', expected lower-case letters"),
        ("data=jsonl", "no default for data.path"),
        ("data=nothing", "data=nothing: no such option"),
        ("data.pathh=x", "data.pathh: no such key; did you mean 'data.path'?"),
    ],
)
def test_invalid_override_is_rejected_with_a_remedy(override: str, expected: str) -> None:
    assert expected in message(GRPO, override)


UNREADABLE = ["seed", "", "a b=3", "seed='", "run.name=${nope}", "data.languages=[en", f"seed={'9' * 5000}"]


@pytest.mark.parametrize("override", [*UNREADABLE, f"seed={'[' * 2000}"], ids=lambda text: text[:20])
def test_unparsable_override_is_rejected(override: str) -> None:
    assert message(GRPO, override)


INVALID_RECIPES = {
    "empty": "",
    "a text": "just text",
    "a list": "- a\n- b\n",
    "cut off": "a: [",
    "a key twice": "seed: 1\nseed: 2\n",
    "no defaults": "seed: 3\n",
    "a broken reference": HEAD + "seed: ${nope}\n",
    "a tab": HEAD + "\tseed: 3\n",
    "a key of null": HEAD + "null: 3\n",
    "a long number": HEAD + f"seed: {'9' * 5000}\n",
    "a deep list": HEAD + f"seed: {'[' * 1200}\n",
    "not UTF-8": HEAD + "# gr\udcfc\udcdfe\n",
}


@pytest.mark.parametrize("text", INVALID_RECIPES.values(), ids=INVALID_RECIPES)
def test_invalid_recipe_file_error_names_the_file(tmp_path: Path, text: str) -> None:
    (recipe := tmp_path / "mine.yaml").write_bytes(text.encode(errors="surrogateescape"))
    found = message(recipe)
    assert re.search(r"mine\.yaml[ :]+\S", found)
    assert "a_recipe" not in found


def test_csv_file_is_rejected_as_a_recipe(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("prompt,chosen,rejected\n?,!,.\n")
    assert "rows.csv: not a recipe, expected YAML whose `defaults` begin with" in message(tmp_path / "rows.csv")


def test_recipe_named_config_does_not_recurse(tmp_path: Path) -> None:
    path = a_recipe(tmp_path, HEAD, "config.yaml")
    try:
        assert load_recipe(path).recipe == "config"
    except ConfigError as error:
        assert "config.yaml" in str(error)  # noqa: PT017
