"""Files of candidates: what is read, and every fault by its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from think_as_locals.data.load import Candidates, read_candidates
from think_as_locals.types import DataError


def a_row(**changes: Any) -> dict[str, Any]:
    row = {"id": "1", "prompt": "?", "culture": "TH", "language": "th", "candidates": ["a", "b", "a"]}
    return row | changes


def a_file(path: Path, *rows: Any) -> Path:
    file = path / "candidates.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def test_rows_are_read_with_any_number_of_candidates(tmp_path: Path) -> None:
    many = [str(i) for i in range(40)]
    file = a_file(
        tmp_path, a_row(qualities=[1, 2.5, -3]), a_row(id="2", culture=None, candidates=many, qualities=[0] * 40)
    )
    first, second = read_candidates(file)
    assert first == Candidates(
        id="1", prompt="?", culture="TH", language="th", texts=("a", "b", "a"), qualities=(1.0, 2.5, -3.0)
    )
    assert (second.culture, len(second.texts)) == (None, 40)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"candidates": []}, "at least one candidate"),
        ({"candidates": ["a", " "]}, "candidates[1] must be a non-blank string"),
        ({"candidates": 3}, "candidates must be a list"),
        ({"prompt": ""}, "prompt must be a non-blank string"),
        ({"culture": "Atlantis"}, "culture 'Atlantis'"),
        ({"language": "Klingonish"}, "language 'Klingonish'"),
        ({"quality": [1]}, "unknown quality; fields: id"),
        ({"qualities": [1, 2]}, "a quality for each of 3 candidates, got 2"),
        ({"qualities": [1, True, 3]}, "qualities must be a list of finite numbers"),
        ({"qualities": [1, 10**400, 3]}, "qualities must be a list of finite numbers"),
        ({"qualities": [1, float("nan"), 3]}, "qualities must be a list of finite numbers"),
        ({"id": "1"}, "id '1' is already in an earlier row"),
    ],
)
def test_a_fault_names_file_and_row(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    file = a_file(tmp_path, a_row(), a_row(id="2") | change)
    with pytest.raises(DataError) as error:
        read_candidates(file)
    assert str(error.value).startswith(f"{file}:2: ")
    assert said in str(error.value)


def test_all_faults_are_told_up_to_ten(tmp_path: Path) -> None:
    file = a_file(tmp_path, *[a_row(id=str(i), prompt="") for i in range(13)])
    with pytest.raises(DataError, match="and 3 more faults") as error:
        read_candidates(file)
    assert len(str(error.value).splitlines()) == 11


def test_qualities_are_all_there_or_none(tmp_path: Path) -> None:
    file = a_file(tmp_path, a_row(), a_row(id="2", qualities=[1, 2, 3]))
    with pytest.raises(DataError, match=r":2 has qualities and .*:1 has none"):
        read_candidates(file)


def test_an_empty_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no rows"):
        read_candidates(a_file(tmp_path))
