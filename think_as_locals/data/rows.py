"""Read the rows of a file, a folder or a data set on the Hub, each with its place."""

from __future__ import annotations

import ast
import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from think_as_locals.data.faults import Defect, Fault, Row
from think_as_locals.types import DataError, PreflightError

if TYPE_CHECKING:
    from think_as_locals.config.schema import DataSection


SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet", ".csv", ".csv.gz")
_NO_ROWS = ("config.json", "dataset_dict.json", "dataset_info.json", "dataset_infos.json")  # metadata of data sets
_HUB_ID = re.compile(
    r"(?P<id>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?(?::(?P<config>[^:]+))?(?::(?P<split>[^:]+))?"
)


def read_rows(path: str) -> Iterator[Row]:
    """Yield the rows of a file (JSONL, JSON, parquet, CSV), of a folder of such files, or of a data set on the Hub.

    Args:
        path: A path, or `owner/name[@revision][:config[:split]]` on the Hub; all splits if none is named.

    Raises:
        DataError: nothing is there, or a file as a whole cannot be read.
    """
    local = local_path(path)
    if local.is_dir():
        files = [file for file in sorted(local.rglob("*")) if has_rows(file, local)]
        if not files:
            raise DataError(f"{local}: a folder without files of rows ({', '.join(SUFFIXES)})")
        for file in files:
            yield from (replace(row, folder=str(local)) for row in _file_rows(file))
    elif hub := hub_id(path):
        yield from _hub_rows(path, **hub.groupdict())
    else:
        yield from _file_rows(local)


def _file_rows(path: Path) -> Iterator[Row]:
    readers = {".json": _json, ".parquet": _parquet, ".csv": _csv}
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    try:
        yield from readers.get(suffix, _jsonl)(path)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: the archive is damaged: {error}") from error
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{path}: cannot be read ({reason}); expected a file of rows, or a Hub id") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8: {error}") from error


def _open(path: Path) -> IO[bytes] | gzip.GzipFile:
    return gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")


def _jsonl(path: Path) -> Iterator[Row]:
    with _open(path) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _line_row(str(path), number, line.rstrip(b"\r\n"))


def _line_row(file: str, number: int, line: bytes) -> Row:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        text = line.decode("utf-8", errors="surrogateescape")
        return Row(file, number, None, text, Fault(Defect.NOT_JSON, f"not UTF-8: {error}"))
    try:
        return Row(file, number, json.loads(text.removeprefix("\ufeff"), object_pairs_hook=_object), text)
    except (ValueError, RecursionError) as error:
        return Row(file, number, None, text, Fault(Defect.NOT_JSON, f"not JSON: {error}"))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):  # JSON would silently keep the last one
        twice = next(name for i, (name, _) in enumerate(pairs) if name in dict(pairs[:i]))
        raise ValueError(f"the field {twice!r} is there twice")
    return fields


def _json(path: Path) -> Iterator[Row]:
    with _open(path) as file:
        text = file.read().decode("utf-8-sig")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}; expected a list of rows (one row a line is .jsonl)") from error
    if not isinstance(values, list):
        raise DataError(f"{path}: expected a list of rows, got {type(values).__name__}; one row a line is .jsonl")
    for number, value in enumerate(values, 1):
        yield _value_row(str(path), number, value)


def _parquet(path: Path) -> Iterator[Row]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise _not_installed(path, "pyarrow") from error
    try:
        file = pyarrow.parquet.ParquetFile(path)
        _check_columns(path, file.schema_arrow.names)
        values = (value for batch in file.iter_batches(batch_size=1000) for value in batch.to_pylist())
        for number, value in enumerate(values, 1):
            yield _value_row(str(path), number, value)
    except (pyarrow.ArrowException, OverflowError) as error:  # a date that Python does not know
        raise DataError(f"{path}: not a parquet file that can be read: {error}") from error


def _csv(path: Path) -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)  # the default is too short for long responses
    with _open(path) as file:
        lines = csv.reader(io.TextIOWrapper(file, encoding="utf-8-sig", newline=""), strict=True)
        try:
            names = next(lines, [])
            _check_columns(path, names)
            for number, cells in enumerate(filter(None, lines), 1):
                if any(cells[len(names) :]):
                    message = f"{len(cells)} cells in {len(names)} columns: a text holds an unquoted comma or quote"
                    fault = Fault(Defect.NOT_AN_OBJECT, message)
                    yield Row(str(path), number, None, json.dumps(cells, ensure_ascii=False), fault)
                    continue
                values = [*map(_cell, cells), *[None] * (len(names) - len(cells))]
                yield _value_row(str(path), number, dict(zip(names, values, strict=False)))
        except csv.Error as error:
            raise DataError(f"{path}: not CSV: line {lines.line_num}: {error}") from error


def _not_installed(path: object, package: str) -> PreflightError:
    return PreflightError(f"{path}: read by {package}, which is not installed: pip install 'think-as-locals[train]'")


def _check_columns(path: Path, names: list[str]) -> None:
    if twice := sorted({name for name in names if name and names.count(name) > 1}):
        raise DataError(f"{path}: more than one column is called {', '.join(map(repr, twice))}")


def _cell(text: str) -> Any:
    """Parse a cell: an empty one is null, a list of texts is stored as JSON or as a Python literal (pandas)."""
    if not text:
        return None
    if text[0] == "[":
        for read in (json.loads, ast.literal_eval):
            with suppress(ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
                value = read(text)
                # Python takes ['a' 'b'], as numpy writes a list, for one text.
                if isinstance(value, list) and (read is json.loads or repr(value) == text):
                    return value
    return text


def _hub_rows(path: str, *, id: str, revision: str | None, config: str | None, split: str | None) -> Iterator[Row]:  # noqa: A002
    try:
        from datasets import DatasetDict, load_dataset
    except ImportError as error:
        raise _not_installed(path, "datasets") from error
    try:
        loaded = load_dataset(id, config, split=split, revision=revision)
    except Exception as error:  # anything that a download can fail with
        raise DataError(
            f"{path}: no such file, and as a data set of the Hub (owner/name[@revision][:config[:split]]) it cannot be "
            f"loaded: {type(error).__name__}: {error}"
        ) from error
    splits = loaded if isinstance(loaded, DatasetDict) else {split: loaded}
    for name, rows in splits.items():
        for number, value in enumerate(rows, 1):
            yield _value_row(f"{id}:{name}", number, value)


def _value_row(file: str, number: int, value: Any) -> Row:
    return Row(file, number, value, json.dumps(value, ensure_ascii=False, default=str))


def hub_id(path: str) -> re.Match[str] | None:
    """Match the parts of a Hub id; `None` if the path exists or ends like a file name."""
    if local_path(path).exists() or path.lower().endswith(SUFFIXES):
        return None
    return _HUB_ID.fullmatch(path)


def path_of(data: DataSection) -> str:
    """Return where the rows of a source are; raise a `DataError` if `data.path` is not set."""
    if data.path is None:
        raise DataError(f"data={data.source} reads files: set data.path")
    return data.path


def is_stream(path: str) -> bool:
    """Return whether a path can be read only once: a pipe."""
    local = local_path(path)
    return local.exists() and not local.is_file() and not local.is_dir()


def local_path(path: str) -> Path:
    """Return a path on this machine, whether it exists or not; raise a `DataError` if it cannot be one."""
    try:
        local = Path(path).expanduser()
        local.exists()
    except (OSError, RuntimeError) as error:  # too long, no such user
        raise DataError(f"{path}: no path and no Hub id: {error}") from error
    if not path or "\0" in path:
        raise DataError(f"{path!r} is no path: expected a file of rows, a folder of such, or a Hub id")
    return local


def has_rows(file: Path, folder: Path) -> bool:
    """Return whether a file in a folder holds rows. Hidden files are copies and caches."""
    name, hidden = file.name.lower(), any(part.startswith(".") for part in file.relative_to(folder).parts)
    return name.endswith(SUFFIXES) and not hidden and name not in _NO_ROWS and file.is_file()
