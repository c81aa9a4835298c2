"""Best-of-N selection: who is chosen of many, by scores and by tournaments."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from think_as_locals.data.candidates import Candidates
from think_as_locals.evaluation.downstream import best_scored, selection_quality, tournament, write_selections
from think_as_locals.types import ConfigError, DataError, Item


def a_row(texts: Sequence[str], number: int = 0, **changes: Any) -> Candidates:
    fields: dict[str, Any] = {"id": str(number), "prompt": f"? {number}", "culture": "TH", "language": "th"}
    return Candidates(texts=tuple(texts), **fields | changes)


def by_length(items: Sequence[Item]) -> list[tuple[float, ...]]:
    return [tuple(float(len(text)) for text in item.responses) for item in items]


def constant(items: Sequence[Item]) -> list[tuple[float, ...]]:
    return [tuple(1.0 for _ in item.responses) for item in items]


class Counted:
    """A scorer that remembers what it was asked."""

    def __init__(self) -> None:
        self.calls: list[list[Item]] = []

    def __call__(self, items: Sequence[Item]) -> list[tuple[float, ...]]:
        self.calls.append(list(items))
        return by_length(items)


texts = st.lists(st.integers(1, 60).map(lambda n: "x" * n), min_size=1, max_size=40)


@settings(deadline=None, max_examples=100)
@given(st.lists(texts, min_size=1, max_size=4), st.integers(2, 8), st.integers(0, 3))
def test_whoever_scores_the_same_everywhere_finds_the_best_in_either_way(
    rows: list[list[str]], group_size: int, seed: int
) -> None:
    asked = [a_row(row, number) for number, row in enumerate(rows)]
    expected = [row.index(max(row, key=len)) for row in rows]
    assert best_scored(asked, by_length, seed) == expected
    assert tournament(asked, by_length, group_size, seed) == expected


@settings(deadline=None, max_examples=50)
@given(texts, st.randoms(), st.integers(2, 8))
def test_the_order_of_candidates_and_of_rows_does_not_matter(
    row: list[str], mixed: random.Random, group_size: int
) -> None:
    other = sorted(row, key=lambda _: mixed.random())
    for choose in (
        lambda rows: best_scored(rows, constant, 0),
        lambda rows: tournament(rows, constant, group_size, 0),
    ):
        (first, _), (_, again) = choose([a_row(row), a_row("ab", 1)]), choose([a_row("ab", 1), a_row(other)])
        assert row[first] == other[again]


def test_sixteen_in_groups_of_eight_are_two_groups_and_a_final() -> None:
    scorer = Counted()
    rows = [a_row(["x" * (i + 1) for i in range(16)], number) for number in range(3)]
    assert tournament(rows, scorer, 8, 0) == [15, 15, 15]
    assert [len(call) for call in scorer.calls] == [6, 3]
    assert [len(item.responses) for call in scorer.calls for item in call] == [8] * 6 + [2] * 3


def test_in_duels_everybody_but_the_winner_loses_once() -> None:
    scorer = Counted()
    tournament([a_row(["x" * (i + 1) for i in range(16)])], scorer, 2, 0)
    assert sum(len(call) for call in scorer.calls) == 15
    assert len(scorer.calls) == 4


@pytest.mark.parametrize(("number", "sizes"), [(1, []), (2, [2]), (8, [8]), (9, [5, 4]), (16, [8, 8]), (17, [6, 6, 5])])
def test_scores_that_compare_are_asked_for_once_in_parts_as_even_as_can_be(number: int, sizes: list[int]) -> None:
    scorer = Counted()
    best_scored([a_row(["x" * (i + 1) for i in range(number)])], scorer, 0)
    assert [sorted((len(item.responses) for item in call), reverse=True) for call in scorer.calls] == (
        [sizes] if sizes else []
    )


def test_the_judge_knows_the_prompt_culture_and_language() -> None:
    scorer = Counted()
    tournament([a_row("ab", 5, prompt="What?", culture=None)], scorer, 2, 0)
    ((item,),) = scorer.calls
    assert (item.prompt, item.culture, item.language, set(item.responses)) == ("What?", None, "th", {"a", "b"})


def test_the_same_text_twice_is_judged_once_and_one_text_not_at_all() -> None:
    scorer = Counted()
    assert tournament([a_row(["a", "bb", "a", "bb"]), a_row(["a", "a"], 1)], scorer, 8, 0) == [1, 0]
    ((item,),) = scorer.calls
    assert sorted(item.responses) == ["a", "bb"]


def test_ties_are_drawn_not_given_to_the_first() -> None:
    rows = [a_row([f"{i}" for i in range(16)], number) for number in range(400)]
    for chosen in (best_scored(rows, constant, 0), tournament(rows, constant, 4, 0)):
        assert set(chosen) == set(range(16))
        assert 6 < sum(chosen) / len(chosen) < 9
    assert best_scored(rows, constant, 0) != best_scored(rows, constant, 1)


@pytest.mark.parametrize("size", [1, 9])
def test_groups_have_from_two_to_eight(size: int) -> None:
    with pytest.raises(ConfigError, match=f"groups of 2 to 8, got {size}"):
        tournament([a_row("ab")], by_length, size, 0)


def test_a_score_that_is_missing_names_the_prompt() -> None:
    with pytest.raises(DataError, match="item '7#0': expected a finite score"):
        best_scored([a_row("ab", 7)], lambda items: [(1.0,) for _ in items], 0)


# --- what it is worth ---


def test_quality_stands_between_a_blind_and_a_perfect_choice() -> None:
    rows = [a_row("abcd", i, qualities=(0.0, 1.0, 2.0, 5.0)) for i in range(10)]
    found = selection_quality(rows, [3] * 5 + [2] * 5, 500, 0)
    assert (found["selected"]["mean"], found["random"]["mean"], found["oracle"]["mean"]) == (3.5, 2.0, 5.0)
    assert found["gain"]["mean"] == 1.5
    assert found["headroom"] == 0.5
    assert found["gain"]["n"] == 10
    low, high = found["gain"]["ci95"]
    assert low < 1.5 < high
    json.dumps(found, allow_nan=False)


def test_prompts_that_are_the_same_are_one_group() -> None:
    rows = [a_row("ab", i, prompt="?", qualities=(0.0, 1.0)) for i in range(10)]
    assert selection_quality(rows, [0, 1] * 5, 500, 0)["selected"]["interval"] == "t"


@pytest.mark.parametrize("quality", [1.0, 0.7, 0.99])
@pytest.mark.parametrize("number", [2, 3, 6, 10])
def test_where_all_are_equally_good_there_is_no_headroom(quality: float, number: int) -> None:
    row = a_row("abcdefghij"[:number], qualities=(quality,) * number)
    assert selection_quality([row], [0], 500, 0)["headroom"] is None


def test_without_qualities_there_is_nothing_to_average() -> None:
    rows = [a_row("ab", 0, qualities=(0.0, 1.0)), a_row("ab", 1)]
    with pytest.raises(DataError, match="1 of 2 rows have no qualities, such as '1'"):
        selection_quality(rows, [0, 0], 500, 0)


def test_selections_are_written_a_row_for_each_prompt_and_never_over_others(tmp_path: Path) -> None:
    rows, file = [a_row("ab", 0, qualities=(0.5, 1.0)), a_row("cd", 1)], tmp_path / "selected.jsonl"
    write_selections(rows, [1, 0], file)
    assert [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] == [
        {"id": "0", "chosen": 1, "candidate": "b", "quality": 1.0},
        {"id": "1", "chosen": 0, "candidate": "c", "quality": None},
    ]
    with pytest.raises(DataError, match="is there already"):
        write_selections(rows, [1, 0], file)
