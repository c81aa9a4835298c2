"""Rows of files, folders and the Hub: how they are read, located, and imported or not."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from data.tables import fault_names, write

from think_as_locals.data.rows import Fault, Outcome, Row, mark_repeats, read_rows, unpack, valid_items
from think_as_locals.evaluation.judgements import read_judgements
from think_as_locals.types import DataError, DataWarning, Item, shown

VALUES: list[dict[str, Any]] = [
    {"prompt": "朝ごはんは？", "chosen": ["味噌汁"]},
    {"prompt": "two\nlines", "chosen": ["a", "b"]},
    {"prompt": "null follows", "chosen": None},
]
KINDS = ["r.jsonl", "r.jsonl.gz", "r.json", "R.JSON", "r.json.gz", "r.parquet", "r.csv", "R.CSV", "r.csv.gz"]


def parquet(table: pyarrow.Table, **options: Any) -> bytes:
    pyarrow.parquet.write_table(table, sink := pyarrow.BufferOutputStream(), **options)
    return bytes(sink.getvalue())


def read(path: Path) -> list[Row]:
    return list(read_rows(str(path)))


@pytest.mark.parametrize("name", KINDS)
def test_every_file_type_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    rows = read(path := write(tmp_path / name, VALUES))
    texts = [{name: unpack(value) for name, value in row.value.items()} for row in rows]
    assert texts == VALUES
    numbers = range(2, 5) if ".csv" in name.lower() else range(1, 4)  # as a spreadsheet counts them
    assert [row.place for row in rows] == [f"{tmp_path / name}:{number}" for number in numbers]
    assert [row.name for row in rows] == [f"{name}-{number}" for number in numbers]
    assert [json.loads(row.text) for row in rows] == [row.value for row in rows]
    if path.suffix.lower() in (".jsonl", ".json", ".csv"):  # as Windows writes them
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
        assert [row.value for row in read(path)] == [row.value for row in rows]


def test_folder_gives_rows_of_all_data_files_in_order(tmp_path: Path) -> None:
    for name in ("th/test.jsonl", "de/test.jsonl", "a.json", ".ipynb_checkpoints/test.jsonl", "dataset_infos.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, VALUES)
    (tmp_path / "._test.jsonl").write_bytes(b"\0\5\x16\7")
    (tmp_path / "README.md").write_text("no rows")
    files = ("a.json", "de/test.jsonl", "th/test.jsonl")
    with pytest.warns(DataWarning) as warnings:
        assert [row.name for row in read(tmp_path)] == [f"{file}-{number}" for file in files for number in (1, 2, 3)]
    others = "._test.jsonl, .ipynb_checkpoints/test.jsonl, README.md and 1 more"
    (warning,) = warnings
    assert str(warning.message).startswith(f"{tmp_path}: not read: {others} (rows are in .jsonl, .ndjson, .json, ")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"a": 1', "not JSON"),
        (b"\xff\xfe{}", "not UTF-8: 'utf-8' codec can't decode byte 0xff in position 0"),
        (b"[" * 100_000, "not JSON"),
    ],
    ids=["cut off", "no UTF-8", "too deep"],
)
def test_unreadable_line_becomes_a_fault_with_its_exact_bytes(tmp_path: Path, line: bytes, message: str) -> None:
    (tmp_path / "r.jsonl").write_bytes(b'{"a": 1}\n' + line + b'\r\n{"a": 2}\n')
    first, bad, last = read(tmp_path / "r.jsonl")
    assert (first.value, last.value, bad.value) == ({"a": 1}, {"a": 2}, None)
    assert bad.fault
    assert (bad.fault.name, bad.fault.detail[: len(message)]) == ("not_json", message)
    assert bad.text.encode("utf-8", errors="surrogateescape") == line


TWICE = parquet(pyarrow.Table.from_arrays([pyarrow.array([1])] * 2, names=["a", "a"]))
YEARS_AWAY = parquet(pyarrow.table({"when": pyarrow.array([2**60], pyarrow.timestamp("ms"))}))
MANY_NULLS = parquet(pyarrow.table({"prompt": pyarrow.array([None] * 1024**2, pyarrow.string())}))
LONG_TEXTS = parquet(pyarrow.table({"prompt": ["a" * 1024**2] * 4}), compression="zstd", use_dictionary=False)
LINES_OF_A = json.dumps({"prompt": "a" * 5000}).encode() + b"\n"
TOO_LONG = "a line of more than 10,000 bytes; expected one row per line"
BOMB = "expands to more than 200 times its size"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("r.json", b"{", "not JSON"),
        ("r.json", b'{"rows": []}', "expected a list of rows, got dict"),
        *((name, b"a,b\n\xff,1\n", "not UTF-8") for name in ("r.json", "r.csv")),
        *(("r.jsonl.gz", bad, "damaged") for bad in (b"no archive", gzip.compress(LINES_OF_A, mtime=0)[:-9])),
        ("r.csv", b'prompt,chosen\n1,a\n2,"b\n3,c\n', "not CSV: line 4: unexpected end of data"),
        ("r.csv", b"a,b,a\n1,2,3\n", "more than one column is called 'a'"),
        ("r.parquet", TWICE, "more than one column is called 'a'"),
        *(("r.parquet", bad, "not a parquet file") for bad in (b"PAR1 not", YEARS_AWAY)),
        # no rows
        *(("r.jsonl", text, "no rows") for text in (b"", b"\n\n")),
        *((name, text, "no rows") for name, text in (("r.json", b"[]"), ("r.csv", b""), ("r.csv", b"prompt,chosen\n"))),
        *((name, b"PK", "rows are not read from .* files; expected one of .jsonl") for name in ("r.xlsx", "r.txt.gz")),
        # more than a file of rows holds
        ("r.jsonl", b"x" * 10_001, TOO_LONG),
        ("r.csv", b"prompt\n" + b"x" * 10_001, TOO_LONG),
        ("r.csv", b'prompt\n"' + b"xxxxxxxxx\n" * 1100 + b'"', r"not CSV: line \d+: field larger than field limit"),
        ("r.json", b"[" + b" " * 20_000 + b"]", "a list of more than 20,000 bytes; expected one row per line"),
        ("r.jsonl.gz", gzip.compress(LINES_OF_A * 2000), BOMB),
        ("r.csv.gz", gzip.compress(b"prompt\n" + b"a\n" * 10**6), BOMB),
        *(("r.parquet", bomb, BOMB) for bomb in (MANY_NULLS, LONG_TEXTS)),
    ],
)  # fmt: skip
def test_unreadable_file_error_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, message: str
) -> None:
    for limit, size in {"data.rows._MAX_LINE": 10_000, "data.rows._MAX_DOCUMENT": 20_000}.items():
        monkeypatch.setattr(f"think_as_locals.{limit}", size)
    monkeypatch.setattr("think_as_locals.runtime.files._MIN_EXPANSION", 1024)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{tmp_path / name}: .*{message}"):
        read(tmp_path / name)


def test_path_without_rows_is_rejected_without_asking_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    unread = dict.fromkeys(("nowhere.jsonl", "data/nowhere.parquet", "no where", "a/b/c"), "cannot be read")
    for path, message in (unread | {"": "the path is empty", ".": "a folder without files of rows"}).items():
        with pytest.raises(DataError, match=message):
            list(read_rows(path))


# --- CSV ---


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("['it''s', \"it's\"]", "['it''s', \"it's\"]"),  # not as Python writes it
        ("['a', \"it's\"]", ["a", "it's"]),
        ('["a", null]', ["a", None]),
        ("{'a': [1]}", {"a": [1]}),
        *((text, text) for text in ("['a' 'b']", "[see below]", "[{[]: 1}]", "7")),
    ],
)
def test_text_is_unpacked_only_if_it_is_a_list_or_object(text: str, value: Any) -> None:
    assert unpack(text) == value


def test_csv_cells_stay_texts_and_extra_ones_are_a_fault(tmp_path: Path) -> None:
    cells = ["['a']", "x" * 200_000, "7"]
    csv.writer(lines := io.StringIO()).writerows([["chosen"], *([cell] for cell in cells)])
    (tmp_path / "r.csv").write_text(lines.getvalue())
    assert [row.value for row in read(tmp_path / "r.csv")] == [{"chosen": cell} for cell in cells]
    (tmp_path / "r.csv").write_text("prompt,chosen\np,a,b\np,a,\n\np\n,\n")
    bad, excel, short = read(tmp_path / "r.csv")
    assert [row.number for row in (bad, excel, short)] == [2, 3, 5]
    values = [None, {"prompt": "p", "chosen": "a"}, {"prompt": "p", "chosen": None}]
    assert [row.value for row in (bad, excel, short)] == values
    assert bad.fault
    assert "3 cells in 2 columns" in bad.fault.detail
    assert json.loads(bad.text) == ["p", "a", "b"]


@pytest.mark.parametrize(("name", "delimiter"), [("r.csv", ","), ("r.csv", ";"), ("r.csv", "\t"), ("r.tsv", "\t")])
def test_csv_delimiter_is_detected_from_the_header(tmp_path: Path, name: str, delimiter: str) -> None:
    lines = (("prompt", "chosen", "rejected"), ('"Hello, you;\tthere?"', "Yes", ""))
    (tmp_path / name).write_text("".join(delimiter.join(cells) + "\r\n" for cells in lines))
    (row,) = read_rows(str(tmp_path / name))
    assert row.value == {"prompt": "Hello, you;\tthere?", "chosen": "Yes", "rejected": None}


def test_tsv_is_separated_by_tabs_whatever_its_header_holds(tmp_path: Path) -> None:
    (tmp_path / "r.tsv").write_text("prompt\tnotes, remarks, and more\nWhy?\tnone\n")
    (row,) = read_rows(str(tmp_path / "r.tsv"))
    assert row.value == {"prompt": "Why?", "notes, remarks, and more": "none"}


# --- the Hub: what is not on this machine is the one thing that a test stands in for ---


@pytest.fixture
def load_dataset_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The calls of a fake `datasets.load_dataset`, which has one data set of two splits."""
    calls: list[tuple[Any, ...]] = []

    def load_dataset(path: str, name: str | None, *, split: str | None, revision: str | None) -> Any:
        calls.append((path, name, split, revision))
        if path != "owner/set":
            raise ConnectionError("offline")
        rows = {"train": VALUES[:2], "test": VALUES[2:]}
        splits = datasets.DatasetDict({name: datasets.Dataset.from_list(part) for name, part in rows.items()})
        return splits if split is None else splits[split]

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    monkeypatch.setattr("think_as_locals.data.rows.unreachable", lambda: None)
    return calls


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("owner/set", ("owner/set", None, None, None)),
        ("owner/set:preference", ("owner/set", "preference", None, None)),
        ("owner/set@v1.0:default:test", ("owner/set", "default", "test", "v1.0")),
    ],
)
def test_hub_id_selects_revision_config_and_split(
    load_dataset_calls: list[tuple[Any, ...]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    expected: tuple[str | None, ...],
) -> None:
    rows = list(read_rows(path))
    assert load_dataset_calls == [expected]
    places = [*(["owner/set:train:1", "owner/set:train:2"] if expected[2] is None else []), "owner/set:test:1"]
    assert [row.place for row in rows] == places
    assert rows[-1].value == VALUES[2]
    with pytest.raises(DataError, match=r"owner/other: no such file, and .* Hub .*ConnectionError: offline"):
        list(read_rows("owner/other"))
    (tmp_path / path).mkdir(parents=True)  # a folder here comes before the Hub
    write(tmp_path / path / "r.jsonl", VALUES)
    monkeypatch.chdir(tmp_path)
    load_dataset_calls.clear()
    assert (len(list(read_rows(path))), load_dataset_calls) == (3, [])


def test_unreachable_hub_fails_without_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """datasets would retry five times, for 23 s."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: pytest.fail("it waits to retry"))
    with pytest.raises(DataError, match=r"owner/set: no such file, .* Hub .*: it cannot be reached \(.*refused"):
        list(read_rows("owner/set"))
    assert datasets.config.HF_HUB_OFFLINE is False


# --- what becomes of rows ---

ERROR, WARNING, SKIPPED = Fault("blank", "e"), Fault("run_on_turn", "w"), Fault("tie", "t")


def outcome(number: int, *items: Item) -> Outcome:
    return Outcome(Row("rows.jsonl", number, {}, "{}"), items)


def test_repeats_are_marked_but_not_flip_set_members(item: Item) -> None:
    other = replace(item, prompt="Another question?")
    first, second = mark_repeats([outcome(1, item), outcome(2, other)])
    assert (first.items, second.items) == ((item,), ())
    assert second.faults[0].detail == "id 'greeting-th' is already in row 1 of rows.jsonl"
    turned = replace(item, id="turned", responses=item.responses[::-1], best=2, origins=())
    first, second = mark_repeats([outcome(1, item), outcome(2, turned)])
    assert (fault_names(first), fault_names(second)) == ([], ["duplicate"])
    assert second.items == (turned,)
    flips = [replace(item, id=culture, culture=culture, best=i) for i, culture in enumerate(item.origins)]
    rows = [outcome(i, flip) for i, flip in enumerate([*flips, replace(item, id="other prompt", prompt="Why?")])]
    of_one_row = [outcome(1, item, replace(item, id="b")), outcome(2)]
    assert [fault_names(found) for found in (*mark_repeats(rows), *mark_repeats(of_one_row))] == [[]] * 7


def test_names_that_tables_write_for_an_empty_cell_are_warnings(item: Item) -> None:
    origins: dict[str, Any] = {"origins": ("US", "#REF!", "TH", "\\N")}
    for changes in ({"group": "nan"}, {"domain": "N/A"}, {"language": "nan"}, origins):
        (found,) = mark_repeats([outcome(1, replace(item, **changes))])
        assert fault_names(found) == ["placeholder_text"]


def test_contradictory_label_is_named(item: Item) -> None:
    others = [replace(item, id="b", best=1 - item.best), replace(item, id="c")]
    _, *found = mark_repeats(outcome(i, each) for i, each in enumerate([item, *others]))
    assert [fault_names(each) for each in found] == [["duplicate"]] * 2
    assert ["another one as the best" in each.faults[0].detail for each in found] == [True, False]


def test_warnings_keep_items_and_errors_raise(item: Item) -> None:
    assert outcome(1, item).with_faults(WARNING).items == (item,)
    for fault in (ERROR, SKIPPED):
        assert outcome(1, item).with_faults(WARNING, fault).items == ()
        assert not outcome(1, item).with_faults(fault).imported
    valid = [outcome(1, item).with_faults(WARNING), outcome(2).with_faults(SKIPPED)]
    assert list(valid_items(valid)) == [item]
    bad = outcome(3).with_faults(ERROR, WARNING, Fault("unknown_label", "b"))
    with pytest.raises(DataError, match=r"^rows\.jsonl:3: e; b$"):
        list(valid_items([*valid, bad]))


def test_number_that_python_does_not_write_is_named() -> None:
    assert shown([int("f" * 6000, 16)]) == "a list too long to write"


def test_folder_is_rejected_only_if_all_files_are_empty(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("prompt,chosen\n")
    (tmp_path / "b.jsonl").write_text("")
    with pytest.raises(DataError, match=rf"{tmp_path.name}: no rows: it is empty, or holds no more than names of col"):
        list(read_rows(str(tmp_path)))
    (tmp_path / "c.jsonl").write_text('{"prompt": "a"}')
    assert [row.value for row in read_rows(str(tmp_path))] == [{"prompt": "a"}]


@pytest.mark.parametrize("kind", ["text", "list", "struct"])
@pytest.mark.parametrize("reader", [read, read_judgements])
def test_dictionary_encoded_parquet_is_rejected_before_it_is_decoded(
    tmp_path: Path, kind: str, reader: Callable[[Path], Any]
) -> None:
    """3 KB, with a text of 20 MB in 500 places, took 10.5 GB."""
    texts = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 500, pyarrow.int32()), ["a" * 1024**2])
    if kind == "list":
        texts = pyarrow.ListArray.from_arrays(pyarrow.array([0, 500], pyarrow.int32()), texts)
    elif kind == "struct":
        texts = pyarrow.StructArray.from_arrays([texts], ["text"])
    (tmp_path / "rows.parquet").write_bytes(parquet(pyarrow.table({"prompt": texts})))
    before = pyarrow.total_allocated_bytes()
    with pytest.raises(DataError, match=r"rows\.parquet: expands to more than 200 times its size"):
        reader(tmp_path / "rows.parquet")
    assert pyarrow.total_allocated_bytes() - before < 10 * 1024**2


def test_save_to_disk_folder_is_read(tmp_path: Path) -> None:
    rows = [{"prompt": "a"}, {"prompt": "b"}]
    saved = datasets.Dataset.from_list(rows)
    saved.save_to_disk(tmp_path / "one")
    found = [(row.value, row.place) for row in read_rows(str(tmp_path / "one"))]
    assert found == [(rows[0], f"{tmp_path}/one:1"), (rows[1], f"{tmp_path}/one:2")]
    datasets.DatasetDict({"train": saved, "test": saved}).save_to_disk(tmp_path / "two")
    assert [row.number for row in read_rows(str(tmp_path / "two"))] == [1, 2, 1, 2]
    next((tmp_path / "one").glob("*.arrow")).write_bytes(b"no arrow")
    with pytest.raises(DataError, match="one: not a data set as save_to_disk writes it"):
        list(read_rows(str(tmp_path / "one")))
