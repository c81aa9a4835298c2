"""Edits for the spurious-feature probes: our own, those of a file, and the rules for those of a model."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
from data.sections import data_section
from data.tables import write
from hypothesis import given
from hypothesis import strategies as st
from items import make_item

from think_as_locals.data import cards as culture_cards
from think_as_locals.data import edits, flip_sets
from think_as_locals.data.edits import (
    EDIT_RULES,
    Edit,
    Edits,
    broken_rules,
    prompt_text,
    read_answer,
    read_edits,
    request_text,
    skip_reason,
    target_language,
)
from think_as_locals.types import DataError, Item


@cache
def cards(*languages: str) -> list[Item]:
    data = data_section(languages=list(languages), groups=["gift_taboo", "kitchen_tool"], sets_per_group=30)
    return list(culture_cards.read_culture_cards(data, 0))


def an_item(**changes: Any) -> Item:
    of_japan = {"prompt": "What do people in Japan eat?", "responses": ("rice", "bread", "tortillas"), "culture": "JP"}
    known = {"id": "1", "domain": "commonsense", "group": "breakfast", "origins": ("JP", "DE", "MX")}
    return make_item(**of_japan | known | changes)


def changed(before: Item, after: Item) -> set[str]:
    return {name for name in Item.__dataclass_fields__ if getattr(before, name) != getattr(after, name)}


def fact(item: Item, culture: str, language: str = "en") -> str:
    return next(card for card in culture_cards.cards() if card.group == item.group).facts[culture][language]


# --- CC: another culture's answer ---


def test_change_concept_replaces_only_the_best_response() -> None:
    items = cards("en")
    found = edits.edited_pairs(items)["CC"]
    assert 20 < len(found) <= len(items)
    for item, edited, _ in found:
        assert changed(item, edited) == {"id", "responses", "origins"}
        assert edited.id == f"{item.id}#CC"
        others = [i for i in range(4) if i != item.best]
        assert [edited.responses[i] for i in others] == [item.responses[i] for i in others]
        origin = edited.origins[item.best]
        assert origin not in item.origins
        assert edited.responses[item.best] == fact(item, origin) != fact(item, str(item.culture))
    assert edits.edited_pairs(items[::-1])["CC"] == found[::-1]


def test_change_concept_uses_only_answers_known_to_be_wrong() -> None:
    # That the Dutch eat bread as well is not known to be wrong of Japan.
    item, other = an_item(), an_item(id="2", culture="NL", responses=("cheese", "rice"), origins=("NL", "JP"))
    assert edits.change_concept(item, edits.other_concepts([item, other])) is None
    offered = an_item(id="3", responses=("rice", "cheese"), origins=("JP", "NL"))
    edited = edits.change_concept(item, edits.other_concepts([item, other, offered]))
    assert edited is not None
    assert (edited.responses, edited.origins) == (("cheese", "bread", "tortillas"), ("NL", "DE", "MX"))


def test_concepts_match_group_culture_language_and_source() -> None:
    beside = an_item(id="3", responses=("rice", "cheese"), origins=("JP", "NL"))
    concepts = edits.other_concepts([beside])
    assert edits.change_concept(an_item(), concepts) is not None
    unlike = {"group": "lunch", "language": "ja", "source": "theirs", "culture": "KR", "origins": ()}
    for name, value in unlike.items():
        assert edits.change_concept(an_item(**{name: value}), concepts) is None, name
    assert edits.other_concepts([an_item(origins=())]) == {}
    # Of the items that are evaluated none offers another answer, but one beside them does.
    assert edits.edited_pairs([an_item()])["CC"] == []
    assert [pair.after.responses[0] for pair in edits.edited_pairs([an_item()], [beside])["CC"]] == ["cheese"]


# --- RC: the label of the culture ---


@pytest.mark.parametrize(
    ("culture", "language", "prompt", "left"),
    [
        ("US", "en", "What is eaten on Thanksgiving in the US?", "What is eaten on Thanksgiving?"),
        ("GB", "en", "In the UK, what is eaten?", "What is eaten?"),
        ("KP", "en", "What do people from North Korea wear?", "What do people wear?"),
        ("ES", "es", "En España, ¿qué deportes son populares?", "¿Qué deportes son populares?"),
        ("MX", "es", "¿Qué se come en las escuelas de México?", "¿Qué se come en las escuelas?"),
        ("DZ", "ar", "ماذا يأكل الناس في الجزائر؟", "ماذا يأكل الناس؟"),
        ("AZ", "az", "Azərbaycanda insanlar nə yeyir?", "İnsanlar nə yeyir?"),
        ("CN", "zh", "在中国，人们吃什么？", "人们吃什么？"),
        ("CN", "zh", "中国的学校食堂里有什么？", "学校食堂里有什么？"),
        ("GR", "el", "Τι τρώνε στην Ελλάδα;", "Τι τρώνε;"),
        ("ID", "id", "Di Indonesia, apa yang dimakan?", "Apa yang dimakan?"),
        ("IR", "fa", "درایران مردم چه می‌خورند؟", "مردم چه می‌خورند؟"),
        ("NG", "ha", "Menene ake ci a Arewacin Najeriya?", "Menene ake ci?"),
        ("KP", "ko", "북한의 학교에서 무엇을 먹나요?", "학교에서 무엇을 먹나요?"),
        ("JP", "ja", "日本では、何を食べますか。", "何を食べますか。"),
        ("TH", "th", "คนในประเทศไทยกินอะไร", "คนกินอะไร"),
    ],
)
def test_remove_label_cuts_the_place_from_the_prompt(culture: str, language: str, prompt: str, left: str) -> None:
    item = an_item(culture=culture, language=language, prompt=prompt)
    edited = edits.remove_label(item)
    assert edited is not None
    assert (edited.prompt, edited.culture, edited.id) == (left, None, "1#RC")
    assert changed(item, edited) == {"id", "prompt", "culture"}


@pytest.mark.parametrize(
    ("culture", "language", "prompt"),
    [
        ("DZ", "en", "Which of Algeria's dishes is popular in Algeria?"),  # one of two would stay
        ("ID-JB", "en", "Is rice eaten all over Java in West Java?"),
        ("AZ", "az", "Azərbaycanlılar nə yeyir?"),
        ("MX", "es", "¿Qué se come en Ciudad de México?"),
        ("ID", "en", "What do people in Japan eat?"),  # not its own
        ("IR", "fa", "در کشور شما چه می‌خورند؟"),  # "in your country"
        ("US", "en", "Who of us eats bread?"),
        (None, "en", "What do people in Japan eat?"),
        ("XX", "xx", "?"),
    ],
)
def test_remove_label_is_none_if_the_place_cannot_be_removed_cleanly(
    culture: str | None, language: str, prompt: str
) -> None:
    assert edits.remove_label(an_item(culture=culture, language=language, prompt=prompt)) is None


def test_remove_label_works_on_every_card_in_every_language() -> None:
    for card in culture_cards.cards():
        for culture, about in culture_cards.cultures().items():
            for language in ("en", about["language"]):
                place = about["place"][language]
                prompt = card.question[language].replace("{place}", place)
                edited = edits.remove_label(an_item(culture=culture, language=language, prompt=prompt))
                assert edited is not None, prompt
                assert place not in edited.prompt
                lost = len(prompt) - len(edited.prompt)
                assert len(place) <= lost <= len(place) + 3, (prompt, edited.prompt)
                assert edited.prompt[0].isalnum() or edited.prompt[0] == "¿", edited.prompt
                assert "  " not in edited.prompt


# --- RP: a frame ---


def test_rephrase_frames_prompt_and_responses() -> None:
    for item in cards("own"):
        edited = edits.rephrase(item)
        assert edited is not None
        assert changed(item, edited) == {"id", "prompt", "responses"}
        assert edited.prompt.endswith(item.prompt)
        assert len(edited.prompt) > len(item.prompt)
        prefixes = {after.removesuffix(text) for after, text in zip(edited.responses, item.responses, strict=True)}
        assert len(prefixes) == 1
        assert len(prefixes.pop()) > 1
    edited = edits.rephrase(an_item(prompt="What is {text}?"))
    assert edited is not None
    assert edited.prompt.endswith("What is {text}?")
    assert edits.rephrase(an_item(language="xx")) is None
    edited = edits.rephrase(
        an_item(language="ja", prompt="何を食べますか。", source="blend")
    )  # its responses are in English
    assert edited is not None
    assert [text.isascii() for text in (edited.prompt, *edited.responses)] == [False, True, True, True]
    items = cards("en")
    framed = [edited for item in items if (edited := edits.rephrase(item))]
    assert len(flip_sets(framed)) == len(flip_sets(items)) > 50


@pytest.mark.parametrize("tag", ["en", "en-US", "zh-Hant", "zh-TW"])
def test_edits_read_a_tag_without_its_region_unless_the_script_is_another(tag: str) -> None:
    item = an_item(language=tag, culture="US", prompt="What is eaten in the US?", origins=())
    applied = {name: bool(pairs) for name, pairs in edits.edited_pairs([item]).items()}
    assert applied == {"CC": False, "RC": tag[:2] == "en", "CL": False, "RP": tag[:2] == "en"}


# --- CL: the responses in another language ---


def test_language_pairs_need_distinct_origins() -> None:
    pair = [
        an_item(origins=("JP", "US", "US")),
        an_item(id="2", language="de", responses=("Reis", "Brot", "Tortillas")),
    ]
    assert edits.language_pairs([pair[0], replace(pair[1], origins=("JP", "US", "US"))]) == []


def test_language_pairs_swap_responses_between_languages() -> None:
    english = an_item()
    german = an_item(id="2", language="de", responses=("Tortillas", "Reis", "Brot"), origins=("MX", "JP", "DE"), best=1)
    arabic = an_item(id="3", language="ar", responses=("أرز", "خبز", "تورتيلا"))
    pairs = edits.language_pairs([arabic, english, german, an_item(id="4", language="ja", group="lunch")])
    assert [(pair.before.id, pair.after.responses, pair.language) for pair in pairs] == [
        ("3", english.responses, "en"),
        ("1", arabic.responses, "ar"),
        ("2", ("tortillas", "rice", "bread"), "en"),
    ]
    for before, after, _ in pairs:
        assert (changed(before, after), after.id) == ({"id", "responses"}, f"{before.id}#CL")


def test_language_pairs_of_cards_use_the_facts_of_the_card() -> None:
    english, own = edits.language_pairs(cards("en")), edits.language_pairs(cards("own"))
    assert len(english) == sum(item.culture != "US" for item in cards("en"))
    assert len(own) == sum(item.language != "en" for item in cards("own"))
    for before, after, language in english + own:
        spoken = culture_cards.cultures()[str(before.culture)]["language"]
        assert {before.language, language} == {"en", spoken}
        assert after.responses == tuple(fact(before, origin, language) for origin in after.origins)
        assert changed(before, after) == {"id", "responses"}
    of_blend = [an_item(source="blend"), an_item(id="2", source="blend", language="ja")]  # with the same responses
    assert edits.language_pairs(of_blend) == []
    assert "responses are in English" in edits.no_edit_reason("CL", of_blend[0])


# --- edits of a file ---

MEALS: dict[str, Any] = {"responses": ("rice", "bread", "soup"), "best": 1, "origins": ("JP", "FR", "US")}
ASKED = [make_item(id=f"jp-{n}", prompt=f"What do people in Japan eat, {n}?", culture="JP", **MEALS) for n in range(2)]


def read(folder: Path, *rows: dict[str, Any]) -> Edits:
    return read_edits(write(folder / "edits.jsonl", list(rows)), ASKED)


def test_edit_changes_only_the_fields_of_its_row(tmp_path: Path) -> None:
    responses, asked = ["ご飯", "パン", "スープ"], "In Japan, what is eaten, 0?"
    found = read(
        tmp_path,
        {"item": "jp-1", "probe": "RC", "prompt": "What do people eat, 1?", "provenance": {"model": "m"}},
        {"item": "jp-0", "probe": "CL", "responses": responses, "language": "Japanese"},
        {"item": "jp-0", "probe": "CC", "responses": ["rice", "pita", "soup"]},
        {"item": "jp-0", "probe": "RP", "prompt": asked, "responses": ["rice.", "a bread", "s"]},
    )
    zero, one = ASKED
    unlabelled = replace(one, id="jp-1#RC", prompt="What do people eat, 1?", culture=None)
    assert found["RC"] == [(one, unlabelled, "en")]
    # The prompt stays, and so does its language, in which a judge is to write its rubric.
    assert found["CL"] == [(zero, replace(zero, id="jp-0#CL", responses=tuple(responses)), "ja")]
    cc = replace(zero, id="jp-0#CC", responses=("rice", "pita", "soup"), origins=())
    assert found["CC"] == [(zero, cc, "en")]
    assert [(after.prompt, after.best, after.culture) for _, after, _ in found["RP"]] == [(asked, 1, "JP")]


ROW = {"item": "jp-0", "probe": "RC", "prompt": "What do people eat?"}


def test_row_with_its_own_item_is_kept_for_any_evaluated_items(tmp_path: Path) -> None:
    own = replace(ASKED[0], id="elsewhere")
    found = read(tmp_path, ROW | {"item": asdict(own)}, ROW, ROW | {"item": "jp-1"})
    assert [pair.before.id for pair in found["RC"]] == ["elsewhere", "jp-0", "jp-1"]
    assert found["RC"][0][0] == own


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"item": "jp-1"}, r"item 'jp-1' has a RC edit already, in .*edits\.jsonl:1"),
        ({"item": "jp-9"}, r"item 'jp-9' is not among the 2 items; did you mean 'jp-[01]'\?"),
        ({"prompt": None}, "prompt and responses are the item's: expected at least one that differs"),
        ({"responses": ["a", "b"]}, "expected the item's 3 responses in its order, got 2"),
        ({"responses": ["a", "b", "b"]}, ".*responses must be distinct"),
        ({"probe": "CL"}, "a CL edit changes the language of the responses: it needs responses"),
        ({"probe": "CL", "responses": ["a", "b", "c"], "language": "Xish"}, "language: "),
        ({"item": {"id": "x"}}, "prompt: Field required"),
    ],
)
def test_invalid_row_error_names_file_and_line(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=rf"^[^\n]*edits\.jsonl:2: {message}"):
        read(tmp_path, ROW | {"item": "jp-1"}, ROW | row)


# --- rules for a model's edits ---

ITEM = make_item(
    id="th-1",
    prompt="How do people in Thailand greet an elder at a wedding?",
    responses=(
        "They press their palms together and bow:\n\n- **hands** at chest height\n- eyes down for 2 seconds",
        "They shake hands firmly and look the elder in the eyes, as Thai people have done for 100 years.",
        "They kiss the elder on both cheeks.",
    ),
    best=0,
    culture="TH",
    language="en",
)
WAI, SHAKE, KISS = ITEM.responses
HUG = WAI.replace("press their palms together and bow", "hug the elder for a long time")
BARE = SHAKE.replace("as Thai people have", "as people have")
NO_LABEL = "How do people greet an elder at a wedding?"
IN_GERMAN = (
    "Sie legen die Hände aneinander und verbeugen sich:\n\n- **Hände** auf Brusthöhe\n- Blick 2 Sekunden gesenkt",
    "Sie drücken fest die Hand und sehen dem Älteren in die Augen, wie es die Thailänder seit 100 Jahren tun.",
    "Sie küssen den Älteren auf beide Wangen.",
)
REPHRASED = (
    "At a Thailand wedding, how is an older person greeted?",
    "Palms pressed to one another, people take a bow:\n\n- **hands** as high as the chest\n- gaze down 2 seconds",
    "A firm handshake and eye contact with the older person, a habit of Thai people these 100 years.",
    "Both of the older person's cheeks get a kiss.",
)


def check(
    probe: Edit, prompt: str = ITEM.prompt, *responses: str, item: Item = ITEM, language: str = "en"
) -> list[str]:
    target = language if probe == "CL" else None
    return broken_rules(probe, item, (prompt, *(responses or item.responses)), target)


def test_valid_edits_break_no_rule() -> None:
    assert check("CC", ITEM.prompt, HUG, SHAKE, KISS) == []
    assert check("RC", NO_LABEL, WAI, BARE, KISS) == []
    assert check("CL", ITEM.prompt, *IN_GERMAN, language="de") == []
    assert check("RP", *REPHRASED) == []


@pytest.mark.parametrize(
    ("probe", "prompt", "responses", "rule"),
    [
        ("CC", ITEM.prompt, (WAI, SHAKE, KISS), "changed"),
        ("CC", ITEM.prompt, (WAI.replace(" and bow:", ", AND bow:"), SHAKE, KISS), "changed"),
        ("CC", ITEM.prompt, (KISS, SHAKE, KISS), "distinct"),
        ("CC", ITEM.prompt, (HUG + " This is long, and explains why nobody at all does so.", SHAKE, KISS), "rest_kept"),
        ("RC", ITEM.prompt, (WAI, BARE, KISS), "name_removed"),
        ("RC", NO_LABEL, (WAI, SHAKE, KISS), "name_removed"),
        ("RC", NO_LABEL, (WAI, BARE, "They embrace the elder."), "rest_kept"),
        ("RC", "How do guests say hello to somebody old when they marry?", (WAI, BARE, KISS), "rest_kept"),
        ("CL", ITEM.prompt, (WAI, *IN_GERMAN[1:]), "changed"),
        ("RP", REPHRASED[0], (*REPHRASED[1:3], KISS.replace("kiss", "peck") + " Always." * 9), "length"),
        ("CL", ITEM.prompt, (IN_GERMAN[1], *IN_GERMAN[1:]), "distinct"),
        ("RP", ITEM.prompt, REPHRASED[1:], "changed"),
        ("RP", REPHRASED[0], (*REPHRASED[1:3], "They, kiss the ELDER on both cheeks!"), "changed"),
    ],
)  # fmt: skip
def test_invalid_edit_breaks_the_expected_rule(probe: Edit, prompt: str, responses: tuple[str, ...], rule: str) -> None:
    language = "de" if probe == "CL" else "en"
    assert rule in check(probe, prompt, *responses, language=language)


@pytest.mark.parametrize("language", ["am", "as", "hy", "ka", "my", "ta", "te"])
def test_responses_that_are_not_translated_break_the_language_rule(language: str) -> None:
    assert check("CL", ITEM.prompt, *REPHRASED[1:], language=language) == ["language"]


def in_thai(**changes: Any) -> Item:
    texts = {"prompt": "คนไทยทักทายผู้ใหญ่ในงานแต่งงานอย่างไร", "responses": ("ยกมือไหว้แล้วก้มศีรษะลงเล็กน้อย", "จับมือแล้วมองตาผู้ใหญ่")}
    return make_item(**texts | {"language": "th"} | changes)


def test_rules_apply_to_scripts_without_spaces() -> None:
    item = in_thai()
    one, two = item.responses
    assert check("RC", "คนทักทายผู้ใหญ่ในงานแต่งงานอย่างไร", one, two, item=item) == []
    assert check("RC", "แขกพูดคุยกันอย่างไรเมื่อพบญาติ", one, two, item=item) == ["rest_kept"]
    english = ("They raise their hands in a wai and bow the head a little.", "They shake hands and look at the elder.")
    assert check("CL", item.prompt, *english, item=item) == []
    assert check("CL", item.prompt, english[0], two, item=item) == ["changed", "language"]
    chinese = ("双手合十，微微低头。", "握手，看着长辈的眼睛。")
    assert check("CL", item.prompt, *chinese, item=item, language="zh") == []


def test_responses_may_keep_a_language_of_their_own() -> None:
    english = "People press their palms together and bow a little before they sit down with the elders."
    item = in_thai(responses=(english, "จับมือแล้วมองตาผู้ใหญ่"))
    said = "With palms joined and a slight bow people greet the elders, and then they take a seat."
    prompt, other = "ที่งานแต่งงาน คนไทยทักผู้ใหญ่ด้วยวิธีใด", "มองตาผู้ใหญ่ขณะจับมือ"
    assert check("RP", prompt, said, other, item=item) == []
    assert check("RP", prompt, said, "They shake hands and look the elder in the eyes.", item=item) == ["language"]
    prompt, shake, eyes = "ที่งานแต่งงาน คนไทยทักผู้ใหญ่ด้วยวิธีใด", "shake hands", "look at eyes"
    item = in_thai(responses=(shake, eyes), source="blend")
    assert check("RP", prompt, "give a firm handshake", eyes, item=item) == []
    assert check("RP", prompt, "จับมือแล้วมองตาผู้ใหญ่ในงานแต่งงาน", eyes, item=item) == ["language"]


def test_skip_reason_says_why_an_edit_is_not_requested() -> None:
    assert all(skip_reason(probe, ITEM, "en") is None for probe in get_args(Edit) if probe != "CL")
    assert skip_reason("CC", make_item(culture=None), "en") == "it has no culture"
    assert skip_reason("RC", make_item(), "en") == "no known name of the culture is in it"
    quebec = make_item(culture="CA-QC", prompt="What is eaten in Quebec?")
    assert skip_reason("RC", quebec, "en") is None
    assert skip_reason("RC", make_item(culture="Quechua", prompt="What do Quechua people eat?"), "en") is None
    unofficial = make_item(culture="US")
    assert "no other is official in its culture" in str(skip_reason("CL", unofficial, "en"))
    assert skip_reason("CL", unofficial, "de") is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "th"),
        ({"culture": "JP"}, "ja"),
        ({"culture": "CA-QC"}, "fr"),
        ({"culture": "TW"}, "zh-Hant"),
        ({"language": "th"}, "en"),
        ({"culture": None}, None),
        ({"language": "th", "source": "blend"}, "th"),
        ({"language": "en", "culture": "US"}, None),
    ],
)
def test_target_language_is_that_of_the_culture(changes: dict[str, Any], expected: str | None) -> None:
    assert target_language(make_item(**changes), "en") == expected
    assert target_language(make_item(**changes), "en-US") == (expected.replace("en", "en-US") if expected else None)


def test_read_answer_extracts_the_json_object() -> None:
    texts = (NO_LABEL, WAI, BARE, KISS)
    answer = json.dumps({"prompt": NO_LABEL, "responses": texts[1:]}, ensure_ascii=False)
    assert read_answer("RC", ITEM, answer) == texts
    assert read_answer("RC", ITEM, f"Here it is:\n```json\n{answer}\n```\nDone.") == texts
    assert read_answer("RC", ITEM, answer.replace("\\n", "\n")) == texts
    assert read_answer("CC", ITEM, '{"response": "A hug."}') == (ITEM.prompt, "A hug.", SHAKE, KISS)
    # CL leaves the prompt, whatever is said of it.
    translated = read_answer("CL", ITEM, json.dumps({"prompt": "?", "responses": IN_GERMAN}))
    assert translated == (ITEM.prompt, *IN_GERMAN)


@pytest.mark.parametrize(
    "answer",
    [
        *("No.", '{"prompt": "x"}', '{"a":' * 100_000 + "}"),
        *(json.dumps({"prompt": "x", "responses": bad}) for bad in ("abc", ["a", "b"], ["a", "b", " "], ["a", "b", 3])),
        *(json.dumps({"prompt": bad, "responses": ["a", "b", "c"]}) for bad in (None, "\ud800")),
    ],
)
def test_read_answer_is_none_without_the_expected_texts(answer: str) -> None:
    assert read_answer("RC", ITEM, answer) is None
    assert read_answer("CC", ITEM, answer) is None


@given(st.text(max_size=80), st.sampled_from(get_args(Edit)))
def test_read_answer_never_raises(text: str, probe: Edit) -> None:
    for answer in (text, "{" + text + "}", json.dumps({"prompt": text, "response": text, "responses": [text] * 3})):
        after = read_answer(probe, ITEM, answer)
        assert after is None or set(broken_rules(probe, ITEM, after, "de" if probe == "CL" else None)) <= {*EDIT_RULES}


def test_request_holds_the_item_texts_as_json() -> None:
    hostile = make_item(prompt='Say "$language" and {x}', responses=("$material", "b"), culture="TH")
    for probe in get_args(Edit):
        asked = request_text(probe, hostile, "Thailand", "Japanese")
        found = json.loads(asked[asked.index("\n{") :])
        shown = [found.get("prompt", found.get("question")), *found.get("responses", [found.get("response")])]
        assert shown[:2] == ['Say "$language" and {x}', "$material"]
        assert asked.startswith(prompt_text(probe).partition("$")[0])
    assert "into Japanese." in request_text("CL", hostile, "Thailand", "Japanese")
