"""Tables for a terminal, markdown and HTML: figures and escaped text."""

from __future__ import annotations

import io

import pytest
from pandas import DataFrame
from rich.console import Console

from think_as_locals.evaluation.tables import escape_markdown, figure, html, markdown, on_terminal, p_value
from think_as_locals.runtime.terminal import Terminal

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
