"""Custom rewards: what is loaded, and what is rejected with which message."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from items import make_item

from think_as_locals.config.checks import load_recipe
from think_as_locals.judging import Evidence, parse
from think_as_locals.judging.rewards import keep_sources, load_custom_rewards
from think_as_locals.run import load_training
from think_as_locals.types import ConfigError, Item

QUICKSTART = "recipes/quickstart.yaml"
OWN = """
from dataclasses import dataclass

@dataclass
class Limit:
    characters: int

def brief(judgement, item, limit=Limit(9)):
    return float(len(judgement.completion) <= limit.characters) + 0.5 * (judgement.verdict == item.best)

def no_item(judgement):
    return 0.0

number = 3
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def test_function_in_a_file_or_module_becomes_a_component(
    own: Path, item: Item, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(own.parent)
    for component in load_custom_rewards({"brief": f"{own}:brief", "mine": "own:brief"}).values():
        assert [component(parse(text, 4), item, Evidence()) for text in ("short", "much too long")] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("{own}:brif", "LookupError: no brif in it; functions there: dataclass, brief, no_item"),
        ("{own}:number", "expected a function, got 3"),
        ("{own}:no_item", "expected a function of (judgement, item), got {own}:no_item(judgement): too many"),
        ("{own}.gone.py:brief", "FileNotFoundError: not found from {here}; start in the folder"),
        ("no_such_package.rewards:brief", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("think_as_locals.judging:brief", "AttributeError: module 'think_as_locals.judging' has no attribute 'brief'"),
        ("{raises}:brief", "ZeroDivisionError: division by zero"),
    ],
)
def test_invalid_component_reference_raises_config_error(own: Path, reference: str, message: str) -> None:
    places = {"here": str(Path.cwd()), "own": str(own), "raises": str(own.with_name("raises.py"))}
    own.with_name("raises.py").write_text("1 / 0")
    with pytest.raises(ConfigError, match=r"^reward\.own\.mine: ") as caught:
        load_custom_rewards({"mine": reference.format(**places)})
    assert message.format(**places) in str(caught.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("float(len(judgement.rubric.criteria))", "AttributeError: 'NoneType' object has no attribute 'criteria'"),
        ("float(judgement.rubric.criterions or 0) if judgement.rubric else 0.0", "has no attribute 'criterions'"),
        ("__import__('time').sleep(60)", "TimeoutError: took longer than 0.5 s"),
        ("None", "TypeError: float() argument must be a string or a real number, not 'NoneType'"),
    ],
)
def test_component_that_fails_is_rejected_before_training(tmp_path: Path, body: str, message: str) -> None:
    path = tmp_path / "own.py"
    path.write_text(f"def mine(judgement, item):\n    return {body}\n")
    own = ["reward.weights.mine=1", f"reward.own.mine={path}:mine", "reward.timeout_s=0.5"]
    with pytest.raises(ConfigError, match=r"^reward\.own\.mine: .* for the completion '") as caught:
        load_training(load_recipe(QUICKSTART, own))
    assert message in str(caught.value)
    if body == "None":
        load_training(load_recipe(QUICKSTART, [*own, "reward.weights.mine=0"]))  # it is not called


def test_reward_code_is_copied_and_resume_rejects_changed_code(own: Path, tmp_path: Path) -> None:
    reference, kept = {"brief": f"{own}:brief"}, tmp_path / "run-rewards"
    for _ in range(2):  # started, and continued
        keep_sources(reference, kept)
        assert (kept / "brief.py").read_text() == OWN
    own.write_text(OWN.replace("0.5", "5.0"))
    with pytest.raises(ConfigError, match=rf"reward\.own\.brief: {re.escape(str(own))}:brief has changed since"):
        keep_sources(reference, kept)


def test_kept_source_of_a_decorated_reward_is_its_own_and_a_file_is_run_once(own: Path, tmp_path: Path) -> None:
    own.write_text(
        "import torch\n\nmade = []\n\n"
        "@torch.no_grad()\ndef first(judgement, item):\n    made.append(1)\n    return 0.0\n\n"
        "def second(judgement, item):\n    return float(len(made))\n"
    )
    references = {name: f"{own}:{name}" for name in ("first", "second")}
    keep_sources(references, tmp_path / "kept")
    assert (tmp_path / "kept/first.py").read_text() == own.read_text()
    first, second = load_custom_rewards(references).values()
    given = parse("text", 4), make_item(), Evidence()
    assert (first(*given), second(*given)) == (0.0, 1.0)


# --- in a recipe ---


def test_custom_component_is_set_by_overrides_and_suggested() -> None:
    reward = load_recipe(QUICKSTART, ["reward.own.brief=my/own.py:brief", "reward.weights.brief=0.3"]).reward
    assert reward.own == {"brief": "my/own.py:brief"}
    assert reward.weighted() == {"correctness": 1.0, "structure": 0.2, "brief": 0.3}
    overrides = ["reward.own.brevity=own.py:brief", "reward.weights.brevity=1", "reward.weights.brevty=0.3"]
    with pytest.raises(ConfigError, match=r"no component 'brevty'; did you mean 'brevity'\?; available: correctness, "):
        load_recipe(QUICKSTART, overrides)
