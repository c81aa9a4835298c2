"""Where rows can be: a file, a folder of files, a data set on the Hub."""

from __future__ import annotations

import re
from pathlib import Path

from think_as_locals.types import DataError

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet", ".csv", ".csv.gz")
# What the Hub knows of a data set.
_NO_ROWS = ("config.json", "dataset_dict.json", "dataset_info.json", "dataset_infos.json")
_HUB_ID = re.compile(
    r"(?P<id>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?(?::(?P<config>[^:]+))?(?::(?P<split>[^:]+))?"
)


def hub_id(path: str) -> re.Match[str] | None:
    """The parts of a Hub id, where a path is one: nothing of that name is here, and it does not end as a file does."""
    if local_path(path).exists() or path.lower().endswith(SUFFIXES):
        return None
    return _HUB_ID.fullmatch(path)


def read_once(path: str) -> bool:
    """Whether what is read is gone: a pipe."""
    local = local_path(path)
    return local.exists() and not local.is_file() and not local.is_dir()


def local_path(path: str) -> Path:
    """What a path names on this machine, be it there or not.

    Raises:
        DataError: it can name nothing.
    """
    try:
        local = Path(path).expanduser()
        local.exists()
    except (OSError, RuntimeError) as error:  # too long, no such user
        raise DataError(f"{path}: no path and no Hub id: {error}") from error
    if not path or "\0" in path:
        raise DataError(f"{path!r} is no path: expected a file of rows, a folder of such, or a Hub id")
    return local


def has_rows(file: Path, folder: Path) -> bool:
    """Whether a file of a folder is one of rows: hidden files are copies and caches of others."""
    name, hidden = file.name.lower(), any(part.startswith(".") for part in file.relative_to(folder).parts)
    return name.endswith(SUFFIXES) and not hidden and name not in _NO_ROWS and file.is_file()
