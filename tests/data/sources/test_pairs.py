"""Custom pairs: every known column is read, and unknown columns are reported."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import Tal
from data.sections import data_section
from data.tables import a_row, defects, write
from items import make_item

from think_as_locals.config.schema import DataSection
from think_as_locals.data import load, read
from think_as_locals.data.rows import Row
from think_as_locals.data.sources import jsonl, pairs, row_outcomes
from think_as_locals.data.validate import validate_rows
from think_as_locals.judging import render
from think_as_locals.types import DataError, DataWarning, Item

BREAKFAST = {"prompt": "What is for breakfast?", "chosen": "Rice porridge with an egg.", "rejected": "Toast and jam."}


def a_pair(number: int, **more: Any) -> dict[str, Any]:
    return BREAKFAST | {"prompt": f"What do people at house number {number} have for breakfast?"} | more


def rows_of(path: Path, **changes: Any) -> DataSection:
    return data_section(source="pairs", path=str(path), **changes)


def test_cultures_of_a_csv_reach_the_rendered_prompt(tmp_path: Path, tal: Tal) -> None:
    names = {
        "TH": "Thailand",
        "Mexico": "Mexico",
        "CA-QC": "Quebec (Canada)",
        "Kabylia": "Kabylia",
        None: "the culture",
    }
    path = write(tmp_path / "mine.csv", [a_pair(i, culture=[*names][i % 5]) for i in range(300)])
    done = tal("data", "validate", str(path), "--strict")
    assert (done.status, done.out) == (0, "300 rows = 300 imported (300 items) + 0 set aside\n")
    splits = load(rows_of(path))
    items = (*splits.train, *splits.test)
    cultures = ("TH", "MX", "CA-QC", "Kabylia", None)
    assert Counter(item.culture for item in items) == dict.fromkeys(cultures, 60)
    for item in items:
        name = [*names.values()][cultures.index(item.culture)]
        assert f"Culture: {name}" in render(item)[-1]["content"]


def test_every_known_column_of_a_pair_is_read() -> None:
    more = {"culture": "Thai", "language": "German", "domain": "food", "group": 7, "id": "a-1"}
    (item,) = pairs.outcome(a_row(BREAKFAST | more)).items
    assert item == make_item(
        id="pairs/de/food/a-1",
        prompt=BREAKFAST["prompt"],
        responses=(BREAKFAST["chosen"], BREAKFAST["rejected"]),
        culture="TH",
        language="de",
        domain="food",
        group="7",
        source="pairs",
    )
    (bare,) = pairs.outcome(a_row(BREAKFAST)).items
    assert (bare.culture, bare.language, bare.domain) == (None, "en", "pairs")
    (by_country,) = pairs.outcome(a_row(BREAKFAST | {"country": "Chile"})).items
    assert by_country.culture == "CL"


ASKED, RICE, TOAST = (
    {"role": role, "content": text}
    for role, text in (("user", BREAKFAST["prompt"]), ("assistant", "Rice."), ("assistant", "Toast."))
)
MORE = [ASKED, RICE, {"role": "user", "content": "And in winter?"}]


@pytest.mark.parametrize(
    ("row", "prompt"),
    [
        ({"prompt": [ASKED], "chosen": [RICE], "rejected": [TOAST]}, BREAKFAST["prompt"]),
        ({"chosen": [ASKED, RICE], "rejected": [ASKED, TOAST]}, BREAKFAST["prompt"]),
        ({"prompt": "Breakfast?", "chosen": [ASKED, RICE], "rejected": [ASKED, TOAST]}, "Breakfast?"),
        (
            {"prompt": BREAKFAST["prompt"], "chosen": [*MORE, RICE], "rejected": [*MORE, TOAST]},
            f"user: {BREAKFAST['prompt']}\n\nassistant: Rice.\n\nuser: And in winter?",
        ),
    ],
    ids=["explicit prompt", "implicit prompt", "ultrafeedback", "several turns"],
)
def test_trl_conversations_become_prompt_and_responses(row: dict[str, Any], prompt: str) -> None:
    (item,) = pairs.outcome(a_row(row)).items
    assert (item.prompt, item.responses) == (prompt, ("Rice.", "Toast."))


def test_conversations_with_different_histories_are_rejected() -> None:
    outcome = pairs.outcome(a_row({"prompt": [ASKED], "chosen": [*MORE, RICE], "rejected": [ASKED, TOAST]}))
    assert outcome.items == ()
    assert "chosen must be a non-blank string, got [{'content'" in outcome.faults[0].detail


@pytest.mark.parametrize(
    ("given", "read_as", "suggested"),
    [
        *((code, code, None) for code in ("TH", "NO", "CA-QC", "IN-AS", "Quebec", "Québec", "Arab", "Romani people")),
        ("Thialand", None, "TH"),
        ("UK", None, "GB"),
        ("th", None, "TH"),
        ("ca-qc", None, "CA-QC"),
        ("Romani", None, "RO"),
        *((wrong, None, "") for wrong in ("XX", "qq", "CA-XX", "en-US")),
    ],
)
def test_culture_is_a_code_or_free_name_and_unknown_codes_are_rejected(
    given: str, read_as: str | None, suggested: str | None
) -> None:
    item = make_item(culture=given)
    for outcome in (
        pairs.outcome(a_row(BREAKFAST | {"culture": given})),
        jsonl.outcome(Row("r.jsonl", 1, json.loads(jsonl.line(item)), "")),
    ):
        assert [found.culture for found in outcome.items] == ([read_as] if read_as else [])
        assert defects(outcome) == ([] if read_as else ["unknown_culture"])
        for fault in outcome.faults:
            assert fault.detail.startswith(f"culture {given!r}: expected ")
            assert ("did you mean" in fault.detail) == bool(suggested)
            assert not suggested or f"did you mean {suggested!r}" in fault.detail


def test_country_name_is_accepted_in_pairs_but_not_in_items() -> None:
    for name in ("Thailand", "Thai", "THA", "ไทย"):
        (item,) = pairs.outcome(a_row(BREAKFAST | {"culture": name})).items
        assert item.culture == "TH"
        row = json.loads(jsonl.line(make_item(culture=name)))
        (fault,) = jsonl.outcome(Row("r.jsonl", 1, row, "")).faults
        assert "did you mean 'TH' (Thailand)?" in fault.detail


def test_ignored_column_is_reported_once_per_file(tmp_path: Path) -> None:
    for name in ("a.csv", "b.jsonl"):
        write(tmp_path / name, [a_pair(i, annotator=f"{name}{i}", score=None, chosen_model="m") for i in range(50)])
    with (tmp_path / "b.jsonl").open("a") as file:
        file.write(json.dumps(a_pair(51, id=1, annotator="x", score=0.5)) + "\n")
    tally = validate_rows(rows_of(tmp_path), strict=False, quarantine=None)
    assert (tally.rows, tally.imported) == (101, 101)
    named = [
        line.removeprefix(f"{tmp_path}/").partition("; known are ")[0]
        for line in tally.faults
        if ": ignored_column: " in line
    ]
    assert named == [
        "a.csv:2: warning: ignored_column: not read: 'annotator'",
        "b.jsonl:1: warning: ignored_column: not read: 'annotator'",
        "b.jsonl:51: warning: ignored_column: not read: 'score'",
    ]
    with pytest.warns(
        DataWarning, match="not read: '(annotator|score)'; known are chosen, .* rejected_model, subset"
    ) as warned:
        assert len(list(read(rows_of(tmp_path)))) == 101
    assert len(warned) == 3


def test_data_settings_fill_in_missing_columns(tmp_path: Path) -> None:
    given = {"culture": "MX", "language": "es", "domain": "home"}
    path = write(tmp_path / "rows.jsonl", [a_pair(1), a_pair(2, **given), a_pair(3, subset="street")])
    items = list(read(rows_of(path, culture="CA-QC", language="French", domain="food")))
    assert [(item.culture, item.language, item.domain) for item in items] == [
        ("CA-QC", "fr", "food"),
        ("MX", "es", "home"),
        ("CA-QC", "fr", "street"),
    ]


@pytest.mark.parametrize("source", ["rewardbench2", "helpsteer3", "m_rewardbench"])
def test_culture_setting_applies_to_data_sets_without_cultures(tmp_path: Path, source: str) -> None:
    row = {
        "rewardbench2": {"id": "1", "prompt": "?", "chosen": ["a"], "rejected": ["b", "c"], "subset": "Focus"},
        "helpsteer3": {"context": [{"role": "user", "content": "?"}], "response1": "a", "response2": "b"}
        | {"overall_preference": 1, "domain": "general", "language": "english"},
        "m_rewardbench": BREAKFAST | {"id": 1, "language": "deu_Latn", "source": "donotanswer", "category": "Safety"},
    }[source]
    path = write(tmp_path / "rows.jsonl", [row])
    found = {}
    for culture in (None, "TH"):
        spec = data_section(source=source, path=str(path), culture=culture)
        (found[culture],) = [item.culture for outcome in row_outcomes(spec) for item in outcome.items]
    assert found == {None: None, "TH": "TH"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"source": "carb", "culture": "TH"},
            r"data\.culture: not used by data=carb; .*: rewardbench2, helpsteer3, .*pairs",
        ),
        ({"source": "culture_cards", "language": "de"}, r"data\.language: not used by data=culture_cards"),
        ({"source": "helpsteer3", "domain": "food"}, r"data\.domain: not used by data=helpsteer3"),
        ({"culture": "Thialand"}, r"data\.culture: got 'Thialand', expected .*; did you mean 'TH' \(Thailand\)\?"),
        ({"culture": "UK"}, r"data\.culture: got 'UK', expected .*; did you mean 'GB' \(United Kingdom\)\?"),
        ({"language": "Klingonese"}, r"data\.language: got 'Klingonese', expected an English name or a BCP-47 tag"),
        ({"countries": ["TH", "Chile"]}, r"data\.countries: got 'Chile', expected .*; did you mean 'CL'"),
        ({"source": "culture_cards", "countries": ["th"]}, r"data\.countries: got 'th', expected .*'TH'"),
    ],
)
def test_unused_or_misspelt_setting_is_rejected(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "rows.jsonl", [a_pair(1)])
    spec = rows_of(path).model_copy(update=changes)
    with pytest.raises(DataError, match=message):
        list(read(spec))
    if spec.source != "culture_cards":
        with pytest.raises(DataError, match=message):
            validate_rows(spec, strict=False, quarantine=None)


def test_pairs_of_one_group_stay_in_one_split(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [a_pair(i, group=f"g{i // 5}") for i in range(100)])
    splits = load(rows_of(path))

    def groups(items: tuple[Item, ...]) -> set[str]:
        return {item.group for item in items}

    assert (len(groups(splits.train)), len(groups(splits.test))) == (16, 4)
    assert not groups(splits.train) & groups(splits.test)
