"""Answers of a reward model on disk, a line each: what was answered once is not asked again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from think_as_locals.models.reward_model import Answer, Request
from think_as_locals.types import ConfigError, DataError

Key = Callable[[Request], str]
"""A name for a request."""


def by_request(request: Request) -> str:
    """A name for a request that depends on everything its answer may depend on."""
    item = request.item
    content = [item.id, item.prompt, *item.responses, item.culture, item.language, list(request.order)]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def by_response(request: Request) -> str:
    """A name for a request to score one response, that depends on the prompt and this response alone."""
    return content_key(request.item.prompt, request.responses[0])


def content_key(prompt: str, response: str) -> str:
    """The name of a response to a prompt, whoever compared it with what."""
    return hashlib.sha256(json.dumps([prompt, response]).encode()).hexdigest()[:32]


class Journal:
    """An append-only file of answers; use it in a `with` statement.

    The first line says whose answers they are, each other one holds a request's key and its answer. A line counts once
    its end is there, so half a line, which a killed process leaves, is cut off and its request asked again.

    Args:
        path: The file; made where it is not there.
        identity: `RewardModel.identity`.
        key: What two requests have in common that have one answer.

    Raises:
        ConfigError: the file holds answers of another reward model, or of the same one asked in another way.
        DataError: a line is damaged; the message names it.
    """

    def __init__(self, path: Path, identity: dict[str, Any], key: Key = by_request) -> None:
        self._path = path
        self.key = key
        self._answers: dict[str, Answer] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        lines = path.read_bytes().splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):
            torn = lines.pop()
            os.truncate(path, path.stat().st_size - len(torn))
        if not lines:
            self._write({"identity": identity})
            return
        self._check(self._read(lines[0], 1).get("identity"), identity)
        for number, line in enumerate(lines[1:], start=2):
            row = self._read(line, number)
            self._answers[row["key"]] = row["answer"]

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.fsync(self._file.fileno())
        self._file.close()

    def __contains__(self, request: Request) -> bool:
        return self.key(request) in self._answers

    def __getitem__(self, request: Request) -> Answer:
        return self._answers[self.key(request)]

    def add(self, request: Request, answer: Answer) -> None:
        """Keep an answer; the first one to a request stands."""
        key = self.key(request)
        if key not in self._answers:
            self._write({"key": key, "answer": answer})
            self._answers[key] = answer

    def _write(self, row: dict[str, Any]) -> None:
        left = memoryview(json.dumps(row, ensure_ascii=True, allow_nan=False).encode() + b"\n")
        while left:  # one call, unless the disk is nearly full: then the next one raises
            left = left[self._file.write(left) :]

    def _read(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            row = json.loads(line)
            if number > 1 and not ("key" in row and isinstance(row["answer"], dict)):
                raise ValueError("neither key nor answer")
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(
                f"{self._path}:{number}: damaged ({error}): remove this line, and its request is asked again"
            ) from error
        read: dict[str, Any] = row
        return read

    def _check(self, then: Any, now: dict[str, Any]) -> None:
        if not isinstance(then, dict):
            raise DataError(f"{self._path}:1: does not say whose answers these are: move the file away")
        differing = [key for key in {**then, **now} if then.get(key) != now.get(key)]
        if differing:
            told = ", ".join(f"{key} was {then.get(key)!r}, is {now.get(key)!r}" for key in differing)
            raise ConfigError(f"{self._path} holds answers to other questions: {told}. Choose another run.name")
