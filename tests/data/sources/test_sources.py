"""The table of data sources: it is complete, a guide lists it, and no row raises."""

from __future__ import annotations

import importlib.util
import json
import re
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
from conftest import ROOT
from data.sections import data_section
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from think_as_locals.config.checks import load_data_config
from think_as_locals.config.schema import DataSection
from think_as_locals.data import load
from think_as_locals.data.sources import SOURCES, jsonl, recognise, row_by_row, row_outcomes
from think_as_locals.data.sources.columns import Columns
from think_as_locals.data.validate import build, item_outcomes, validate
from think_as_locals.types import DataSource

GUIDE = (ROOT / "think_as_locals" / "data" / "sources" / "README.md").read_text(encoding="utf-8")


def test_schema_conf_and_guide_list_the_registered_sources() -> None:
    assert set(get_args(DataSource)) == set(SOURCES)
    assert set(SOURCES) <= {file.stem for file in (ROOT / "conf" / "data").glob("*.yaml")}
    in_table = set(re.findall(r"^\| `(\w+)` \|", GUIDE, re.MULTILINE))
    assert in_table == {name for name, source in SOURCES.items() if source.outcomes} - {"blend", "jsonl"}


def test_example_source_of_the_guide_works_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "comparisons.py").write_text(re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)[0])
    spec = importlib.util.spec_from_file_location("comparisons", tmp_path / "comparisons.py")
    assert spec is not None
    assert spec.loader is not None
    comparisons = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(comparisons)
    source = row_by_row(comparisons.items, "blind comparisons", comparisons.FIELDS)
    monkeypatch.setitem(SOURCES, "comparisons", source)
    sound = [
        {"ask": f"Question {i}?", "left": f"yes {i}", "right": f"no {i}", "left_votes": 2 - i % 2 * 2, "right_votes": 1}
        | {"country": "Chile"}
        for i in range(10)
    ]
    rows = [*sound, sound[0] | {"right_votes": 2}, sound[0] | {"ask": " ", "country": "Atlantis"}, 7]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = data_section(source="jsonl", path=str(file)).model_copy(update={"source": "comparisons"})

    assert recognise(str(file)) == ["data=comparisons"]
    tally = validate(item_outcomes(data))
    assert (tally.rows, tally.imported, tally.items) == (13, 10, 10)
    faults = [line.removeprefix(f"{file}:").split(": ")[:4] for line in tally.faults]
    assert [" ".join(fault[: 3 if fault[1] == "skipped" else 4]) for fault in faults] == [
        "11 skipped tie",
        "12 error blank ask",
        "12 error unknown_culture country",
        "13 error model_type expected an object with named fields, got 7",
    ]

    out = tmp_path / "items.jsonl"
    build(data.model_copy(update={"faulty_rows": "skip"}), out, strict=False)
    items = list(jsonl.read(out))
    assert [item.responses[item.best] for item in items[:2]] == ["yes 0", "no 1"]
    assert {(item.culture, item.source) for item in items} == {("CL", "comparisons")}
    assert len((tmp_path / "items.quarantine.jsonl").read_text().splitlines()) == 3

    file.write_text("".join(json.dumps(row) + "\n" for row in sound))
    splits = load(data)
    assert sorted(item.id for item in (*splits.train, *splits.test)) == sorted(item.id for item in items)


FIELDS = {
    name: sorted(Columns.of_conf(name).all) if source.in_columns else source.fields
    for name, source in SOURCES.items()
    if source.fields or source.in_columns
}
OTHER_NAMES = ("total_completions", "rating", "human_rating", "cul_type", "origins")
names = st.sampled_from([*sorted({name for names in FIELDS.values() for name in names}), *OTHER_NAMES])
words = st.sampled_from(["", " ", "Thai", "th", "Thailand", "Ties", "half \ud83d", "中国", "a", "nan", "{", "1e999"])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-4, 10**30) | st.floats() | words | st.just("{'Chile': [1, 0]}"),
    lambda inner: st.lists(inner, max_size=10) | st.dictionaries(words, inner, max_size=3),
    max_leaves=12,
)


@cache
def _section(source: str, file: Path) -> DataSection:
    return load_data_config([f"data={source}", f"data.path={file}"]).data


@pytest.mark.parametrize("source", FIELDS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_row_becomes_an_item_or_reports_faults(
    tmp_path_factory: pytest.TempPathFactory, source: str, data: st.DataObject
) -> None:
    own = st.sampled_from(FIELDS[source])
    value: Any = data.draw(values | st.dictionaries(own | names, values, min_size=3))
    file = tmp_path_factory.getbasetemp() / f"{source}.jsonl"
    file.write_text(json.dumps(value) + "\n")
    (outcome,) = row_outcomes(_section(source, file))
    assert bool(outcome.items) == outcome.imported
    assert bool(outcome.items) or outcome.faults
    json.dumps([fault.detail for fault in outcome.faults])
