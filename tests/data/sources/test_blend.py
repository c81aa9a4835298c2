"""BLEnD: votes of annotators become right and wrong answers and flip sets, on a small folder of the same schema."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from math import nan
from pathlib import Path
from typing import Any

import pytest
from conftest import Tal
from data.sections import data_section
from data.tables import fault_names
from hypothesis import given
from hypothesis import strategies as st

from think_as_locals.config.schema import DataSection
from think_as_locals.data import flip_sets
from think_as_locals.data import read as read_selected
from think_as_locals.data.sources import blend, jsonl, recognise
from think_as_locals.types import DataError, DataWarning, Item

Answers = dict[Any, int]
"""Votes for each answer: a text, or a tuple of its spellings."""

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


def a_row(region: str, answers: Answers, **changes: Any) -> dict[str, Any]:
    row = {
        "question": LOCAL.get(region, f"(in the language of {region})"),
        "en_question": f"What do people eat for breakfast in {region}?",
        "annotations": [
            {"answers": (spelled := [text] if isinstance(text, str) else list(text)), "en_answers": spelled, "count": n}
            for text, n in answers.items()
        ],
        "idks": {"idk": 0, "no-answer": 0, "not-applicable": 0},
    }
    return row | changes


def a_folder(path: Path, questions: dict[str, dict[str, Answers]] | None = None, topics: bool = True) -> Path:
    """A folder like BLEnD's: `questions[id][region][answer]` is a number of votes."""
    questions = {"Al-en-01": BREAKFAST} if questions is None else questions
    (path / "annotations").mkdir(parents=True)
    for region in {region for regions in questions.values() for region in regions}:
        rows = {q: a_row(region, regions[region]) for q, regions in questions.items() if region in regions}
        for question in [*rows][1:]:  # other words: the same ones are one question
            rows[question]["en_question"] += f" ({question})"
        (path / "annotations" / f"{region}_data.json").write_text(json.dumps(rows))
    if topics:
        (path / "questions").mkdir()
        lines = [f"{i},{question},Food/Drink,x,y,z" for i, question in enumerate(questions)]
        text = "\n".join([",ID,Topic,Source,Question,Translation", *lines])
        (path / "questions" / "US_questions.csv").write_text("\ufeff" + text, encoding="utf-8")
    return path


def change(folder: Path, region: str, **rows: Any) -> Path:
    """Give a region other rows; return its file."""
    file = folder / "annotations" / f"{region}_data.json"
    file.write_text(json.dumps((json.loads(file.read_text()) if file.exists() else {}) | rows))
    return file


def section(folder: Path, **changes: Any) -> DataSection:
    return data_section(source="blend", path=str(folder), **{"num_responses": 2, "sets_per_group": None} | changes)


def read(path: Path, answers: dict[str, Answers] | None = None, **changes: Any) -> list[Item]:
    """The items of a folder; with answers to one question, of a new one that holds them."""
    if answers is not None:
        a_folder(path, {"q": answers})
    return list(blend.read(section(path, **changes), 0))


def responses(items: list[Item], culture: str | None = None) -> set[str]:
    return {response for item in items if culture in (None, item.culture) for response in item.responses}


@pytest.mark.parametrize(
    ("british", "best"),
    [
        ({"toast": 2}, None),
        ({"toast": 3}, "toast"),
        ({"toast": 4, "cereal": 4}, None),
        ({"-": 4}, None),  # not a word
        ({" TOAST ": 4}, "toast"),  # so that regions do not differ in style
    ],
)
def test_best_response_has_the_most_votes_and_at_least_three(
    tmp_path: Path, british: Answers, best: str | None
) -> None:
    items = read(tmp_path, {"UK": british, "China": {"Porridge": 5}, "Mexico": {"tortilla": 5}})
    right = {"CN": "porridge", "MX": "tortilla"} | ({"GB": best} if best else {})
    assert {item.culture: item.responses[item.best] for item in items} == right
    assert responses(items) == set(right.values())


def test_wrong_answer_needs_two_votes(tmp_path: Path) -> None:
    items = read(tmp_path, {"UK": {"toast": 4}, "China": {"porridge": 2}, "Mexico": {"tortilla": 1}})
    assert [(item.culture, set(item.responses)) for item in items] == [("GB", {"toast", "porridge"})]


PEANUTS = ("PB&J", "peanut butter and jelly")


@pytest.mark.parametrize(
    ("british", "chinese", "is_wrong"),
    [
        *(({"toast": 4, "cheese roll": 1}, {answer: 5}, False) for answer in ("rye TOAST", "toasts", "cheese")),
        *(({"toast with the egg": 4}, {answer: 5}, True) for answer in ("porridge with the jam", "bus", "green tea")),
        ({"toast": 4, "mum": 1}, {"mother": 5}, False),  # synonyms of any answer there
        *(({"london": 4}, {answer: 5}, False) for answer in ("the capital", "Southeast", "coast")),  # everywhere
        *(({"toast": 4}, {answer: 5}, False) for answer in ("chinese buns", "Mexican food", "english breakfast")),
        *(({"toast": 4}, {answer: 5}, True) for answer in ("chin-ups", "spare ribs", "ukulele")),  # name no region
        # Every spelling counts.
        *(({"cafeteria": 4}, {("mess", "school cafeteria"): 5}, False), ({PEANUTS: 4}, {"peanut butter": 5}, False)),
        ({"london": 4}, {("capital", "Beijing"): 5}, True),
    ],
)
def test_wrong_answer_is_a_frequent_one_that_no_answer_of_the_region_means(
    tmp_path: Path, british: Answers, chinese: Answers, is_wrong: bool
) -> None:
    items = read(tmp_path, {"UK": british, "China": chinese, "Mexico": {"tortilla": 5}})
    (best,) = {item.responses[item.best] for item in items if item.culture == "GB"}
    (answer,) = chinese
    offered = responses(items, "GB") - {best, "tortilla"}
    assert offered == ({answer.lower() if isinstance(answer, str) else answer[-1].lower()} if is_wrong else set())


def test_spellings_of_one_answer_are_synonyms_in_every_region(tmp_path: Path) -> None:
    breakfast = {"UK": {"gruel": 4}, "China": {"mush": 5}, "Mexico": {"tortilla": 5}}
    a_folder(tmp_path, {"q": breakfast, "other": {"Greece": {}}})
    assert responses(read(tmp_path), "GB") == {"gruel", "mush", "tortilla"}
    change(tmp_path, "Greece", other=a_row("Greece", {("Gruel", "mush"): 1}))
    assert responses(read(tmp_path), "GB") == {"gruel", "tortilla"}


@pytest.mark.parametrize(("size", "count"), [(3, 10), (4, 5)])
def test_every_combination_of_compatible_regions_is_a_flip_set(tmp_path: Path, size: int, count: int) -> None:
    items = read(tmp_path, BREAKFAST, num_responses=size)
    sets = flip_sets(items)
    assert len(sets) == count
    assert sum(map(len, sets)) == len(items) == count * size
    for members in sets:
        assert {item.culture for item in members} == set(members[0].origins)
    assert all(item.origins[item.best] == item.culture for item in items)
    assert {(item.domain, item.group, item.source) for item in items} == {("food", "q", "blend")}


@pytest.mark.parametrize("limit", [None, 4])
@pytest.mark.parametrize("size", [2, 3])
def test_prompt_and_response_set_are_unique_across_items(tmp_path: Path, size: int, limit: int | None) -> None:
    alike = {"UK": {"6": 4}, "Spain": {"6": 3}, "China": {"6": 5}, "Mexico": {"5": 5}, "Iran": {"4": 5}, "US": {"5": 3}}
    items = read(tmp_path, alike, num_responses=size, sets_per_group=limit)
    assert len({(item.prompt, frozenset(item.responses)) for item in items}) == len(items)
    assert {item.culture for item in items} == {"GB", "ES", "CN", "MX", "IR", "US"}
    assert all(len(members) == size for members in flip_sets(items))


def test_region_without_a_flip_set_gets_a_single_item(tmp_path: Path) -> None:
    # Tortillas are eaten in Britain and China too, so Mexico is in no set with them; and toast is eaten in Mexico.
    answers = {
        "UK": {"toast": 4, "tortilla": 1},
        "China": {"porridge": 4, "tortilla": 1},
        "Mexico": {"tortilla": 4, "toast": 1},
        "Greece": {"yoghurt": 2},
    }
    items = read(tmp_path, answers)
    (single,) = [item for item in items if item.culture == "MX"]
    assert (single.responses[single.best], single.origins[single.best]) == ("tortilla", "MX")
    assert "toast" not in single.responses
    assert flip_sets(items) == [[item for item in items if item.culture != "MX"]]


def test_questions_of_the_same_words_are_one_group(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, {"q1": BREAKFAST, "q2": BREAKFAST, "q3": BREAKFAST})
    limited = flip_sets(read(folder, num_responses=4, sets_per_group=2))
    assert Counter(members[0].group for members in limited) == {"q1": 2, "q2": 2, "q3": 2}
    change(folder, "Greece", q3=a_row("Greece", BREAKFAST["Greece"]))  # there it asks as q1
    items = read_selected(section(folder, num_responses=4))
    assert {item.id.split("/")[1]: item.group for item in items} == {"q1": "q1", "q2": "q2", "q3": "q1"}


def test_own_language_gives_local_prompts_and_english_responses(tmp_path: Path) -> None:
    items = read(a_folder(tmp_path), languages=["own"], num_responses=4)
    assert {(item.language, item.prompt) for item in items if item.culture in ("CN", "MX", "GR")} == {
        ("zh", "在中国吃什么？"),
        ("es", "¿Qué se come en México?"),
        ("el", "Τι τρώτε στην Ελλάδα;"),
    }
    assert {item.language for item in items if item.culture in ("GB", "US")} == {"en"}
    assert responses(items) == {"toast", "pancakes", "rice porridge", "tortilla", "yoghurt"}
    assert sum(map(len, flip_sets(items))) == len(items) == 20
    change(tmp_path, "China", **{"Al-en-01": a_row("China", {"rice porridge": 5}, question=" ")})
    with_blank = read(tmp_path, languages=["en", "own"])
    assert {item.language for item in with_blank if item.culture == "CN"} == {"en"}  # asked in the other language


def test_regions_have_their_own_culture_and_language(tmp_path: Path) -> None:
    answers = {"UK": "toast", "Assam": "rice", "Ethiopia": "teff", "West_Java": "tempeh", "Northern_Nigeria": "yam"}
    items = read(a_folder(tmp_path, {"q": {region: {text: 5} for region, text in answers.items()}}), languages=["own"])
    expected = {("GB", "en"), ("IN-AS", "as"), ("ET", "am"), ("ID-JB", "su"), ("NG", "ha")}
    assert {(item.culture, item.language) for item in items} == expected


# --- which two short answers can both be right ---


def overlap(a: str, b: str, synonyms: blend.Synonyms) -> bool:
    return bool(synonyms.marks(a) & synonyms.marks(b))


@pytest.mark.parametrize(
    ("a", "b", "compatible"),
    [
        *(("television", "watching TV", True), ("trousers", "black pants", True), ("on foot", "walking", True)),
        *(("runners", "to run", True), ("bus", "by buses", True), ("Valentine’s", "valentine's day", True)),
        *(("nezāmi", "Nezami", True), ("League of Legends", "lol", True), ("rice", "fried rice", True)),
        *(("fruit", "an apple", True), ("fried sardines", "fish", True), ("apple", "banana", False)),  # kinds
        ("crisps", "french fries", False),  # a synonym of a synonym
        ("fish market", "sardines", False),  # only all of the general answer is general
        *(("tea", "coffee", False), ("basketball", "baseball", False), ("couscous", "curry", False)),  # begin alike
    ],
)
def test_compatible_answers_share_a_mark(a: str, b: str, compatible: bool) -> None:
    assert [overlap(*pair, blend.Synonyms([])) for pair in ((a, b), (b, a))] == [compatible] * 2


def test_joint_spellings_are_synonyms_unless_as_often_separate() -> None:
    one, two = [["gruel", "Mush"], ["toast"]], [["gruel"], ["mush", "pap"]]
    for answered, expected in (([], False), ([one], True), ([one, two], False), ([one, two, one], True)):
        assert overlap("the mush", "gruel", blend.Synonyms(answered)) == expected
    learned = blend.Synonyms([one])
    assert not overlap("toast", "gruel", learned)
    assert not overlap("mush", "gruel with milk", learned)  # learned of all of it, not of a part


texts = st.text(min_size=1, max_size=30)


@given(st.lists(st.lists(st.lists(texts, max_size=3), max_size=3), max_size=3), texts)
def test_marks_do_not_depend_on_the_order_of_annotations(answered: list[list[list[str]]], text: str) -> None:
    assert blend.Synonyms(answered).marks(text) == blend.Synonyms(reversed(answered)).marks(text)


# --- faults ---


def asked(**changes: Any) -> str:
    row = {"question": "?", "en_question": "?", "annotations": [{"en_answers": ["a"], "count": 3}]}
    return json.dumps({"q": row | changes})


ANNOTATIONS, QUESTIONS = "annotations/China_data.json", "questions/US_questions.csv"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *((ANNOTATIONS, text) for text in ("{", '{"q": "\udcff"}', "[]", '{"q": "a text"}', asked(en_question=None))),
        (ANNOTATIONS, '{"q": {"en_question": "?", "annotations": []}}'),  # without its local words
        *((ANNOTATIONS, asked(annotations=[{"en_answers": ["a"], "count": votes}])) for votes in ("many", None, nan)),
        (QUESTIONS, "Number,Subject\n1,Food\n"),
        (QUESTIONS, "ID,Topic\nAl-en-01\n"),
        (QUESTIONS, "ID,Topic\nAl-en-01,\udcff\n"),  # not UTF-8
        (QUESTIONS, "ID,Topic\nAl-en-02,Food\n"),  # without a question
    ],
)
def test_invalid_file_error_names_the_file(tmp_path: Path, name: str, content: str) -> None:
    (a_folder(tmp_path) / name).write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(DataError, match=re.escape(name)):
        read(tmp_path)


def test_question_with_a_fault_is_left_out_of_the_others(tmp_path: Path) -> None:
    whole = list(blend.read(section(a_folder(tmp_path)), 0, []))
    change(tmp_path, "China", **{"Al-en-01": {"annotations": "x"}, "Unknown-01": a_row("China", BREAKFAST["China"])})
    with pytest.warns(DataWarning, match=rf"left out 2 of {len(BREAKFAST) + 1} rows .*annotations.*Unknown-01"):
        rest = list(blend.read(section(tmp_path), 0, faulty := []))
    assert 0 < len(rest) < len(whole)
    assert len(faulty) == 2
    with pytest.raises(DataError, match="China_data"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere", r"nowhere/questions"),
        ("blend.zip", r"blend\.zip"),
        ("no questions", r"no questions/questions: no <Region>_questions\.csv"),
        ("no annotations", r"no annotations/annotations: no <Region>_data\.json of Algeria"),
    ],
)
def test_folder_that_is_not_blend_is_rejected(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "blend.zip").write_text("x")
    a_folder(tmp_path / "no questions", topics=False)
    change(a_folder(tmp_path / "no annotations", {}), "Atlantis")
    with pytest.raises(DataError, match=message):
        read(tmp_path / path)


def test_unknown_language_is_an_error_and_an_unknown_region_a_warning(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no language 'zh' in BLEnD; known: en, own"):
        read(a_folder(tmp_path), languages=["en", "zh"])
    change(tmp_path, "Atlantis")
    with pytest.warns(UserWarning, match=r"annotations: not read: Atlantis_data\.json \(expected <Region>_data\.json"):
        assert read(tmp_path)


# --- what becomes of every row ---


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    first = {"UK": {"toast": 4}, "China": {"porridge": 5}, "Mexico": {"tortilla": 2, "beans": 2}}
    rest = {"Greece": {"greek salad": 5}, "Spain": {"churros": 4}}
    a_folder(tmp_path, {"q1": first | rest, "q2": {"UK": {"tea": 3}, "China": {"tea": 5}, "Mexico": {}}})
    change(tmp_path, "Greece", q2="no object")
    change(tmp_path, "Spain", q1=a_row("Spain", {"churros": 4}, question=" ", en_question=" "))
    return tmp_path


def test_every_row_is_imported_or_has_a_fault(folder: Path) -> None:
    found: dict[str, list[list[str]]] = defaultdict(list)
    for outcome in sorted(blend.outcomes(section(folder), 0), key=lambda outcome: outcome.row.number):
        found[Path(outcome.row.file).name.removesuffix("_data.json")].append(fault_names(outcome))
    assert found == {
        **{region: [[], ["no_rivals"]] for region in ("UK", "China")},
        "Mexico": [["no_majority"], ["no_majority"]],
        "Greece": [["names_culture"], ["model_type"]],
        "Spain": [["blank"]],
    }


def test_data_build_gives_the_same_items_as_training(folder: Path, tmp_path: Path, tal: Tal) -> None:
    assert recognise(str(folder)) == ["data=blend"]
    out = tmp_path / "items.jsonl"
    words = ["data=blend", f"data.path={folder}", "data.num_responses=2", "data.max_groups=1"]
    output = tal("data", "build", *words, f"out={out}").out
    (folder / "annotations" / "Greece_data.json").unlink()  # the one row with an error, at which training stops
    built = sorted(jsonl.read(out), key=lambda item: item.id)
    trained = blend.read(section(folder, sets_per_group=30, languages=["en", "own"]), 0)
    assert built == sorted(trained, key=lambda item: item.id)
    assert {(item.culture, item.language) for item in built} == {("GB", "en"), ("CN", "en"), ("CN", "zh")}
    assert "9 rows = 2 imported (6 items) + 7 in quarantine" in output
    assert len((tmp_path / "items.quarantine.jsonl").read_text().splitlines()) == 7
