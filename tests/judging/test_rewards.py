"""Verifiable rewards: what each component pays, that abstaining never pays, and functions of one's own."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from items import RUBRIC, make_item

from think_as_locals.config.checks import load_recipe
from think_as_locals.judging import Evidence, parse, score, shuffle_responses, write
from think_as_locals.judging.rewards import MissingEvidenceError, UnknownRewardError, keep_sources, load_custom_rewards
from think_as_locals.run import load_training
from think_as_locals.types import ConfigError, Item

ITEM = make_item(id="1", prompt="Breakfast?", responses=("Rice.", "Toast.", "Beans."), best=1)


def completion(verdict: int) -> str:
    return write(RUBRIC, "A: no. B: yes. C: no.", verdict)


def test_verdict_is_scored_in_the_presented_order() -> None:
    for seed in range(6):
        best = shuffle_responses(ITEM, seed).best
        rewards = [score(parse(completion(v), 3), ITEM, seed=seed).parts["correctness"] for v in range(3)]
        assert rewards == [1.0 if v == best else -1.0 for v in range(3)], seed


def test_only_known_components_are_computed_on_request() -> None:
    assert set(score(parse("", 3), ITEM).parts) == {"correctness", "structure", "rubric_quality"}
    assert set(score(parse("", 3), ITEM, components=["structure"]).parts) == {"structure"}
    with pytest.raises(UnknownRewardError, match=r"'corectness'.*correctness, criteria_gain, structure"):
        score(parse("", 3), ITEM, components=["corectness"])


# --- what needs evidence ---

GAIN = Evidence(gain_clip=(-1.0, 2.0))


def part(name: str, text: str, evidence: Evidence, finish_reason: str = "stop") -> float:
    return score(parse(text, 3, finish_reason), ITEM, components=[name], evidence=evidence).parts[name]


@pytest.mark.parametrize(
    ("log_probabilities", "paid"),
    [
        *(((-0.25, -0.75), 0.5), ((-0.75, -0.25), -0.5), ((-3.0, -3.0), 0.0)),
        *(((-0.1, -9.0), 2.0), ((-9.0, -0.1), -1.0)),  # clipped
        # Not finite: never clipped to a reward.
        *((values, math.nan) for values in ((math.nan, -1.0), (-1.0, math.nan), (-math.inf, -1.0), (-1.0, -math.inf))),
    ],
)
def test_criteria_gain_is_the_clipped_log_prob_difference(log_probabilities: tuple[float, float], paid: float) -> None:
    evidence = Evidence(gain_clip=(-1.0, 2.0), log_probabilities=log_probabilities)
    assert part("criteria_gain", completion(0), evidence) == pytest.approx(paid, nan_ok=True)


@pytest.mark.parametrize("text", ["", "nonsense", "<rubric>\nno criterion\n</rubric>", "So: " + completion(0)])
def test_criteria_gain_without_a_rubric_is_its_lower_bound(text: str) -> None:
    assert part("criteria_gain", text, GAIN) == -1.0
    assert part("criteria_gain", text, Evidence(gain_clip=(-1.0, 2.0), log_probabilities=(-0.1, -9.0))) == -1.0


def test_consistency_is_1_only_if_both_orders_are_right() -> None:
    best = shuffle_responses(ITEM).best
    paid = [
        part("consistency", completion(verdict), Evidence(partner_right=partner))
        for verdict in (best, (best + 1) % 3)
        for partner in (True, False)
    ]
    assert paid == [1.0, 0.0, 0.0, 0.0]
    assert part("consistency", "", Evidence(partner_right=True)) == 0.0


@pytest.mark.parametrize(
    ("tokens", "paid"), [(1, 0.0), (800, 0.0), (801, -0.005), (850, -0.25), (900, -0.5), (1000, -1.0), (1200, -1.0)]
)
def test_length_is_the_soft_overlong_penalty_of_dapo(tokens: int, paid: float) -> None:
    evidence = Evidence(num_tokens=tokens, length_share=0.2, max_completion_length=1000)
    assert part("length", completion(0), evidence) == pytest.approx(paid)
    assert part("length", completion(0), evidence, finish_reason="length") == -1.0


@pytest.mark.parametrize(
    ("name", "evidence", "needs"),
    [
        ("criteria_gain", Evidence(), "gain_clip"),
        ("criteria_gain", GAIN, "log_probabilities"),
        ("consistency", Evidence(), "partner_right"),
        ("length", Evidence(), "num_tokens"),
        ("length", Evidence(num_tokens=3, length_share=0.2), "max_completion_length"),
    ],
)
def test_missing_evidence_error_names_what_to_pass(name: str, evidence: Evidence, needs: str) -> None:
    with pytest.raises(MissingEvidenceError, match=rf"{name!r} needs {needs}: pass evidence=Evidence\({needs}="):
        part(name, completion(0), evidence)


@pytest.mark.parametrize("option", ["correctness_structure", "paper", "rm_r1", "j1", "full"])
def test_abstaining_earns_less_than_guessing(option: str) -> None:
    reward = load_recipe("recipes/tal_grpo.yaml", [f"reward={option}"]).reward
    low, high = reward.criteria_gain.clip
    limits = {"num_tokens": 100, "length_share": reward.length.share, "max_completion_length": 2048}
    evidence = Evidence(gain_clip=(low, high), log_probabilities=(0.0, high - low), partner_right=False, **limits)
    weights = reward.weighted()

    def total(text: str) -> float:
        return score(parse(text, 3), ITEM, components=weights, evidence=evidence).total(weights)

    guess = sum(total(completion(verdict)) for verdict in range(3)) / 3
    for text in ("", "nonsense", completion(0).replace("<verdict>A</verdict>", ""), completion(0).replace(">A<", "><")):
        assert total(text) < guess


# --- functions of one's own ---


QUICKSTART = "recipes/quickstart.yaml"
OWN = """
from dataclasses import dataclass

@dataclass
class Limit:
    characters: int

def brief(judgement, item, limit=Limit(9)):
    return float(len(judgement.completion) <= limit.characters) + 0.5 * (judgement.verdict == item.best)

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
        ("{own}:brif", "LookupError: no brif in it; functions there: dataclass, brief"),
        ("{own}:number", "expected a function, got 3"),
        ("{own}.gone.py:brief", "FileNotFoundError: [Errno 2] No such file or directory: '{own}.gone.py'"),
        ("no_such_package.rewards:brief", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("think_as_locals.judging:brief", "AttributeError: module 'think_as_locals.judging' has no attribute 'brief'"),
        ("{raises}:brief", "ZeroDivisionError: division by zero"),
    ],
)
def test_invalid_component_reference_raises_config_error(own: Path, reference: str, message: str) -> None:
    places = {"own": str(own), "raises": str(own.with_name("raises.py"))}
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
