"""Policy tasks: the questions asked, and golden cases of answer quality."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from data.sources.test_blend import a_folder

from think_as_locals.config.checks import load_config
from think_as_locals.config.model_schema import EvaluationConfig, SampleSection
from think_as_locals.evaluation.sampling import Question, chosen_option, quality, questions_of, vote_share


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("Answer: B", 1),
        ("I compare A and C.\n\n**Answer: C**", 2),
        ("answer: (d)", 3),
        ("Answer: A\nNo, wait.\nAnswer: B", 1),
        ("B", 1),
        (" (B). ", 1),
        ("**B**", 1),
        ("b)", 1),
        ("Answer: E", None),  # not on offer
        ("Answer: Because", None),
        ("The answer is B.", None),  # prose is not guessed from
        ("The best answer a local would give is B.", None),
        ("Answer: B\nThis is the answer a local would give.", 1),
        ("Answer: a bow, with both hands.", None),
        ("Answer: a", 0),
        ("Answer: A is what people do.", 0),
        *((f"{before}B", 1) for before in ("**Answer**: ", "**Answer:** ", "Answer : **", "ANSWER:")),
        ("B is wrong, and so is C", None),
        ("Myanswer: B", None),
        ("", None),
        ("Answer:" * 20_000 + "B", 1),
    ],
)
def test_chosen_option_needs_an_explicit_answer(text: str, chosen: int | None) -> None:
    assert chosen_option(text, 4) == chosen


VOTES = [(["rice and fish", "fish rice"], 4), (["noodles"], 3), (["ข้าวต้ม"], 2), (["U.S.", "America\nthe States"], 1)]


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("Rice and fish.", 1.0),
        ("They eat FISH RICE", 1.0),
        ("rice", 0.0),  # a part of an answer is none
        ("noodles or rice and fish", 1.0),
        ("Noodles\nrice and fish", 0.75),  # the first line counts
        ("noodlesoup", 0.0),
        ("กินข้าวต้ม", 0.5),
        ("u.s", 0.25),
        ("The States", 0.25),  # one of two answers in one
        ("", 0.0),
        ("\n \n", 0.0),
    ],
)
def test_vote_share_of_short_answers(text: str, share: float) -> None:
    assert vote_share(text, VOTES) == share


def section(*overrides: str) -> SampleSection:
    config = load_config("recipes/downstream.yaml", ["sample.policy.path=x", *overrides])
    assert isinstance(config, EvaluationConfig)
    assert config.sample is not None
    return config.sample


def test_multiple_choice_shuffles_options_and_scores_the_right_letter() -> None:
    asked = questions_of(section("sample.data.languages=[en]", "sample.data.max_items=200"), seed=0)
    assert len(asked) == 200
    assert len({question.item.best for question in asked}) == 4
    item = asked[0].item
    label = "ABCD"[item.best]
    assert f"{label}. {item.responses[item.best]}\n" in f"{item.prompt}\n"
    assert item.prompt.endswith("Answer: one of A, B, C, D")
    assert [quality(asked[0], f"Answer: {other}") for other in "ABCD"] == [float(o == label) for o in "ABCD"]


def test_short_answers_ask_each_region_once_with_its_votes(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "blend")
    raw = json.loads(next((tmp_path / "blend" / "annotations").glob("US_*")).read_text(encoding="utf-8"))
    asked = questions_of(section("sample=short_answers", f"sample.data.path={folder}"), seed=0)
    assert len({question.item.id for question in asked}) == len(asked)
    assert {question.item.language for question in asked} > {"en"}
    for question in asked:
        assert max(count for _, count in question.votes) >= 3
        assert question.item.prompt.endswith("and nothing else.")
        first, _ = question.votes[0]
        assert quality(question, first[0]) > 0
    of_us = [question for question in asked if question.item.culture == "US"]
    assert {question.item.group for question in of_us} <= set(raw)


def test_prompts_task_asks_prompts_unchanged() -> None:
    asked = questions_of(section("sample=prompts", "sample.scorer=constant", "sample.data.max_items=8"), seed=0)
    assert all(isinstance(each, Question) and not each.votes for each in asked)
    assert "Answer" not in asked[0].item.prompt
