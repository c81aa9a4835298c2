"""Rows of a file, a folder or a data set on the Hub, each with its place, and their outcomes.

The outcome of a row is items, or faults with a name and a message.
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
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any, AnyStr, Literal, NamedTuple, cast

from pydantic import ValidationError

from think_as_locals.config.schema import DataSection
from think_as_locals.data.languages import PLACEHOLDERS
from think_as_locals.runtime.files import parquet_batches, within_bound
from think_as_locals.runtime.model_files import unreachable
from think_as_locals.types import DataError, DataWarning, Item, cut, first_of, shown

_SHOWN = 500  # maximum characters of a message about a row
_MAX_LINE = 64 * 1024**2  # maximum bytes of a line, and characters of a cell
_MAX_DOCUMENT = 512 * 1024**2  # maximum bytes of JSON that is one list, which is read at once

Severity = Literal["error", "skipped", "warning"]
"""`error`: the row is invalid. `skipped`: valid, but no item. `warning`: an item, but suspicious."""

# fmt: off
_SKIPPED = frozenset({
    "tie", "unpaired", "no_majority", "names_culture", "no_rivals", "no_question", "no_response", "no_country",
})
_WARNINGS = frozenset({
    "invisible_text", "wrong_language", "run_on_turn", "duplicate", "count_mismatch", "unread_column",
    "left_out_sample", "asked_before", "bad_shares", "unknown_domain", "placeholder_text",
})
# fmt: on


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a row: a name, such as pydantic's type of an error, and what was got, cut if it is long."""

    name: str
    detail: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", cut(self.detail, _SHOWN))

    @property
    def severity(self) -> Severity:
        """An error, unless the name says that the row is valid."""
        return "skipped" if self.name in _SKIPPED else "warning" if self.name in _WARNINGS else "error"


def faults_of(error: ValidationError) -> Iterator[Fault]:
    """Yield pydantic's errors, each with its field and what was got."""
    for each in error.errors(include_url=False, include_context=False):
        place = f"{'.'.join(map(str, each['loc']))}: " if each["loc"] else ""
        got = f", got {shown(each['input'])}" if each["type"] != "missing" else ""
        message = "expected an object with named fields" if each["type"] == "model_type" else each["msg"]
        yield Fault(each["type"], f"{place}{message}{got}")


class Row(NamedTuple):  # of a million, dataclasses would take seconds more
    """A row as it is in its source."""

    file: str  # or `ID:split` on the Hub
    number: int  # counted from 1: the line of a JSONL file, the row of a spreadsheet
    value: Any  # `None` if it could not be parsed
    text: str  # the line, or JSON of the value if there are no lines; bytes that are not UTF-8 are surrogate escapes
    fault: Fault | None = None  # why it could not be parsed
    folder: str | None = None  # the folder that is read, if the file is one of several

    @property
    def place(self) -> str:
        """File and number, e.g. `rows.jsonl:17`."""
        return f"{self.file}:{self.number}"

    @property
    def name(self) -> str:
        """An id that does not depend on the location of the file or folder, e.g. `de/rows.jsonl-17`."""
        file = Path(self.file)
        return f"{file.relative_to(self.folder).as_posix() if self.folder else file.name}-{self.number}"


class Outcome(NamedTuple):
    """The items of a row, and its faults; a row without items may still be used, as the worse response of a pair."""

    row: Row
    items: tuple[Item, ...] = ()
    faults: tuple[Fault, ...] = ()

    @classmethod
    def of(cls, row: Row, read: Callable[[Row], Iterable[Item | Fault]]) -> Outcome:
        """Return what `read` yields of a row; errors of pydantic and of `Item` are its faults."""
        items, faults = list[Item](), list[Fault]()
        try:
            if row.fault is None:
                for each in read(row):
                    items.append(each) if isinstance(each, Item) else faults.append(each)
            else:
                faults.append(row.fault)
        except ValidationError as error:
            faults += faults_of(error)
        except DataError as error:
            faults.append(Fault("invalid_item", str(error)))
        return cls(row, tuple(items)).with_faults(*faults)

    @property
    def imported(self) -> bool:
        """Whether the row was used: all its faults are warnings."""
        return all(fault.severity == "warning" for fault in self.faults)

    def with_faults(self, *more: Fault) -> Outcome:
        """Return the outcome with more faults, and without items unless all its faults are warnings."""
        outcome = self._replace(faults=(*self.faults, *more)) if more else self
        return outcome if outcome.imported else outcome._replace(items=())

    @property
    def errors(self) -> str:
        """The row's errors as `file:row: what is wrong`; empty if it has none."""
        errors = [fault.detail for fault in self.faults if fault.severity == "error"]
        return f"{self.row.place}: {'; '.join(errors)}" if errors else ""


def mark_repeats(outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
    """Add a fault to each row with the id, or with the prompt and responses, of an earlier row, or an empty cell."""
    ids: dict[str, tuple[int, str]] = {}
    contents: dict[bytes, tuple[tuple[int, str], list[str]]] = {}
    for outcome in outcomes:
        here, faults = (outcome.row.number, outcome.row.file), []
        for item in outcome.items:
            if (earlier := ids.setdefault(item.id, here)) != here:
                message = f"id {item.id!r} is already in row {earlier[0]} of {earlier[1]}"
                faults.append(Fault("repeated_id", message))
                break
        texts = []
        for item in outcome.items:
            texts += [item.prompt, item.culture or "", *sorted(item.responses)]
        content, best = hashlib.sha256("\0".join(texts).encode()).digest(), [i.responses[i.best] for i in outcome.items]
        earlier, chosen = contents.setdefault(content, (here, best))
        if texts and earlier != here:
            other = "" if chosen == best else ", with another one as the best"
            message = f"the same prompt and responses are in row {earlier[0]} of {earlier[1]}{other}"
            faults.append(Fault("duplicate", message))
        for item in outcome.items:
            texts += [item.language, item.domain, item.group, *item.origins]
        if empty := [text for text in dict.fromkeys(texts) if text.strip().casefold() in PLACEHOLDERS]:
            faults.append(Fault("placeholder_text", f"{first_of(map(shown, empty), 3)} may stand for an empty cell"))
        yield outcome.with_faults(*faults)


def name_unread_columns(outcomes: Iterable[Outcome], columns: Set[str]) -> Iterator[Outcome]:
    """Add a warning to the first row of a file that has a column that is not read."""
    named = defaultdict[str, set[str]](set)
    for outcome in outcomes:
        value, before = outcome.row.value, named[outcome.row.file]
        others = value.keys() - columns - before if isinstance(value, Mapping) else ()
        if more := sorted(name for name in others if value[name] is not None):
            before.update(more)
            read = f"not read: {first_of(map(shown, more), 20)}; known are {', '.join(sorted(columns))}"
            outcome = outcome.with_faults(Fault("unread_column", read))
        yield outcome


def valid_items(outcomes: Iterable[Outcome], faulty: list[str] | None = None) -> Iterator[Item]:
    """Yield the items; raise a `DataError`, `file:row: what is wrong`, at the first row with an error.

    With a list, the errors are added to it instead, and a warning at the end counts them; if no row gives an item, the
    first is raised.
    """
    items = rows = 0
    empty = list[str]()
    for outcome in outcomes:
        rows += 1
        if errors := outcome.errors:
            if faulty is None:
                raise DataError(errors)
            faulty.append(errors)
        items += len(outcome.items)
        for fault in outcome.faults:
            if fault.name == "unread_column":
                warnings.warn(f"{outcome.row.place}: {fault.detail}", DataWarning, stacklevel=2)
            elif fault.name == "placeholder_text":
                empty.append(f"{outcome.row.place}: {fault.detail}")
        yield from outcome.items
    if empty:
        warnings.warn(first_of(empty, 3, "; "), DataWarning, stacklevel=2)
    if faulty and not items:
        raise DataError(faulty[0])
    if faulty:
        message = f"left out {len(faulty):,} of {rows:,} rows with faults, such as {first_of(faulty, 3, '; ')}"
        warnings.warn(f"{message} (data.faulty_rows=error stops instead)", DataWarning, stacklevel=2)


def check_rows(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return all outcomes; a `DataError` lists the first rows with errors."""
    outcomes = list(outcomes)
    if errors := [outcome.errors for outcome in outcomes if outcome.errors]:
        raise DataError(first_of(errors, 10, "\n"))
    return outcomes


_LINES = (".jsonl", ".ndjson", "")
_TEXTS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
SUFFIXES = (*_TEXTS, *(f"{kind}.gz" for kind in _TEXTS), ".parquet")
_SAVED = ("state.json", "dataset_dict.json")  # in a folder written by `save_to_disk` of datasets
_METADATA = ("config.json", "dataset_dict.json", "dataset_info.json", "dataset_infos.json")  # metadata of data sets
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
    if not path:
        raise DataError("the path is empty: expected a file of rows, a folder of such files, or a Hub id")
    local = Path(path).expanduser()
    if local.is_dir() and any((local / name).is_file() for name in _SAVED):
        yield from _saved_rows(local)
    elif local.is_dir():
        found = (file for file in sorted(local.rglob("*")) if file.is_file())
        files = [file for file in found if not any(part.startswith(".") for part in file.relative_to(local).parts)]
        files = [file for file in files if (name := file.name.lower()).endswith(SUFFIXES) and name not in _METADATA]
        if not files:
            raise DataError(f"{local}: a folder without files of rows ({', '.join(SUFFIXES)})")
        warn_unread(local, files, f"rows are in {', '.join(SUFFIXES)}, neither hidden nor metadata")
        for file in files:
            yield from (row._replace(folder=str(local)) for row in _file_rows(file))
    elif hub := hub_id(path):
        yield from _hub_rows(path, **hub.groupdict())
    else:
        yield from _file_rows(local)


def warn_unread(folder: Path, files: Iterable[Path], expected: str) -> None:
    """Warn about the files in a folder that are not among those read."""
    others = sorted({file for file in folder.rglob("*") if file.is_file()}.difference(files))
    if others:
        named = first_of((file.relative_to(folder).as_posix() for file in others), 3)
        warnings.warn(f"{folder}: not read: {named} ({expected})", DataWarning, stacklevel=2)


def _file_rows(path: Path) -> Iterator[Row]:
    readers: dict[str, Callable[[Path], Iterator[Row]]] = {".json": _json, ".parquet": _parquet}
    readers |= {".csv": _csv, ".tsv": partial(_csv, delimiter="\t"), **dict.fromkeys(_LINES, _jsonl)}
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    if suffix not in readers and path.is_file():
        raise DataError(f"{path}: rows are not read from {suffix} files; expected one of {', '.join(SUFFIXES)}")
    try:
        rows = readers.get(suffix, _jsonl)(path)
        yield from within_bound([path], rows, lambda row: len(row.text)) if path.suffix.lower() == ".gz" else rows
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: the archive is damaged: {error}") from error
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{path}: cannot be read ({reason}); expected a file of rows, or a Hub id") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8: {error}; save it as UTF-8 (Excel: CSV UTF-8)") from error


def _open(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb")


def _lines(path: Path, file: IO[AnyStr]) -> Iterator[AnyStr]:
    while line := file.readline(_MAX_LINE + 1):
        if len(line) > _MAX_LINE:
            raise DataError(f"{path}: a line of more than {_MAX_LINE:,} bytes; expected one row per line")
        yield line


def _jsonl(path: Path) -> Iterator[Row]:
    name = str(path)
    with _open(path) as file:
        for number, line in enumerate(_lines(path, file), 1):
            if not line.strip():
                continue
            content, value, fault = line.rstrip(b"\r\n"), None, None
            try:
                text = content.decode()
                value = json.loads(text.removeprefix("\ufeff"))
            except UnicodeDecodeError as error:
                text = content.decode(errors="surrogateescape")
                fault = Fault("not_json", f"not UTF-8: {error}")
            except (ValueError, RecursionError) as error:
                fault = Fault("not_json", f"not JSON: {error}")
            yield Row(name, number, value, text, fault)


def _json(path: Path) -> Iterator[Row]:
    with _open(path) as file:
        content = file.read(_MAX_DOCUMENT + 1)
    if len(content) > _MAX_DOCUMENT:
        raise DataError(f"{path}: a list of more than {_MAX_DOCUMENT:,} bytes; expected one row per line (.jsonl)")
    try:
        values = json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}; expected a list of rows (one row per line is .jsonl)") from error
    if not isinstance(values, list):
        raise DataError(f"{path}: expected a list of rows, got {type(values).__name__}; one row per line is .jsonl")
    yield from _value_rows(str(path), values)


def _parquet(path: Path) -> Iterator[Row]:
    import pyarrow.parquet

    def values() -> Iterator[Any]:
        for batch in parquet_batches(path, 1000):
            _check_columns(path, batch.schema.names)
            yield from batch.to_pylist()

    try:
        if path.stat():  # a missing file is no damaged one
            yield from _value_rows(str(path), values())
    except (pyarrow.ArrowException, OverflowError) as error:  # a date that Python does not know
        raise DataError(f"{path}: not a parquet file that can be read: {error}") from error


def _csv(path: Path, delimiter: str | None = None) -> Iterator[Row]:
    csv.field_size_limit(_MAX_LINE)  # the default is too short for long responses
    with _open(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        rest = _lines(path, text)
        head = next(rest, "")
        # Excel separates columns by the list separator of its locale.
        lines = csv.reader(chain([head], rest), delimiter=delimiter or max(",", ";", "\t", key=head.count), strict=True)
        try:
            names = next(lines, [])
            _check_columns(path, names)
            for number, cells in enumerate(lines, 2):
                if not any(cells):
                    continue
                if any(cells[len(names) :]):
                    message = f"{len(cells)} cells in {len(names)} columns: a text holds an unquoted comma or quote"
                    fault = Fault("too_many_cells", message)
                    yield Row(str(path), number, None, json.dumps(cells, ensure_ascii=False), fault)
                else:
                    value = dict.fromkeys(names) | {
                        name: cell or None for name, cell in zip(names, cells, strict=False)
                    }
                    yield Row(str(path), number, value, json.dumps(value, ensure_ascii=False))
        except csv.Error as error:
            raise DataError(f"{path}: not CSV: line {lines.line_num}: {error}") from error


def _check_columns(path: Path, names: list[str]) -> None:
    if twice := sorted(name for name, count in Counter(filter(None, names)).items() if count > 1):
        raise DataError(f"{path}: more than one column is called {', '.join(map(repr, twice))[:_SHOWN]}")


def unpack(text: Any) -> Any:
    """Parse a text that holds a list or an object, as JSON or as pandas writes it; return other values as they are.

    Only for columns that hold lists or objects: an answer may look like one.
    """
    if not isinstance(text, str) or not text.startswith(("[", "{")):
        return text
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    try:
        value = ast.literal_eval(text)
        # Python reads ['a' 'b'], which is how numpy prints a list, as one text.
        return value if len(repr(value)) >= len(text) else text
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return text


def _saved_rows(folder: Path) -> Iterator[Row]:
    """Yield the rows of a data set written by `save_to_disk`, of all its splits."""
    from datasets import DatasetDict, load_from_disk

    try:
        loaded = load_from_disk(str(folder))
    except Exception as error:  # whatever damaged files lead to
        raise DataError(
            f"{folder}: not a data set as save_to_disk writes it: {type(error).__name__}: {error}"
        ) from error
    for name, rows in loaded.items() if isinstance(loaded, DatasetDict) else [("", loaded)]:
        found = _value_rows(f"{folder}:{name}" if name else str(folder), rows)
        yield from within_bound(list(folder.rglob("*.arrow")), found, lambda row: len(row.text))


def _hub_rows(path: str, *, id: str, revision: str | None, config: str | None, split: str | None) -> Iterator[Row]:  # noqa: A002
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
    if path.lower().endswith(SUFFIXES) or Path(path).expanduser().exists():
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
