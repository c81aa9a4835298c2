"""Policy tasks: the questions asked, golden cases of answer quality, and yields."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from data.sources.test_blend import a_folder
from items import make_item
from reward_models.scripted import Scripted
from reward_models.tiny import write_classifier
from rich.console import Console
from rich.progress import Progress

from think_as_locals.config.checks import load_config
from think_as_locals.config.model_schema import EvaluationConfig, SampleSection
from think_as_locals.evaluation import sampling
from think_as_locals.evaluation.sampling import (
    Question,
    advance,
    chosen_option,
    quality,
    questions_of,
    vote_share,
    yield_summary,
    yield_table,
)
from think_as_locals.reward_models.judge import Judge, JudgeSettings
from think_as_locals.reward_models.protocols import JudgingProtocol
from think_as_locals.reward_models.scalar import ScalarRM
from think_as_locals.types import DataError, DataWarning

ITEMS = [make_item(id=str(i), group=f"group {i}", culture=("TH", "JP")[i % 2]) for i in range(4)]


def test_yields_count_completions_and_kept_items() -> None:
    completions = [(item.id, "wrong", ["late", "long"] if item.id == "0" else ["late"]) for item in ITEMS]
    completions += [("0", "right", []), ("1", "right", [])]
    found = yield_summary(ITEMS, completions, ("right", "wrong"), {"0", "1"}, hinted={"0"})
    counts = {"n": 4, "yield": 0.5, "completions": 6, "right": 2, "wrong": 4, "hinted": 1}
    assert {key: found[key] for key in counts} == counts
    assert found["broken"] == {"late": 4, "long": 1}
    assert {culture: part["hinted"] for culture, part in found["by_culture"].items()} == {"JP": 0, "TH": 1}
    table = yield_table("culture", "kept, %", {**found["by_culture"], "all": found}, {"completions": "asked"})
    assert table.iloc[-1, -1] == "6"


def test_yield_of_no_items_is_none() -> None:
    found = yield_summary([], [], ("right",), [])
    assert (found["n"], found["yield"], found["right"], found["by_culture"]) == (0, None, 0, {})
    assert yield_table("probe", "edited, %", {"RC": found}, {"right": "kept"}).iloc[0].tolist() == ["RC", "", "0"]


def test_bar_counts_the_requests_of_all_rounds() -> None:
    bar = Progress(console=Console(file=io.StringIO()))
    update = advance(bar, "a tournament")
    shown = []
    for more, total in [(1, 4), (3, 4), (0, 2), (1, 2), (1, 2), (0, 1)]:
        update(more, total)
        shown.append((bar.tasks[0].completed, bar.tasks[0].total))
    assert shown == [(1, 4), (4, 4), (4, 6), (5, 6), (6, 6), (6, 7)]


# --- the questions of a task ---


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("I compare A and C.\n\n**Answer: C**", 2),
        ("answer: (d)", 3),
        ("Answer: A\nNo, wait.\nAnswer: B", 1),
        *((alone, 1) for alone in ("B", " (B). ", "**B**", "b)")),
        ("Answer: E", None),  # not on offer
        ("Answer: Because", None),
        ("The best answer a local would give is B.", None),
        ("Answer: B\nThis is the answer a local would give.", 1),
        ("Answer: a bow, with both hands.", None),
        ("Answer: A is what people do.", 0),
        *((f"{before}B", 1) for before in ("**Answer**: ", "**Answer:** ", "Answer : **", "ANSWER:")),
        ("B is wrong, and so is C", None),
        ("Myanswer: B", None),
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
        ("noodles or rice and fish", 1.0),
        ("Noodles\nrice and fish", 0.75),  # the first line counts
        ("noodlesoup", 0.0),
        ("กินข้าวต้ม", 0.5),
        ("u.s", 0.25),
        ("The States", 0.25),  # one of two answers in one
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
    task = ("sample=prompts", "sample.scorer=constant", "sample.data.max_items=8", "sample.data.languages=[en]")
    asked = questions_of(section(*task), seed=0)
    assert all(isinstance(each, Question) and not each.votes for each in asked)
    assert "Answer" not in asked[0].item.prompt


def test_candidates_whose_rating_cannot_be_parsed_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Scripted(lambda messages: "I like it: 9" if "wai" in messages[-1]["content"] else "It depends.")
    settings = JudgeSettings(prompt="rewardbench2_ratings", max_completion_length=9)
    pointwise = JudgingProtocol(kind="pointwise", orders=1, convention="strict")
    judge = Judge(engine=engine, settings=settings, protocol=pointwise)
    monkeypatch.setattr(sampling, "load_reward_model", lambda *_: judge)
    task = section("sample=prompts", "sample.scorer=constant")
    questions = [Question(item) for item in ITEMS[:2]]
    with pytest.warns(DataWarning, match=r"2 of 4 candidates: .* cannot be parsed; their quality is taken as 5\.5"):
        found = sampling.qualities(task, 0, questions, [["A wai.", "A bow."], ["A hug.", "A deep wai."]])
    assert found == [[9.0, 5.5], [5.5, 9.0]]


def test_candidates_too_long_for_their_scorer_name_what_to_change(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rm = ScalarRM.load(write_classifier(tmp_path))
    monkeypatch.setattr(sampling, "load_reward_model", lambda *_: rm)
    task = section("sample=prompts", "sample.scorer=constant")
    message = r"longer than sample\.scorer takes: .* takes 256.*sample\.max_completion_length has to be smaller"
    with pytest.raises(DataError, match=message):
        sampling.qualities(task, 0, [Question(ITEMS[0])], [["tea", "rice " * 300]])
