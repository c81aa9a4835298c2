"""Rewards as TRL calls them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from think_as_locals.generation import Chat
from think_as_locals.judging import present, score, write
from think_as_locals.training.rewards import Rewards
from think_as_locals.types import Criterion, Item, Rubric

RUBRIC = Rubric((Criterion(50, "Custom", "Done."), Criterion(30, "Place", "There."), Criterion(20, "Fit", "It fits.")))
END = 0


class CharTokenizer:
    """One id a character; id 0 ends a text."""

    def decode(self, ids: tuple[int, ...], skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return "".join(chr(i) for i in ids if i != END)


CHAT = Chat(CharTokenizer(), {}, frozenset([END]))


def _ids(text: str, ended: bool = True) -> list[int]:
    return [ord(char) for char in text] + [END] * ended


def _call(
    rewards: Rewards, completions: list[list[int]], index: list[int]
) -> tuple[dict[str, list[float]], dict[str, float]]:
    logged: dict[str, float] = {}
    context: dict[str, Any] = {"log_metric": logged.__setitem__, "trainer_state": SimpleNamespace(global_step=3)}
    values = {f.__name__: f(completion_ids=completions, index=index, **context) for f in rewards.functions()}
    return values, logged


def test_each_component_is_scored_as_the_pure_function_says(item: Item) -> None:
    shown = present(item)
    rewards = Rewards([shown], {"correctness": 1.0, "structure": 0.2}, CHAT)
    right, wrong = write(RUBRIC, "weighed", shown.best), write(RUBRIC, "weighed", (shown.best + 1) % 4)
    completions = [_ids(right), _ids(wrong), _ids(right, ended=False), _ids("nonsense")]
    values, logged = _call(rewards, completions, [0, 0, 0, 0])
    assert values["correctness"] == [1.0, -1.0, -1.0, -1.0]
    assert values["structure"][:2] == [1.0, 1.0]
    assert values["structure"][3] < values["structure"][2] < 1.0
    assert logged == {"parse_failure": 0.5}


def test_rows_hold_text_reward_and_step_once(item: Item) -> None:
    rewards = Rewards([present(item)], {"correctness": 1.0, "structure": 0.2}, CHAT)
    _call(rewards, [_ids("nonsense")], [0])
    (row,) = rewards.take_rows()
    assert (row["step"], row["completion"], row["finish_reason"], row["verdict"]) == (3, "nonsense", "stop", None)
    assert row["reward"] == pytest.approx(-1.0 + 0.2 * row["reward/structure"])
    assert rewards.take_rows() == []


def test_a_reward_agrees_with_the_public_score(item: Item) -> None:
    from think_as_locals.judging import parse

    shown = present(item)
    text = write(RUBRIC, "weighed", 2)
    values, _ = _call(Rewards([shown], {"correctness": 1.0}, CHAT), [_ids(text)], [0])
    assert values["correctness"] == [score(parse(text, 4), item).parts["correctness"]]
