"""Rewards of rollouts: components, pairs of orders, rubrics, and faults."""

from __future__ import annotations

import json
import math
import re
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from items import RUBRIC, make_item

from think_as_locals.config.checks import load_recipe
from think_as_locals.engines import Chat
from think_as_locals.judging import COMPONENTS, Component, parse, score, shuffle_responses, write
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.training.criteria_gain import GainQuery, LogProbPair
from think_as_locals.training.rollout_rewards import Example, Rewards, ScoreGains
from think_as_locals.types import LABELS, Criterion, Item, Judgement, Rubric, TrainingError, TrainingWarning

END = 0


class CharTokenizer:
    """One id a character; id 0 ends a text."""

    def decode(self, ids: tuple[int, ...], skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return "".join(chr(i) for i in ids if i != END)


CHAT = Chat(CharTokenizer(), {}, frozenset([END]))


def _ids(text: str, ended: bool = True) -> list[int]:
    return [ord(char) for char in text] + [END] * ended


def _verdict(verdict: int) -> list[int]:
    return _ids(write(RUBRIC, "weighed", verdict))


ITEM = make_item(responses=("With a handshake.", "With palms pressed.", "With a deep bow.", "With two kisses."), best=1)
BAD, GOOD, NONSENSE = _ids("bad"), _ids("good"), _ids("nonsense")


Make = Callable[..., Rewards]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Rewards of the quick start with some keys set otherwise."""

    def rewards(*overrides: str, **own: Component) -> Rewards:
        rewards = Rewards(
            load_recipe("recipes/quickstart.yaml", overrides), ["mine"], "ABCD", CHAT, RunFolder(tmp_path)
        )
        rewards.own |= own  # as if it were the user's
        return rewards

    return rewards


def _no_gains(queries: Sequence[GainQuery]) -> list[LogProbPair | None]:
    raise AssertionError("no component needs them")


def _score(
    rewards: Rewards, completions: list[list[int]], presented: Sequence[Item] = (), score_gains: ScoreGains = _no_gains
) -> tuple[dict[str, list[float | None]], dict[str, float]]:
    """The components' values, `None` for a fault, and what was logged."""
    logged: dict[str, float] = {}
    presented = presented or [shuffle_responses(ITEM)] * len(completions)
    examples = [
        Example(index=0, presented=item, source="mine", prompt=[{"role": "user", "content": "Which?"}])
        for item in presented
    ]
    found = rewards.score(completions, examples, 3, logged.__setitem__, score_gains)
    return {name: [each and each.parts[name] for each in found] for name in rewards.weights}, logged


def test_components_match_the_pure_functions(make: Make) -> None:
    best = shuffle_responses(ITEM).best
    right, wrong = write(RUBRIC, "weighed", best), write(RUBRIC, "weighed", (best + 1) % 4)
    values, logged = _score(make(), [_ids(right), _ids(wrong), _ids(right, ended=False), NONSENSE])
    assert values["correctness"] == [1.0, -1.0, -1.0, -1.0]
    assert values["structure"][:2] == [1.0, 1.0]
    assert 0 < values["structure"][3] < values["structure"][2] < 1.0  # type: ignore[operator]
    assert (logged["parse_failure"], logged["reward_faults"]) == (0.5, 0)
    values, _ = _score(make("reward=rm_r1", "reward.weights.structure=0"), [_verdict(2)])
    assert values == {"correctness": [score(parse(write(RUBRIC, "weighed", 2), 4), ITEM).parts["correctness"]]}


def test_shares_of_labels_are_logged(make: Make) -> None:
    _, logged = _score(make(), [*map(_verdict, (0, 0, 0, 2)), NONSENSE])
    assert [logged[f"verdict/{label}"] for label in "ABCD"] == [0.75, 0.0, 0.25, 0.0]
    assert "verdict/E" not in logged
    assert "consistent_accuracy" not in logged


def test_degenerate_share_of_the_reward_is_logged(make: Make) -> None:
    presented = shuffle_responses(ITEM)
    said = "\n".join(
        f"{label}: {text} Elders there prefer{i * ' more'}."
        for i, (label, text) in enumerate(zip("ABCD", presented.responses, strict=True))
    )
    rubric = Rubric(
        (
            Criterion(50, "Custom", "People there really do this."),
            Criterion(30, "Respect", "It honours an elder."),
            Criterion(20, "Fit", "It answers the question."),
        )
    )
    judged, idle = write(rubric, said, presented.best), write(RUBRIC, "weighed", presented.best)
    wrong = write(rubric, said, (presented.best + 1) % 4)
    for completions, share in [
        ([judged, wrong], 0.0),  # 1.2 and 0.2
        ([judged, idle], 1.2 / 2.4),
        ([judged, wrong, idle, idle], 2.4 / 3.8),
        ([idle], 1.0),
        ([judged, "x"], 0.2 / 13 / (1.2 + 0.2 / 13)),  # it ended by itself: one rule of thirteen
    ]:
        _, logged = _score(make(), [*map(_ids, completions)])
        assert logged["degenerate_reward_share"] == pytest.approx(share)
    correctness = make("reward.weights={correctness: 1.0}")
    assert _score(correctness, [NONSENSE])[1]["degenerate_reward_share"] == 0.0  # nothing is paid


def test_completions_are_parsed_by_the_prompt_format(make: Make) -> None:
    best = LABELS[shuffle_responses(ITEM).best]
    rewards = make("prompt=rm_r1", "sft=null", "model.scratch=null", "model.path=x", "reward=rm_r1")
    texts = [f"<type>Chat</type> <answer>[[{best}]]</answer>", f"<answer>[[{best}]]</answer> So be it.", "no"]
    values, logged = _score(rewards, [*map(_ids, texts)])
    assert values == {"correctness": [1.0, -1.0, -1.0], "structure": [1.0, 0.5, 0.5]}
    assert "degenerate_reward_share" not in logged  # it asks for no rubric of ours
    assert (logged["correct"], logged["in_format"]) == (pytest.approx(1 / 3), pytest.approx(1 / 3))


def test_rows_contain_text_reward_and_step_and_are_taken_once(make: Make) -> None:
    rewards = make()
    _score(rewards, [NONSENSE])
    (row,) = rewards.take_rows()
    assert (row["step"], row["completion"], row["finish_reason"], row["label"]) == (4, "nonsense", "stop", None)
    assert row["reward"] == pytest.approx(-1.0 + 0.2 * row["reward/structure"])
    assert row["fault"] is None
    assert rewards.take_rows() == []


def test_rollouts_are_paired_by_index_across_both_orders(make: Make) -> None:
    presented = [shuffle_responses(ITEM, reverse=reverse) for reverse in (False, True)]
    good = [_verdict(one.best) for one in presented]
    bad = [_verdict((one.best + 1) % 4) for one in presented]
    completions = [good[0], good[0], bad[0], good[1], bad[1], bad[1]] * 2
    rewards = make("reward=j1", "grpo.num_generations=6")
    values, logged = _score(rewards, completions, [presented[i] for i in (0, 0, 0, 1, 1, 1)] * 2)
    assert values["correctness"] == [1, 1, -1, 1, -1, -1] * 2
    assert values["consistency"] == [1, 0, 0, 1, 0, 0] * 2
    assert logged["consistent_accuracy"] == pytest.approx(1 / 3)
    same_slot = [good[0], good[0]]
    values, _ = _score(make("reward=j1", "grpo.num_generations=2"), same_slot, presented)
    assert values == {"correctness": [1.0, -1.0], "consistency": [0.0, 0.0], "structure": [1.0, 1.0]}


def test_rubrics_are_scored_once_per_batch(make: Make) -> None:
    batches: list[Sequence[GainQuery]] = []

    def score_gains(queries: Sequence[GainQuery]) -> list[LogProbPair | None]:
        batches.append(queries)
        return [None if query.rubric is None else (-0.5, -0.5 - 0.25 * i) for i, query in enumerate(queries)]

    full, cut = write(RUBRIC, "weighed", 0), write(RUBRIC, "weighed", 0).replace("There.", "Hence B.")
    completions = [NONSENSE, _ids(full), _ids(cut)]
    values, logged = _score(make("reward=paper"), completions, score_gains=score_gains)
    assert values["criteria_gain"] == [-1.0, 0.25, 0.5]
    assert logged["criteria_gain_clipped"] == 0
    narrow = make("reward=paper", "reward.criteria_gain.clip=[-0.3,0.3]")
    assert _score(narrow, completions, score_gains=score_gains)[1]["criteria_gain_clipped"] == 0.5
    del batches[1:]
    ((nothing, whole, part),) = batches
    assert (nothing.rubric, nothing.row, nothing.verdict) == (None, 0, shuffle_responses(ITEM).best)
    assert whole.rubric == full[: full.index("</rubric>") + len("</rubric>")]
    assert part.rubric == "<rubric>\n- 50 | Custom | Done.\n"
    assert list(whole.completion_ids) == completions[1]
    _score(make("reward=paper", "reward.weights.criteria_gain=0"), completions)  # asks for none


LENIENT = ("reward.fault_window=8", "reward.max_fault_share=0.25", "reward.timeout_s=0.2")


def _failing(how: Component) -> Component:
    """A `structure` that fails on the completion `bad`."""

    def structure(judgement: Judgement, *rest: Any) -> float:
        component = how if judgement.completion == "bad" else COMPONENTS["structure"]
        return component(judgement, *rest)

    return structure


def _raises(*_: object) -> float:
    raise ZeroDivisionError("no such thing")


def test_failing_reward_is_none_for_that_rollout_only_and_counted(make: Make) -> None:
    rewards = make(*LENIENT, structure=_failing(_raises))
    values, logged = _score(rewards, [BAD, GOOD])
    assert values["correctness"] == [None, -1.0]
    assert values["structure"][0] is None
    assert values["structure"][1] is not None
    assert logged["reward_faults"] == 1
    bad, good = rewards.take_rows()
    assert "ZeroDivisionError: no such thing (test_rollout_rewards.py:" in bad["fault"]
    assert (bad["reward"], bad["reward/correctness"], good["fault"]) == (None, None, None)


def test_rollouts_behind_a_reward_that_hangs_have_none(make: Make) -> None:
    rewards = make(*LENIENT, structure=_failing(lambda *_: time.sleep(30) or 0.0))
    began = time.monotonic()
    values, logged = _score(rewards, [GOOD, GOOD, BAD, GOOD])
    assert time.monotonic() - began < 5
    assert values["correctness"] == [-1.0, -1.0, None, None]
    assert logged["reward_faults"] == 2
    assert "TimeoutError" in rewards.take_rows()[2]["fault"]
    with pytest.raises(TrainingError, match="TimeoutError"):
        _score(rewards, [BAD])


def test_too_many_reward_faults_end_the_run_and_dump_the_batch(make: Make, tmp_path: Path) -> None:
    rewards = make(*LENIENT, structure=_failing(_raises))
    for _ in range(3):  # one in four is not more than a quarter
        _score(rewards, [BAD, *[GOOD] * 3])
    with pytest.raises(TrainingError) as caught:
        _score(rewards, [BAD, BAD, GOOD, GOOD])
    message = str(caught.value)
    assert "step 4: on rank 0 the rewards of more than 25.0% of the last 8 rollouts failed" in message
    assert "ZeroDivisionError: no such thing" in message
    assert str(tmp_path / "faults" / "step-4-rank-") in message
    assert [row["completion"] for row in _dumped_rows(tmp_path)] == ["bad", "bad", "good", "good"]
    about = json.loads((tmp_path / "faults" / "step-4-rank-0.json").read_text())
    assert about == {"fault": "rewards failed", "step": 4, "rank": 0, "batch": "step-4-rank-0.parquet"}


@pytest.mark.parametrize("value", [math.nan, -math.inf, 1e39, 1e30])  # the spread of the last one is beyond float32
def test_non_finite_reward_ends_the_run_and_dumps_the_batch(make: Make, tmp_path: Path, value: float) -> None:
    rewards = make(structure=_failing(lambda *_: value))
    with pytest.raises(TrainingError, match=r"step 4: reward not finite on rank 0; the optimizer did not use it"):
        _score(rewards, [GOOD, BAD])
    good, bad = (row["reward/structure"] for row in _dumped_rows(tmp_path))
    assert (0 < good < 1, str(bad)) == (True, str(value))


def _dumped_rows(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = parquet.read_table(folder / "faults" / "step-4-rank-0.parquet").to_pylist()
    return rows


TRUNCATED = _ids("<rubric>", ended=False)


@pytest.mark.parametrize(
    ("overrides", "completions", "told"),
    [
        (
            [],
            [NONSENSE] * 20,
            r"^step 4: 100% .* 3 batches .*\(1\) the cold start .* take a larger one; \(3\) .*\(0% were",
        ),
        (
            [],
            [TRUNCATED] * 20,
            r"causes: \(1\) completions are too short \(100% were cut at 72 tokens\): raise grpo\.max_comple",
        ),
        ([], [TRUNCATED] * 19 + [_verdict(1)], "95% of completions"),
        (
            ["trainer=grpo", "model=qwen2_5_7b", "prompt=listwise"],
            [NONSENSE] * 20,
            r"\(1\) the model does not know the format: .*trainer=demonstrated_grpo.*tal doctor --model.* a larger one",
        ),
        ([], [NONSENSE] * 18 + [_verdict(1)] * 2, None),  # just 90 %
    ],
    ids=["nonsense", "cut short", "one of twenty is read", "without a cold start", "at the limit"],
)
def test_repeated_parse_failures_warn_with_likely_causes(
    make: Make, tmp_path: Path, overrides: list[str], completions: list[list[int]], told: str | None
) -> None:
    rewards = make("reward.parse_failure_batches=3", *overrides)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(13):
            _score(rewards, completions)
    found = [str(each.message) for each in caught if each.category is TrainingWarning]
    assert len(found) == (3 if told else 0)  # after 3, 6 and 12 batches
    if told:
        assert re.search(told, found[0]), found[0]
        lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
        assert [(line["stage"], line["step"], line["warning"]) for line in lines] == [
            ("grpo", 4, each) for each in found
        ]


def test_parse_failures_in_a_row_end_the_run_if_configured_to_stop(make: Make) -> None:
    rewards = make("reward.parse_failure_batches=2")
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrainingWarning)
        for _ in range(3):
            _score(rewards, [NONSENSE])
            _score(rewards, [_verdict(0)])
    rewards = make("reward.parse_failure_batches=2", "reward.on_parse_failure=stop")
    _score(rewards, [NONSENSE])
    with pytest.raises(TrainingError, match=r"Likely causes: .* To continue anyway: reward\.on_parse_failure=warn\.$"):
        _score(rewards, [NONSENSE])
