"""Our own JSONL rows: items survive a round trip, and an invalid row names its file and line."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from items import make_item

from think_as_locals.data.sources import jsonl
from think_as_locals.types import DataError, Item

quick = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])

ITEM = make_item(best=1)
ROW: dict[str, Any] = json.loads(json.dumps(asdict(ITEM)))
ROW.pop("origins")  # they may be left out
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30).filter(str.strip)


@st.composite
def items(draw: st.DrawFn) -> Item:
    responses = tuple(draw(st.lists(texts, min_size=2, max_size=8, unique=True)))
    return Item(
        **{name: draw(texts) for name in ("id", "prompt", "domain", "group", "source")},
        language=draw(st.sampled_from(["en", "th", "pt-BR", "zh-Hant", "und"])),
        responses=responses,
        best=draw(st.integers(0, len(responses) - 1)),
        culture=draw(st.sampled_from([None, "TH", "CA-QC", "Quebec", "Arabic-speaking countries", "Ngāpuhi"])),
        origins=draw(st.sampled_from([(), tuple(f"C{i}" for i in range(len(responses)))])),
    )


def write_lines(folder: Path, *rows: Any) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return path


@pytest.mark.filterwarnings("ignore:.*may stand for an empty cell")
@quick
@given(st.lists(items(), max_size=5, unique_by=lambda item: item.id))
def test_items_survive_a_write_read_round_trip(written: list[Item]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "items.jsonl"
        assert jsonl.write(written, path) == len(written)
        assert (list(jsonl.read(path)) if written else []) == written
        # Lines end in a line feed alone, whatever separators the texts hold.
        assert path.read_bytes().count(b"\n") == len(written)
        # It is readable in any script.
        assert all(json.dumps(item.prompt, ensure_ascii=False) in path.read_text("utf-8") for item in written)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"best": None, "group": None}, "best: Input should be .*; group: "),
        ({"label": 1}, "label: "),
        ({"\ud83d": 1}, r"\\ud83d"),
        *(({"best": best}, "best: ") for best in ("1", True)),
        ({"prompt": "half an emoji \ud83d"}, "prompt: "),
        ({"culture": False}, "culture: "),
        ({"language": "xx"}, "language: got 'xx', expected an English name or a BCP-47 tag"),
        ({"responses": ["one", "two", "one"], "best": 0}, "responses must be distinct"),
        ({"turns": [["user", "Another?"]]}, "prompt is not the text of its turns"),
        ({"turns": [["tool", "Hi"]]}, r"turns\.0"),
        ({"responses": [2, "two", "three"]}, r"responses\.0: "),
        *(({"responses": bad}, "responses: ") for bad in ("AB", {"A": "a", "B": "b"})),
        ({"origins": ["TH", None, "JP"]}, r"origins\."),
        ({"id": "ok"}, "id 'ok' is already in row 1"),
    ],
)
def test_invalid_row_error_names_file_line_and_fault(tmp_path: Path, change: dict[str, Any], place: str) -> None:
    path = write_lines(tmp_path, ROW | {"id": "ok"}, "", ROW | change)
    with pytest.raises(DataError, match=place) as caught:
        list(jsonl.read(path))
    assert f"{path}:3: " in str(caught.value)


def test_turns_survive_a_round_trip(tmp_path: Path) -> None:
    turns = (("user", "Hi"), ("assistant", "Hello"), ("user", "?"))
    item = dataclasses.replace(ITEM, prompt="user: Hi\n\nassistant: Hello\n\nuser: ?", turns=turns)
    jsonl.write([item], tmp_path / "items.jsonl")
    (read,) = jsonl.read(tmp_path / "items.jsonl")
    assert (read, read.turns, len(read.messages)) == (item, turns, 3)


def test_prompt_of_a_row_to_judge_may_be_messages() -> None:
    asked = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    for messages, prompt, turns in ((asked, "user: Hi\n\nassistant: Hello", 2), (asked[:1], "Hi", 0)):
        item = jsonl.query_item({"prompt": messages, "response_a": "a", "response_b": "b", "culture": "TH"})
        assert (item.prompt, len(item.turns)) == (prompt, turns)
    with pytest.raises(DataError, match=r"items:1: prompt\.0\.role: "):
        jsonl.query_item({"prompt": [{"role": "tool", "content": "?"}], "responses": ["a", "b"], "culture": "TH"})


def test_language_may_be_an_english_name(tmp_path: Path) -> None:
    assert [item.language for item in jsonl.read(write_lines(tmp_path, ROW | {"language": "Thai"}))] == ["th"]


def test_equal_wrong_responses_are_one(tmp_path: Path) -> None:
    (item,) = jsonl.read(write_lines(tmp_path, ROW | {"responses": ["one", "two", "one"], "best": 1}))
    assert (item.responses, item.best) == (("one", "two"), 1)
    with_origins = ROW | {"responses": ["one", "two", "one"], "best": 1, "origins": ["JP", "TH", "EG"]}
    (item,) = jsonl.read(write_lines(tmp_path, with_origins))
    assert (item.responses, item.origins) == (("one", "two"), ("JP", "TH"))
    with pytest.raises(DataError, match="responses must be distinct"):  # indices of all would be wrong
        jsonl.query_item({"prompt": "p", "responses": ["x", "b", "b", "c"], "culture": None})


def test_read_skips_blank_lines_and_yields_rows_before_an_error(tmp_path: Path) -> None:
    rows = jsonl.read(write_lines(tmp_path, "", ROW, "  ", ROW | {"id": "th-2", "culture": None}, "", "{"))
    first, second = next(rows), next(rows)
    assert (first.origins, first.culture, second.culture) == ((), "TH", None)
    with pytest.raises(DataError):
        next(rows)


@pytest.mark.parametrize("before", [True, False])
def test_write_never_overwrites_an_existing_file(tmp_path: Path, before: bool) -> None:
    path = tmp_path / "items.jsonl"

    def slow() -> Iterator[Item]:
        yield ITEM
        path.write_text("precious")

    if before:
        path.write_text("precious")
    with pytest.raises(DataError, match="already exists"):
        jsonl.write([ITEM] if before else slow(), path)
    assert path.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [path]
