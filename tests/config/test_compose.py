"""Composition of a recipe, conf/ and overrides by Hydra, and the errors for what cannot be composed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml
from config.test_checks import GRPO, HEAD, QUICKSTART, a_recipe, message
from conftest import PLANTED

from think_as_locals.config import compose as composition
from think_as_locals.config.checks import load_recipe
from think_as_locals.config.compose import ASSETS, group_options


def test_overrides_go_before_the_recipe_and_the_recipe_before_conf() -> None:
    loaded = load_recipe(GRPO, ["seed=1", "grpo.beta=0.5", "data.languages=[en,de]", "seed=7", "run.name=mine"])
    assert (loaded.seed, loaded.grpo.beta, loaded.data.languages, loaded.run.name) == (7, 0.5, ["en", "de"], "mine")
    conf = yaml.safe_load((ASSETS / "conf/trainer/shared/grpo.yaml").read_text(encoding="utf-8"))
    loaded, quickstart = load_recipe(GRPO), load_recipe(QUICKSTART)
    assert loaded.model.path == "Qwen/Qwen2.5-7B-Instruct"
    assert loaded.grpo.num_generations == conf["num_generations"]
    assert (loaded.sft is None, quickstart.sft is None) == (True, False)
    assert loaded.run.name != load_recipe(GRPO).run.name  # two runs of a recipe have two names
    assert "recipe" in quickstart.model_dump()  # the line that launches a recipe is no key of it


def test_checkout_path_may_contain_special_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = tmp_path / "with space" / "Größe" / "a(1)" / "it's"
    for part in ("conf", "recipes"):
        shutil.copytree(ASSETS / part, checkout / part)
    monkeypatch.setattr(composition, "ASSETS", checkout)
    assert load_recipe(checkout / "recipes" / "quickstart.yaml").recipe == "quickstart"


def test_files_next_to_a_recipe_or_in_the_working_folder_do_not_shadow_conf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A run's own folder holds a config.yaml; a project of one's own may hold folders called data or model.
    monkeypatch.chdir(tmp_path)
    a_recipe(tmp_path, "seed: 99\n", "config.yaml")
    (tmp_path / "model").mkdir()
    a_recipe(tmp_path / "model", "path: somebody/else\n", "qwen2_5_7b.yaml")
    loaded = load_recipe(a_recipe(tmp_path, HEAD))
    assert (loaded.seed, loaded.model.path) == (0, "Qwen/Qwen2.5-7B-Instruct")
    assert load_recipe("recipes/quickstart.yaml").recipe == "quickstart"


def test_unknown_option_or_recipe_error_names_the_known_ones(tmp_path: Path) -> None:
    found = message(a_recipe(tmp_path, HEAD.replace("qwen2_5_7b", "qwen3_8")))
    assert all(option in found for option in ["qwen3_8", *group_options()["model"]])
    found = message("recipes/quikstart.yaml")
    assert "recipes/quikstart.yaml: no such file; did you mean 'quickstart'?" in found
    unlike = message("nofile.yaml")
    assert ("did you mean" in unlike, "tal_grpo" in unlike) == (False, True)
    assert "no such file" in message(tmp_path / "quickstart.yaml")  # it is not taken from elsewhere
    (tmp_path / "judge.yaml").touch()
    assert "judge.yml: no such file; did you mean 'judge.yaml'?" in message(tmp_path / "judge.yml")


def test_recipe_inherits_from_a_packaged_recipe(tmp_path: Path) -> None:
    child = "defaults:\n  - /recipes/quickstart\n  - override /data: jsonl\n  - _self_\n\ngrpo: {max_steps: 7}\n"
    values = a_recipe(tmp_path, child + "data: {path: mine.jsonl}\n")
    loaded, parent = load_recipe(values), load_recipe("quickstart")
    assert (loaded.recipe, loaded.data.source, loaded.data.path) == ("mine", "jsonl", "mine.jsonl")
    assert (loaded.grpo.max_steps, parent.grpo.max_steps) == (7, 30)
    for section in ("sft", "prompt", "rollout", "eval"):
        assert getattr(loaded, section) == getattr(parent, section)
    assert load_recipe(values, ["prompt=listwise", "grpo.max_steps=9"]).grpo.max_steps == 9
    assert load_recipe("quickstart", ["run.name=x"]) == load_recipe(QUICKSTART, ["run.name=x"])


def test_interpolations_use_other_keys_and_the_time_but_not_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", PLANTED["HF_TOKEN"])
    assert load_recipe(GRPO, ["data=jsonl", "data.path=${recipe}/x"]).data.path == "tal_grpo/x"
    assert re.fullmatch(r"tal_grpo-\d{8}-\d{6}-\d{6}", load_recipe(GRPO).run.name)
    found = message(a_recipe(tmp_path, HEAD + "run: {dir: '${oc.env:HF_TOKEN}'}\n"))
    assert "oc.env" in found
    assert PLANTED["HF_TOKEN"] not in found


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("model=qwen3_8", "did you mean 'qwen3_8b'?"),
        ("data=nothing", f"data=nothing: no such option; available: {', '.join(group_options()['data'])}"),
        ("seed=1,2", "several values are only for sweeps (tal run -m); a list is seed=[...]"),
        ("hydra.run.dir=x", "hydra.run.dir=x: only for sweeps"),
        ("sweep=joblib", "sweep=joblib: only for sweeps (tal run -m)"),
        ("data.path=grüße", "override data.path: cannot be read"),
        ("=3", "override '=3': expected key=value"),
        *((text, "") for text in ("seed", "", "a b=3", "seed='", "run.name=${nope}", "data.languages=[en")),
    ],
    ids=lambda text: text[:20],
)
def test_invalid_override_is_rejected_with_a_remedy(override: str, expected: str) -> None:
    assert expected in message(GRPO, override)


INVALID_RECIPES = {
    "empty": "",
    "a list": "- a\n- b\n",
    "cut off": "a: [",
    "no defaults": "seed: 3\n",
    "a broken reference": HEAD + "seed: ${nope}\n",
    "a tab": HEAD + "\tseed: 3\n",
    "a key twice": HEAD + "seed: 1\nseed: 2\n",
    "not UTF-8": HEAD + "# gr\udcfc\udcdfe\n",
}


@pytest.mark.parametrize("text", INVALID_RECIPES.values(), ids=INVALID_RECIPES)
def test_invalid_recipe_file_error_names_the_file(tmp_path: Path, text: str) -> None:
    (recipe := tmp_path / "mine.yaml").write_bytes(text.encode(errors="surrogateescape"))
    found = message(recipe)
    assert re.search(r"mine\.yaml[ :]+\S", found)
    assert "a_recipe" not in found
