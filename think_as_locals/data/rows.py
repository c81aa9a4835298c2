"""Rows of a file, a folder or a data set on the Hub, each with its place, and their outcomes.

The outcome of a row is items, or faults with a name, a place and a message.
"""

from __future__ import annotations

import ast
import csv
import gzip
import hashlib
import io
import json
import re
import warnings
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from pathlib import Path
from struct import unpack_from
from typing import IO, Any, AnyStr, Literal, NamedTuple

from think_as_locals.config.schema import DataSection
from think_as_locals.runtime.model_files import unreachable
from think_as_locals.types import DataError, DataWarning, Item, cut, first_of, requiring, shown

_SHOWN = 500  # maximum characters of a message about a row
_MAX_LINE = 64 * 1024**2  # maximum bytes of a line, and characters of a cell
_MAX_DOCUMENT = 512 * 1024**2  # maximum bytes of JSON that is one list, which is read at once
_MAX_EXPANSION = 200  # maximum compression ratio; texts have 3 to 20, gzip reaches 1,000
_MIN_EXPANSION = 64 * 1024**2  # bytes that a compressed file may hold whatever its ratio
_BUFFER = 2**20  # bytes read at once
_BATCH = 16  # rows of a table at once: one dictionary-encoded text may be in all of them

Severity = Literal["error", "skipped", "warning"]
"""`error`: the row is invalid. `skipped`: valid, but no item. `warning`: an item, but suspicious."""


class Defect(Enum):
    """The named defects."""

    NOT_JSON = "error", "the line is not JSON in UTF-8"
    NOT_AN_OBJECT = "error", "the row is not a JSON object"
    MISSING_FIELD = "error", "a required field is missing or null"
    UNKNOWN_FIELD = "error", "a field that the schema does not have"
    WRONG_TYPE = "error", "a field is not of the type in the schema"
    EMPTY_PROMPT = "error", "the prompt is blank"
    EMPTY_RESPONSE = "error", "a response is blank"
    EMPTY_FIELD = "error", "a required text field is blank"
    BROKEN_TEXT = "error", "a text holds half of a surrogate pair, which UTF-8 cannot encode"
    WRONG_COUNT = "error", "too few or too many responses for an item"
    IDENTICAL_RESPONSES = "error", "two responses are the same text"
    BAD_BEST = "error", "the index of the best response is out of range"
    BAD_RATING = "error", "a rating or preference is not on its scale"
    UNKNOWN_LANGUAGE = "error", "the language is neither a name nor a tag that CLDR knows"
    UNKNOWN_CULTURE = "error", "the culture is not an ISO 3166 code, or is a misspelt country"
    REPEATED_ID = "error", "an earlier row has the same id"
    UNKNOWN_ITEM = "error", "no item has this id"
    UNKNOWN_USER = "error", "the survey has no valid row for the person"
    TIE = "skipped", "no response is preferred"
    UNPAIRED = "skipped", "no other response to the question has a different rating"
    NO_MAJORITY = "skipped", "no single answer has the most votes, or it has fewer than three"
    NAMES_CULTURE = "skipped", "the most frequent answer names a region, which would give it away"
    NO_RIVALS = "skipped", "too few regions gave other answers that can serve as wrong responses"
    NO_QUESTION = "skipped", "the row has no question"
    NO_RESPONSE = "skipped", "the model's response is empty"
    NO_COUNTRY = "skipped", "the row names no country, or none that CLDR knows"
    IGNORED_FILE = "skipped", "a file in the folder that does not belong to the data set"
    INVISIBLE_TEXT = "warning", "a text consists of invisible characters: zero-width, control or direction marks"
    WRONG_LANGUAGE = "warning", "a text is not in the language of its row or data.language (English if neither has one)"
    RUN_ON_TURN = "warning", "a response continues into another turn (it holds a chat template's role or token)"
    COUNTRY_MISMATCH = "warning", "the prompt names another country than the row"
    DUPLICATE = "warning", "an earlier row has the same prompt and responses"
    COUNT_MISMATCH = "warning", "a count in the row differs from its number of responses"
    IGNORED_COLUMN = "warning", "a column of the file that is not read; named once"
    BAD_METADATA = "warning", "additional_metadata is not JSON"
    LEFT_OUT_SAMPLE = "warning", "a survey sample is not national, is outdated, or is of no country that CLDR knows"
    ASKED_BEFORE = "warning", "an earlier row has this question and two of its answers for a country: that one is kept"
    BAD_SHARES = "warning", "a country's shares are not one per option that sum to 1: the country is left out"
    UNKNOWN_DOMAIN = "warning", "the domain is not one of the data set's"

    def __init__(self, severity: Severity, meaning: str) -> None:
        self.severity = severity
        self.meaning = meaning

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Fault:
    """A defect of one row; `detail` says what was got, cut if it is long."""

    defect: Defect
    detail: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", cut(self.detail, _SHOWN))


def printable(name: str) -> str:
    """Return a name with its control characters escaped, since terminals interpret them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in name)


def importable(faults: Iterable[Fault]) -> bool:
    """Return whether a row with these faults can still be an item, since all of them are warnings."""
    return all(fault.defect.severity == "warning" for fault in faults)


class Row(NamedTuple):  # of a million, dataclasses would take seconds more
    """A row as it is in its source."""

    file: str  # or `ID:split` on the Hub
    number: int  # counted from 1: the line of a JSONL file, the row of a spreadsheet
    value: Any  # `None` if it could not be parsed
    text: str  # the line, or JSON of the value if there are no lines; bytes that are not UTF-8 are surrogate escapes
    fault: Fault | None = None  # why it could not be parsed
    folder: str | None = None  # the folder that is read, if the file is one of several
    defaults: Mapping[str, str] | None = None  # values of the configuration for fields that are missing

    @property
    def place(self) -> str:
        """File and number, e.g. `rows.jsonl:17`, with control characters escaped."""
        return f"{printable(self.file)}:{self.number}"

    @property
    def name(self) -> str:
        """An id that does not depend on the location of the file or folder, e.g. `de/rows.jsonl-17`."""
        file = Path(self.file)
        name = file.relative_to(self.folder).as_posix() if self.folder else file.name
        return f"{name.encode(errors='backslashreplace').decode()}-{self.number}"  # it may not be UTF-8


class Outcome(NamedTuple):
    """The items of a row, and its faults; a row without items may still be used, as the worse response of a pair."""

    row: Row
    items: tuple[Item, ...] = ()
    faults: tuple[Fault, ...] = ()

    @property
    def imported(self) -> bool:
        """Whether the row was used."""
        return importable(self.faults)

    def with_faults(self, *more: Fault) -> Outcome:
        """Return the outcome with more faults, and without items unless all its faults are warnings."""
        if not more:
            return self
        faults = (*self.faults, *more)
        return self._replace(items=self.items if importable(faults) else (), faults=faults)

    def raise_errors(self) -> None:
        """Raise a `DataError`, `file:row: what is wrong`, if the row has an error."""
        if errors := [fault.detail for fault in self.faults if fault.defect.severity == "error"]:
            raise DataError(f"{self.row.place}: {'; '.join(errors)}")


def mark_repeats(outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
    """Add a fault to each row with the id, or with the prompt and responses, of an earlier row."""
    ids: dict[str, tuple[int, str]] = {}
    contents: dict[bytes, tuple[int, str]] = {}
    for outcome in outcomes:
        here, faults = (outcome.row.number, outcome.row.file), []
        for item in outcome.items:
            if (earlier := ids.setdefault(item.id, here)) != here:
                message = f"id {item.id!r} is already in line {earlier[0]} of {earlier[1]}"
                faults.append(Fault(Defect.REPEATED_ID, message))
                break
        texts = []
        for item in outcome.items:
            texts += [item.prompt, item.culture or "", item.responses[item.best], *sorted(item.responses)]
        content = hashlib.sha256("\0".join(texts).encode()).digest()
        if texts and (earlier := contents.setdefault(content, here)) != here:
            message = f"the same prompt and responses are in line {earlier[0]} of {earlier[1]}"
            faults.append(Fault(Defect.DUPLICATE, message))
        yield outcome.with_faults(*faults)


def name_ignored_columns(outcomes: Iterable[Outcome], columns: Set[str]) -> Iterator[Outcome]:
    """Add a warning to the first row of each file that has a value in a column that is not read."""
    named: dict[str, set[str]] = defaultdict(set)
    for outcome in outcomes:
        value, file = outcome.row.value, outcome.row.file
        given = {name for name in value if value[name] is not None} if isinstance(value, Mapping) else set()
        if more := sorted(given - columns - named[file]):
            named[file].update(more)
            message = f"not read: {', '.join(repr(name)[:60] for name in more)}; known are {', '.join(sorted(columns))}"
            yield outcome.with_faults(Fault(Defect.IGNORED_COLUMN, message))
        else:
            yield outcome


def valid_items(outcomes: Iterable[Outcome]) -> Iterator[Item]:
    """Yield the items; raise a `DataError`, `file:row: what is wrong`, at the first row with an error."""
    for outcome in outcomes:
        outcome.raise_errors()
        for fault in outcome.faults:
            if fault.defect is Defect.IGNORED_COLUMN:
                warnings.warn(f"{outcome.row.place}: {fault.detail}", DataWarning, stacklevel=2)
        yield from outcome.items


_LINES = (".jsonl", ".ndjson", "")
_TEXTS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
SUFFIXES = (*_TEXTS, *(f"{kind}.gz" for kind in _TEXTS), ".parquet")
_SAVED = ("state.json", "dataset_dict.json")  # in a folder written by `save_to_disk` of datasets
_METADATA = ("config.json", "dataset_dict.json", "dataset_info.json", "dataset_infos.json")  # metadata of data sets
_MAX_IGNORED_FILES = 3  # file names in a warning
_HUB_ID = re.compile(
    r"(?P<id>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?(?::(?P<config>[^:]+))?(?::(?P<split>[^:]+))?"
)


def read_rows(path: str) -> Iterator[Row]:
    """Yield the rows of a file, of a folder of such, or of `owner/name[@revision][:config[:split]]` on the Hub.

    A DataError is raised if there are none.
    """
    rows = _all_rows(path)
    if (first := next(rows, None)) is None:
        raise DataError(f"{path}: no rows: it is empty, or holds no more than names of columns")
    yield first
    yield from rows


def _all_rows(path: str) -> Iterator[Row]:
    local = local_path(path)
    if local.is_dir() and any((local / name).is_file() for name in _SAVED):
        yield from _saved_rows(local)
    elif local.is_dir():
        found = (file for file in sorted(local.rglob("*")) if file.is_file())
        files = [file for file in found if not any(part.startswith(".") for part in file.relative_to(local).parts)]
        files = [file for file in files if (name := file.name.lower()).endswith(SUFFIXES) and name not in _METADATA]
        if not files:
            raise DataError(f"{local}: a folder without files of rows ({', '.join(SUFFIXES)})")
        warn_ignored(local, files, f"rows are in {', '.join(SUFFIXES)}, neither hidden nor metadata")
        for file in files:
            yield from (row._replace(folder=str(local)) for row in _file_rows(file))
    elif hub := hub_id(path):
        yield from _hub_rows(path, **hub.groupdict())
    else:
        yield from _file_rows(local)


def warn_ignored(folder: Path, files: Iterable[Path], expected: str) -> None:
    """Warn about the files in a folder that are not among those read."""
    others = sorted({file for file in folder.rglob("*") if file.is_file()}.difference(files))
    if others:
        named = first_of((file.relative_to(folder).as_posix() for file in others), _MAX_IGNORED_FILES)
        warnings.warn(f"{folder}: not read: {named} ({expected})", DataWarning, stacklevel=2)


def _file_rows(path: Path) -> Iterator[Row]:
    readers: dict[str, Callable[[Path], Iterator[Row]]] = {".json": _json, ".parquet": _parquet}
    readers |= {**dict.fromkeys((".csv", ".tsv"), _csv), **dict.fromkeys(_LINES, _jsonl)}
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    if suffix not in readers and path.is_file():
        raise DataError(f"{path}: rows are not read from {suffix} files; expected one of {', '.join(SUFFIXES)}")
    try:
        yield from readers.get(suffix, _jsonl)(path)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: the archive is damaged: {error}") from error
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{path}: cannot be read ({reason}); expected a file of rows, or a Hub id") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8: {error}; save it as UTF-8 (Excel: CSV UTF-8)") from error


def _open(path: Path) -> IO[bytes]:
    return io.BufferedReader(_Expanding(path)) if path.suffix.lower() == ".gz" else path.open("rb", _BUFFER)


class _Expanding(io.RawIOBase):
    """A gzip file that raises a DataError if it expands further than text would: 2 MB may become 2 GB."""

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, gzip.open(path)  # noqa: SIM115
        self._left = _most_bytes(path)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._file.read(len(buffer))
        self._left -= len(content)
        if self._left < 0:
            raise _expands(self._path)
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self._file.close()
        super().close()


def _most_bytes(*paths: Path) -> int:
    return max(_MIN_EXPANSION, _MAX_EXPANSION * sum(path.stat().st_size for path in paths))


def _expands(path: Path) -> DataError:
    return DataError(
        f"{path}: expands to more than {_MAX_EXPANSION} times its size: unpack it yourself if you trust it"
    )


def _lines(path: Path, file: IO[AnyStr]) -> Iterator[AnyStr]:
    while line := file.readline(_MAX_LINE + 1):
        if len(line) > _MAX_LINE:
            raise DataError(f"{path}: a line of more than {_MAX_LINE:,} bytes; expected one row per line")
        yield line


def _jsonl(path: Path) -> Iterator[Row]:
    name, decoder = str(path), json.JSONDecoder(object_pairs_hook=_object)  # `json.loads` makes one for each line
    with _open(path) as file:
        for number, line in enumerate(_lines(path, file), 1):
            if not line.strip():
                continue
            content, value, fault = line.rstrip(b"\r\n"), None, None
            try:
                text = content.decode()
                value = decoder.decode(text.removeprefix("\ufeff"))
            except UnicodeDecodeError as error:
                text = content.decode(errors="surrogateescape")
                fault = Fault(Defect.NOT_JSON, f"not UTF-8: {error}")
            except (ValueError, RecursionError) as error:
                fault = Fault(Defect.NOT_JSON, f"not JSON: {error}")
            yield Row(name, number, value, text, fault)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):  # JSON would silently keep the last of two values
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"the field {twice[:_SHOWN]!r} is there twice")
    return fields


def _json(path: Path) -> Iterator[Row]:
    with _open(path) as file:
        content = file.read(_MAX_DOCUMENT + 1)
    if len(content) > _MAX_DOCUMENT:
        raise DataError(f"{path}: a list of more than {_MAX_DOCUMENT:,} bytes; expected one row per line (.jsonl)")
    text = content.decode("utf-8-sig")
    del content
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}; expected a list of rows (one row per line is .jsonl)") from error
    if not isinstance(values, list):
        raise DataError(f"{path}: expected a list of rows, got {type(values).__name__}; one row per line is .jsonl")
    yield from _value_rows(str(path), values)


def _parquet(path: Path) -> Iterator[Row]:
    with requiring(f"{path}: read by"):
        import pyarrow
        import pyarrow.parquet
    try:
        file = pyarrow.parquet.ParquetFile(path, pre_buffer=False)  # else all that was read stays in memory
        groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
        if max(sum(group.total_byte_size for group in groups), file.metadata.num_rows) > _most_bytes(path):
            raise _expands(path)
        _check_columns(path, file.schema_arrow.names)
        batches = file.iter_batches(batch_size=_BATCH)
        yield from _value_rows(str(path), (value for batch in batches for value in batch.to_pylist()))
    except (pyarrow.ArrowException, OverflowError) as error:  # a date that Python does not know
        raise DataError(f"{path}: not a parquet file that can be read: {error}") from error


def _csv(path: Path) -> Iterator[Row]:
    csv.field_size_limit(_MAX_LINE)  # the default is too short for long responses
    with _open(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        rest = _lines(path, text)
        head = next(rest, "")
        # Excel separates columns by the list separator of its locale.
        delimiter = max(",", ";", "\t", key=head.count)
        lines = csv.reader(chain([head], rest), delimiter=delimiter, strict=True)
        try:
            names = next(lines, [])
            _check_columns(path, names)
            for number, cells in enumerate(lines, 2):
                if not cells:
                    continue
                if any(cells[len(names) :]):
                    message = f"{len(cells)} cells in {len(names)} columns: a text holds an unquoted comma or quote"
                    fault = Fault(Defect.NOT_AN_OBJECT, message)
                    yield Row(str(path), number, None, json.dumps(cells, ensure_ascii=False), fault)
                else:
                    value = dict.fromkeys(names) | dict(zip(names, map(_cell, cells), strict=False))
                    yield Row(str(path), number, value, json.dumps(value, ensure_ascii=False))
        except csv.Error as error:
            raise DataError(f"{path}: not CSV: line {lines.line_num}: {error}") from error


def _check_columns(path: Path, names: list[str]) -> None:
    if twice := sorted(name for name, count in Counter(filter(None, names)).items() if count > 1):
        raise DataError(f"{path}: more than one column is called {', '.join(map(repr, twice))[:_SHOWN]}")


def _cell(text: str) -> Any:
    """Parse a cell: an empty one is null, a list may be stored as JSON or as a Python literal (pandas)."""
    if not text.startswith("["):
        return text or None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        value = unpack(text)
        # Python reads ['a' 'b'], which is how numpy prints a list, as one text.
        return value if repr(value) == text else text


def unpack(value: Any) -> Any:
    """Parse a text that holds a list or an object, as JSON or as a Python literal; return other values as they are."""
    if isinstance(value, str):
        for parse in (json.loads, ast.literal_eval):
            with suppress(ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
                found = parse(value)
                repr(found)  # fails for an integer that is too long to print
                return found
    return value


def _saved_rows(folder: Path) -> Iterator[Row]:
    """Yield the rows of a data set written by `save_to_disk`, of all its splits."""
    with requiring(f"{folder}: read by"):
        from datasets import DatasetDict, load_from_disk
    try:
        states = [(file.parent, json.loads(file.read_bytes())) for file in folder.rglob("state.json")]
        files = [place / each["filename"] for place, state in states for each in state["_data_files"]]
        compressed = any(map(_is_compressed, files))
        loaded = None if compressed else load_from_disk(str(folder))
    except Exception as error:  # whatever damaged files lead to
        reason = f"{type(error).__name__}: {error}"[:_SHOWN]
        raise DataError(f"{folder}: not a data set as save_to_disk writes it: {reason}") from error
    if loaded is None:  # it would be expanded as a whole, to any size
        raise DataError(f"{folder}: compressed Arrow, which save_to_disk does not write: save it as parquet")
    left = _most_bytes(*files)  # one text may be in all rows
    for name, rows in loaded.items() if isinstance(loaded, DatasetDict) else [("", loaded)]:
        for row in _value_rows(f"{folder}:{name}" if name else str(folder), rows):
            left -= len(row.text)
            if left < 0:
                raise _expands(folder)
            yield row


def _is_compressed(path: Path) -> bool:
    """Return whether a stream of Arrow says that its batches expand, which pyarrow does not tell (its Message.fbs)."""
    import pyarrow

    def follow(content: bytes, table: int, number: int) -> int:
        """Return where a field of a flatbuffer's table points to; 0 if it is not there."""
        fields = table - unpack_from("<i", content, table)[0]
        entry, size = 4 + 2 * number, unpack_from("<H", content, fields)[0]
        offset = table + unpack_from("<H", content, fields + entry)[0] if entry < size else table
        return offset + unpack_from("<I", content, offset)[0] if offset > table else 0

    for message in pyarrow.ipc.MessageReader.open_stream(pyarrow.memory_map(str(path))):
        content = message.metadata.to_pybytes()
        batch = follow(content, unpack_from("<I", content)[0], 2)
        if message.type == "dictionary":
            batch = follow(content, batch, 1)
        if message.type != "schema" and follow(content, batch, 3):
            return True
    return False


def _hub_rows(path: str, *, id: str, revision: str | None, config: str | None, split: str | None) -> Iterator[Row]:  # noqa: A002
    with requiring(f"{path}: read by"):
        import datasets
    reason, offline = unreachable(), datasets.config.HF_HUB_OFFLINE
    try:
        # Otherwise it retries for 23 s before it looks into its cache.
        datasets.config.HF_HUB_OFFLINE = offline or reason is not None
        loaded = datasets.load_dataset(id, config, split=split, revision=revision)
    except Exception as error:  # anything that a download can fail with
        remedy = f"it cannot be reached ({reason}); give a local file, or load it once online: it is cached"
        raise DataError(
            f"{path}: no such file, and not loaded from the Hub (owner/name[@revision][:config[:split]]): "
            + (remedy if reason else f"{type(error).__name__}: {error}")
        ) from error
    finally:
        datasets.config.HF_HUB_OFFLINE = offline
    for name, rows in (loaded if isinstance(loaded, datasets.DatasetDict) else {split: loaded}).items():
        yield from _value_rows(f"{id}:{name}", rows)


def _value_rows(file: str, values: Iterable[Any]) -> Iterator[Row]:
    for number, value in enumerate(values, 1):
        yield Row(file, number, value, json.dumps(value, ensure_ascii=False, default=str))


def hub_id(path: str) -> re.Match[str] | None:
    """Return the parts of a Hub id; `None` if the path exists or has the suffix of a file of rows."""
    if local_path(path).exists() or path.lower().endswith(SUFFIXES):
        return None
    return _HUB_ID.fullmatch(path)


def path_of(data: DataSection) -> str:
    """Return `data.path`; raise a `DataError` if it is not set."""
    if data.path is None:
        raise DataError(f"data={data.source} reads files: set data.path")
    return data.path


def size_of(data: DataSection) -> int:
    """Return `data.num_responses`, which a generated source needs; raise a `DataError` if it is not set."""
    if data.num_responses is None:
        raise DataError(f"data={data.source} makes its items: set data.num_responses to a number from 2 to 8")
    return data.num_responses


def local_path(path: str) -> Path:
    """Return a path, whether or not it exists; raise a `DataError` if it cannot be one."""
    try:
        local = Path(path).expanduser()
        local.exists()
    except (OSError, RuntimeError) as error:  # too long, no such user
        reason = getattr(error, "strerror", None) or error  # without the path, which may be long
        raise DataError(f"{cut(str(path))}: no path and no Hub id: {reason}") from error
    if not path or "\0" in path:
        raise DataError(f"{shown(path)} is not a path: expected a file of rows, a folder of such files, or a Hub id")
    return local
