"""BLEnD: votes of annotators -> right answers, wrong answers, flip sets; on a small folder of the same schema."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from data.sections import data_section

from think_as_locals import cli
from think_as_locals.config.schema import DataSection
from think_as_locals.data import flip_sets
from think_as_locals.data.sources import blend, jsonl, recognise
from think_as_locals.data.sources.blend import outcomes
from think_as_locals.types import DataError, Item

Answers = dict[str, int]

BREAKFAST: dict[str, Answers] = {
    "UK": {"toast": 4, "cereal": 2},
    "US": {"pancakes": 3, "bacon": 1},
    "China": {"rice porridge": 5},
    "Mexico": {"tortilla": 4, "beans": 3},
    "Greece": {"yoghurt": 3},
}
LOCAL = {
    "UK": "What do you eat in the UK?",
    "US": "What do you eat in the US?",
    "China": "在中国吃什么？",
    "Mexico": "¿Qué se come en México?",
    "Greece": "Τι τρώτε στην Ελλάδα;",
}


def annotations(answers: Answers) -> list[dict[str, Any]]:
    return [{"answers": [text], "en_answers": [text], "count": count} for text, count in answers.items()]


def a_row(region: str, answers: Answers, **changes: Any) -> dict[str, Any]:
    row = {
        "question": LOCAL.get(region, f"(in the language of {region})"),
        "en_question": f"What do people eat for breakfast in {region}?",
        "annotations": annotations(answers),
        "idks": {"idk": 0, "no-answer": 0, "not-applicable": 0},
    }
    return row | changes


def a_folder(path: Path, questions: dict[str, dict[str, Answers]] | None = None, topics: bool = True) -> Path:
    """A folder like BLEnD's: `questions[id][region][answer]` is a number of votes."""
    questions = {"Al-en-01": BREAKFAST} if questions is None else questions
    (path / "annotations").mkdir(parents=True)
    for region in {region for regions in questions.values() for region in regions}:
        rows = {q: a_row(region, regions[region]) for q, regions in questions.items() if region in regions}
        (path / "annotations" / f"{region}_data.json").write_text(
            json.dumps(rows, ensure_ascii=False), encoding="utf-8"
        )
    if topics:
        (path / "questions").mkdir()
        lines = [f"{i},{question},Food/Drink,x,y,z" for i, question in enumerate(questions)]
        text = "\n".join([",ID,Topic,Source,Question,Translation", *lines])
        (path / "questions" / "US_questions.csv").write_text("\ufeff" + text, encoding="utf-8")
    return path


def read(path: Path, **changes: Any) -> list[Item]:
    seed = changes.pop("seed", 0)
    asked: dict[str, Any] = {"source": "blend", "path": str(path), "num_responses": 2, "sets_per_group": None}
    return list(blend.read(data_section(**asked | changes), seed))


def bests(items: list[Item]) -> dict[str | None, set[str]]:
    found: dict[str | None, set[str]] = {}
    for item in items:
        found.setdefault(item.culture, set()).add(item.responses[item.best])
    return found


def one(tmp_path: Path, answers: dict[str, Answers], **changes: Any) -> list[Item]:
    return read(a_folder(tmp_path, {"q": answers}), **changes)


def test_the_right_answer_is_the_most_frequent_one(tmp_path: Path) -> None:
    assert bests(read(a_folder(tmp_path))) == {
        "GB": {"toast"},
        "US": {"pancakes"},
        "CN": {"rice porridge"},
        "MX": {"tortilla"},
        "GR": {"yoghurt"},
    }


@pytest.mark.parametrize(("votes", "asked"), [(1, False), (2, False), (3, True), (4, True)])
def test_the_right_answer_needs_three_votes(tmp_path: Path, votes: int, asked: bool) -> None:
    items = one(tmp_path, {"UK": {"toast": votes}, "China": {"porridge": 5}, "Mexico": {"tortilla": 5}})
    assert ("GB" in {item.culture for item in items}) == asked


def test_the_right_answer_must_be_the_only_one_with_its_votes(tmp_path: Path) -> None:
    items = one(tmp_path, {"UK": {"toast": 4, "cereal": 4}, "China": {"porridge": 5}, "Mexico": {"tortilla": 5}})
    assert {item.culture for item in items} == {"CN", "MX"}
    assert not {"toast", "cereal"} & {response for item in items for response in item.responses}


def test_two_votes_are_enough_for_a_wrong_answer_and_one_is_not(tmp_path: Path) -> None:
    items = one(tmp_path, {"UK": {"toast": 4}, "China": {"porridge": 2}, "Mexico": {"tortilla": 1}})
    assert [(item.culture, set(item.responses)) for item in items] == [("GB", {"toast", "porridge"})]


@pytest.mark.parametrize("shared", ["rye toast", "TOAST", "toasts", "toast with butter", "cheese"])
def test_a_wrong_answer_shares_no_word_with_anything_the_region_answered(tmp_path: Path, shared: str) -> None:
    answers = {"UK": {"toast": 4, "cheese roll": 1}, "China": {shared: 5}, "Mexico": {"tortilla": 5}}
    british = [item for item in one(tmp_path, answers) if item.culture == "GB"]
    assert british
    assert {response for item in british for response in item.responses} == {"toast", "tortilla"}


def test_words_like_with_and_the_are_no_shared_words(tmp_path: Path) -> None:
    items = one(tmp_path, {"UK": {"toast with the jam": 4}, "China": {"porridge with the egg": 4}})
    assert {item.culture for item in items} == {"GB", "CN"}


def test_wrong_answers_hold_for_another_region_and_not_for_the_one_asked(tmp_path: Path) -> None:
    for item in read(a_folder(tmp_path), num_responses=3):
        assert item.origins[item.best] == item.culture
        assert len(set(item.origins)) == 3


@pytest.mark.parametrize(
    "answer", ["chinese buns", "Mexican food", "english breakfast", "american pancakes", "Korean soup"]
)
def test_an_answer_that_names_a_region_is_no_response(tmp_path: Path, answer: str) -> None:
    items = one(tmp_path, {"UK": {"toast": 4}, "China": {answer: 5}, "Mexico": {"tortilla": 5}})
    assert {response for item in items for response in item.responses} == {"toast", "tortilla"}


@pytest.mark.parametrize("answer", ["green tea", "greens", "chin-ups", "spare ribs", "bus", "spinach", "ukulele"])
def test_an_answer_that_only_begins_or_ends_like_a_region_is_a_response(tmp_path: Path, answer: str) -> None:
    items = one(tmp_path, {"UK": {"toast": 4}, "China": {answer: 5}})
    assert bests(items) == {"GB": {"toast"}, "CN": {answer}}


def test_an_answer_without_a_word_in_it_is_no_response(tmp_path: Path) -> None:
    answers = {"UK": {"-": 4}, "US": {"-": 4}, "China": {"porridge": 5}, "Mexico": {"tortilla": 5}}
    assert bests(one(tmp_path, answers)) == {"CN": {"porridge"}, "MX": {"tortilla"}}


def test_responses_are_lower_case_so_that_regions_do_not_differ_in_style(tmp_path: Path) -> None:
    items = one(tmp_path, {"UK": {"TOAST": 4}, "China": {" Rice Porridge ": 5}})
    assert {response for item in items for response in item.responses} == {"toast", "rice porridge"}


def test_every_choice_of_regions_whose_answers_exclude_one_another_is_a_flip_set(tmp_path: Path) -> None:
    items = read(a_folder(tmp_path), num_responses=4)
    sets = flip_sets(items)
    assert len(sets) == 5
    assert sum(map(len, sets)) == len(items) == 20
    for members in sets:
        assert {item.culture for item in members} == set(members[0].origins)


def test_regions_that_answer_alike_are_never_in_one_flip_set(tmp_path: Path) -> None:
    answers = {**BREAKFAST, "Spain": {"toast": 3}}
    for item in one(tmp_path, answers, num_responses=4):
        assert not {"ES", "GB"} <= set(item.origins)


def test_regions_that_answer_alike_each_keep_their_flip_sets(tmp_path: Path) -> None:
    items = one(tmp_path, {"UK": {"toast": 4}, "Spain": {"toast": 3}, "China": {"porridge": 5}})
    sets = flip_sets(items)
    assert sorted(sorted(str(item.culture) for item in members) for members in sets) == [["CN", "ES"], ["CN", "GB"]]


def test_a_region_that_fits_into_no_flip_set_gets_an_item_of_its_own(tmp_path: Path) -> None:
    # Tortillas are eaten in Britain and China too, so Mexico is in no set with them; and toast is eaten in Mexico.
    answers = {
        "UK": {"toast": 4, "tortilla": 1},
        "China": {"porridge": 4, "tortilla": 1},
        "Mexico": {"tortilla": 4, "toast": 1},
        "Greece": {"yoghurt": 2},
    }
    items = one(tmp_path, answers)
    (single,) = [item for item in items if item.culture == "MX"]
    assert (single.responses[single.best], single.origins[single.best]) == ("tortilla", "MX")
    assert "toast" not in single.responses
    assert flip_sets(items) == [[item for item in items if item.culture != "MX"]]


def test_every_spelling_that_annotators_gave_counts_as_answered(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, {"q": {"UK": {"pb&j": 4}, "China": {"peanut butter": 5}, "Mexico": {"tortilla": 5}}})
    spelled = [{"answers": ["pb&j"], "en_answers": ["PB&J", "peanut butter and jelly"], "count": 4}]
    (folder / "annotations" / "UK_data.json").write_text(json.dumps({"q": a_row("UK", {}, annotations=spelled)}))
    for item in read(folder):
        assert not {"pb&j", "peanut butter"} <= set(item.responses)


def test_a_limit_takes_so_many_flip_sets_of_every_question(tmp_path: Path) -> None:
    items = read(a_folder(tmp_path, {"q1": BREAKFAST, "q2": BREAKFAST}), num_responses=4, sets_per_group=2)
    counts = Counter(members[0].group for members in flip_sets(items))
    assert counts == {"q1": 2, "q2": 2}


def test_local_language_items_have_local_prompts_and_english_responses(tmp_path: Path) -> None:
    items = read(a_folder(tmp_path), languages=["own"], num_responses=4)
    prompts = {str(item.culture): (item.language, item.prompt) for item in items}
    assert prompts["CN"] == ("zh", "在中国吃什么？")
    assert prompts["MX"] == ("es", "¿Qué se come en México?")
    assert prompts["GR"] == ("el", "Τι τρώτε στην Ελλάδα;")
    answers = {"toast", "pancakes", "rice porridge", "tortilla", "yoghurt"}
    assert {response for item in items for response in item.responses} == answers


def test_the_own_language_of_an_english_speaking_region_is_english(tmp_path: Path) -> None:
    items = read(a_folder(tmp_path), languages=["own"], num_responses=4)
    assert {item.culture: item.language for item in items}.items() >= {("GB", "en"), ("US", "en")}
    assert sum(map(len, flip_sets(items))) == len(items) == 20


def test_both_languages_keep_the_flip_sets_of_each(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    english, both = read(folder, num_responses=4), read(folder, num_responses=4, languages=["en", "own"])
    assert len({item.id for item in both}) == len(both) == 20 + 4 * 3
    assert len(flip_sets(both)) >= len(flip_sets(english)) == 5


def test_a_question_that_is_blank_in_one_language_is_asked_in_the_other(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    file = folder / "annotations" / "China_data.json"
    file.write_text(json.dumps({"Al-en-01": a_row("China", {"rice porridge": 5}, question=" ")}))
    items = read(folder, languages=["en", "own"])
    assert {item.language for item in items if item.culture == "CN"} == {"en"}


def test_the_domain_is_the_first_word_of_the_topic_and_the_group_is_the_question(tmp_path: Path) -> None:
    items = read(a_folder(tmp_path))
    assert {(item.domain, item.group, item.source) for item in items} == {("food", "Al-en-01", "blend")}


def test_a_question_without_a_topic_is_named_with_the_file(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, {"Al-en-01": BREAKFAST})
    (folder / "questions" / "US_questions.csv").write_text("ID,Topic\nAl-en-02,Food\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"questions/US_questions\.csv: no row with the ID 'Al-en-01'"):
        read(folder)


def test_the_questions_folder_is_not_silently_done_without(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="questions"):
        read(a_folder(tmp_path, topics=False))


def test_ids_are_unique_and_reading_twice_gives_the_same(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, {"q1": BREAKFAST, "q2": BREAKFAST})
    items = read(folder, languages=["en", "own"], num_responses=3, sets_per_group=4, seed=1)
    assert len({item.id for item in items}) == len(items)
    assert items == read(folder, languages=["en", "own"], num_responses=3, sets_per_group=4, seed=1)


def test_a_part_of_the_regions_is_enough(tmp_path: Path) -> None:
    assert len(one(tmp_path, {"Iran": {"bread": 3}, "Algeria": {"milk": 3}})) == 2


# --- faults ---


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere/"):
        read(tmp_path / "nowhere")


def test_a_folder_without_annotations_of_any_region_is_named(tmp_path: Path) -> None:
    (a_folder(tmp_path, {}) / "annotations" / "Atlantis_data.json").write_text("{}")
    with pytest.raises(DataError, match=rf"{tmp_path.name}/annotations: no <Region>_data\.json of Algeria"):
        read(tmp_path)


def test_a_file_in_place_of_the_folder_is_named(tmp_path: Path) -> None:
    file = tmp_path / "blend.zip"
    file.write_text("x")
    with pytest.raises(DataError, match=r"blend\.zip"):
        read(file)


def asked(**changes: Any) -> str:
    row = {"question": "?", "en_question": "?", "annotations": [{"en_answers": ["a"], "count": 3}]}
    return json.dumps({"q": row | changes})


BAD_FILES = {
    "empty": "",
    "cut off": "{",
    "a list": "[]",
    "a text": '"a text"',
    "a question that is a text": '{"q": "a text"}',
    "a question without its local words": '{"q": {"en_question": "?", "annotations": []}}',
    "a question that is null": asked(en_question=None),
    "annotations that are null": asked(annotations=None),
    "no votes": asked(annotations=[{"en_answers": ["a"]}]),
    "votes in words": asked(annotations=[{"en_answers": ["a"], "count": "many"}]),
    "votes that are null": asked(annotations=[{"en_answers": ["a"], "count": None}]),
    "votes that are no number": asked(annotations=[{"en_answers": ["a"], "count": float("nan")}]),
    "an answer that is a number": asked(annotations=[{"en_answers": [7], "count": 3}]),
}


@pytest.mark.parametrize("text", BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_file_that_is_no_json_or_of_another_schema_is_named(tmp_path: Path, text: str) -> None:
    file = a_folder(tmp_path) / "annotations" / "China_data.json"
    file.write_text(text)
    with pytest.raises(DataError, match=r"annotations/China_data\.json"):
        read(tmp_path)


def test_a_file_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (a_folder(tmp_path) / "annotations" / "Spain_data.json").write_bytes(b'{"q": "\xff"}')
    with pytest.raises(DataError, match=r"annotations/Spain_data\.json"):
        read(tmp_path)


@pytest.mark.parametrize(
    "text",
    [b"Number,Subject\n1,Food\n", b"ID,Topic\nAl-en-01\n", b"ID,Topic\nAl-en-01,\xff\n"],
    ids=["other columns", "a short row", "not UTF-8"],
)
def test_a_list_of_questions_of_another_schema_is_named(tmp_path: Path, text: bytes) -> None:
    (a_folder(tmp_path) / "questions" / "US_questions.csv").write_bytes(text)
    with pytest.raises(DataError, match=r"questions/US_questions\.csv"):
        read(tmp_path)


def test_an_unknown_language_is_an_error_that_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no language 'zh' in BLEnD; known: en, own"):
        read(a_folder(tmp_path), languages=["en", "zh"])


def test_rows_of_ones_own_are_built_in_english_and_in_the_local_languages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "blend.jsonl"
    folder = a_folder(tmp_path)
    monkeypatch.setattr("sys.argv", ["tal", "data", "build", "data=blend", f"data.path={folder}", f"out={out}"])
    cli.main()
    assert {item.language for item in jsonl.read(out)} == {"en", "es", "el", "zh"}


# --- what becomes of every row ---


def section(folder: Path, **changes: Any) -> DataSection:
    return data_section(source="blend", path=str(folder), **{"num_responses": 2, "sets_per_group": None} | changes)


def vote_row(*answers: tuple[str, int], **changes: Any) -> dict[str, Any]:
    votes = [{"answers": [text], "en_answers": [text], "count": count} for text, count in answers]
    return {"question": "?", "en_question": "What do people eat?", "annotations": votes, "idks": {}} | changes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    regions = {
        "UK": {"q1": vote_row(("toast", 4)), "q2": vote_row(("tea", 3))},
        "China": {"q1": vote_row(("porridge", 5)), "q2": vote_row(("tea", 5))},
        "Mexico": {"q1": vote_row(("tortilla", 2), ("beans", 2)), "q2": vote_row()},
        "Greece": {"q1": vote_row(("greek salad", 5)), "q2": "no object"},
        "Spain": {"q1": vote_row(("bread", 4), question=" ", en_question=" ")},
    }
    (tmp_path / "annotations").mkdir()
    for region, rows in regions.items():
        (tmp_path / "annotations" / f"{region}_data.json").write_text(json.dumps(rows))
    (tmp_path / "questions").mkdir()
    (tmp_path / "questions" / "UK_questions.csv").write_text("ID,Topic\nq1,Food\nq2,Drink\n")
    return tmp_path


def test_every_row_is_asked_or_says_why_not(folder: Path) -> None:
    found = {
        (Path(outcome.row.file).name.removesuffix("_data.json"), outcome.row.number): [
            str(fault.defect) for fault in outcome.faults
        ]
        for outcome in outcomes(section(folder), 0)
    }
    assert found == {
        ("UK", 1): [],
        ("China", 1): [],
        ("Mexico", 1): ["no_majority"],
        ("Greece", 1): ["names_culture"],
        ("Spain", 1): ["empty_prompt"],
        ("UK", 2): ["no_rivals"],
        ("China", 2): ["no_rivals"],
        ("Mexico", 2): ["no_majority"],
        ("Greece", 2): ["wrong_type"],
    }


@pytest.mark.parametrize(
    "changes",
    [{"annotations": [{"en_answers": "toast", "count": 4}]}, {"en_question": "half \ud83d"}],
    ids=["a text for a list", "half a surrogate pair"],
)
def test_a_question_that_cannot_be_read_is_set_aside_and_the_others_stay(folder: Path, changes: dict[str, Any]) -> None:
    file = folder / "annotations" / "Mexico_data.json"
    file.write_text(json.dumps({"q1": vote_row(("tortilla", 4)), "q2": vote_row(("mate", 4)) | changes}))
    found = [outcome for outcome in outcomes(section(folder), 0) if Path(outcome.row.file) == file]
    assert sorted((o.row.number, len(o.items) > 0, *(str(f.defect) for f in o.faults)) for o in found) == [
        (1, True),
        (2, False, "wrong_type"),
    ]


def test_what_is_built_is_what_training_reads_and_the_rest_is_set_aside(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "items.jsonl"
    words = ["data", "build", "data=blend", f"data.path={folder}", "data.num_responses=2", "data.languages=[en]"]
    monkeypatch.setattr("sys.argv", ["tal", *words, "data.max_groups=1", f"out={out}"])
    cli.main()
    (folder / "annotations" / "Greece_data.json").unlink()  # the one row with an error, at which training stops
    ids = {item.id for item in blend.read(section(folder, sets_per_group=30), 0)}
    assert {item.id for item in jsonl.read(out)} == ids
    assert "9 rows = 2 imported (4 items) + 7 set aside" in capsys.readouterr().out
    assert len((tmp_path / "items.quarantine.jsonl").read_text().splitlines()) == 7


def test_the_items_are_those_that_training_reads(folder: Path) -> None:
    (folder / "annotations" / "Greece_data.json").unlink()
    items = [item for outcome in outcomes(section(folder), 0) for item in outcome.items]
    assert sorted(items, key=lambda item: item.id) == sorted(blend.read(section(folder), 0), key=lambda item: item.id)
    assert {item.culture for item in items} == {"GB", "CN"}


def test_a_folder_of_blend_is_recognised(folder: Path) -> None:
    assert recognise(str(folder)) == "blend"
