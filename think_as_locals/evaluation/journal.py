"""Answers of a model on disk, a line each, and the collector that asks only for those that are not there."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from think_as_locals.reward_models.reward_model import (
    TOO_LONG,
    Answer,
    Asker,
    Request,
    RewardModel,
    ScoredItem,
    ask_fitting,
    check_lengths,
    combine,
    reasons_of,
    settle,
)
from think_as_locals.runtime.files import naming
from think_as_locals.runtime.ranks import ALONE, Peers
from think_as_locals.types import ConfigError, DataError, Item, TooLong

Key = Callable[[Request], str]

Advance = Callable[[int, int], None]
"""Progress: how many more requests have their answer, of how many there are."""


def by_request(request: Request) -> str:
    """Return a key for a request that depends on everything its answer may depend on."""
    item = request.item
    return _digest(item.id, item.prompt, *item.responses, item.culture, item.language, request.order)


def by_response(request: Request) -> str:
    """Return a key for a request to score one response: it depends on the prompt and this response alone."""
    return content_key(request.item.prompt, request.responses[0])


def content_key(prompt: str, response: str) -> str:
    """Return the key of a response to a prompt, whichever others it is compared with."""
    return _digest(prompt, response)


def _digest(*content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


class Journal:
    """An append-only file of answers, for a `with` statement; requests with the same key have one answer.

    The first line identifies the model, each other one holds a request's key and its answer. Half a line, which
    a killed process leaves, is cut off and its request asked again. Of several processes each writes a file of its
    own, and all read all of them.
    """

    def __init__(self, path: Path, identity: dict[str, Any], key: Key = by_request, peers: Peers = ALONE) -> None:
        parts = path.with_suffix(".parts")
        self._path = path if peers.is_main else parts / f"{peers.rank}.jsonl"
        self.key = key
        self._answers: dict[str, Answer] = {}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("ab", buffering=0)
        written = self._path.read_bytes()
        os.truncate(self._path, whole := written.rfind(b"\n") + 1)
        if not whole:
            self._write({"identity": identity})
        for file in (path, *sorted(parts.glob("*.jsonl"))):
            self._load(file, identity)

    def _load(self, path: Path, identity: dict[str, Any]) -> None:
        """Add the answers of a file; half a line at its end is another process's, which writes it."""
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        lines = [line for line in lines if line.endswith(b"\n")]
        if not lines:
            return
        then = _read(path, lines[0], 1).get("identity")
        if not isinstance(then, dict):
            raise DataError(f"{path}:1: does not identify the model of its answers: move the file away")
        keys = [key for key in {**then, **identity} if then.get(key) != identity.get(key)]
        if differing := [f"{key} was {then.get(key)!r}, is {identity.get(key)!r}" for key in keys]:
            message = f"{path} holds answers to other questions: {', '.join(differing)}. Choose another run.name"
            raise ConfigError(message)
        for number, line in enumerate(lines[1:], start=2):
            row = _read(path, line, number)
            self._answers[row["key"]] = row["answer"]

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_error: object) -> None:
        os.fsync(self._file.fileno())
        self._file.close()

    def __contains__(self, request: Request) -> bool:
        return self.key(request) in self._answers

    def __getitem__(self, request: Request) -> Answer:
        return self._answers[self.key(request)]

    def add(self, request: Request, answer: Answer) -> None:
        """Keep an answer; the first one to a request stands, unless it was that it is too long."""
        key = self.key(request)
        if key not in self._answers or (TOO_LONG in self._answers[key] and TOO_LONG not in answer):
            self._write({"key": key, "answer": answer})
            self._answers[key] = answer

    def _write(self, row: dict[str, Any]) -> None:
        left = memoryview(json.dumps(row, ensure_ascii=True, allow_nan=False).encode() + b"\n")
        with naming(self._path):
            while left:  # one call, unless the disk is nearly full: then the next one raises
                left = left[self._file.write(left) :]

    def share(self, requests: Sequence[Request], peers: Peers) -> None:
        """Add the answers that the other processes have got to theirs: all call this."""
        for answers in peers.exchange({self.key(request): self[request] for request in requests}):
            self._answers |= answers


def _read(path: Path, line: bytes, number: int) -> dict[str, Any]:
    try:
        row: dict[str, Any] = json.loads(line)
        if number > 1 and not ("key" in row and isinstance(row["answer"], dict)):
            raise ValueError("neither key nor answer")
    except (ValueError, TypeError, KeyError) as error:
        remedy = "remove this line, and its request is asked again"
        raise DataError(f"{path}:{number}: damaged ({error}): {remedy}") from error
    return row


@dataclass(frozen=True, slots=True)
class AnswerCollector:
    """Asks a reward model about items, by way of a journal that survives the process.

    Requests are sorted by the model's own key (common prefixes, or similar lengths, side by side), and chunks are cut
    from all of them, answered or not: neither the order of the data nor a kill changes a bit of an answer. Several
    processes take the chunks in turn, and all have all answers in the end.
    """

    rm: RewardModel
    journal: Journal
    advance: Advance
    too_long: TooLong = "error"
    peers: Peers = ALONE

    def predictions(self, items: Sequence[Item]) -> list[ScoredItem]:
        """Return its judgements in the order of items: one for each, or one for each order of its responses."""
        return settle(combine(self.rm, self._answers(items, self.rm.requests)), self.too_long)

    def scores(self, items: Sequence[Item]) -> list[tuple[float, ...]]:
        """Return its score of each response, in the item's own order; NaN for a parse failure or what is too long."""
        answered = self._answers(items, self.rm.score_requests)
        check_lengths(reasons_of(answered), len(answered), self.too_long)
        return [self.rm.scores(item, answers) for item, answers in answered]

    def _answers(
        self, items: Sequence[Item], requests_of: Callable[[Item], Sequence[Request]]
    ) -> list[tuple[Item, list[Answer]]]:
        asked = [(item, requests_of(item)) for item in items]
        self.collect([request for _, requests in asked for request in requests])
        return [(item, [self.journal[request] for request in requests]) for item, requests in asked]

    def collect(self, requests: Sequence[Request]) -> None:
        """Ask for the answers that the journal lacks."""
        collect(self.rm, self.journal, self.advance, requests, self.too_long, self.peers)


def collect(
    asker: Asker,
    journal: Journal,
    advance: Advance,
    requests: Sequence[Request],
    too_long: TooLong = "error",
    peers: Peers = ALONE,
) -> None:
    """Ask for the answers to requests that a journal lacks; chunks are as `AnswerCollector` says."""
    by_key = {journal.key(request): request for request in requests}
    wanted = sorted(by_key.values(), key=lambda r: (asker.sort_key(r), r.item.id, r.order))
    advance(sum(request in journal for request in wanted), len(wanted))
    total, size = len(wanted), asker.chunk_size

    def is_open(request: Request) -> bool:
        """Whether to ask: there is no answer, or it was too long for a server, which failed: that may take more now."""
        if request not in journal:
            return True
        return too_long == "error" and size is None and TOO_LONG in journal[request]

    def keep(chunk: Sequence[Request], place: int, answer: Answer) -> None:
        is_new = chunk[place] not in journal
        journal.add(chunk[place], answer)
        advance(int(is_new), total)

    if size is None:
        wanted = [request for request in wanted if is_open(request)]
    step = size or math.ceil(len(wanted) / peers.size) or 1
    chunks = [wanted[start : start + step] for start in range(0, len(wanted), step)]
    mine = chunks[peers.rank :: peers.size]
    for chunk in mine:
        if not any(map(is_open, chunk)):
            continue
        ask_fitting(asker, chunk, partial(keep, chunk))
        if missing := [request.item.id for request in chunk if request not in journal]:
            raise RuntimeError(f"{len(missing)} requests have no answer, such as one of {missing[0]!r}")
    if peers.size > 1:
        journal.share(list(chain.from_iterable(mine)), peers)
