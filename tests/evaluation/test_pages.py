"""Shared parts of HTML pages: escaping, content security policy, and JSON embedded in a script."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import pytest
from evaluation.conftest import EVIL
from evaluation.judged import flip_items, judge_all, measure
from html_page import Page

from think_as_locals.evaluation.leaderboard import write_leaderboard
from think_as_locals.evaluation.pages import read_settings, shade, templates
from think_as_locals.evaluation.report import write_report
from think_as_locals.runtime.files import read_json
from think_as_locals.types import DataError


def test_templates_escape_text_and_reject_undefined_names_and_nan() -> None:
    page = templates().from_string("{{ text }} {{ 'th'|language }} {{ 'xx-unknown'|language }} {{ 'TH'|culture }}")
    assert page.render(text="<b>") == "&lt;b&gt; Thai xx-unknown Thailand"
    with pytest.raises(Exception, match="'text' is undefined"):
        page.render()
    with pytest.raises(ValueError, match="JSON compliant"):
        templates().filters["embedded"]({"score": float("nan")})
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
    assert not re.search(r"@import|url\([^#]|innerHTML", found.source)
    assert not any("//" in (value or "") for _, attrs in found.tags for name, value in attrs.items() if "href" in name)
    assert "alert(1)" in found.text

    (script,) = re.findall(r"<script>(.*?)</script>", found.source, re.DOTALL)
    policy = found.all("meta")[1]["content"] or ""
    assert f"script-src 'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in policy
    assert "default-src 'none'" in policy


def test_pages_are_byte_identical_for_the_same_run(tmp_path: Path) -> None:
    original_run, files = tmp_path / "run", []
    measure(original_run, 5, judge_all(lambda i: i % 2, flip_items()))
    for _ in range(2):
        page = write_leaderboard([original_run], tmp_path / "out")
        files.append([path.read_bytes() for path in sorted(page.parent.iterdir())])
        files[-1].append(write_report(original_run).read_bytes())
    assert len(files[0]) == 4
    assert files[0] == files[1]
