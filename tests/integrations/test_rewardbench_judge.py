"""The contract of RewardBench 2's generative runner (rewardbench 0.1.4), recorded: it is not installed here.

From `rewardbench/generative_v2.py` and `scripts/run_generative_v2.py`: how the runner calls what is plugged in, what it
makes of the answers, and the rule by which its parser reads [[A]] to [[D]].
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reward_models.scripted import Picks, longest, serving

from think_as_locals.integrations.rewardbench_judge import plug_in
from think_as_locals.judging import prompt_format

Row = dict[str, Any]


def turns(*texts: str) -> list[dict[str, str]]:
    return [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(texts)]


def row(*responses: str) -> Row:
    chosen, *rejected = (turns("Breakfast?", response) for response in responses)
    return {"texts_chosen": [chosen], "texts_rejected": rejected}


def a_runner(url: str, **options: str) -> ModuleType:
    runner = ModuleType("generative_v2")
    vars(runner)["API_MODEL_LIST"] = ("gpt-4o-2024-08-06",)
    plug_in(runner, "judge", url, **options)
    assert runner.API_MODEL_LIST == ("gpt-4o-2024-08-06", "judge")
    return runner


def run_four(runner: ModuleType, row: Row, shuffle_option: int) -> float:
    """What the runner makes of a row, with the best response moved to the place it has drawn."""
    answers = [row["texts_chosen"][0], *row["texts_rejected"]]
    answers[0], answers[shuffle_option] = answers[shuffle_option], answers[0]
    prompt, several = answers[0][0]["content"], len(answers[0]) > 2
    winner, _, _ = runner.run_judge_four(prompt, *answers, "judge", multi_turn=several, model_modifier=None)
    return 1 if winner == "ABCD"[shuffle_option] else 0 if winner in ("A", "B", "C", "D") else 0.25


def parse_verdict(judgment: str) -> str:
    """RewardBench 2's rule: the first label in the alphabet whose brackets stand anywhere."""
    return next((label for label in "ABCD" if f"[[{label}]]" in judgment), "error")


@pytest.mark.parametrize("place", range(4))
def test_runner_gets_the_label_of_the_best_response(place: int) -> None:
    with serving() as (url, asked):
        runner = a_runner(url)
        assert run_four(runner, row("the longest one", "b", "cc", "ddd"), place) == 1
        assert run_four(runner, row("a", "bb", "the longest one", "ddd"), place) == 0
    assert all(body["model"] == "judge" and body["temperature"] == 0 for body in asked)
    assert "<rubric>" in asked[0]["messages"][0]["content"]  # our prompt, not the runner's


def test_parse_failure_scores_a_quarter() -> None:
    with serving(lambda responses: None) as (url, asked):
        runner = a_runner(url)
        assert [run_four(runner, row("a", "b", third, "d"), 2) for third in ("c", "b", " ")] == [0.25] * 3
    assert len(asked) == 1


def test_last_answer_of_a_multi_turn_row_is_judged() -> None:
    several = {
        "texts_chosen": [turns("Hello", "Hi", "Breakfast?", "the longest one")],
        "texts_rejected": [turns("Hello", "Hi", "Breakfast?", text) for text in ("a", "b", "c")],
    }
    with serving() as (url, asked):
        assert run_four(a_runner(url), several, 3) == 1
    assert "user: Hello\n\nassistant: Hi\n\nuser: Breakfast?" in asked[0]["messages"][-1]["content"]


@pytest.mark.parametrize(("picks", "winners"), [(longest, [2]), (lambda responses: None, "error")])
def test_ties_rows_are_rated_per_response(picks: Picks, winners: object) -> None:
    answers = [turns("Breakfast?", text) for text in ("a", "bb", "cccc", "ddd", *(str(i) for i in range(10, 19)))]
    with serving(picks) as (url, asked):
        found, prompts, details = a_runner(url).run_judge_ratings_multi(
            "Breakfast?", answers, "judge", multi_turn=False, model_modifier=None, is_ties=True
        )
    assert (found, prompts) == (winners, ["Breakfast?"] * 13)
    ratings = [-1] * 13 if winners == "error" else [1, 2, 4, 3, *[2] * 9]
    assert details["ratings"] == ratings
    assert len(asked) == 13


def test_rewardbench_parser_reads_verdicts_of_our_prompt() -> None:
    with serving() as (url, _):
        answers = [turns("Breakfast?", text) for text in ("a", "the longest one", "c", "d")]
        runner = a_runner(url, prompt="rewardbench2")
        winner, _, judgment = runner.run_judge_four("Breakfast?", *answers, "judge", multi_turn=False)
    assert winner == "B"
    assert parse_verdict(judgment) in "ABCD"


@given(st.lists(st.sampled_from(["[[A]]", "[[B]]", "[[C]]", "[[D]]", "[[E]]", "A", "[", "]]", "\n", "x"])).map("".join))
def test_rewardbench2_format_matches_its_parser(text: str) -> None:
    verdict = prompt_format("rewardbench2").read(text, 4, "length", "rewardbench2").verdict
    assert parse_verdict(text) == ("error" if verdict is None else "ABCD"[verdict])
