"""Tables and judgements in a terminal, markdown and HTML: figures, and untrusted text that controls nothing."""

from __future__ import annotations

import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from items import make_item
from pandas import DataFrame
from rich.console import Console, RenderableType

from think_as_locals.evaluation.tables import (
    escape_markdown,
    escape_terminal,
    figure,
    html,
    judgement_view,
    markdown,
    on_terminal,
    p_value,
    scores_view,
)
from think_as_locals.judging import parse, shuffle_responses, write
from think_as_locals.reward_models.reward_model import ScoredItem
from think_as_locals.runtime.terminal import Terminal
from think_as_locals.types import Criterion, Item, Rubric

EVIL = "<b>|[red]*x*\x1b[2J\u202e"
PART = {"n": 40, "accuracy": 0.5, "ci95": [0.25, 0.75], "ci_method": "wilson"}
TABLE = DataFrame({"model": [EVIL, "plain"], "accuracy": [figure(PART, show_n=True), "none"], "n": ["40", "3"]})


def test_figures_have_interval_and_n_or_are_empty() -> None:
    assert figure(PART, show_n=True) == "50.0 [25.0, 75.0], n 40"
    assert figure({"n": 4, "difference": 0.1, "ci95": [-0.1, 0.2]}, "difference", "+.1f") == "+10.0 [-10.0, +20.0]"
    assert figure({"n": 1, "mean": 2.0, "ci95": None}, "mean", ".2f", 1) == "2.00"
    assert figure({"n": 0, "accuracy": None}) == figure({}) == ""


@pytest.mark.parametrize(("p", "text"), [(0.0004, "< 0.001"), (0.001, "0.001"), (0.25, "0.250"), (None, "")])
def test_p_values_have_three_digits(p: float | None, text: str) -> None:
    assert p_value(p) == text


def test_untrusted_text_is_escaped_in_every_form() -> None:
    assert r"&lt;b&gt;\|\[red\]\*x\*" in markdown(TABLE)
    page = html(TABLE, 'Models "of" <b>')
    assert 'aria-label="Models &#34;of&#34; &lt;b&gt;"' in page
    assert "&lt;b&gt;|[red]" in page
    assert "<b>" not in page
    console = Console(markup=False, highlight=False, record=True, width=120)
    console.print(on_terminal(TABLE, "\x1b]0;title", "caption"))
    text = console.export_text()
    assert not set("\x1b\u202e") & set(text)
    assert r"<b>|[red]*x*\u001b[2J\u202e" in text
    assert "50.0 [25.0, 75.0], n 40" in text


def test_escape_markdown_prevents_autolinks() -> None:
    text = escape_markdown("https://evil.example WWW.evil.example me@evil.example Qwen2.5:7B")
    assert text == r"https\://evil.example WWW\.evil.example me\@evil.example Qwen2.5:7B"


def test_tables_in_files_and_pipes_are_wide_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert Terminal().width == 160
    monkeypatch.setenv("COLUMNS", "90")
    assert Terminal().width == 90


# --- judgements ---

RUBRIC = Rubric(
    (
        Criterion(50, "Custom", "People there really do this."),
        Criterion(30, "Place", "It belongs there and not elsewhere."),
        Criterion(20, "[b]Fit[/b]", "It answers the question :smile:."),
    )
)

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


def test_views_show_rubric_verdict_issues_or_scores(item: Item) -> None:
    text = write(RUBRIC, "D: yes.", shuffle_responses(item).best)
    assert drawn(judgement_view(predicted(item, text))) == JUDGED
    rubric = write(RUBRIC, "x", 0).partition("\n<analysis>")[0]
    output = drawn(judgement_view(predicted(item, rubric, "length")))
    assert "No verdict\n- finished: the completion has to end by itself" in output
    assert output.endswith("</rubric>\n")
    assert drawn(scores_view(item, [0.25, 1.5, -3.0, 0.0])).endswith(SCORED)
    assert "Highest score: several share it" in drawn(scores_view(item, [1.0, 1.0, 0.0, 0.0]))


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("\x1b[2J\x1b]0;title\x07", r"\u001b[2J\u001b]0;title\u0007"),
        ("over\rwrite\b", r"over\rwrite\b"),
        ("\u202egnp.exe\u2066", r"\u202egnp.exe\u2066"),
        ("hidden\U000e0041\u200b", r"hidden\udb40\udc41\u200b"),
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
