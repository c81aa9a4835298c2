"""The table of data sources: it is complete, a guide lists it, and no row raises."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from conftest import ROOT
from data.sections import data_section
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from think_as_locals.data import load
from think_as_locals.data.sources import SOURCES, jsonl, recognise, row_by_row, row_outcomes
from think_as_locals.data.validate import build, validate_rows
from think_as_locals.types import DataSource

COUNTRY = "expected the name of a country or of its people, or an ISO 3166 code"
GUIDE = (ROOT / "think_as_locals" / "data" / "sources" / "README.md").read_text(encoding="utf-8")


def test_schema_and_conf_list_exactly_the_registered_sources() -> None:
    assert set(get_args(DataSource)) == set(SOURCES)
    assert set(SOURCES) <= {file.stem for file in (ROOT / "conf" / "data").glob("*.yaml")}


def test_guide_lists_every_third_party_data_set() -> None:
    in_table = set(re.findall(r"^\| `(\w+)` \|", GUIDE, re.MULTILINE))
    assert in_table == {name for name, source in SOURCES.items() if source.outcomes} - {"blend", "jsonl"}


def test_example_source_of_the_guide_works_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "comparisons.py").write_text(re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)[0])
    spec = importlib.util.spec_from_file_location("comparisons", tmp_path / "comparisons.py")
    assert spec is not None
    assert spec.loader is not None
    comparisons = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(comparisons)
    source = row_by_row(comparisons.outcome, comparisons.ComparisonRow, "blind comparisons")
    monkeypatch.setitem(SOURCES, "comparisons", source)
    sound = [
        {"ask": f"Question {i}?", "left": f"yes {i}", "right": f"no {i}", "picked": side, "country": "Chile"}
        for i, side in enumerate(("left", "right") * 5)
    ]
    rows = [*sound, sound[0] | {"picked": "neither"}, sound[0] | {"ask": " ", "country": "Atlantis"}, 7]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = data_section(source="jsonl", path=str(file)).model_copy(update={"source": "comparisons"})

    assert recognise(str(file)) == "comparisons"
    tally = validate_rows(data, strict=False, quarantine=None)
    assert (tally.rows, tally.imported, tally.items) == (13, 10, 10)
    assert [line.removeprefix(f"{file}:") for line in tally.faults] == [
        "11: skipped: tie: picked is 'neither'",
        "12: error: empty_prompt: ask must be a non-blank string, got ' '",
        f"12: error: unknown_culture: country 'Atlantis': {COUNTRY}",
        "13: error: not_an_object: expected an object with the fields ask, left, right, picked; got int",
    ]

    out = tmp_path / "items.jsonl"
    build(data, out, strict=False)
    items = list(jsonl.read(out))
    assert [item.responses[item.best] for item in items[:2]] == ["yes 0", "no 1"]
    assert {(item.culture, item.source) for item in items} == {("CL", "comparisons")}
    assert len((tmp_path / "items.quarantine.jsonl").read_text().splitlines()) == 3

    file.write_text("".join(json.dumps(row) + "\n" for row in sound))
    splits = load(data)
    assert sorted(item.id for item in (*splits.train, *splits.test)) == sorted(item.id for item in items)


OTHER_NAMES = ("total_completions", "rating", "human_rating", "cul_type", "origins")
names = st.sampled_from([*sorted({name for source in SOURCES.values() for name in source.fields}), *OTHER_NAMES])
words = st.sampled_from(["", " ", "Thai", "th", "Thailand", "Ties", "half \ud83d", "中国", "a", "nan", "{", "1e999"])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-4, 10**30) | st.floats() | words | st.just("{'Chile': [1, 0]}"),
    lambda inner: st.lists(inner, max_size=10) | st.dictionaries(words, inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.parametrize("source", [name for name, source in SOURCES.items() if source.fields])
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_row_becomes_an_item_or_reports_faults(
    tmp_path_factory: pytest.TempPathFactory, source: str, data: st.DataObject
) -> None:
    own = st.sampled_from(SOURCES[source].fields)
    value: Any = data.draw(values | st.dictionaries(own | names, values, min_size=3))
    file = tmp_path_factory.getbasetemp() / f"{source}.jsonl"
    file.write_text(json.dumps(value) + "\n")
    (outcome,) = row_outcomes(data_section(source=source, path=str(file)))
    assert bool(outcome.items) == outcome.imported
    assert bool(outcome.items) or outcome.faults
    json.dumps([fault.detail for fault in outcome.faults])
