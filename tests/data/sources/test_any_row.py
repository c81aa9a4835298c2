"""Whatever a row holds: it is an item, or its faults are named, and nothing raises."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from think_as_locals.data.rows import Outcome, Row
from think_as_locals.data.sources import best_of_n, globalopinionqa, jsonl, ratings

EXTRA = ("id", "subset", "num_correct", "total_completions", "rating", "human_rating", "cul_type", "origins", "culture")
SCHEMAS = {
    "jsonl": (jsonl.ItemRow.FIELDS, jsonl.outcome),
    "carb": (best_of_n.CarbRow.FIELDS, best_of_n.carb_outcome),
    "rewardbench2": (best_of_n.RewardBench2Row.FIELDS, best_of_n.rewardbench2_outcome),
    "helpsteer3": (best_of_n.HelpSteerRow.FIELDS, best_of_n.helpsteer3_outcome),
    "carb_open": (best_of_n.OpenRow.FIELDS, best_of_n.open_outcome),
    "pairs": (best_of_n.PairRow.FIELDS, best_of_n.pair_outcome),
    "care": (ratings.CareRow.FIELDS, lambda row: next(ratings.care_outcomes([row], None))),
    "globalopinionqa": (globalopinionqa.OpinionRow.FIELDS, lambda row: next(globalopinionqa.outcomes([row], 0.0))),
}
words = st.sampled_from(
    [
        "",
        " ",
        "Thai",
        "th",
        "Thailand",
        "Ties",
        "half \ud83d",
        "中国",
        "a",
        "b",
        "nan",
        "{",
        "1e999",
        "{'Chile': [1, 0]}",
    ]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-4, 10**30) | st.floats() | words,
    lambda inner: st.lists(inner, max_size=10) | st.dictionaries(words, inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.parametrize("source", SCHEMAS)
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_row_is_an_item_or_its_faults_are_named(source: str, data: st.DataObject) -> None:
    fields, reader = SCHEMAS[source]
    names = st.sampled_from([*fields, *EXTRA])
    value: Any = data.draw(values | st.dictionaries(names, values, min_size=3))
    outcome: Outcome = reader(Row("rows.jsonl", 1, value, json.dumps(value)))
    assert bool(outcome.items) == outcome.imported
    assert bool(outcome.items) or outcome.faults
    json.dumps([fault.detail for fault in outcome.faults])
