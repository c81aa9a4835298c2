"""Other people's formats: read strictly, or as their own code does; total and linear on any text."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from think_as_locals.judging import parse, prompt_names, write
from think_as_locals.judging.readers import (
    FORMATS,
    asks_for_rating,
    label_place,
    read_rating,
    read_verdict,
    reserved_marks,
)
from think_as_locals.judging.render import UnknownPromptError, neutralise
from think_as_locals.types import LABELS, Convention, Criterion, Rubric

CONVENTIONS: tuple[Convention, ...] = ("strict", "rewardbench2")
RUBRIC = Rubric((Criterion(50, "Custom", "Done."), Criterion(30, "Place", "There."), Criterion(20, "Fit", "It fits.")))
GOOD = write(RUBRIC, "B is done there, [[A]] is not.", 1)
VERDICTS = [prompt for prompt, form in FORMATS.items() if form != "rating"]

pieces = st.sampled_from(
    [*(f"[[{label}]]" for label in "ABCDX"), "[[", "]]", "<answer>", "</answer>", "<verdict>", "</verdict>", "B", ".",
     "\n", "8", "10", "/10", "-", "_", "ก", " "]
)  # fmt: skip
texts = st.lists(st.one_of(pieces, st.text(max_size=5)), max_size=12).map("".join)


def test_every_prompt_has_a_reader() -> None:
    assert sorted(FORMATS) == prompt_names()


BRACKETS = [
    ("B is the best. [[B]]", 1, 1),
    ("[[B]]", 1, 1),
    ("So **[[D]]**.\n", 3, 3),
    ("I would not say [[A]]; [[C]]", None, 0),  # theirs: A stands somewhere
    ("[[B]] beats [[A]]", None, 0),
    ("[[B]], clearly [[B]]", 1, 1),
    ("[[B]] because it is kind", None, 1),  # ours: the verdict comes last
    ("[[E]]", None, None),  # not on offer
    ("[[B]] and [[E]]", None, 1),
    ("[[b]]", None, None),
    ("[B]", None, None),
    ("[[B]", None, None),
    ("B", None, None),
    ("", None, None),
]


@pytest.mark.parametrize(("text", "strict", "theirs"), BRACKETS)
def test_brackets(text: str, strict: int | None, theirs: int | None) -> None:
    for convention, expected in zip(CONVENTIONS, (strict, theirs), strict=True):
        judgement = read_verdict("rewardbench2", text, 4, "stop", convention)
        assert judgement.verdict == expected
        assert judgement.issues == (() if expected is not None else ("verdict_label",))
        assert judgement.text == text


ANSWERS = [
    ("<type>Chat</type><rubric>Kind</rubric><eval>B</eval>\n<answer>[[B]]</answer>\n", 1, 1),
    ("<answer> [[A]] </answer>", 0, 0),
    ("<eval>[[A]] is unkind</eval><answer>[[B]]</answer>", 1, 0),
    ("<answer>[[B]]</answer> I am sure.", None, 1),
    ("<answer>[[A]]</answer><answer>[[B]]</answer>", None, 0),
    ("<answer>[[A/B]]</answer>", None, None),
    ("<answer>B</answer>", None, None),
    ("</answer>[[B]]<answer>", None, 1),
    ("<answer>[[C]]</answer>", None, None),
    ("[[B]]", None, 1),
]


@pytest.mark.parametrize(("text", "strict", "theirs"), ANSWERS)
def test_answers(text: str, strict: int | None, theirs: int | None) -> None:
    assert read_verdict("rm_r1", text, 2, "stop", "strict").verdict == strict
    assert read_verdict("rm_r1", text, 2, "stop", "rewardbench2").verdict == theirs


@pytest.mark.parametrize("prompt", ["rewardbench2", "rm_r1"])
def test_a_completion_that_was_cut_off_has_no_verdict_unless_their_convention_is_asked_for(prompt: str) -> None:
    text = "<answer>[[B]]</answer>" if prompt == "rm_r1" else "[[B]]"
    assert read_verdict(prompt, text, 2, "length", "strict").issues == ("finished",)
    assert read_verdict(prompt, "nothing", 2, None, "strict").issues == ("finished", "verdict_label")
    assert read_verdict(prompt, text, 2, "length", "rewardbench2").verdict == 1


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("prompt", [prompt for prompt, form in FORMATS.items() if form == "grammar"])
def test_our_grammar_is_always_read_strictly(prompt: str, convention: Convention) -> None:
    for text, finish_reason in [(GOOD, "stop"), (GOOD, "length"), ("[[B]]", "stop")]:
        assert read_verdict(prompt, text, 2, finish_reason, convention) == parse(text, 2, finish_reason)


RATINGS = [
    ("Kind and correct.\n8", 8.0, 8.0),
    ("10", 10.0, 10.0),
    ("It is 10\n", 10.0, 10.0),
    ("Rating: 7", 7.0, 7.0),
    ("9/10", None, 10.0),  # theirs: the digits at the end
    ("7.5", None, 5.0),
    ("-3", None, 3.0),
    ("110", None, None),
    ("0", None, None),
    ("11", None, None),
    ("x_8", None, None),
    ("**8**", None, None),
    ("8.", None, None),
    ("٨", None, None),
    ("", None, None),
]


@pytest.mark.parametrize(("text", "strict", "theirs"), RATINGS)
def test_ratings(text: str, strict: float | None, theirs: float | None) -> None:
    assert read_rating(text, "stop", "strict") == strict
    assert read_rating(text, "stop", "rewardbench2") == theirs
    assert read_rating(text, "length", "strict") is None
    assert read_rating(text, "length", "rewardbench2") == theirs


@given(texts, st.sampled_from(["stop", "length", None]))
@settings(deadline=None)
def test_a_rating_is_the_number_that_a_text_ends_with(text: str, finish_reason: str | None) -> None:
    found = re.search(r"(?<!\w)(10|[1-9])\Z", text.strip())
    assert read_rating(text, finish_reason, "rewardbench2") == (float(found[1]) if found else None)
    alone = re.search(r"(?<!\S)(10|[1-9])\Z", text.strip()) if finish_reason == "stop" else None
    assert read_rating(text, finish_reason, "strict") == (float(alone[1]) if alone else None)


@given(
    texts, st.sampled_from(VERDICTS), st.integers(2, 8), st.sampled_from(CONVENTIONS), st.sampled_from(["stop", "x"])
)
@settings(deadline=None)
def test_any_text_is_read(text: str, prompt: str, n: int, convention: Convention, finish_reason: str) -> None:
    judgement = read_verdict(prompt, text, n, finish_reason, convention)
    assert (judgement.verdict is None) == bool(judgement.issues)
    assert judgement.verdict is None or 0 <= judgement.verdict < n
    assert judgement.text == text
    lenient = read_verdict(prompt, text, n, finish_reason, "rewardbench2")
    if judgement.verdict is not None and FORMATS[prompt] == "bracket":
        assert lenient.verdict == judgement.verdict  # strictly, there is no other label to take
    read_rating(text, finish_reason, convention)
    place = label_place(text)
    assert place is None or text[place] in LABELS


@given(texts)
@settings(deadline=None)
def test_no_response_can_bring_a_verdict_along(response: str) -> None:
    for prompt in ("rewardbench2", "rewardbench2_responses_first", "rm_r1"):
        quoted = neutralise(response, reserved_marks(prompt))
        for convention in CONVENTIONS:
            assert read_verdict(prompt, quoted, 4, "stop", convention).verdict is None


def test_reading_takes_time_linear_in_the_text() -> None:
    for part in ("[[A", "<answer>", "</answer>", "<answer>[[A]]", "]]", "9 ", "<verdict>"):
        text = part * (1_000_000 // len(part))
        start = time.perf_counter()
        for prompt in VERDICTS:
            read_verdict(prompt, text, 4, "stop", "strict")
        read_rating(text, "stop", "strict")
        label_place(text)
        assert time.perf_counter() - start < 2


def test_a_prompt_without_a_reader_lists_those_that_have_one() -> None:
    with pytest.raises(UnknownPromptError, match="listwise, compact, rewardbench2"):
        read_verdict("mine", "", 2, "stop", "strict")
    with pytest.raises(UnknownPromptError, match="asks for a rating; for a verdict ask with listwise"):
        read_verdict("rewardbench2_ratings", "", 2, "stop", "strict")
    with pytest.raises(ValueError, match="from 2 to 8, got 9"):
        read_verdict("rm_r1", "", 9, "stop", "strict")
    assert [prompt for prompt in FORMATS if asks_for_rating(prompt)] == ["rewardbench2_ratings"]
