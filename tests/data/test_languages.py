"""Names of languages and countries, and the language of a text."""

from __future__ import annotations

import pytest

from think_as_locals.data.cards import cards
from think_as_locals.data.languages import count_names, culture_code, in_another_script, language_tag, similar_country

# fmt: off
TAGS = {
    "Arabic": "ar", "Chinese": "zh", "Vietnamese": "vi", " thai ": "th", "th": "th", "zh-Hans": "zh",
    "zh-Hant": "zh-Hant", "zho_Hant": "zh-Hant", "arb_Arab": "ar", "pes_Arab": "fa", "ko-Hang": "ko", "jpn_Jpan": "ja",
    "pt-BR": "pt-BR", "Chinese (Simplified)": "zh", "Bengali": "bn", "Farsi": "fa", "North Macedonian": "mk",
    "Traditional Chinese": "zh-Hant", "Portuguese (Brazil)": None,
    "Brazilian Portuguese": "pt-BR", "Klingonese": None, "python": None, "nan": None, "": None,
}
CODES = {
    "UAE": "AE", "Turkey": "TR", "Bosnia and Herzegovina": "BA", "Trinidad & Tobago": "TT", "ZAF": "ZA",
    "Tanzania, United Republic of": "TZ", "Republic of Albania": "AL", "Prefer not to say": None,
    "Northern Ireland": None, "Atlantis": None, "World": None, "European Union": None, "": None,
}
# fmt: on

OWN_NAMES = {  # English names and peoples, and the country's own name
    "CN": ("China", "Chinese", "中国", "Mainland China"),
    "GB": ("United Kingdom", "Great Britain", "Britain", "British", "UK", "U.K."),
    "IR": ("Iran", "Iranian", "Persian", "Islamic Republic of Iran", "ایران"),
    "KP": ("North Korea", "North_Korea", "North Korean"),
    "KR": ("South Korea", "South_Korea", "S. Korea", "Korean", "Korea", "Republic of Korea", "대한민국"),
    "TH": ("Thailand", "Thai", "ไทย", " thai "),
    "US": ("United States", "American", "the United States of America", "USA", "US", "us"),
    "VN": ("Vietnam", "vietnam", "Vietnamese", "Viet Nam", "Việt Nam", "Vie\u0323\u0302t Nam"),
}
CODES |= {name: code for code, names in OWN_NAMES.items() for name in names}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        *(("Thialand", "Thailand"), ("Vietman", "Vietnam"), ("Phillipines", "Philippines"), ("Egpyt", "Egypt")),
        *(("Untied_States", "United States"), ("Brazillian", "Brazilian"), ("saudi arabiann", "Saudi Arabian")),
        *((name, None) for name in ("Quebec", "Québec", "Scotland", "Catalonia", "Siberia", "Kurdistan", "Javanese")),
        *((name, None) for name in ("Sundanese", "Arab", "Arabic-speaking countries", "West Java", "Hausa", "")),
        *((name, None) for name in ("Bengali", "African", "Africans")),
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
        ("As they do in japan.", "ja", "JP", 1),
        ("É comum no Brasil.", "pt-BR", "BR", 1),
        ("בישראל", "he", "IL", 1),
        ("在Japan见到", "zh", "JP", 1),
        ("What do people in Vietnam eat?", "vi", "VN", 1),
        ("Was isst man in Deutschland?", "de", "DE", 1),
        ("What is eaten in Quebec?", "en", "CA-QC", 1),
        ("What do Quechua people eat?", "en", "Quechua", 1),
        ("What do they eat with us?", "en", "US", 0),
        ("Thailand's Thais and a Frenchwoman", "en", "TH", 2),
        ("Thailand's Thais and a Frenchwoman", "en", "FR", 1),
        ("Azərbaycanda nə yeyirlər?", "az", "AZ", 1),
        ("Was isst man in West Java, der Provinz Jawa Barat?", "de", "ID-JB", 2),
        *(("A woman in Nigeria, with some formality: a tadpole", "en", code, 0) for code in ("OM", "ML", "PL", "NE")),
        ("", "en", "TH", 0),
    ],
)
def test_names_of_a_culture_are_counted(text: str, language: str, culture: str, count: int) -> None:
    assert count_names(text, language, culture) == count


# --- the language of a text ---

SCRIPTS = {tag: {"zh": "ja"}.get(tag, tag if tag in "ar ja ko ru th" else "Latin") for tag in cards()[0].question}


def test_cards_in_another_script_are_told() -> None:
    for card in cards():
        for spoken in SCRIPTS:
            text = " ".join(fact[spoken] for fact in card.facts.values())
            found = {named: in_another_script(text, named) for named in SCRIPTS}
            assert found == {named: SCRIPTS[named] != SCRIPTS[spoken] for named in SCRIPTS}, (card.name, spoken)


@pytest.mark.parametrize(
    ("text", "named", "found"),
    [
        ("", "de", False),
        ("1234567890 " * 20, "de", False),
        ("iPhone 15 Max", "th", False),
        ("```python\nfor number in range(10):\n    print(number, 'is a number')\n```", "ja", False),
        ("https://example.org/a/long/address/with/many/letters/in/it", "ko", False),
        ("คำว่า hospitality หมายถึงการต้อนรับแขก", "th", False),
        *(("The rest is in English, and there is plenty of it to be seen.", tag, False) for tag in ("ha", "en-GB")),
        *(("মানুষ সকালে রুটি আর ডাল খায় এবং সঙ্গে চা পান করে", tag, tag != "bn") for tag in ("bn", "hi")),
        ("這是繁體中文，大家早上都喝豆漿吃燒餅油條。", "zh-Hant", False),
        ("Beggars can’t be choosers", "ru", True),
        (f"The greeting is called ไหว้ there. {'Here people eat bread rolls with butter. ' * 6}", "th", True),
        ("烤鸭卷饼配甜面酱，油条和豆浆和包子。", "en", True),
        ("ՀայաստանԲարեւՀայաստան բարեւ աշխարհ", "en", True),
    ],
)
def test_only_clear_mismatches_of_script_are_reported(text: str, named: str, found: bool) -> None:
    assert in_another_script(text, named) == found
