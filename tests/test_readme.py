"""README.md and the guides: their commands and Python code run, and the names they mention exist.

Commands are run as written (`readme/ways.py`). Those that train stop where
training would start (`test_quickstart.py`, `test_newcomer.py`, `test_launch.py`, `sweeps/`, `training/` go on), and
those that need a GPU stop at the message that there is none.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml
from accelerate.commands.launch import launch_command_parser
from conftest import ROOT, Tal
from fastapi.testclient import TestClient
from readme.parts import DOCUMENTS, OWN_REWARDS, TEXT, Block, Command, blocks, commands, is_commands, spans
from readme.reader import Reader
from readme.ways import LOCAL, SMALL, WAYS
from serving.judges import Longest, judge_of
from test_evaluate import ROWS as CANDIDATES

from think_as_locals import Item, Judge, parse
from think_as_locals.config.checks import load_config
from think_as_locals.config.compose import ASSETS, compose_recipe, group_options, recipes
from think_as_locals.data.rows import Outcome, Row
from think_as_locals.data.sources import jsonl
from think_as_locals.integrations import inspect_tasks as inspect_registry
from think_as_locals.integrations.rewardbench_judge import plug_in
from think_as_locals.integrations.trl_reward import judge_reward
from think_as_locals.judging.prompt import prompt_names
from think_as_locals.reward_models.group import GroupReward
from think_as_locals.run import start
from think_as_locals.serving.app import create_app
from think_as_locals.serving.server import load_server
from think_as_locals.types import ITEM_FIELDS

PACKAGE = ROOT / "think_as_locals"


@pytest.fixture
def reader(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tal: Tal) -> Reader:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return Reader(tmp_path, request, monkeypatch, tal)


@pytest.fixture(scope="module")
def evaluation(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an evaluation that measured three reward models, probed them and had them choose."""
    folder = tmp_path_factory.mktemp("runs")
    rows = folder / "candidates.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in CANDIDATES))
    rms = [
        *("rms.mine=judge", f"rms.mine.path={small_run}/model"),
        *("rms.random=classifier", f"rms.random.path={small_run}/model", "rms.random.new_head_seed=0"),
    ]
    more = ["eval.probes=true", f"eval.candidates={rows}", f"run.dir={folder}", "run.name=three"]
    start("recipes/carb.yaml", [*rms, *SMALL, *more])
    return folder / "three"


# --- commands ---


def _case(command: Command) -> Any:
    """One that needs a trained run is slow."""
    return pytest.param(command, id=command.text, marks=[pytest.mark.slow] if "runs/" in command.text else [])


@pytest.mark.parametrize("command", [_case(command) for command in commands()])
def test_command_runs_as_documented(reader: Reader, command: Command) -> None:
    ways = [way for pattern, way in WAYS.items() if re.fullmatch(pattern, command.text)]
    assert len(ways) == 1, f"say in readme/ways.py how {command.text!r} is run"
    ways[0](reader, command)


def test_every_way_matches_a_documented_command() -> None:
    for pattern in WAYS:
        assert any(re.fullmatch(pattern, command.text) for command in commands()), pattern


@pytest.mark.parametrize("command", [c for c in commands() if c.settings or c.options], ids=lambda c: c.text)
def test_settings_and_options_in_command_comments_exist(reader: Reader, command: Command) -> None:
    words = command.words()
    launched = words[0] == "accelerate"  # whose help shows a part of its options
    known = launch_command_parser()._option_string_actions if launched else reader.tal(words[1], "--help")[1]
    assert all(option in known for option in command.options)
    if words[1] == "serve":
        assert load_server("a/judge", command.settings)
    elif command.settings:
        assert load_config(words[2], command.settings)


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
def test_yaml_blocks_parse(text: str) -> None:
    assert yaml.safe_load(text)


@pytest.mark.slow
@pytest.mark.parametrize("block", [block for block in blocks() if block.language == "python"])
def test_python_block_runs(reader: Reader, item: Item, block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    reader.words(Command(block.text.replace('"', " "), ""))
    names: dict[str, Any] = {}
    with TestClient(create_app(judge_of(Longest()), load_server("runs/NAME/model"), None), LOCAL) as server:
        monkeypatch.setattr("openai.OpenAI", partial(openai.OpenAI, http_client=server))
        exec(block.text, names)  # noqa: S102 - ours
    if "client" in names:
        assert names["answer"].choices[0].message.judgement["verdict"] == 1
    elif block.text == OWN_REWARDS:
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
    "plug_in": plug_in,
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
    options = {**group_options(), "prompt": prompt_names()}
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
