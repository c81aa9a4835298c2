"""Breakdowns by cell, resource class, family and script: published values or `unknown`, never a guess."""

from __future__ import annotations

from collections import Counter

import pytest
from evaluation.published import CELLS, published_items
from items import make_item

from think_as_locals.data.sources.blend import REGIONS
from think_as_locals.evaluation.breakdowns import (
    BREAKDOWNS,
    UNKNOWN,
    describe,
    language_name,
    macro_cells,
    macro_warning,
)


@pytest.mark.parametrize(
    ("tag", "resource_class", "family", "script"),
    [
        *(("ar", "5", "Afro-Asiatic", "Arab"), ("ja", "5", "Japonic", "Jpan"), ("zh", "5", "Sino-Tibetan", "Hans")),
        *((tag, "5", "Indo-European", "Latn") for tag in ("de", "en", "es")),
        *(("ko", "4", "Koreanic", "Kore"), ("ru", "4", "Indo-European", "Cyrl"), ("vi", "4", "Austroasiatic", "Latn")),
        *(("fa", "4", "Indo-European", "Arab"), ("th", "3", "Tai-Kadai", "Thai"), ("el", "3", "Indo-European", "Grek")),
        *(("id", "3", "Austronesian", "Latn"), ("am", "2", "Afro-Asiatic", "Ethi")),
        *(("as", "1", "Indo-European", "Beng"), ("az", "1", "Turkic", "Latn"), ("ha", "2", "Afro-Asiatic", "Latn")),
    ],
)
def test_describe_knows_languages_of_carb_and_blend(tag: str, resource_class: str, family: str, script: str) -> None:
    assert describe(tag) == (resource_class, family, script)


def test_describe_knows_subtags_scripts_and_every_language_of_the_data() -> None:
    assert describe("pt-BR") == describe("pt")
    assert describe("zh-Hant") == ("5", "Sino-Tibetan", "Hant")
    assert describe("zh-TW").script == "Hant"
    assert describe("EN") == describe("en")
    assert describe("ka") == (UNKNOWN, UNKNOWN, "Geor")
    assert describe("xx") == describe("no-such-language") == describe("-") == (UNKNOWN, UNKNOWN, UNKNOWN)
    cards = ["ar", "de", "en", "es", "ja", "ko", "ru", "th", "vi", "zh"]
    assert all(UNKNOWN not in describe(tag) for tag in [*cards, *(language for _, language, _ in REGIONS.values())])
    tags = ("th", "zh-Hant", "pt-BR", "zh-XX", "xx")
    assert [*map(language_name, tags)] == ["Thai", "Traditional Chinese", "Brazilian Portuguese", "zh-XX", "xx"]


# --- cells ---


def test_carb_rows_fall_into_40_cells_of_language_and_domain() -> None:
    items = published_items()
    assert Counter(map(BREAKDOWNS["cell"], items)) == {cell: 1 + n % 3 for n, cell in enumerate(CELLS)}
    assert {BREAKDOWNS["culture"](item) for item in items} == {cell.split("/")[0] for cell in CELLS}
    assert macro_cells(items) == {"cells": 40, "of": 40, "missing": []}
    assert macro_warning(macro_cells(items)) == ""


@pytest.mark.parametrize(
    ("changes", "cell"),
    [
        ({"source": "carb", "culture": "JO", "language": "ar"}, "Arabic/value"),
        ({"source": "carb", "culture": None, "language": "zh-Hant"}, "Chinese/value"),
        ({"source": "blend", "culture": "JO", "language": "ar"}, "JO/value"),
        ({"source": "rows", "culture": None, "language": "pt-BR"}, "Portuguese/value"),
        ({"source": "rows", "culture": None, "language": "tlh-unknown"}, "Klingon/value"),
        ({"source": "rows", "culture": "Quebec", "language": "fr"}, "Quebec/value"),
    ],
)
def test_item_of_carb_or_without_culture_counts_under_its_language(changes: dict[str, str], cell: str) -> None:
    assert BREAKDOWNS["cell"](make_item(**changes)) == cell


def test_missing_cells_are_reported_only_for_declared_benchmarks() -> None:
    gone = ["Arabic/safety", "Thai/linguistic", "Vietnamese/value"]
    some = published_items(missing=gone)
    assert macro_cells(some) == {"cells": 37, "of": 40, "missing": gone}
    assert macro_warning(macro_cells(some)) == f"macro over 37 of 40 cells; missing: {', '.join(gone)}"
    others = [make_item(culture=culture) for culture in ("TH", "JP", "US")]
    assert macro_cells(others) == {"cells": 3, "of": 3, "missing": []}
    assert macro_cells([*some, *others]) == {"cells": 40, "of": 43, "missing": gone}
    thai = [item for item in some if item.language == "th"]
    assert macro_warning(macro_cells(thai)).endswith("Chinese/safety, Chinese/linguistic and 29 more")
