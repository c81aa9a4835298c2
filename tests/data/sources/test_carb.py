"""CARB's published rows: all but the broken ones become items, each with the culture that the judge is told."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from data.carb_rows import LANGUAGES, MEDIAN, P95, carb_rows
from data.sections import data_section
from data.tables import write

from think_as_locals.data import read
from think_as_locals.data.validate import validate_rows
from think_as_locals.judging import render
from think_as_locals.types import DataError

CULTURE_OF_LANGUAGE = {
    "ar": "Arabic-speaking countries",
    "en": "English-speaking countries",
    "es": "Spanish-speaking countries",
    "zh": "China",
    "de": "Germany",
    "ja": "Japan",
    "ko": "South Korea",
    "ru": "Russia",
    "th": "Thailand",
    "vi": "Vietnam",
}
PLANTED: dict[int, tuple[dict[str, Any], str]] = {
    3: ({"chosen": []}, "error: too_short"),
    50: ({"country": "Chinnese"}, "error: unknown_culture"),
    400: ({"language": "Tai"}, "error: unknown_language"),
    700: ({"chosen": ["x"], "rejected": ["x", "z", "y"]}, "error: invalid_item"),
    1000: ({"prompt": None}, "error: missing"),
    1500: ({"num_rejected": 2}, "warning: count_mismatch"),
}


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return carb_rows()


def test_generated_rows_match_the_published_statistics(rows: list[dict[str, Any]]) -> None:
    lengths = sorted(len(text) for row in rows for text in (*row["chosen"], *row["rejected"]))
    assert (len(rows), len({(row["language"], row["id"]) for row in rows})) == (1810, 1810)
    assert statistics.median(lengths) == pytest.approx(MEDIAN, rel=0.1)
    assert lengths[round(0.95 * len(lengths))] == pytest.approx(P95, rel=0.1)
    assert Counter(row["country"] is None for row in rows) == {True: 880, False: 930}


def test_all_but_broken_rows_become_items(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    run_on = range(9, 1810, 100)
    changed = [dict(row) for row in rows]
    for number, (change, _) in PLANTED.items():
        changed[number - 1] |= change
    for number in run_on:
        changed[number - 1]["chosen"] = [f"{rows[number - 1]['chosen'][0]}assistant\n\n{rows[0]['prompt']}"]
    path = write(tmp_path / "carb.jsonl", changed)
    tally = validate_rows(data_section(source="carb", path=str(path)), strict=False, quarantine=None)
    assert (tally.rows, tally.imported, tally.items) == (1810, 1805, 1805)
    found = {line.removeprefix(f"{path}:").partition(": ")[::2] for line in tally.faults}
    named = {(int(number), ": ".join(rest.split(": ")[:2])) for number, rest in found}
    planted = {(number, fault) for number, (_, fault) in PLANTED.items()}
    assert named >= planted | {(number, "warning: run_on_turn") for number in run_on}
    assert {fault for number, fault in named if number not in PLANTED} == {"warning: run_on_turn"}


def test_every_rendered_prompt_names_the_culture_of_the_item(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    items = list(read(data_section(source="carb", path=str(write(tmp_path / "carb.jsonl", rows)))))
    assert len(items) == 1810
    tags = {tag: countries for tag, countries, _ in LANGUAGES.values()}
    for item, row in zip(items, rows, strict=True):
        (user,) = [message["content"] for message in render(item) if message["role"] == "user"]
        place = user.partition("Culture: ")[2].partition("\n")[0]
        if row["country"] is None:
            assert place == CULTURE_OF_LANGUAGE[item.language]
        else:
            assert place in tags[item.language] or (place, row["country"]) == ("United Kingdom", "British")
    assert len({(item.language, item.domain) for item in items}) == 40
    assert len({item.culture for item in items}) == 7 + 3 + 3 + 3 + 2


def test_misspelt_country_error_suggests_the_nearest(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    path = write(tmp_path / "carb.jsonl", [rows[0] | {"country": "Saudi Arabiann"}])
    with pytest.raises(DataError, match=r"carb\.jsonl:1: country: .*did you mean 'Saudi Arabian'\?"):
        list(read(data_section(source="carb", path=str(path))))
    assert json.loads(path.read_text())["country"] == "Saudi Arabiann"
