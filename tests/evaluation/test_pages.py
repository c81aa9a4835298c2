"""What pages share: the heat map's scale, and JSON that no text can break out of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from think_as_locals.evaluation.pages import axis, embedded, read_settings, shade, templates
from think_as_locals.runtime.files import read_json
from think_as_locals.types import DataError

NASTY = st.text() | st.sampled_from(["</script>", "<!--<script>", "]]>", "&lt;", "\u2028", "{{ 1 }}"])


@settings(max_examples=50, deadline=None)
@given(st.recursive(NASTY | st.integers() | st.none(), lambda inner: st.lists(inner, max_size=3)))
def test_embedded_json_is_read_back_and_holds_no_sign_of_html(value: object) -> None:
    text = str(embedded(value))
    assert json.loads(text) == value
    assert not set(text) & set("<>&\u2028\u2029")


def test_a_number_that_json_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        embedded({"score": float("nan")})


def test_templates_escape_and_refuse_unknown_names() -> None:
    page = templates().from_string("{{ text }} {{ 'th'|language }} {{ 'xx-unknown'|language }} {{ 'TH'|culture }}")
    assert page.render(text="<b>") == "&lt;b&gt; Thai xx-unknown Thailand"
    with pytest.raises(Exception, match="'text' is undefined"):
        page.render()


def test_axes_have_round_ticks_even_where_all_values_are_the_same() -> None:
    assert axis(-0.43, 0.91, start=100, end=0, ticks=3).ticks == [-0.5, 0.0, 0.5, 1.0]
    assert axis(0, 1, start=0, end=10, ticks=1).ticks == [0, 1]
    same = axis(0.5, 0.5, start=0, end=10)
    assert same.low <= 0.5 <= same.high
    assert axis(0, 2000, start=50, end=700).at(1000) == 375


def test_shade_is_neutral_at_chance() -> None:
    assert [shade(value, 0.25) for value in (0, 0.25, 0.625, 1)] == [-100, 0, 50, 100]


def test_settings_that_are_not_there_are_none(tmp_path: Path) -> None:
    assert read_settings(tmp_path) == {"settings": None, "environment": None}
    (tmp_path / "environment.json").write_text("[1]")
    with pytest.raises(DataError, match=r"environment\.json: expected a JSON object, got list"):
        read_settings(tmp_path)
    (tmp_path / "torn.json").write_text('{"a"')
    with pytest.raises(DataError, match=r"torn\.json: not JSON"):
        read_json(tmp_path / "torn.json")
