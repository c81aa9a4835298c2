"""Shared parts of HTML pages: escaping, content security policy, axes, and JSON embedded in a script."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest
from evaluation.conftest import EVIL
from evaluation.judged import flip_items, judge_all, measure
from html_page import Page, check_tables, check_texts
from hypothesis import given, settings
from hypothesis import strategies as st

from think_as_locals.evaluation.leaderboard import write_leaderboard
from think_as_locals.evaluation.pages import axis, read_settings, shade, spread, templates
from think_as_locals.evaluation.report import write_report
from think_as_locals.runtime.files import read_json
from think_as_locals.types import DataError

NASTY = st.text() | st.sampled_from(["</script>", "<!--<script>", "]]>", "&lt;", "\u2028", "{{ 1 }}"])


@settings(max_examples=50)
@given(st.recursive(NASTY | st.integers() | st.none(), lambda inner: st.lists(inner, max_size=3)))
def test_embedded_json_round_trips_without_html_characters(value: object) -> None:
    text = str(templates().filters["embedded"](value))
    assert json.loads(text) == value
    assert not set(text) & set("<>&")


def test_embedded_rejects_nan() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        templates().filters["embedded"]({"score": float("nan")})


def test_templates_escape_text_and_reject_undefined_names() -> None:
    page = templates().from_string("{{ text }} {{ 'th'|language }} {{ 'xx-unknown'|language }} {{ 'TH'|culture }}")
    assert page.render(text="<b>") == "&lt;b&gt; Thai xx-unknown Thailand"
    with pytest.raises(Exception, match="'text' is undefined"):
        page.render()


def test_axis_has_round_ticks_even_for_a_single_value() -> None:
    assert axis(-0.43, 0.91, start=100, end=0, ticks=3).ticks == [-0.5, 0.0, 0.5, 1.0]
    assert axis(0, 1, start=0, end=10, ticks=1).ticks == [0, 1]
    same = axis(0.5, 0.5, start=0, end=10)
    assert same.low <= 0.5 <= same.high
    assert axis(0, 2000, start=50, end=700).at(1000) == 375


def test_shade_is_neutral_at_chance() -> None:
    assert [shade(value, 0.25) for value in (0, 0.25, 0.625, 1)] == [-100, 0, 50, 100]


def test_missing_settings_are_none_and_invalid_ones_raise(tmp_path: Path) -> None:
    assert read_settings(tmp_path) == {"settings": None, "environment": None}
    (tmp_path / "environment.json").write_text("[1]")
    with pytest.raises(DataError, match=r"environment\.json: expected a JSON object, got list"):
        read_settings(tmp_path)
    (tmp_path / "torn.json").write_text('{"a"')
    with pytest.raises(DataError, match=r"torn\.json: not JSON"):
        read_json(tmp_path / "torn.json")


@pytest.fixture(params=["report", "leaderboard"])
def page(request: pytest.FixtureRequest, evil: Path, tmp_path: Path) -> Path:
    """A page about hostile texts."""
    if request.param == "leaderboard":
        return write_leaderboard([evil], tmp_path)
    items = flip_items(prompt=EVIL, response=EVIL)
    measure(tmp_path, 0, judge_all(lambda _: False, items, EVIL), dataset=EVIL)
    measure(tmp_path, 5, judge_all(lambda i: i % 3 == 0, items, EVIL), dataset=EVIL)
    for name in ("config.yaml", "environment.json"):
        (tmp_path / name).write_bytes((evil / name).read_bytes())
    return write_report(tmp_path)


def test_page_escapes_text_and_loads_nothing_external(page: Path) -> None:
    found = Page(page)
    assert [attrs.get("type") for attrs in found.all("script")] in ([None], ["application/json", None])
    assert not any(found.all(tag) for tag in ("img", "link"))
    assert not any(name.startswith("on") or name == "src" for _, attrs in found.tags for name in attrs)
    assert all((attrs["href"] or "").startswith("#") for attrs in found.all("a"))
    assert not re.search(r"https?:|@import|url\(|innerHTML", found.source)
    assert "alert(1)" in found.text


def test_content_security_policy_allows_only_the_one_script(page: Path) -> None:
    found = Page(page)
    (script,) = re.findall(r"<script>(.*?)</script>", found.source, re.DOTALL)
    policy = found.all("meta")[1]["content"] or ""
    assert f"script-src 'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in policy
    assert "default-src 'none'" in policy


def test_tables_scroll_and_drawing_labels_do_not_overlap(page: Path) -> None:
    check_tables(Page(page).source)
    check_texts(Page(page).source)


@pytest.mark.parametrize("right", [0, 0.46, 0.5, 1])
@pytest.mark.parametrize(("last", "scale"), [(1, 1), (400, 1e-4), (12000, 1e5)])
def test_curve_labels_do_not_overlap(tmp_path: Path, right: float, last: int, scale: float) -> None:
    items = flip_items()
    measure(tmp_path, 0, judge_all(lambda _: False, items))
    measure(tmp_path, last, judge_all(lambda i: i < right * len(items), items))
    lines = [{"stage": "grpo", "step": s, "reward": scale * (s - 0.4 * last) / last} for s in (0, last)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    check_texts(Page(write_report(tmp_path)).source)


def test_spread_separates_positions_within_bounds() -> None:
    assert spread([], 10, 0, 100) == []
    assert spread([3, 4, 50, 99, 99], 10, 5, 100) == [5, 15, 50, 90, 100]
    assert spread([40, 41, 42], 10, 0, 100) == [40, 50, 60]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colour_contrast_meets_wcag(page: Path, scheme: int) -> None:
    """WCAG 2.2: 4.5 for text, 3 for what is drawn."""
    colours = dict(
        re.findall(r"--(\w+): (#\w{6})", re.findall(r":root \{(.*?)\}", Page(page).source, re.DOTALL)[scheme])
    )

    def contrast(one: str, other: str) -> float:
        values = [[int(colours[name][i : i + 2], 16) / 255 for i in (1, 3, 5)] for name in (one, other)]
        linear = [[v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in each] for each in values]
        low, high = sorted(0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in linear)
        return (high + 0.05) / (low + 0.05)

    texts = [(text, ground) for text in ("ink", "muted", "now", "good", "bad") for ground in ("paper", "panel")]
    for pair in [*texts, *(("ink", heat) for heat in ("above", "middle", "below"))]:
        assert contrast(*pair) >= 4.5, pair
    assert contrast("then", "paper") >= 3


def test_table_headers_have_scope_and_page_has_landmarks(page: Path) -> None:
    found = Page(page)
    assert {attrs.get("scope") for attrs in found.all("th")} == {"col", "row"}
    assert [len(found.all(tag)) for tag in ("header", "main", "nav")] == [1, 1, 1]


def test_pages_are_byte_identical_for_the_same_run(tmp_path: Path) -> None:
    original_run, files = tmp_path / "run", []
    measure(original_run, 5, judge_all(lambda i: i % 2, flip_items()))
    for _ in range(2):
        page = write_leaderboard([original_run], tmp_path / "out")
        files.append([path.read_bytes() for path in sorted(page.parent.iterdir())])
        files[-1].append(write_report(original_run).read_bytes())
    assert len(files[0]) == 4
    assert files[0] == files[1]
