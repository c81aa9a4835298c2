"""File system errors name the path and a remedy, whichever library raised them."""

from __future__ import annotations

import errno
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from think_as_locals.runtime.files import (
    append_json,
    check_writable,
    explain,
    file_fault,
    read_json,
    write_json,
    write_rows,
)
from think_as_locals.types import DataError


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond so many bytes: a disk that is full, as far as a program can tell."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: append_json(Path("/dev/full"), {}), "/dev/full: No space left on device: free the disk"),
        (lambda path: save_file({"a": torch.zeros(9_000)}, path / "a"), "File too large: raise the limit on"),
        (lambda path: write_json(path / "big", "x" * 10_000), "{path}/big: File too large: raise the limit on"),
        (lambda path: (path / "file" / "below").mkdir(), "{path}/file/below: Not a directory: a file is where"),
        (lambda path: (path / "file").mkdir(), "{path}/file: File exists: a file is where a folder is needed"),
        (lambda path: path.write_text("x"), "{path}: Is a directory: a file is where a folder is needed"),
        (lambda path: write_json(path / ("x" * 300), {}), "File name too long: choose a shorter name"),
    ],
)
def test_file_error_names_the_path_and_a_remedy(tmp_path: Path, write: Callable[[Path], object], message: str) -> None:
    (tmp_path / "file").touch()
    with file_size_limit(5_000), pytest.raises(Exception) as caught:  # noqa: PT011
        write(tmp_path)
    fault = file_fault(caught.value)
    assert fault is not None
    assert message.format(path=tmp_path) in explain(fault)
    assert not list(tmp_path.glob(".*"))


def test_new_file_that_cannot_be_flushed_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_rows(tmp_path / "rows.jsonl", [{"a": 1}])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (OSError(errno.EROFS, "Read-only file system", "/data/runs"), "choose a folder that can be written to"),
        (PermissionError(errno.EACCES, "Permission denied", "/data/runs"), "have access granted"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "free some of your quota"),
        (OSError(errno.EMFILE, "Too many open files", "/data/runs"), "ulimit -n"),
        (PermissionError(errno.EACCES, "Permission denied"), None),  # a connection, perhaps
        (OSError("no such model"), None),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), None),
        (ValueError("a bug"), None),
    ],
)
def test_file_fault_is_found_in_the_exception_chain(error: Exception, remedy: str | None) -> None:
    try:
        try:
            raise error
        finally:
            raise RuntimeError("unexpected pos 5952 vs 5844")
    except RuntimeError as outer:
        fault = file_fault(outer)
    assert (fault and remedy and remedy in explain(fault)) or fault is remedy is None


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[]", "{", '{"a": ' + "9" * 5000 + "}"])
def test_file_without_a_json_object_is_rejected_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "found.json").write_text(text)
    with pytest.raises(DataError, match=r"found\.json: (not JSON|expected a JSON object)"):
        read_json(tmp_path / "found.json")


def test_probe_detects_a_full_disk_and_leaves_no_file(tmp_path: Path) -> None:
    check_writable(tmp_path)
    with file_size_limit(500_000), pytest.raises(OSError, match=f"File too large: .{tmp_path}"):
        check_writable(tmp_path)
    assert not list(tmp_path.iterdir())
