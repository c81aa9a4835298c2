"""GlobalOpinionQA: shares of options by country, pairs of options, and the mean of the other countries."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from conftest import Tal
from data.sections import data_section
from data.tables import KINDS, fault_names, write
from hypothesis import given
from hypothesis import strategies as st

from think_as_locals.data import read
from think_as_locals.data.rows import Outcome, Row, read_rows
from think_as_locals.data.sources.globalopinionqa import (
    LEAST_SHARE,
    OpinionQuestion,
    is_answer,
    option_pairs,
    others_mean,
    others_reference,
    outcomes,
    read_questions,
)

OPTIONS = ["Very good", "Somewhat bad", "DK/Refused"]
SHARES = {"Belgium": [0.21, 0.7, 0.09], "S. Korea": [0.5, 0.45, 0.05], "Britain": [0.6, 0.3, 0.1]}


def row(**changes: Any) -> dict[str, Any]:
    plain = {"question": "How is it going?", "selections": SHARES, "options": OPTIONS, "source": "GAS"}
    return plain | changes


def published(value: dict[str, Any]) -> dict[str, Any]:
    """As in the published file: the text of a `defaultdict`, and that of a list."""
    selections = defaultdict(list, value["selections"])
    return value | {"selections": repr(selections), "options": repr(value["options"])}


def as_json(value: dict[str, Any]) -> dict[str, Any]:
    return value | {name: json.dumps(value[name]) for name in ("selections", "options")}


def read_row(value: Any, min_share_gap: float | None = 0.1) -> Outcome:
    return next(outcomes(rows_of(value), min_share_gap))


def rows_of(*values: dict[str, Any]) -> list[Row]:
    return [Row("rows.csv", number, value, json.dumps(value)) for number, value in enumerate(values, start=1)]


def question(options: tuple[str, ...], name: str = "q", **shares: tuple[float, ...]) -> OpinionQuestion:
    return OpinionQuestion(name, "How is it going?", options, shares, "WVS")


def read_all(path: Path, *values: dict[str, Any]) -> list[OpinionQuestion]:
    return read_questions(str(write(path / "r.jsonl", list(values))))


@pytest.mark.parametrize("form", [dict, published, as_json], ids=["objects", "published", "json"])
@pytest.mark.parametrize("kind", KINDS)
def test_questions_are_read_from_every_encoding_and_file_type(tmp_path: Path, kind: str, form: Any) -> None:
    values = [form(row()), form(row(question="And now?", selections={"Chile": [1, 0, 0]}, source="WVS"))]
    first, second = read_questions(str(write(tmp_path / f"opinions{kind}", values)))
    assert (first.question, first.options, first.source) == ("How is it going?", tuple(OPTIONS), "GAS")
    assert first.shares == {"BE": (0.21, 0.7, 0.09), "KR": (0.5, 0.45, 0.05), "GB": (0.6, 0.3, 0.1)}
    assert (second.shares, second.source) == ({"CL": (1, 0, 0)}, "WVS")
    assert first.id != second.id


def test_shares_are_normalised_and_those_of_equal_options_summed(tmp_path: Path) -> None:
    (found,) = read_all(tmp_path, row(selections={"Chile": [0.33, 0.33, 0.33], "Peru": [0.34, 0.34, 0.34]}))
    assert found.shares["CL"] == found.shares["PE"] == pytest.approx([1 / 3] * 3, abs=1e-15)
    shares = {"Chile": [0.25, 0.375, 0.375], "Thailand": [0.5, 0.25, 0.25]}
    twice = row(options=["Yes", "No", "Yes"], selections=shares)
    items = read_row(twice).items
    assert [(item.culture, item.responses) for item in items] == [("CL", ("Yes", "No")), ("TH", ("Yes", "No"))]
    (found,) = read_all(tmp_path, twice)
    assert (found.options, found.shares) == (("Yes", "No"), {"CL": (0.625, 0.375), "TH": (0.75, 0.25)})


def test_options_may_be_numbers_and_countries_have_codes() -> None:
    options = ["Not at all", 2, 3.5, "DK/Refused"]
    outcome = read_row(published(row(options=options, selections={"Chile": [0.1, 0.2, 0.5, 0.2]})))
    assert {item.responses for item in outcome.items} == {("2", "Not at all"), ("3.5", "Not at all"), ("3.5", "2")}
    outcome = read_row(row(selections={name: [0.5, 0.2, 0.3] for name in COUNTRIES}))
    assert ([item.culture for item in outcome.items], outcome.faults) == ([*COUNTRIES.values()], ())


# --- samples ---

COUNTRIES = (
    {"Britain": "GB", "S. Africa": "ZA", "Czech Rep.": "CZ", "Palest. ter.": "PS", "Taiwan ROC": "TW"}
    | {"Hong Kong SAR": "HK", "Macau SAR": "MO", "Bosnia Herzegovina": "BA", "Myanmar (Burma)": "MM"}
    | {"India (Current national sample)": "IN", "Chile (Old national sample)": "CL"}
)


@pytest.mark.parametrize(
    ("sample", "shares", "expected"),
    [
        *((name, [0.5, 0.2, 0.3], None) for name in ("China (Urban sample)", "Northern Ireland", "Atlantis", "")),
        *(("Chile", bad, f"expected a list of 3 shares, got {bad!r}") for bad in ([0.5, 0.5], "0.5, 0.3, 0.2")),
        *(
            ("Chile", bad, f"expected shares from 0 to 1, got {bad!r}")
            for bad in ([1.2, -0.2, 0], [0.5, "0.5", 0], [0.5, None, 0.5], [0.5, math.nan, 0.5], [True, False, False])
        ),
        *(("Chile", [0.5, 0.4, x], f"expected shares that sum to 1, got {0.9 + x:g}") for x in (0.07, 0.13)),
    ],
)
def test_invalid_sample_is_left_out_and_reported(sample: str, shares: Any, expected: str | None) -> None:
    outcome = read_row(row(selections={sample: shares, "Peru": [0.6, 0.3, 0.1]}))
    assert [item.culture for item in outcome.items] == ["PE"]
    assert fault_names(outcome) == ["bad_shares" if expected else "left_out_sample"]
    assert outcome.faults[0].detail == f"left out: {sample!r}" + (f": {expected}" if expected else "")


@pytest.mark.parametrize("turn", [1, -1])
def test_newer_of_two_national_samples_is_used_in_any_order(turn: int) -> None:
    samples = {"India (Old national sample)": [0.9, 0.1, 0], "India (Current national sample)": [0.1, 0.9, 0]}
    outcome = read_row(row(selections=dict([*samples.items()][::turn])))
    assert [item.responses for item in outcome.items] == [("Somewhat bad", "Very good")]
    assert outcome.faults[0].detail == "left out: 'India (Old national sample)'"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        *(({"question": nothing}, ["no_question"]) for nothing in (None, math.nan, " ")),
        ({"source": None, "options": ["Good", " ", None]}, ["missing", "blank", "string_type"]),
        ({"options": "Yes or no"}, ["tuple_type"]),
        ({"options": f"[0x{'f' * 6000}, 2]"}, ["tuple_type"]),  # too long to be written
        ({"selections": "defaultdict(<class 'list'>, {'Chile': [0.5, 0.5"}, ["dict_type"]),
        *(({"selections": bad}, ["dict_type"]) for bad in ("__import__('os').getcwd()", [0.5, 0.5])),
        ({"selections": {"Atlantis": [0.5, 0.2, 0.3]}}, ["left_out_sample", "no_country"]),
        *(({"selections": {"Chile": shares}}, ["tie"]) for shares in ([0.35, 0.35, 0.3], [0.39, 0.3, 0.31])),
    ],
)
def test_row_without_pairs_reports_every_fault(changes: dict[str, Any], expected: list[str]) -> None:
    outcome = read_row(row(**changes))
    assert fault_names(outcome) == expected
    assert outcome.items == ()


def test_null_country_column_of_parquet_is_ignored(tmp_path: Path) -> None:
    values = [row(), row(question="And now?", selections={"Chile": [0.2, 0.5, 0.3]})]
    read = list(read_rows(str(write(tmp_path / "r.parquet", values))))  # there every country is a column of every row
    assert [set(row.value["selections"]) for row in read] == [{*SHARES, "Chile"}] * 2
    found = list(outcomes(read, 0.0))
    assert [len({item.culture for item in outcome.items}) for outcome in found] == [3, 1]
    assert not any(outcome.faults for outcome in found)


def test_row_gives_one_item_per_country_with_unique_ids() -> None:
    outcome = read_row(row(), 0.04)
    assert {item.culture: item.responses for item in outcome.items} == {
        "BE": ("Somewhat bad", "Very good"),
        "KR": ("Very good", "Somewhat bad"),
        "GB": ("Very good", "Somewhat bad"),
    }
    described = {(item.prompt, item.best, item.domain, item.language, item.source) for item in outcome.items}
    assert described == {("How is it going?", 0, "gas", "en", "globalopinionqa")}
    assert {item.culture for item in read_row(row(), 0.1).items} == {"BE", "GB"}
    # The same words are the same group, with other options other ids.
    other = read_row(row(options=["Fine", "Poor", "DK/Refused"]), 0.04)
    assert len({item.group for item in (*outcome.items, *other.items)}) == 1
    assert len({item.id for item in (*outcome.items, *other.items)}) == 6


def test_pairs_need_a_gap_between_shares_of_answers() -> None:
    assert len(option_pairs(question(("a", "b"), CL=(0.6, 0.4)), "CL", 0.2)) == 1  # 0.6 - 0.4 < 0.2 in floating point
    assert option_pairs(question(("a", "b"), CL=(0.5, 0.5)), "CL", 0.0) == []
    assert option_pairs(question(("a", "b"), CL=(0.5, 0.5)), "CL", None) == []
    assert option_pairs(question(("a", "b"), CL=(0.9, 0.1)), "a country that was not asked", 0.1) == []
    asked = question(("DK/Refused", "Yes", "No"), CL=(0.5, 0.3, 0.2))
    assert [item.responses for item in option_pairs(asked, "CL", 0.05)] == [("Yes", "No")]
    for options, expected in ((NON_ANSWERS, False), (ALSO_ANSWERS, True)):
        texts = [text.strip() for text in options.replace("\n", "|").split("|") if text.strip()]
        assert {text: is_answer(text) for text in texts} == dict.fromkeys(texts, expected)


NON_ANSWERS = """
DK/Refused (DO NOT READ) | Don’t know | Don´t know | Dont know | I don't know | Does not know, no answer
Don't know / no opinion | No answer/refused | No answer; Refused | Don't know or refused (VOL) | N/A | No response
Refused to answer | Declined to answer | Prefer not to say | Missing; Not asked in survey | Missing value | Inapplicable
Missing; Not applicable for other reasons | MISSING; not asked in this country | Other missing; whatever else | Not sure
Not asked in that Wave | Not applicable (filter) | Item not included | Unknown | Can’t choose | Hard to say / no answer
"""
ALSO_ANSWERS = """
No, I don't know any | I know them, but don't know their names | Other religions | Other | None of the above (VOL) | No
No religion | Missing persons | Opportunities are missing | Missing my family; being far from home | Not important
Not at all / never | Refused to pay | No opinion counts | Both/DK | Depends; don't know enough | Available | Asked | -1
Nothing or refused entry
"""


def test_repeated_country_is_left_out_of_the_later_row() -> None:
    again = row(selections={"Chile": [0.5, 0.2, 0.3], "Britain": [0.1, 0.8, 0.1]})
    first, second, third = outcomes(rows_of(row(), again, row()), 0.1)
    assert {item.culture for item in first.items} == {"BE", "GB"}
    assert [item.culture for item in second.items] == ["CL"]
    assert [fault.detail for fault in second.faults] == ["left out: GB (as in rows.csv:1)"]
    assert second.imported
    # A row with nothing new is no error.
    assert (fault_names(third), third.items) == (["asked_before", "no_country"], ())
    assert not [fault for fault in third.faults if fault.severity == "error"]


def test_question_with_two_of_the_same_answers_is_a_duplicate() -> None:
    for options, kept in (
        (["Somewhat bad", "Very good"], False),  # in another order, and without the one that is no answer
        (["Very good", "Somewhat bad", "Neither"], False),
        (["Very good", "Very bad", "DK/Refused"], True),
    ):
        again = row(options=options, selections={"Belgium": [0.8, 0.2, 0.0][: len(options)]})
        _, second = outcomes(rows_of(row(), again), 0.1)
        assert bool(second.items) == kept, options


def test_rows_with_equal_options_are_merged_keeping_first_shares(tmp_path: Path) -> None:
    again = row(selections={"Chile": [0.5, 0.2, 0.3], "Britain": [0.1, 0.8, 0.1]})
    other = row(options=["Very good", "Very bad"], selections={"Britain": [0.5, 0.5]})
    faulty = [row(question=None), row(question="Where?", options="none"), {"prompt": "a row of another data set"}]
    one, two = read_all(tmp_path, *faulty, row(), again, other)
    assert one.shares.keys() == {"BE", "KR", "GB", "CL"}
    assert one.shares["GB"] == (0.6, 0.3, 0.1)
    assert others_mean(one, "CL") == pytest.approx((1.31 / 3, 1.45 / 3, 0.24 / 3))
    assert (two.id, two.options) == (one.id, ("Very good", "Very bad"))


distributions = st.integers(2, 6).flatmap(
    lambda n: st.lists(
        st.lists(st.integers(0, 100), min_size=n, max_size=n).filter(any).map(lambda c: tuple(x / sum(c) for x in c)),
        min_size=1,
        max_size=5,
    )
)


@given(shares=distributions, gap=st.floats(0, 0.99))
def test_chosen_option_exceeds_rejected_share_by_the_gap(shares: list[tuple[float, ...]], gap: float) -> None:
    options = tuple(f"option {i}" for i in range(len(shares[0])))
    asked = question(options, CL=shares[0])
    share = dict(zip(options, shares[0], strict=True))
    pairs = option_pairs(asked, "CL", gap)
    for item in pairs:
        chosen, rejected = (share[text] for text in item.responses)
        assert chosen > rejected
        assert chosen - rejected >= gap - 1e-9
    enough = [(a, b) for a in options for b in options if share[a] > share[b] and share[a] - share[b] > gap + 1e-9]
    assert {item.responses for item in pairs} >= set(enough)


@given(shares=distributions)
def test_others_mean_averages_all_other_countries(shares: list[tuple[float, ...]]) -> None:
    codes = ("CL", "PE", "TH", "EG", "JP")[: len(shares)]
    asked = question(tuple(f"option {i}" for i in range(len(shares[0]))), **dict(zip(codes, shares, strict=True)))
    mean = others_mean(asked, "CL")
    assert (mean is None) == (len(shares) == 1)
    if mean is not None:
        assert math.fsum(mean) == pytest.approx(1)
        for found, (_, *others) in zip(mean, zip(*shares, strict=True), strict=True):
            assert found == pytest.approx(math.fsum(others) / len(others), abs=1e-12)
    everyone = others_mean(asked, "a country that was not asked")
    assert everyone == pytest.approx([math.fsum(column) / len(shares) for column in zip(*shares, strict=True)])


# --- as a source like any other ---


def test_csv_file_is_validated_and_min_share_gap_limits_its_pairs(tmp_path: Path, tal: Tal) -> None:
    values = [published(row()), published(row(question="And now?")), row(question="")]
    path = write(tmp_path / "opinions.csv", values)
    done = tal("data", "validate", str(path))
    assert done.status == 0
    assert f"{path}:4: skipped: no_question: " in done.out
    assert done.out.splitlines()[-1] == "3 rows = 2 imported (4 items) + 1 in quarantine"
    for gap, count in ((None, 6), (0.1, 4), (0.31, 2)):
        assert len(read(data_section(source="globalopinionqa", path=str(path), min_share_gap=gap))) == count


# --- the mean of all other countries as the reference ---

ANSWERS = ("Yes", "No", "Never")


def test_reference_excludes_the_shares_of_the_country_itself() -> None:
    asked = question(ANSWERS, CL=(0.6, 0.3, 0.1), TH=(0.2, 0.7, 0.1), EG=(0.5, 0.3, 0.2))
    pairs = option_pairs(asked, "CL", 0.0)
    found = others_reference(pairs, [asked])
    assert [pair.responses for pair in pairs] == [("Yes", "No"), ("Yes", "Never"), ("No", "Never")]
    mean = {"Yes": 0.35, "No": 0.5, "Never": 0.15}
    for pair in pairs:
        assert found[pair.id] == pytest.approx(tuple(math.log(mean[response]) for response in pair.responses))
        # The sigmoid of the difference is the share of those who chose one of both.
        best, other = (mean[response] for response in pair.responses)
        assert 1 / (1 + math.exp(found[pair.id][1] - found[pair.id][0])) == pytest.approx(best / (best + other))


def test_reference_is_of_a_questions_own_other_countries() -> None:
    asked = question(ANSWERS, CL=(0.9, 0.1, 0.0), TH=(0.0, 1.0, 0.0))
    alone = question(ANSWERS, "alone", CL=(0.6, 0.3, 0.1))
    pairs = [pair for each in (asked, alone) for pair in option_pairs(each, "CL", 0.5)]
    found = others_reference(pairs, [asked, alone])
    assert found[pairs[0].id] == (math.log(LEAST_SHARE), 0.0)
    assert {name.split("/")[1] for name in found} == {"q"}
    same_words = [asked, question(("Good", "Bad"), CL=(0.7, 0.3), TH=(0.2, 0.8)), question(ANSWERS, EG=(0.8, 0.1, 0.1))]
    (pair,) = option_pairs(same_words[1], "CL", 0.1)
    assert others_reference([pair], same_words)[pair.id] == pytest.approx((math.log(0.2), math.log(0.8)))
