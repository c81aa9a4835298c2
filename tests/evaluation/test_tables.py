"""Tables for a terminal, markdown and HTML: figures, alignment, sections, and escaped text."""

from __future__ import annotations

import pytest
from markupsafe import Markup
from rich.console import Console

from think_as_locals.evaluation.tables import Figure, Named, Table, escape_markdown, figure

EVIL = "<b>|[red]*x*\x1b[2J\u202e"
PART = {"n": 40, "accuracy": 0.5, "ci95": [0.25, 0.75], "ci_method": "wilson"}
TABLE = Table(
    ["rank", "model", "accuracy", "gain", "plot", "n"],
    [
        ["1–2", Named(EVIL, "●", "may be first"), figure(PART, show_n=True), None, Markup("<svg></svg>"), "40"],
        ["", "plain", figure(PART | {"n": 0}) or "none", [Figure(-1.0, label="A"), Figure(0.0, form="+.1f")], "", "3"],
    ],
    header=1,
    sections=[1],
)


def test_markdown_table_omits_plots() -> None:
    head, _, first, second = TABLE.markdown().splitlines()
    assert head == "| rank | model | accuracy | gain | n |"
    assert first.startswith(r"| 1–2 | &lt;b&gt;\|\[red\]\*x\*")
    assert first.endswith("● | 50.0 [25.0, 75.0], n 40 |  | 40 |")
    assert second == "|  | plain | none | A -1.0; +0.0 | 3 |"


def test_html_table_escapes_names_and_explains_marks() -> None:
    page = TABLE.html('Models "of" <b>', "board")
    assert 'aria-label="Models &#34;of&#34; &lt;b&gt;"' in page
    assert page.count("<tbody>") == 2
    assert '<td class="number"><b>50.0</b> <small title="Wilson by item">25.0–75.0, n\u00a040</small></td>' in page
    assert "<svg></svg>" in page
    assert "<b>|" not in page
    assert "\u202e" not in page
    assert '<span class="mark" title="may be first">●' in page
    assert "A <b>−1.0</b>" in page
    assert "<b>±0.0</b>" in page
    assert '<td class="number">–</td>' in page


def test_terminal_table_escapes_text_and_shows_every_figure() -> None:
    console = Console(markup=False, highlight=False, record=True, width=120)
    console.print(TABLE.terminal("\x1b]0;title", "caption"))
    text = console.export_text()
    assert not set("\x1b\u202e") & set(text)
    assert r"<b>|[red]*x*\x1b[2J\u202e ●" in text
    assert "50.0 [25.0, 75.0], n 40" in text


@pytest.mark.parametrize(("p", "text"), [(0.0004, "< 0.001"), (0.001, "0.001"), (0.25, "0.250")])
def test_p_values_have_three_digits(p: float, text: str) -> None:
    assert Figure(p, form="p").text() == text


def test_escape_markdown_prevents_autolinks() -> None:
    text = escape_markdown("https://evil.example WWW.evil.example me@evil.example Qwen2.5:7B")
    assert text == r"https\://evil.example WWW\.evil.example me\@evil.example Qwen2.5:7B"
