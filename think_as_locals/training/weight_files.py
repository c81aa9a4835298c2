"""A model's weights as files of a folder: written while others are gathered, and read as soon as they are written."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, wait
from itertools import count
from pathlib import Path
from threading import Condition

from safetensors.torch import save_file
from torch import Tensor

from think_as_locals.runtime.processes import in_background

FILE_BYTES = 256 * 2**20
"""A file's size. Two of them are in memory at most: one being filled, one being written."""


class WeightFiles:
    """Safetensors files that one thread fills with `add`, while any number of others iterate over them.

    If a file cannot be written within `limit_s`, `add` goes on, since other ranks gather weights together with this
    one; iterating then raises the OSError.
    """

    def __init__(self, folder: Path, limit_s: float, file_bytes: int = FILE_BYTES) -> None:
        self.folder = folder
        self._limit_s = limit_s
        self._file_bytes = file_bytes
        self._files: list[Future[Path]] = []
        self._changed = Condition()
        self._closed = False
        self._filled: dict[str, Tensor] = {}

    def __iter__(self) -> Iterator[Path]:
        """Yield every file once it is written, until `close`."""
        for index in count():
            with self._changed:
                while not self._closed and index == len(self._files):
                    self._changed.wait()
            if index == len(self._files):
                return
            yield self._files[index].result()

    def add(self, name: str, tensor: Tensor) -> None:
        """Copy a tensor to the host and into the next file."""
        self._filled[name] = tensor.detach().to("cpu", copy=True).contiguous()
        if sum(each.nbytes for each in self._filled.values()) >= self._file_bytes:
            self._write()

    def close(self) -> None:
        """Write the rest, and end iterations."""
        if self._filled:
            self._write()
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _write(self) -> None:
        wait(self._files[-1:], self._limit_s)
        path, tensors = self.folder / f"weights-{len(self._files):05}.safetensors", self._filled
        self._filled = {}

        def write() -> Path:
            self.folder.mkdir(parents=True, exist_ok=True)
            save_file(tensors, path, metadata={"format": "pt"})
            tensors.clear()
            return path

        with self._changed:
            self._files.append(in_background(write))
            self._changed.notify_all()
