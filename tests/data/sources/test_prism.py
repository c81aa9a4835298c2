"""PRISM: pairs of responses that people of a country scored differently, read from its two tables."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from data.sections import data_section
from data.tables import KINDS, fault_names, write
from datasets import Dataset, DatasetDict
from hypothesis import given, settings
from hypothesis import strategies as st

from think_as_locals.data import read as read_source
from think_as_locals.data.rows import Outcome
from think_as_locals.data.sources import prism, recognise
from think_as_locals.types import DataError, DataWarning, Item


def person(user: Any, country: Any = "Chile", code: str = "CHL") -> dict[str, Any]:
    location = {"birth_country": "Peru", "reside_country": country, "reside_countryISO": code}
    return {"user_id": user, "age": "25-34 years old", "location": location}


def utterance(number: int, score: Any, *, user: str = "user0", turn: int = 0, **changes: Any) -> dict[str, Any]:
    row = {
        "utterance_id": f"ut{number}",
        "interaction_id": f"int{turn}",
        "user_id": user,
        "conversation_type": "values guided",
        "user_prompt": f"What matters, {user}, {turn}?",
        "model_response": f"Answer {number}.",
        "score": score,
    }
    return row | changes


SURVEY = [person("user0"), person("user1", "Korea, Republic of", "KOR"), person("user2", "New Zealand", "NZL")]
SCORES = [20, 90, 20, 55, 70, 71, 1, 100]
UTTERANCES = [
    *(utterance(number, SCORES[number]) for number in range(4)),
    *(utterance(number, SCORES[number], turn=1) for number in (4, 5)),
    *(utterance(number, SCORES[number], user="user1", turn=2) for number in (6, 7)),
]
PAIRS = {("ut1", "ut0"), ("ut1", "ut2"), ("ut1", "ut3"), ("ut3", "ut0"), ("ut3", "ut2"), ("ut5", "ut4"), ("ut7", "ut6")}


def folder(
    path: Path, survey: list[Any] = SURVEY, utterances: list[dict[str, Any]] = UTTERANCES, kind: str = ".jsonl"
) -> Path:
    write(path / f"survey{kind}", survey)
    write(path / f"utterances{kind}", utterances)
    return path


def outcomes_of(path: Path, survey: list[Any] = SURVEY, utterances: list[Any] = UTTERANCES) -> list[Outcome]:
    return list(prism.outcomes(str(folder(path, survey, utterances))))


def read(path: Path) -> list[Item]:
    return list(read_source(data_section(source="prism", path=str(path))))


def faults(outcomes: list[Outcome]) -> dict[str, list[str]]:
    return {f"{Path(each.row.file).stem}:{each.row.number}": fault_names(each) for each in outcomes if each.faults}


def flat(row: dict[str, Any]) -> dict[str, Any]:
    return {"user_id": row["user_id"]} | {f"location.{name}": part for name, part in row["location"].items()}


def as_text(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"location": repr(row["location"])}  # as pandas writes an object into a CSV file


@pytest.mark.parametrize("form", [dict, flat, as_text], ids=["object", "columns", "text"])
@pytest.mark.parametrize("kind", KINDS)
def test_responses_scored_differently_by_one_person_become_pairs(tmp_path: Path, kind: str, form: Any) -> None:
    items = read(folder(tmp_path, [form(row) for row in SURVEY], kind=kind))
    assert {tuple(item.id.rpartition("/")[2].split("-")) for item in items} == PAIRS
    assert len(items) == len(PAIRS)
    scores = {row["model_response"]: row["score"] for row in UTTERANCES}
    assert all(item.best == 0 and scores[item.responses[0]] > scores[item.responses[1]] for item in items)
    first = next(item for item in items if item.id == "prism/int0/ut1-ut0")
    assert (first.prompt, first.responses) == ("What matters, user0, 0?", ("Answer 1.", "Answer 0."))
    assert (first.group, first.language, first.domain, first.source) == ("user0", "en", "values guided", "prism")
    assert Counter(item.culture for item in items) == {"CL": 6, "KR": 1}
    assert recognise(str(tmp_path)) == ["data=prism"]


def test_other_files_give_a_warning_and_conversation_type_is_optional(tmp_path: Path) -> None:
    write(tmp_path / "conversations.jsonl", [{"conversation_id": "c0"}])
    bare = [{name: row[name] for name in row if name != "conversation_type"} for row in UTTERANCES]
    with pytest.warns(DataWarning, match=r": not read: conversations\.jsonl \(PRISM is read from survey and utt"):
        assert {item.domain for item in read(folder(tmp_path, utterances=bare))} == {"conversation"}


@pytest.mark.parametrize(
    "changes",
    [{"user": "user1"}, {"user_prompt": "Another?"}, {"turn": 1}, {"model_response": "Answer 0."}, {"score": 1}],
)
def test_utterances_without_a_comparable_partner_are_unpaired(tmp_path: Path, changes: dict[str, Any]) -> None:
    outcomes = outcomes_of(tmp_path, utterances=[utterance(0, 1), utterance(1, **{"score": 9} | changes)])
    assert faults(outcomes) == {"utterances:1": ["unpaired"], "utterances:2": ["unpaired"]}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        *(({"model_response": text}, ["no_response"]) for text in (" \n", "EMPTY STRING")),
        ({"score": 0}, ["greater_than_equal"]),
        ({"score": 100.5}, ["less_than_equal"]),
        ({"utterance_id": "ut1"}, ["repeated_id"]),
        ({"user_id": "nobody"}, ["unknown_user"]),
        ({"user_id": "unsaid"}, ["no_country"]),
        ({"user_id": "twice"}, []),
        ({"user_id": "torn"}, ["unknown_user"]),
    ],
)
def test_invalid_utterances_are_reported(tmp_path: Path, changes: dict[str, Any], expected: list[str]) -> None:
    unsaid = "Prefer not to say"
    survey = [*SURVEY, person("unsaid", unsaid, unsaid), *[person("twice")] * 2, {"user_id": "torn", "location": "{"}]
    rows = [*UTTERANCES, utterance(8, 30, turn=3), utterance(9, 60, turn=3) | changes]
    outcomes = outcomes_of(tmp_path, survey, rows)
    found = faults(outcomes)
    assert {place: found[place] for place in found if place.startswith("survey")} == {
        "survey:4": ["no_country"],
        "survey:6": ["repeated_id"],
        "survey:7": ["missing"],
    }
    # A person that scored one response has nothing to compare it with.
    assert found.get("utterances:10") == (expected or ["unpaired"])
    assert len([item for outcome in outcomes for item in outcome.items]) == len(PAIRS)
    assert len(outcomes) == len(survey) + len(rows)


def test_missing_or_duplicate_table_is_rejected(tmp_path: Path) -> None:
    write(tmp_path / "survey.csv", [flat(row) for row in SURVEY])
    with pytest.raises(DataError, match=r"expected one file utterances .*got none; PRISM is a folder with survey and"):
        list(prism.outcomes(str(tmp_path)))
    folder(tmp_path)
    with pytest.raises(DataError, match=r"expected one file survey .*got 2 \(survey\.jsonl, survey\.csv\)"):
        list(prism.outcomes(str(tmp_path)))


words = st.sampled_from(
    ["", " ", "user0", "ut1", "Chile", "EMPTY STRING", "half \ud83d", "{", "{'reside_country': 'Peru'}"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-4, 10**30) | st.floats() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["reside_country", "x"]), inner),
    max_leaves=6,
)


@settings(max_examples=100)
@given(data=st.data())
def test_every_row_is_paired_or_reports_faults(data: st.DataObject) -> None:
    survey, utterances = (
        data.draw(st.lists(st.dictionaries(st.sampled_from(names), values) | values, min_size=1, max_size=4))
        for names in (["user_id", "location.reside_country", "location"], list(utterance(0, 0)))
    )
    with TemporaryDirectory() as name:
        outcomes = outcomes_of(Path(name), [*SURVEY, *survey], [*UTTERANCES, *utterances])
    assert len(outcomes) == len(SURVEY) + len(survey) + len(UTTERANCES) + len(utterances)
    paired = {text for outcome in outcomes for item in outcome.items for text in item.responses}
    for outcome in outcomes[len(SURVEY) + len(survey) :]:
        assert outcome.faults or outcome.row.value["model_response"] in paired
    json.dumps([fault.detail for outcome in outcomes for fault in outcome.faults])


# --- from the Hub: `datasets.load_dataset` is the one thing that a test replaces ---


def test_both_configs_of_a_hub_id_are_read_with_distinct_places(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def load_dataset(path: str, name: str, *, split: str | None, revision: str | None) -> DatasetDict:
        asked.append((path, name, split, revision))
        return DatasetDict({"train": Dataset.from_list({"survey": SURVEY, "utterances": UTTERANCES}[name])})

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"owner/prism:survey: .* are read both: give owner/name\[@revision\]"):
        list(prism.outcomes("owner/prism:survey"))
    assert asked == []
    outcomes = list(prism.outcomes("owner/prism@v1"))
    assert asked == [("owner/prism", name, None, "v1") for name in ("survey", "utterances")]
    assert len([item for outcome in outcomes for item in outcome.items]) == len(PAIRS)
    assert outcomes[0].row.place == "owner/prism@v1:survey:train:1"
    assert outcomes[-1].row.place == "owner/prism@v1:utterances:train:8"


def test_released_test_people_match_datasets_train_test_split(tmp_path: Path) -> None:
    survey = [person(f"user{number}", *(("Chile", "CHL") if number % 3 else ("Atlantis", ""))) for number in range(41)]
    expected = Dataset.from_list(survey).train_test_split(test_size=0.15, seed=7)["test"]["user_id"]
    found = prism.released_test_people(str(folder(tmp_path, survey)), 0.15, 7)
    assert (found, len(found)) == (set(expected), 7)  # those without a known country are drawn as well
    (tmp_path / "other").mkdir()
    with_a_fault = folder(tmp_path / "other", [*survey, {"location": {}}])
    assert prism.released_test_people(str(with_a_fault), 0.15, 7) == found
