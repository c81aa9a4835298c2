"""GlobalOpinionQA: shares of options by country, pairs of options, and the mean of the other countries."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from data.tables import KINDS, defects, write
from hypothesis import given
from hypothesis import strategies as st

from think_as_locals import cli
from think_as_locals.config.checks import load_recipe
from think_as_locals.data import read
from think_as_locals.data.rows import Outcome, Row, read_rows
from think_as_locals.data.sources import jsonl, recognise
from think_as_locals.data.sources.globalopinionqa import (
    LEAST_SHARE,
    OpinionQuestion,
    option_pairs,
    others_mean,
    others_reference,
    outcomes,
    read_questions,
)
from think_as_locals.types import DataError

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


def read_row(value: Any, min_share_gap: float = 0.1) -> Outcome:
    return next(outcomes([Row("rows.csv", 7, value, json.dumps(value))], min_share_gap))


def question(options: tuple[str, ...], **shares: tuple[float, ...]) -> OpinionQuestion:
    return OpinionQuestion("q", "How is it going?", options, shares, "WVS")


# --- rows of any form ---


@pytest.mark.parametrize("form", [dict, published, as_json], ids=["objects", "published", "json"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_questions_are_read_from_every_form_and_kind_of_file(tmp_path: Path, kind: str, form: Any) -> None:
    values = [form(row()), form(row(question="And now?", selections={"Chile": [1, 0, 0]}, source="WVS"))]
    first, second = read_questions(str(write(tmp_path / f"opinions{kind}", values)))
    assert (first.question, first.options, first.source) == ("How is it going?", tuple(OPTIONS), "GAS")
    assert first.shares == {"BE": (0.21, 0.7, 0.09), "KR": (0.5, 0.45, 0.05), "GB": (0.6, 0.3, 0.1)}
    assert (second.shares, second.source) == ({"CL": (1, 0, 0)}, "WVS")
    assert first.id != second.id


def test_shares_that_are_rounded_are_made_to_sum_to_1(tmp_path: Path) -> None:
    value = row(selections={"Chile": [0.33, 0.33, 0.33], "Peru": [0.34, 0.34, 0.34]})
    (found,) = read_questions(str(write(tmp_path / "r.jsonl", [value])))
    assert found.shares["CL"] == pytest.approx([1 / 3] * 3, abs=1e-15)
    assert found.shares["PE"] == pytest.approx([1 / 3] * 3, abs=1e-15)


def test_points_of_a_scale_are_options_too() -> None:
    options = ["Not at all", 2, 3.5, "DK/Refused"]
    outcome = read_row(published(row(options=options, selections={"Chile": [0.1, 0.2, 0.5, 0.2]})))
    assert {item.responses for item in outcome.items} == {("2", "Not at all"), ("3.5", "Not at all"), ("3.5", "2")}


# --- samples ---


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("Britain", "GB"),
        ("Great Britain", "GB"),
        ("S. Korea", "KR"),
        ("S. Africa", "ZA"),
        ("Czech Rep.", "CZ"),
        ("Palest. ter.", "PS"),
        ("Taiwan ROC", "TW"),
        ("Hong Kong SAR", "HK"),
        ("Macau SAR", "MO"),
        ("Bosnia Herzegovina", "BA"),
        ("Ivory Coast", "CI"),
        ("Myanmar", "MM"),
        ("Puerto Rico", "PR"),
        ("India (Current national sample)", "IN"),
        ("India (Old national sample)", "IN"),
        ("Myanmar (Burma)", "MM"),
    ],
)
def test_the_surveys_names_of_countries_have_codes(name: str, code: str) -> None:
    outcome = read_row(row(selections={name: [0.5, 0.2, 0.3]}))
    assert ([item.culture for item in outcome.items], outcome.faults) == ([code], ())


@pytest.mark.parametrize(
    "name", ["China (Non-national sample)", "China (Urban sample)", "Northern Ireland", "Atlantis", ""]
)
def test_what_speaks_for_no_country_is_left_out_by_name(name: str) -> None:
    outcome = read_row(row(selections={name: [0.5, 0.2, 0.3], "Chile": [0.2, 0.5, 0.3]}))
    assert [item.culture for item in outcome.items] == ["CL"]
    assert defects(outcome) == ["left_out_sample"]
    assert repr(name) in outcome.faults[0].detail


@pytest.mark.parametrize("turn", [1, -1])
def test_the_newer_of_two_national_samples_counts_wherever_it_stands(turn: int) -> None:
    samples = {"India (Old national sample)": [0.9, 0.1, 0], "India (Current national sample)": [0.1, 0.9, 0]}
    outcome = read_row(row(selections=dict([*samples.items()][::turn])))
    assert [item.responses for item in outcome.items] == [("Somewhat bad", "Very good")]
    assert "'India (Old national sample)'" in outcome.faults[0].detail
    assert "Current" not in outcome.faults[0].detail


# --- planted faults ---


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"question": None}, ["no_question"]),
        ({"question": float("nan")}, ["no_question"]),
        ({"question": " "}, ["no_question"]),
        ({"question": 7}, ["wrong_type"]),
        ({"source": None}, ["missing_field"]),
        ({"options": None}, ["missing_field"]),
        ({"options": "Yes or no"}, ["wrong_type"]),
        ({"options": []}, ["wrong_type"]),
        ({"options": ["Very good", " ", "DK"]}, ["wrong_type"]),
        ({"options": ["Very good", None, "DK"]}, ["wrong_type"]),
        ({"selections": None}, ["missing_field"]),
        ({"selections": "defaultdict(<class 'list'>, {'Chile': [0.5, 0.5"}, ["wrong_type"]),
        ({"selections": "__import__('os').getcwd()"}, ["wrong_type"]),
        ({"selections": [0.5, 0.5]}, ["wrong_type"]),
        ({"selections": {}}, ["no_country"]),
        ({"selections": {"Atlantis": [0.5, 0.2, 0.3]}}, ["left_out_sample", "no_country"]),
        ({"selections": {"Chile": [0.35, 0.35, 0.3]}}, ["tie"]),
        ({"selections": {"Chile": [0.39, 0.3, 0.31]}}, ["tie"]),
    ],
)
def test_a_row_that_is_no_pair_has_every_fault_named(changes: dict[str, Any], expected: list[str]) -> None:
    outcome = read_row(row(**changes))
    assert defects(outcome) == expected
    assert outcome.items == ()


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ([0.5, 0.5], "'Chile': expected a list of 3 shares, got [0.5, 0.5]"),
        ([0.4, 0.3, 0.2, 0.1], "expected a list of 3 shares"),
        ("0.5, 0.3, 0.2", "expected a list of 3 shares"),
        ([1.2, -0.2, 0], "expected shares from 0 to 1"),
        ([0.5, "0.5", 0], "expected shares from 0 to 1"),
        ([0.5, None, 0.5], "expected shares from 0 to 1"),
        ([0.5, float("nan"), 0.5], "expected shares from 0 to 1"),
        ([True, False, False], "expected shares from 0 to 1"),
        ([0.5, 0.4, 0.07], "expected shares that sum to 1, got 0.97"),
        ([0.5, 0.4, 0.13], "expected shares that sum to 1, got 1.03"),
        ([0, 0, 0], "expected shares that sum to 1, got 0"),
    ],
)
def test_a_country_whose_shares_are_none_is_left_out_and_the_others_stay(shares: Any, said: str) -> None:
    outcome = read_row(row(selections={"Chile": shares, "Peru": [0.6, 0.3, 0.1]}))
    assert [item.culture for item in outcome.items] == ["PE"]
    assert defects(outcome) == ["bad_shares"]
    assert said in outcome.faults[0].detail


def test_a_country_that_is_null_is_a_column_that_the_row_does_not_use(tmp_path: Path) -> None:
    values = [row(), row(question="And now?", selections={"Chile": [0.2, 0.5, 0.3]})]
    read = list(read_rows(str(write(tmp_path / "r.parquet", values))))  # there every country is a column of every row
    assert [set(row.value["selections"]) for row in read] == [{*SHARES, "Chile"}] * 2
    found = list(outcomes(read, 0.0))
    assert [len({item.culture for item in outcome.items}) for outcome in found] == [3, 1]
    assert not any(outcome.faults for outcome in found)


def test_rows_that_ask_nothing_are_passed_over_and_errors_are_not(tmp_path: Path) -> None:
    sound = [row(question=None), row()]
    (found,) = read_questions(str(write(tmp_path / "sound.jsonl", sound)))
    assert found.question == "How is it going?"
    path = write(tmp_path / "r.jsonl", [*sound, row(question="Where?", options="none")])
    with pytest.raises(DataError, match=r"r\.jsonl:3: options must be a list of texts"):
        read_questions(str(path))


# --- pairs ---


def test_two_answers_whose_shares_differ_enough_are_a_pair() -> None:
    (item,) = option_pairs(question(("Yes", "No"), CL=(0.3, 0.7)), "CL", 0.4)
    assert (item.responses, item.best, item.culture) == (("No", "Yes"), 0, "CL")
    assert (item.prompt, item.group, item.domain) == ("How is it going?", "q", "wvs")
    assert (item.language, item.source) == ("en", "globalopinionqa")


def test_a_gap_is_met_in_spite_of_rounding_and_equal_shares_never_make_a_pair() -> None:
    assert len(option_pairs(question(("a", "b"), CL=(0.6, 0.4)), "CL", 0.2)) == 1  # 0.6 - 0.4 < 0.2 in floating point
    assert option_pairs(question(("a", "b"), CL=(0.5, 0.5)), "CL", 0.0) == []


def test_a_country_that_was_not_asked_has_no_pairs() -> None:
    assert option_pairs(question(("a", "b"), CL=(0.9, 0.1)), "PE", 0.1) == []


@pytest.mark.parametrize(
    "option",
    [
        "DK/Refused",
        "Don't know",
        "Don’t know",
        "Don´t know (DO NOT READ)",
        "Refused (VOL)",
        "No answer",
        "Missing; Unknown",
    ],
)
def test_what_is_no_answer_is_an_option_and_in_no_pair(option: str) -> None:
    asked = question((option, "Yes", "No"), CL=(0.7, 0.2, 0.1))
    assert [item.responses for item in option_pairs(asked, "CL", 0.05)] == [("Yes", "No")]


# --- a question that several rows ask ---


def rows_of(*values: dict[str, Any]) -> list[Row]:
    return [Row("rows.csv", number, value, json.dumps(value)) for number, value in enumerate(values, start=1)]


def test_a_country_that_answers_again_is_left_out_of_the_later_row_by_name() -> None:
    again = row(selections={"Chile": [0.5, 0.2, 0.3], "Britain": [0.1, 0.8, 0.1]})
    first, second = outcomes(rows_of(row(), again), 0.1)
    assert {item.culture for item in first.items} == {"BE", "GB"}
    assert [item.culture for item in second.items] == ["CL"]
    assert defects(second) == ["asked_before"]
    assert "GB (as in rows.csv:1)" in second.faults[0].detail
    assert second.imported


def test_a_row_that_says_nothing_new_is_of_no_use_and_no_error() -> None:
    _, again = outcomes(rows_of(row(), row()), 0.1)
    assert (defects(again), again.items) == (["asked_before", "no_country"], ())
    assert not [fault for fault in again.faults if fault.defect.severity == "error"]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        (["Somewhat bad", "Very good"], False),  # in another order, and without the one that is no answer
        (["Very good", "Somewhat bad", "Neither"], False),
        (["Very good", "Very bad", "DK/Refused"], True),
    ],
)
def test_what_makes_it_the_same_question_are_two_answers(options: list[str], kept: bool) -> None:
    shares = [0.8, 0.2, 0.0][: len(options)]
    _, second = outcomes(rows_of(row(), row(options=options, selections={"Belgium": shares})), 0.1)
    assert bool(second.items) == kept


def test_rows_with_the_same_options_are_one_question_whose_first_answers_stand(tmp_path: Path) -> None:
    again = row(selections={"Chile": [0.5, 0.2, 0.3], "Britain": [0.1, 0.8, 0.1]})
    other = row(options=["Very good", "Very bad"], selections={"Britain": [0.5, 0.5]})
    one, two = read_questions(str(write(tmp_path / "r.jsonl", [row(), again, other])))
    assert one.shares.keys() == {"BE", "KR", "GB", "CL"}
    assert one.shares["GB"] == (0.6, 0.3, 0.1)
    assert others_mean(one, "CL") == pytest.approx((1.31 / 3, 1.45 / 3, 0.24 / 3))
    assert (two.id, two.options) == (one.id, ("Very good", "Very bad"))


def test_options_of_the_same_text_are_one_whose_share_is_their_sum(tmp_path: Path) -> None:
    shares = {"Chile": [0.25, 0.375, 0.375], "Thailand": [0.5, 0.25, 0.25]}
    twice = row(options=["Yes", "No", "Yes"], selections=shares)
    items = read_row(twice).items
    assert [(item.culture, item.responses) for item in items] == [("CL", ("Yes", "No")), ("TH", ("Yes", "No"))]
    (found,) = read_questions(str(write(tmp_path / "r.jsonl", [twice])))
    assert (found.options, found.shares) == (("Yes", "No"), {"CL": (0.625, 0.375), "TH": (0.75, 0.25)})


def test_a_number_too_long_to_be_written_is_no_option() -> None:
    assert defects(read_row(row(options=f"[0x{'f' * 6000}, 2]"))) == ["wrong_type"]


def test_rows_of_another_data_set_are_no_questions_that_ask_nothing() -> None:
    assert "missing_field" in defects(read_row({"prompt": "p", "chosen": "a", "rejected": "b"}))


def test_the_items_of_a_row_are_those_of_all_its_countries_with_ids_of_their_own() -> None:
    outcome = read_row(row(), 0.04)
    assert {item.culture: item.responses for item in outcome.items} == {
        "BE": ("Somewhat bad", "Very good"),
        "KR": ("Very good", "Somewhat bad"),
        "GB": ("Very good", "Somewhat bad"),
    }
    assert len({item.id for item in outcome.items}) == 3
    assert len({item.group for item in outcome.items}) == 1
    assert {item.culture for item in read_row(row(), 0.1).items} == {"BE", "GB"}


def test_a_question_in_the_same_words_is_in_the_same_group_and_its_pairs_have_other_ids() -> None:
    one, other = (read_row(row(options=[*answers, "DK/Refused"])) for answers in (("Good", "Bad"), ("Fine", "Poor")))
    assert {item.group for item in one.items} == {item.group for item in other.items}
    assert not {item.id for item in one.items} & {item.id for item in other.items}


distributions = st.integers(2, 6).flatmap(
    lambda n: st.lists(
        st.lists(st.integers(0, 100), min_size=n, max_size=n).filter(any).map(lambda c: tuple(x / sum(c) for x in c)),
        min_size=1,
        max_size=5,
    )
)


@given(shares=distributions, gap=st.floats(0, 0.99))
def test_the_chosen_option_always_has_the_greater_share_by_the_gap(shares: list[tuple[float, ...]], gap: float) -> None:
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
def test_the_mean_of_the_others_is_a_distribution_without_the_country(shares: list[tuple[float, ...]]) -> None:
    codes = ("CL", "PE", "TH", "EG", "JP")[: len(shares)]
    asked = question(tuple(f"option {i}" for i in range(len(shares[0]))), **dict(zip(codes, shares, strict=True)))
    mean = others_mean(asked, "CL")
    if len(shares) == 1:
        assert mean is None
        return
    assert mean is not None
    assert math.fsum(mean) == pytest.approx(1)
    assert all(0 <= share <= 1 for share in mean)
    everyone = [math.fsum(column) for column in zip(*shares, strict=True)]
    again = [all_ - own for all_, own in zip(everyone, shares[0], strict=True)]
    assert [share * (len(shares) - 1) for share in mean] == pytest.approx(again, abs=1e-12)


def test_the_mean_of_the_others_of_a_country_that_was_not_asked_is_that_of_all() -> None:
    assert others_mean(question(("a", "b"), CL=(1, 0), PE=(0, 1)), "TH") == (0.5, 0.5)


# --- as a source like any other ---


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write(tmp_path / "opinions.csv", [published(row()), published(row(question="And now?")), row(question="")])


def test_the_file_is_recognised_validated_and_built(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert recognise(str(rows)) == "globalopinionqa"
    monkeypatch.setattr("sys.argv", ["tal", "data", "validate", str(rows)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 0
    said = capsys.readouterr().out
    assert f"{rows}:3: skipped: no_question: " in said
    assert said.splitlines()[-1] == "3 rows = 2 imported (4 items) + 1 set aside"
    out = tmp_path / "items.jsonl"
    words = [
        "data=globalopinionqa",
        f"data.path={rows}",
        "data.countries=[KR]",
        "data.min_share_gap=0.05",
        f"out={out}",
    ]
    monkeypatch.setattr("sys.argv", ["tal", "data", "build", *words])
    cli.main()
    assert [(item.culture, item.prompt) for item in jsonl.read(out)] == [("KR", "How is it going?"), ("KR", "And now?")]


@pytest.mark.parametrize(("gap", "count"), [("null", 6), ("0.1", 4), ("0.31", 2)])
def test_the_recipe_says_how_much_shares_must_differ(rows: Path, gap: str, count: int) -> None:
    words = ["data=globalopinionqa", f"data.path={rows}", f"data.min_share_gap={gap}"]
    assert len(list(read(load_recipe("recipes/tal_grpo.yaml", words).data))) == count


# --- the mean of all other countries as the reference ---


THREE = {"CL": (0.6, 0.3, 0.1), "TH": (0.2, 0.7, 0.1), "EG": (0.5, 0.3, 0.2)}


def wvs(shares: dict[str, tuple[float, ...]], name: str = "q", options: tuple[str, ...] = ()) -> OpinionQuestion:
    return OpinionQuestion(name, "Is it?", options or ("Yes", "No", "Never"), shares, "WVS")


def test_a_countrys_own_shares_are_left_out_of_its_reference() -> None:
    asked = wvs(THREE)
    pairs = option_pairs(asked, "CL", 0.0)
    found = others_reference(pairs, [asked])
    assert [pair.responses for pair in pairs] == [("Yes", "No"), ("Yes", "Never"), ("No", "Never")]
    mean = {"Yes": 0.35, "No": 0.5, "Never": 0.15}
    for pair in pairs:
        assert found[pair.id] == pytest.approx(tuple(math.log(mean[response]) for response in pair.responses))


def test_the_sigmoid_of_the_difference_is_the_share_of_those_who_chose_one_of_both() -> None:
    asked = wvs(THREE)
    (pair, *_) = option_pairs(asked, "CL", 0.0)
    chosen, rejected = others_reference([pair], [asked])[pair.id]
    assert 1 / (1 + math.exp(rejected - chosen)) == pytest.approx(0.35 / (0.35 + 0.5))


def test_what_nobody_elsewhere_answers_has_a_finite_logarithm() -> None:
    asked = wvs({"CL": (0.9, 0.1, 0.0), "TH": (0.0, 1.0, 0.0)})
    (pair, *_) = option_pairs(asked, "CL", 0.5)
    assert others_reference([pair], [asked])[pair.id] == (math.log(LEAST_SHARE), 0.0)


@given(st.lists(st.tuples(*[st.integers(1, 99)] * 3), min_size=2, max_size=5))
def test_whatever_the_shares_it_is_finite_and_each_pair_has_one(counts: list[tuple[int, ...]]) -> None:
    shares = {f"C{i}": tuple(n / sum(row) for n in row) for i, row in enumerate(counts)}
    asked = wvs(shares)
    pairs = [pair for country in shares for pair in option_pairs(asked, country, 0.05)]
    found = others_reference(pairs, [asked])
    assert found.keys() == {pair.id for pair in pairs}
    assert all(math.log(LEAST_SHARE) <= value <= 0 for values in found.values() for value in values)


def test_questions_in_the_same_words_keep_their_own_options_and_countries() -> None:
    first = wvs({"CL": (0.6, 0.4), "TH": (0.1, 0.9)}, options=("Yes", "No"))
    second = wvs({"CL": (0.7, 0.3), "TH": (0.2, 0.8)}, options=("Good", "Bad"))
    third = wvs({"EG": (0.8, 0.2), "JP": (0.5, 0.5)}, options=("Yes", "No"))
    for asked, country, yes in ((first, "CL", 0.1), (second, "CL", 0.2), (third, "EG", 0.5)):
        (pair,) = option_pairs(asked, country, 0.1)
        found = others_reference([pair], [first, second, third])[pair.id]
        assert found == pytest.approx((math.log(yes), math.log(1 - yes)))


def test_a_question_that_one_country_alone_was_asked_has_no_reference() -> None:
    alone, asked = wvs({"CL": (0.6, 0.3, 0.1)}, "alone"), wvs(THREE, "asked")
    pairs = [*option_pairs(alone, "CL", 0.0), *option_pairs(asked, "CL", 0.0)]
    assert {name.split("/")[1] for name in others_reference(pairs, [alone, asked])} == {"asked"}
