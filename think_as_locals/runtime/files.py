"""Write files completely or not at all, and explain the faults of a disk or a path."""

from __future__ import annotations

import errno
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO, TypeVar

from think_as_locals.types import DataError

if TYPE_CHECKING:
    import pyarrow

Thing = TypeVar("Thing")

DISK_FAULTS = {
    errno.ENOSPC: "free the disk",
    errno.EDQUOT: "free some of your quota there, or have it raised",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f), or choose another disk",
    errno.EIO: "check the disk, or choose another",
    errno.EROFS: "choose a folder that can be written to (of runs: run.dir)",
}
"""Errors of a disk that cannot be written to, and their remedies."""

_ACCESS = "have access granted, or choose another folder (of runs: run.dir)"
_KIND = "a file is where a folder is needed, or a folder where a file is: move it away, or choose another path"
_OPEN_FILES = "raise the limit on open files (ulimit -n)"
_PATH_FAULTS = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), _ACCESS),
    **dict.fromkeys((errno.ENOTDIR, errno.EISDIR, errno.EEXIST), _KIND),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), _OPEN_FILES),
    errno.ENAMETOOLONG: "choose a shorter name",
}
_CHECK_BYTES = 1_000_000
_ROW_GROUP = 10_000  # rows of a table in memory at once
_MAX_EXPANSION = 200  # decoded bytes by byte of a file; texts have 3 to 20, gzip reaches 1,000
_MIN_EXPANSION = 64 * 1024**2  # decoded bytes that any file may hold
_BYTES_OF_ROW = 16  # that count for a row of nulls


def file_fault(error: BaseException | None) -> OSError | None:
    """Return the error of a disk or a path that caused an error of any library, or `None`."""
    while error is not None:
        # Libraries in Rust (safetensors, tokenizers) have their own errors, with the number in the text.
        in_rust = re.search(r"\(os error (\d+)\)", str(error))
        fault = OSError(int(in_rust[1]), os.strerror(int(in_rust[1]))) if in_rust else error
        if isinstance(fault, OSError) and (
            # Without a file name it may be a connection that is not permitted.
            fault.errno in DISK_FAULTS or (fault.errno in _PATH_FAULTS and (in_rust or fault.filename))
        ):
            return fault
        error = error.__cause__ or error.__context__
    return None


def explain(fault: OSError) -> str:
    """Return a message with the path, what is wrong with it, and the remedy."""
    remedy = {**DISK_FAULTS, **_PATH_FAULTS}[fault.errno or 0]
    return f"{f'{fault.filename}: ' if fault.filename else ''}{fault.strerror}: {remedy}"


def check_writable(folder: Path) -> None:
    """Raise the OSError of a folder that cannot be written to; some libraries, such as torch, hide the reason."""
    with naming(folder), TemporaryFile(dir=folder, buffering=0) as file:
        file.write(bytes(_CHECK_BYTES))
        file.write(b"1")  # on a nearly full disk the first write is cut short without an error
        os.fsync(file.fileno())


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the file name to an OSError; those of open files have none."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
        raise


@contextmanager
def written_atomically(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing (temporary file, fsync, rename): readers see the old or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with naming(path), temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_file(path: Path, *, keep_empty: bool = True) -> Iterator[TextIO]:
    """Open a new file for lines of JSON, which appears as a whole or not at all; a DataError says if it cannot be."""
    if path.suffix.lower() in (".gz", ".json", ".parquet", ".csv"):
        raise DataError(f"{path}: one JSON object a line is written: expected a name such as {path.stem}.jsonl")
    exists = DataError(f"{path} already exists; choose another name or move it away")
    if path.exists():
        raise exists
    if not path.parent.is_dir():
        raise DataError(f"{path}: cannot be written: there is no folder {path.parent}")
    with written_atomically(path) as file:
        lines = io.TextIOWrapper(file, encoding="utf-8")
        yield lines
        lines.detach()  # flushes
        if path.exists():  # written meanwhile
            raise exists
    if not keep_empty and not path.stat().st_size:
        path.unlink()


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write a new file with a line of JSON for each row, as `new_file` does, and return how many there are."""
    count = 0
    with new_file(path) as file:
        for count, row in enumerate(rows, 1):  # noqa: B007
            file.write(json_line(row))
    return count


def json_line(value: Mapping[str, Any]) -> str:
    """Return a line of JSON."""
    return json.dumps(value, ensure_ascii=False) + "\n"


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file's content, atomically."""
    with written_atomically(path) as file:
        file.write(content)


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8, atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, atomically; a ValueError for NaN, which JSON does not have."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n")


def append_json(path: Path, value: Any) -> None:
    """Append a value as a line of JSON."""
    with naming(path), path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(value) + "\n")


def parquet(rows: list[dict[str, Any]]) -> bytes:
    """Return rows as a Parquet table."""
    import pyarrow.parquet

    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sink)
    return bytes(sink.getvalue())


def parquet_batches(path: Path, rows: int = _ROW_GROUP) -> Iterator[pyarrow.RecordBatch]:
    """Yield the columns of a Parquet table, of some rows at a time; a `DataError` if it cannot be read or is a bomb."""
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            columns = [table.schema.column(index) for index in range(len(table.schema))]
        texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
        # First with each text once, as it is stored: 3 KB may say 20 MB a thousand times.
        with pyarrow.parquet.ParquetFile(path, pre_buffer=False, read_dictionary=texts) as table:
            for _ in within_bound([path], table.iter_batches(batch_size=rows), _decoded_bytes):
                pass
        with pyarrow.parquet.ParquetFile(path, pre_buffer=False) as table:  # else all that was read stays in memory
            yield from table.iter_batches(batch_size=rows)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable table: {error}") from error


def _decoded_bytes(batch: pyarrow.RecordBatch) -> int:
    import pyarrow.compute

    def size(column: pyarrow.Array) -> int:
        if pyarrow.types.is_dictionary(column.type):
            lengths = pyarrow.compute.binary_length(column.dictionary)
            return pyarrow.compute.sum(lengths.take(column.indices)).as_py() or 0
        if pyarrow.types.is_struct(column.type) or pyarrow.types.is_map(column.type):
            parts = column.flatten() if pyarrow.types.is_struct(column.type) else [column.keys, column.items]
            return sum(map(size, parts))
        return size(column.flatten()) if hasattr(column, "flatten") else column.nbytes

    return _BYTES_OF_ROW * len(batch) + sum(map(size, batch.columns))


def within_bound(paths: Sequence[Path], parts: Iterable[Thing], size: Callable[[Thing], int]) -> Iterator[Thing]:
    """Yield parts of files; a `DataError` once they hold more bytes than texts in files of this size can."""
    left: int | None = None
    for part in parts:
        if left is None:
            left = max(_MIN_EXPANSION, _MAX_EXPANSION * sum(path.stat().st_size for path in paths))
        left -= size(part)
        if left < 0:
            raise DataError(
                f"{paths[0]}: expands to more than {_MAX_EXPANSION} times its size: unpack it yourself if you trust it"
            )
        yield part


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; a `DataError` if it cannot be read or holds something else."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def flush(path: Path) -> None:
    """Flush a file's content, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
