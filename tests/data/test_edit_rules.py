"""Rules for a model's edits: which edits pass, which rule an edit breaks, and which items are skipped."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from items import make_item

from think_as_locals.data.edits import (
    EDIT_RULES,
    Edit,
    EditedTexts,
    broken_rules,
    prompt_text,
    read_answer,
    request_text,
    skip_reason,
    target_language,
)
from think_as_locals.types import Item

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
REPHRASED = EditedTexts(
    "At a Thailand wedding, how is an older person greeted?",
    (
        "Palms pressed to one another, people take a bow:\n\n- **hands** as high as the chest\n- gaze down 2 seconds",
        "A firm handshake and eye contact with the older person, a habit of Thai people these 100 years.",
        "Both of the older person's cheeks get a kiss.",
    ),
)


def check(
    probe: Edit, prompt: str = ITEM.prompt, *responses: str, item: Item = ITEM, language: str = "en"
) -> list[str]:
    target = language if probe == "CL" else None
    return broken_rules(probe, item, EditedTexts(prompt, responses or item.responses), target)


def test_valid_edits_break_no_rule() -> None:
    assert check("CC", ITEM.prompt, HUG, SHAKE, KISS) == []
    assert check("RC", NO_LABEL, WAI, BARE, KISS) == []
    assert check("CL", ITEM.prompt, *IN_GERMAN, language="de") == []
    assert check("RP", REPHRASED.prompt, *REPHRASED.responses) == []


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
        ("RP", REPHRASED.prompt, (*REPHRASED.responses[:2], KISS.replace("kiss", "peck") + " Always." * 9), "length"),
        ("CL", ITEM.prompt, (IN_GERMAN[1], *IN_GERMAN[1:]), "distinct"),
        ("RP", ITEM.prompt, REPHRASED.responses, "changed"),
        ("RP", REPHRASED.prompt, (*REPHRASED.responses[:2], "They, kiss the ELDER on both cheeks!"), "changed"),
    ],
)  # fmt: skip
def test_invalid_edit_breaks_the_expected_rule(probe: Edit, prompt: str, responses: tuple[str, ...], rule: str) -> None:
    language = "de" if probe == "CL" else "en"
    assert rule in check(probe, prompt, *responses, language=language)


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
        ({"language": "en-GB", "culture": "GB"}, None),
        ({"culture": "Quebec"}, None),
        ({"culture": None}, None),
        ({"language": "th", "source": "blend"}, "th"),
        ({"language": "en", "culture": "US"}, None),
    ],
)
def test_target_language_is_that_of_the_culture(changes: dict[str, Any], expected: str | None) -> None:
    assert target_language(make_item(**changes), "en") == expected
    assert target_language(make_item(**changes), "en-US") == (expected.replace("en", "en-US") if expected else None)


def test_read_answer_extracts_the_json_object() -> None:
    texts = EditedTexts(NO_LABEL, (WAI, BARE, KISS))
    answer = json.dumps({"prompt": texts.prompt, "responses": texts.responses}, ensure_ascii=False)
    assert read_answer("RC", ITEM, answer) == texts
    assert read_answer("RC", ITEM, f"Here it is:\n```json\n{answer}\n```\nDone.") == texts
    assert read_answer("RC", ITEM, answer.replace("\\n", "\n")) == texts
    assert read_answer("CC", ITEM, '{"response": "A hug."}') == EditedTexts(ITEM.prompt, ("A hug.", SHAKE, KISS))
    # CL leaves the prompt, whatever is said of it.
    translated = read_answer("CL", ITEM, json.dumps({"prompt": "?", "responses": IN_GERMAN}))
    assert translated == EditedTexts(ITEM.prompt, IN_GERMAN)


@pytest.mark.parametrize(
    "answer",
    [
        *("", "No.", "}{", '{"prompt": "x"}', '{"a":' * 100_000 + "}"),
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
