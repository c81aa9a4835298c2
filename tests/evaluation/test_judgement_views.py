"""Judgements in a terminal and as JSON: untrusted text never controls the terminal."""

from __future__ import annotations

import io
import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from items import make_item
from rich.console import Console, RenderableType

from think_as_locals.evaluation.tables import escape_terminal, judgement_view, scores_view
from think_as_locals.judging import RULES, parse, shuffle_responses, write
from think_as_locals.reward_models.reward_model import ScoredItem
from think_as_locals.types import Criterion, Item, Rubric

CRITERIA = (
    Criterion(50, "Custom", "People there really do this."),
    Criterion(30, "Place", "It belongs there and not elsewhere."),
    Criterion(20, "[b]Fit[/b]", "It answers the question :smile:."),
)
RUBRIC = Rubric(CRITERIA)

JUDGED = """\
──────────────────── greeting-th ─────────────────────
How do people in Thailand greet an elder?
Thailand
response  shown as
       1         B  With a firm handshake.
       2         D  With palms pressed together.
       3         A  With a deep bow.
       4         C  With two kisses.
weight   criterion  rubric
    50      Custom  People there really do this.
    30       Place  It belongs there and not
                    elsewhere.
    20  [b]Fit[/b]  It answers the question :smile:.
Analysis
D: yes.
Verdict: D, your response 2: With palms pressed
together.
"""

SCORED = """\
response  score
       1   0.25  With a firm handshake.
       2    1.5  With palms pressed together.
       3     -3  With a deep bow.
       4      0  With two kisses.
Highest score: your response 2
"""


def drawn(view: RenderableType, width: int = 54) -> str:
    """As in a narrow console, without trailing blanks."""
    file = io.StringIO()
    Console(file=file, width=width, markup=False, highlight=False, emoji=False, color_system=None).print(view)
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def predicted(item: Item, text: str, finish_reason: str = "stop") -> ScoredItem:
    presented = shuffle_responses(item)
    return ScoredItem(item=item, presented=presented, judgement=parse(text, 4, finish_reason))  # type: ignore[arg-type]


def judged(item: Item, analysis: str = "D: yes.") -> ScoredItem:
    return predicted(item, write(RUBRIC, analysis, shuffle_responses(item).best))


def test_views_show_rubric_verdict_issues_or_scores(item: Item) -> None:
    assert drawn(judgement_view(judged(item))) == JUDGED
    rubric = write(RUBRIC, "x", 0).partition("\n<analysis>")[0]
    output = drawn(judgement_view(predicted(item, rubric, "length")))
    assert "No verdict\n- finished: the completion has to end by itself" in output
    assert output.endswith("</rubric>\n")
    assert drawn(scores_view(item, [0.25, 1.5, -3.0, 0.0])).endswith(SCORED)
    assert "Highest score: several share it" in drawn(scores_view(item, [1.0, 1.0, 0.0, 0.0]))


def test_record_uses_indices_of_the_original_responses(item: Item) -> None:
    record = json.loads(json.dumps(judged(item).record()))
    assert (record["id"], record["verdict"], record["order"], record["issues"]) == ("greeting-th", 1, [2, 0, 3, 1], [])
    assert record["rubric"][0] == {"weight": 50, "name": "Custom", "description": "People there really do this."}
    assert parse(record["completion"], 4).analysis == record["analysis"]
    failed = predicted(item, "nonsense").record()
    assert (failed["verdict"], failed["rubric"], failed["analysis"]) == (None, None, None)
    assert set(failed["issues"]) <= set(RULES)


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("\x1b[2J\x1b]0;title\x07", r"\u001b[2J\u001b]0;title\u0007"),
        ("\x9b31m", r"\u009b31m"),
        ("over\rwrite\b", r"over\rwrite\b"),
        ("\u202egnp.exe\u2066", r"\u202egnp.exe\u2066"),
        ("hidden\U000e0041\u200b", r"hidden\udb40\udc41\u200b"),
        ("\ud800", r"\ud800"),
        ("[red]no markup[/red] :smile:", "[red]no markup[/red] :smile:"),
        ("नमस्\u200dते\r\nสวัสดี", "नमस्\u200dते\nสวัสดี"),
    ],
)
def test_escape_terminal_escapes_control_characters_only(text: str, escaped: str) -> None:
    assert escape_terminal(text).plain == escaped


@given(st.text(st.characters(categories=["Cc", "Cf", "Cs", "L", "P", "Z"])))
def test_escape_terminal_leaves_no_control_characters(text: str) -> None:
    left = {c for c in escape_terminal(text).plain if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert left <= set("\n\t\u200c\u200d\u200e\u200f\u061c")


def test_judgement_view_escapes_every_untrusted_text() -> None:
    evil = "\x1b[31mno"
    item = make_item(id=evil, prompt=evil, responses=(f"{evil}1", f"{evil}2"), culture=evil)
    rubric = Rubric(tuple(Criterion(weight, f"{evil}{weight}", evil) for weight in (50, 30, 20)))
    for text in (write(rubric, evil, 0), f"nonsense {evil}"):
        prediction = ScoredItem(item=item, presented=shuffle_responses(item), judgement=parse(text, 2))
        output = drawn(judgement_view(prediction), width=200)
        assert "\x1b" not in output
        assert output.count(r"\u001b[31mno") >= 6
    assert "\x1b" not in drawn(scores_view(item, [0.0, 1.0]), width=200)
