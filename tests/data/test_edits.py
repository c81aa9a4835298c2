"""Edits for the spurious-feature probes: what they change, what they keep, and where they do not apply."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from data.sections import data_section
from data.sources.test_blend import a_folder, a_row, change
from items import make_item

from think_as_locals.data import cards as culture_cards
from think_as_locals.data import edits, flip_sets
from think_as_locals.data.sources import blend
from think_as_locals.types import Item

REGIONS = {  # region -> its prompt and its answer
    "UK": ("What do people in the UK eat for breakfast?", "toast"),
    "US": ("What do people in the US eat for breakfast?", "pancakes"),
    "China": ("在中国，人们早餐吃什么？", "rice porridge"),
    "Mexico": ("¿Qué desayuna la gente en México?", "tortilla"),
    "Greece": ("Τι τρώνε οι άνθρωποι για πρωινό στην Ελλάδα;", "yoghurt"),
    "Iran": ("در ایران مردم صبحانه چه می‌خورند؟", "flatbread"),
}


@pytest.fixture
def blend_items(tmp_path: Path) -> list[Item]:
    """Items of a small folder like BLEnD's: six regions whose answers exclude one another."""
    a_folder(tmp_path, {"Al-en-01": {region: {answer: 4} for region, (_, answer) in REGIONS.items()}})
    for region, (question, answer) in REGIONS.items():
        change(tmp_path, region, **{"Al-en-01": a_row(region, {answer: 4}, question=question)})
    data = data_section(source="blend", path=str(tmp_path), languages=["en", "own"], sets_per_group=None)
    return list(blend.read(data, 0))


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


# --- CC: another culture's answer ---


def test_change_concept_replaces_only_the_best_response(blend_items: list[Item]) -> None:
    concepts = edits.other_concepts(blend_items)
    answers = dict(zip(("GB", "US", "CN", "MX", "GR", "IR"), (answer for _, answer in REGIONS.values()), strict=True))
    for item in blend_items:
        edited = edits.change_concept(item, concepts)
        assert edited is not None
        assert changed(item, edited) == {"id", "responses", "origins"}
        assert edited.id == f"{item.id}#CC"
        others = [i for i in range(4) if i != item.best]
        assert [edited.responses[i] for i in others] == [item.responses[i] for i in others]
        origin = edited.origins[item.best]
        assert origin not in item.origins
        assert edited.responses[item.best] == answers[origin] != answers[str(item.culture)]


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


def test_change_concept_does_not_depend_on_item_order() -> None:
    items = cards("en")
    there, back = edits.other_concepts(items), edits.other_concepts(items[::-1])
    assert [edits.change_concept(item, there) for item in items] == [edits.change_concept(item, back) for item in items]


# --- RC: the label of the culture ---


@pytest.mark.parametrize(
    ("culture", "language", "prompt", "left"),
    [
        ("ID", "en", "What do people in Indonesia eat?", "What do people eat?"),
        ("US", "en", "What is eaten on Thanksgiving in the US?", "What is eaten on Thanksgiving?"),
        ("GB", "en", "In the UK, what is eaten?", "What is eaten?"),
        ("KP", "en", "What do people from North Korea wear?", "What do people wear?"),
        ("IN-AS", "en", "What do people in Assam eat?", "What do people eat?"),
        ("ET", "en", "In Ethiopia, what is eaten?", "What is eaten?"),
        ("ID-JB", "en", "What do people from West Java wear?", "What do people wear?"),
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
        ("KR", "ko", "대한민국에서는 무엇을 먹나요?", "무엇을 먹나요?"),
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
        ("DZ", "en", "What is Algeria's most popular dish?"),
        ("DZ", "en", "Which of Algeria's dishes is popular in Algeria?"),  # one of two would stay
        ("ID-JB", "en", "Is rice eaten all over Java in West Java?"),
        ("AZ", "az", "Azərbaycanlılar nə yeyir?"),
        ("CN", "zh", "中国人吃什么？"),
        ("MX", "es", "¿Qué se come en Ciudad de México?"),
        ("ID", "en", "What do people in Japan eat?"),  # not its own
        ("IR", "fa", "در کشور شما چه می‌خورند؟"),  # "in your country"
        ("US", "en", "Who of us eats bread?"),
        ("JP", "de", "Was isst man?"),
        (None, "en", "What do people in Japan eat?"),
        ("XX", "xx", "?"),
    ],
)
def test_remove_label_is_none_if_the_place_cannot_be_removed_cleanly(
    culture: str | None, language: str, prompt: str
) -> None:
    assert edits.remove_label(an_item(culture=culture, language=language, prompt=prompt)) is None


def test_remove_label_makes_english_prompts_of_a_flip_set_equal(blend_items: list[Item]) -> None:
    for items in (blend_items, cards("en")):
        for members in flip_sets([item for item in items if item.language == "en"]):
            left = [edits.remove_label(item) for item in members]
            assert len({item.prompt for item in left if item}) == 1
            assert len({item.best for item in left if item}) == len(members) == len(left)


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


def test_rephrase_keeps_flip_sets_and_frames_blend_responses_in_english(blend_items: list[Item]) -> None:
    items = cards("en")
    framed = [edited for item in items if (edited := edits.rephrase(item))]
    assert len(flip_sets(framed)) == len(flip_sets(items)) > 50
    framed = [edits.rephrase(item) or item for item in blend_items]
    assert all(edited.responses[0].isascii() for edited in framed)
    assert [edited.prompt.isascii() for edited in framed] == [item.prompt.isascii() for item in blend_items]


def test_edited_conversation_is_compared_in_the_form_of_the_edited_one() -> None:
    turns = (("user", "hello"), ("assistant", "hi"), ("user", "What do people in Japan eat?"))
    item = an_item(prompt="\n\n".join(f"{role}: {text}" for role, text in turns), turns=turns)
    found = edits.edited_pairs([item])
    for pair in (*found["RC"], *found["RP"]):
        assert len(pair.before.messages) == len(pair.after.messages) == 1
    assert found["RC"][0].after.prompt == "user: hello\n\nassistant: hi\n\nuser: What do people eat?"


# --- CL: the responses in another language ---


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


def test_language_pairs_do_not_apply_to_blend(blend_items: list[Item]) -> None:
    assert edits.language_pairs(blend_items) == []
    assert "responses are in English" in edits.no_edit_reason("CL", blend_items[0])


def test_language_pairs_of_cards_use_the_facts_of_the_card() -> None:
    english, own = edits.language_pairs(cards("en")), edits.language_pairs(cards("own"))
    assert len(english) == sum(item.culture != "US" for item in cards("en"))
    assert len(own) == sum(item.language != "en" for item in cards("own"))
    by_name = {card.group: card for card in culture_cards.cards()}
    for before, after, language in english + own:
        card = by_name[before.group]
        spoken = culture_cards.cultures()[str(before.culture)]["language"]
        assert {before.language, language} == {"en", spoken}
        assert after.responses == tuple(card.facts[origin][language] for origin in after.origins)
        assert changed(before, after) == {"id", "responses"}


def test_edited_pairs_keep_the_order_of_items(blend_items: list[Item]) -> None:
    found = edits.edited_pairs(blend_items)
    assert list(found) == ["CC", "RC", "CL", "RP"]
    for name in ("CC", "RC", "RP"):
        assert [pair.before for pair in found[name]] == blend_items
        assert [pair.after.id for pair in found[name]] == [f"{item.id}#{name}" for item in blend_items]
