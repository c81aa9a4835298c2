"""README.md and the guides: commands parse and their settings load, Python code runs, and the names they mention exist.

What the README tells a newcomer to type is run from the first line to the last by `test_init.py`.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import tomllib
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import openai
import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser
from conftest import ROOT, launch
from documents import DOCUMENTS, TEXT, Block, Command, blocks, commands, is_commands, spans
from fastapi.testclient import TestClient
from serving.judges import Longest, judge_of, settings

from think_as_locals import Item, Judge, parse
from think_as_locals.cli import _parse
from think_as_locals.config.checks import load_config, load_data_config
from think_as_locals.config.compose import ASSETS, compose_recipe, group_options, recipes
from think_as_locals.config.launch import find_launch
from think_as_locals.data.rows import Outcome, Row
from think_as_locals.data.sources import jsonl
from think_as_locals.integrations import inspect_tasks as inspect_registry
from think_as_locals.integrations.trl_reward import judge_reward
from think_as_locals.judging.formats import FORMATS
from think_as_locals.reward_models.group import GroupReward
from think_as_locals.serving.app import create_app, load_server
from think_as_locals.sweeps import sweep
from think_as_locals.types import ITEM_FIELDS

PACKAGE = ROOT / "think_as_locals"
OWN_RECIPES = ("RECIPE", "judge.yaml", "one_gpu.yaml", "one_cpu.yaml")  # a reader's, which begin with the quick start


def check_settings(recipe: str, overrides: list[str], multirun: bool = False) -> None:
    """Load a recipe, or each job of its sweep."""
    recipe = "quickstart" if recipe in OWN_RECIPES else recipe
    if multirun:
        assert sweep.plan(recipe, overrides)
    else:
        load_config(recipe, overrides)


def check_tal(words: list[str]) -> None:
    if len(words) == 1 or words == ["data", "edit"]:  # a command by its name alone
        with pytest.raises(SystemExit) as ended:
            _parse([*words, "--help"])
        assert ended.value.code == 0
        return
    arguments = _parse(words)
    if words[0] == "launch":
        check_launch([arguments.recipe, *arguments.rest])
    elif "recipe" in arguments and words[0] not in ("recipes", "doctor"):
        check_settings(arguments.recipe, arguments.overrides, getattr(arguments, "multirun", False))
    elif words[:2] in (["data", "build"], ["data", "validate"]):
        path = [f"data.path={arguments.path}"] if "data=" in " ".join(words) and words[1] == "validate" else []
        load_data_config([*(word for word in arguments.overrides if not word.startswith("out=")), *path])
    elif words[0] == "serve":
        assert load_server("a/judge", arguments.overrides)


def check_launch(words: list[str]) -> None:
    """`accelerate launch`, and `tal launch`, which takes its options behind the recipe."""
    options = [word for word in words if word.startswith("--") or words[words.index(word) - 1] == "--config_file"]
    arguments = launch_command_parser().parse_args([*options, *(word for word in words if word not in options)])
    if arguments.config_file:
        load_config_from_file(str(find_launch(Path(arguments.config_file).stem)))
    if arguments.training_script:
        check_settings(arguments.training_script, arguments.training_script_args)


@pytest.mark.parametrize("command", commands(), ids=lambda command: command.text)
def test_command_parses_and_its_settings_load(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    program, *words = command.words()
    if program == "tal":
        for each in {tuple(words), tuple(command.words(optional=True)[1:])}:
            check_tal([*each])
    elif program == "accelerate":
        launched = ["RECIPE"] if words == ["launch"] else words[1:]
        check_launch(launched)
    elif program == "make":
        assert launch("make", "--dry-run", *words).returncode == 0
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert {*re.findall(r"\[(.+?)\]", command.text)[0].split(",")} <= {*extras}
    elif program in ("sbatch", "python", "launch/vllm_server.sh"):
        (script, *_) = (word for word in (program, *words) if "/" in word)
        assert (ROOT / script).is_file()
    elif program == "curl":
        given = dict(zip(words[1::2], words[2::2], strict=True))
        host, _, route = words[0].partition("/")
        assert host == f"localhost:{load_server('a/judge').port}"
        with TestClient(create_app(judge_of(Longest()), settings(), None), "http://127.0.0.1") as client:
            answer = client.post(f"/{route}", content=given["-d"], headers=dict([given["-H"].split(": ")]))
        assert [each["verdict"] for each in answer.json()["judgements"]] == [0]
    else:
        assert program in ("export", "inspect", "hf", "cd", "docker", "git")


@pytest.mark.parametrize("command", [c for c in commands() if c.settings or c.options], ids=lambda c: c.text)
def test_settings_and_options_in_command_comments_exist(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    program, *words = command.words()
    if program == "accelerate":  # whose help shows a part of its options
        known: Any = launch_command_parser()._option_string_actions
    else:
        with pytest.raises(SystemExit):
            _parse([words[0], "--help"])
        known = capsys.readouterr().out
    assert all(option in known for option in command.options)
    if words[0] == "serve":
        assert load_server("a/judge", command.settings)
    elif command.settings:
        load_config(words[1], command.settings)


# --- Python, and what judges write ---


def test_every_code_block_language_is_covered() -> None:
    assert {block.language for block in blocks() if not is_commands(block)} <= {"python", "json", "yaml", "text", ""}


@pytest.mark.parametrize("text", [block.text for block in blocks() if block.language == "json"])
def test_json_example_row_is_valid_and_has_every_field(text: str) -> None:
    value = json.loads(text)
    if "best" in value:
        (row,) = Outcome.of(Row("mine.jsonl", 1, value, text), jsonl.items).items
        assert (row.origins[row.best], set(value)) == (row.culture, {*ITEM_FIELDS})


@pytest.mark.parametrize("text", [block.text for block in blocks() if block.text.startswith("<rubric>")])
def test_example_judgement_parses_without_issues(text: str) -> None:
    judgement = parse(text.rstrip(), num_responses=2, finish_reason="stop")
    assert (judgement.verdict is None, judgement.issues) == (False, ())


@pytest.mark.parametrize("text", [block.text for block in blocks() if block.language == "yaml"])
def test_yaml_blocks_are_recipes(text: str, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(text)
    load_config(recipe, [])


@pytest.mark.slow
@pytest.mark.parametrize("block", [block for block in blocks() if block.language == "python"])
def test_python_block_runs(
    small_run: Path, item: Item, block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("runs/NAME", "owner/judge"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).symlink_to(small_run if name == "runs/NAME" else small_run / "model")
    (tmp_path / "items.jsonl").write_text(json.dumps(asdict(item)) + "\n")
    names: dict[str, Any] = {}
    served = create_app(judge_of(Longest()), load_server("runs/NAME/model"), None)
    with TestClient(served, "http://127.0.0.1") as server:
        monkeypatch.setattr("openai.OpenAI", partial(openai.OpenAI, http_client=server))
        exec(block.text, names)  # noqa: S102 - ours
    if "client" in names:
        assert names["answer"].choices[0].message.judgement["verdict"] == 1
    elif "local_words" in names:
        assert names["local_words"](parse("With palms, with elbows.", 4), item) == 0.25
    elif "trainer" in names:
        rewards = [log for log in names["trainer"].state.log_history if "rewards/judge_rewards/mean" in log]
        assert (names["trainer"].state.global_step, len(rewards) > 0) == (2, True)
    elif "messages" in names:
        assert names["messages"][-1]["role"] == "user"
        assert (names["judgement"].verdict, names["breakdown"].parts["correctness"]) == (None, -1)


CALLS = {
    "Judge.load": Judge.load,
    "judge": partial(Judge.judge, None),
    "judge_reward": judge_reward,
    "GroupReward.load": GroupReward.load,
    "score": partial(GroupReward.score, None),
}


def test_inline_calls_match_function_signatures() -> None:
    seen = set()
    for text in (span.replace(", ...)", ")") for span in spans() if re.match(r"\w+(\.\w+)?\(", span)):
        for call in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)):
            name = ast.unparse(call.func)
            name = name.rpartition(").")[2]
            if name != "GRPOTrainer":
                inspect.signature(CALLS[name]).bind(*call.args, **{str(word.arg): word.value for word in call.keywords})
                seen.add(name)
    assert seen == {*CALLS}


# --- names ---


def test_mentioned_paths_and_modules_exist() -> None:
    folders = {path.name for parent in (ROOT, PACKAGE) for path in parent.iterdir() if path.is_dir()}
    folders -= {"runs"}  # what commands make here, as the README's first one does
    for word in {word for span in spans() for word in span.split()}:
        path = re.fullmatch(r"([\w-]+)(/[a-z\d_.-]*)+|\w+\.py", word)
        if path and (path[1] is None or path[1] in folders):
            there = (
                (ROOT / word).exists() or any(PACKAGE.glob(f"**/{word}")) or any((ROOT / "tests").glob(f"**/{word}"))
            )
            assert there or hasattr(inspect_registry, word.rpartition("/")[2]), word
    for name in re.findall(r"\bintegrations\.\w+", TEXT):
        assert find_spec(f"think_as_locals.{name}"), name


def test_mentioned_group_options_exist() -> None:
    options = {**group_options(), "prompt": [*FORMATS]}
    for group, option in re.findall(r"`(\w+)=(\w+)", TEXT):
        assert option in options.get(group, [option]), f"{group}={option}"


def test_mentioned_configuration_keys_exist() -> None:
    composed = [compose_recipe(recipe) for recipe in recipes()]
    composed.append(compose_recipe(ASSETS / "conf" / "serve.yaml", ["judge.path=a/judge"]))
    by_name = ["data=mix", "data.mix.NAME=culture_cards", "eval.sets.NAME=culture_cards"]
    by_name += ["eval.sets.carb=carb", "eval.sets.carb.data.path=FILE"]
    composed.append(compose_recipe("recipes/tal_grpo.yaml", by_name))
    sections = {key for values in composed for key, value in values.items() if isinstance(value, dict)} - {"rms"}
    keys = {word.partition("=")[0] for span in spans() for word in span.split() if "pkg://" not in word}  # verl's
    for key in keys:
        section, *rest = key.split(".")
        if section in sections and any(rest) and "FIELD" not in rest and rest[-1] not in ("md", "json", "py"):
            assert any(_holds(values, [section, *rest]) for values in composed), key


def _holds(values: Any, keys: list[str]) -> bool:
    return not keys or (isinstance(values, dict) and keys[0] in values and _holds(values[keys[0]], keys[1:]))


def test_all_recipes_launch_files_and_subpackages_are_mentioned() -> None:
    named = {*spans()}
    assert {f"recipes/{path.name}" for path in recipes()} <= named
    assert {path.stem for path in (ROOT / "launch").glob("*.yaml")} <= named
    assert {f"think_as_locals/{path.parent.name}" for path in PACKAGE.glob("*/__init__.py")} <= named


def test_documents_stay_within_length_and_width_limits() -> None:
    for path in DOCUMENTS:
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= (170 if path == DOCUMENTS[0] else 150), path
        wide = () if path == DOCUMENTS[0] else ("|", "    ")  # rows of tables; a command and its remark
        assert not [line for line in lines if len(line) > 100 and not line.startswith(wide)], path
