"""Names of languages and countries, and the language of a text."""

from __future__ import annotations

import pytest

from think_as_locals.data.cards import cards
from think_as_locals.data.languages import (
    count_names,
    culture_code,
    in_another_script,
    language_tag,
    script_share,
    similar_country,
)

# fmt: off
TAGS = {
    "Arabic": "ar", "Chinese": "zh", "Vietnamese": "vi", " thai ": "th", "th": "th", "zh-Hans": "zh",
    "zh-Hant": "zh-Hant", "zho_Hant": "zh-Hant", "arb_Arab": "ar", "pes_Arab": "fa", "jpn_Jpan": "ja",
    "pt-BR": "pt-BR", "Chinese (Simplified)": "zh", "Bengali": "bn", "Farsi": "fa",
    "Traditional Chinese": "zh-Hant", "Portuguese (Brazil)": None,
    "Brazilian Portuguese": "pt-BR", "Klingonese": None, "python": None, "": None,
}
CODES = {
    "Thailand": "TH", "South Korea": "KR", "South_Korea": "KR", "United States": "US", "USA": "US", "US": "US",
    "us": "US", "UK": "GB", "UAE": "AE", "Turkey": "TR", "vietnam": "VN", "Bosnia and Herzegovina": "BA",
    "Trinidad & Tobago": "TT", "Great Britain": "GB", "S. Korea": "KR", "ZAF": "ZA",
    "Tanzania, United Republic of": "TZ",
    "Republic of Albania": "AL", "Prefer not to say": None,
    "Northern Ireland": None, "Atlantis": None, "World": None, "European Union": None, "": None,
}
# fmt: on

OWN_NAMES = {  # English names and peoples, and the country's own name
    "AE": ("UAE", "United Arab Emirates", "Emirati", "الإمارات العربية المتحدة"),
    "CN": ("China", "Chinese", "中国", "Mainland China"),
    "DE": ("Germany", "German", "Deutschland"),
    "ES": ("Spain", "Spanish", "España"),
    "GB": ("United Kingdom", "Great Britain", "Britain", "British", "UK", "U.K."),
    "IR": ("Iran", "Iranian", "Persian", "Islamic Republic of Iran", "ایران"),
    "JP": ("Japan", "Japanese", "日本"),
    "KP": ("North Korea", "North_Korea", "North Korean"),
    "KR": ("South Korea", "South Korean", "Korean", "Korea", "Republic of Korea", "대한민국"),
    "NZ": ("New Zealand", "New Zealander"),
    "RU": ("Russia", "Russian", "Russian Federation", "Россия"),
    "SA": ("Saudi Arabia", "Saudi Arabian", "Saudi", "المملكة العربية السعودية"),
    "TH": ("Thailand", "Thai", "ไทย", " thai "),
    "US": ("United States", "American", "the United States of America"),
    "VN": ("Vietnam", "Vietnamese", "Viet Nam", "Việt Nam", "Vie\u0323\u0302t Nam"),
}


@pytest.mark.parametrize("code", OWN_NAMES)
def test_culture_code_knows_demonyms_and_native_names(code: str) -> None:
    assert {name: culture_code(name) for name in OWN_NAMES[code]} == dict.fromkeys(OWN_NAMES[code], code)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        *(("Thialand", "Thailand"), ("Vietman", "Vietnam"), ("Phillipines", "Philippines"), ("Egpyt", "Egypt")),
        *(("Untied_States", "United States"), ("Brazillian", "Brazilian"), ("saudi arabiann", "Saudi Arabian")),
        *((name, None) for name in ("Quebec", "Québec", "Scotland", "Catalonia", "Siberia", "Kurdistan", "Javanese")),
        *((name, None) for name in ("Sundanese", "Arab", "Arabic-speaking countries", "West Java", "Hausa", "")),
    ],
)
def test_similar_country_corrects_typos_but_not_region_names(name: str, meant: str | None) -> None:
    assert similar_country(name) == meant


def test_language_tag_is_bcp_47_and_culture_code_iso_3166_or_none() -> None:
    assert {name: language_tag(name) for name in TAGS} == TAGS
    assert {name: culture_code(name) for name in CODES} == CODES


@pytest.mark.parametrize(
    ("text", "language", "culture", "count"),
    [
        ("How do Thai people in Thailand greet?", "en", "TH", 2),
        ("คนไทยทักทายอย่างไร", "th", "TH", 1),
        ("What do people in Vietnam eat?", "vi", "VN", 1),
        ("Was isst man in Deutschland?", "de", "DE", 1),
        ("What is eaten in Quebec?", "en", "CA-QC", 1),
        ("What do Quechua people eat?", "en", "Quechua", 1),
        ("What do they eat with us?", "en", "US", 0),
        ("", "en", "TH", 0),
    ],
)
def test_names_of_a_culture_are_counted(text: str, language: str, culture: str, count: int) -> None:
    assert count_names(text, language, culture) == count


# --- the language of a text ---


SENTENCES = {
    "ar": "يأكل الناس في الصباح الخبز مع الزيتون والجبن، ويشربون الشاي مع النعناع في كل يوم.",
    "bn": "মানুষ সকালে রুটি আর ডাল খায় এবং সঙ্গে চা পান করে প্রতিদিন।",
    "de": "Morgens isst man hier Brötchen mit Butter und trinkt dazu eine Tasse Kaffee.",
    "en": "In the morning people here eat bread rolls with butter and drink a cup of coffee.",
    "es": "Por la mañana la gente desayuna pan con tomate y bebe una taza de café.",
    "fr": "Le matin, les gens mangent du pain avec du beurre et boivent une tasse de café.",
    "hi": "सुबह लोग रोटी और सब्ज़ी खाते हैं और चाय पीते हैं हर दिन।",
    "ja": "朝はご飯と味噌汁を食べて、緑茶を飲む人が多いです。",
    "ko": "아침에는 밥과 국을 먹고 커피를 마시는 사람이 많습니다. 주말에는 늦게 먹습니다.",
    "ru": "Утром люди едят хлеб с маслом и пьют чашку крепкого кофе.",
    "th": "ตอนเช้าคนที่นี่กินข้าวต้มกับไข่และดื่มกาแฟร้อนหนึ่งแก้ว",
    "vi": "Buổi sáng người dân ở đây ăn phở và uống một tách cà phê sữa đá.",
    "zh": "早上人们在家里吃稀饭和包子，然后喝一杯热豆浆再去公司上班。",
}


SCRIPTS = {tag: {"zh": "ja", "ja": "ja"}.get(tag, tag if tag in "ar bn hi ko ru th" else "Latin") for tag in SENTENCES}


@pytest.mark.parametrize("spoken", SENTENCES)
def test_sentence_in_another_script_is_told(spoken: str) -> None:
    found = {named: in_another_script(SENTENCES[spoken], named) for named in SENTENCES}
    told = {named: SCRIPTS[named] != SCRIPTS[spoken] for named in SENTENCES}
    assert found == told | ({"zh": False} if spoken == "ja" else {})  # it has ideographs


def test_card_texts_are_in_their_script() -> None:
    texts = [(text, language) for card in cards() for fact in card.facts.values() for language, text in fact.items()]
    texts += [(text.replace("{place}", ""), language) for card in cards() for language, text in card.question.items()]
    assert [pair for pair in texts if in_another_script(*pair)] == []


@pytest.mark.parametrize(
    ("text", "named", "found"),
    [
        ("", "de", False),
        ("1234567890 " * 20, "de", False),
        ("iPhone 15 Max", "th", False),
        ("rice porridge", "zh", False),
        ("```python\nfor number in range(10):\n    print(number, 'is a number')\n```", "ja", False),
        ("https://example.org/a/long/address/with/many/letters/in/it", "ko", False),
        ("คำว่า hospitality หมายถึงการต้อนรับแขก", "th", False),
        ("The rest is in English, and there is plenty of it to be seen.", "ha", False),
        ("The rest is in English, and there is plenty of it to be seen.", "en-GB", False),
        ("這是繁體中文，大家早上都喝豆漿吃燒餅油條。", "zh-Hant", False),
        ("Beggars can’t be choosers", "ru", True),
        (f"The greeting is called ไหว้ there. {SENTENCES['en'] * 3}", "th", True),
        ("烤鸭卷饼配甜面酱，油条和豆浆和包子。", "en", True),
        ("ՀայաստանԲարեւՀայաստան բարեւ աշխարհ", "en", True),
    ],
)
def test_only_clear_mismatches_of_script_are_reported(text: str, named: str, found: bool) -> None:
    assert in_another_script(text, named) == found


def test_script_share_counts_letters() -> None:
    assert script_share("wai สวัส 123", "th") == pytest.approx(3 / 6)  # a vowel above is no letter
    assert (script_share("123", "th"), script_share("wai", "ha")) == (1, 1)
