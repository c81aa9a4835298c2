"""A journal of a model's answers on disk, and asking only for the answers that it lacks."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, groupby, islice
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

from think_as_locals.reward_models.reward_model import (
    TOO_LONG,
    Answer,
    Queryable,
    Request,
    RewardModel,
    ScoredItem,
    apply_too_long,
    check_lengths,
    combine,
    query_fitting,
    too_long_reason,
)
from think_as_locals.runtime.files import naming
from think_as_locals.runtime.ranks import ALONE, Peers
from think_as_locals.types import ConfigError, DataError, Item, TooLong

Key = Callable[[Request], str]

Advance = Callable[[int, int], None]
"""Reports progress: how many more requests are answered, and how many there are."""

_SHOW_EVERY = 0.1  # seconds
_ITEM_AND_ORDER = attrgetter("item.id", "order")


def by_request(request: Request) -> str:
    """Return a key that depends on everything that the answer to a request may depend on."""
    digest = _digest_of(request.item).copy()
    digest.update(_end_of_content(request.order))
    return str(digest.hexdigest()[:32])


@lru_cache
def _end_of_content(order: tuple[int, ...]) -> bytes:
    return f", {list(order)}]".encode()


@lru_cache(maxsize=1)  # for all requests about an item
def _digest_of(item: Item) -> Any:
    content = [item.id, item.prompt, *item.responses, item.culture, item.language]
    return hashlib.sha256(_encoded(content)[:-1])


def by_response(request: Request) -> str:
    """Return a key for a request to score one response, which depends only on the prompt and this response."""
    return content_key(request.item.prompt, request.responses[0])


def content_key(prompt: str, response: str) -> str:
    """Return the key of a response to a prompt."""
    return hashlib.sha256(json.dumps((prompt, response)).encode()).hexdigest()[:32]


# `json.dumps` makes an encoder for each value, and notes its parts to find references to itself.
_ENCODER = json.JSONEncoder(ensure_ascii=True, allow_nan=False, check_circular=False)
_DECODER = json.JSONDecoder()  # its `raw_decode` takes half the time of `json.loads`, which looks for spaces around


def _encoded(value: Any) -> bytes:
    return _ENCODER.encode(value).encode()


class Journal:
    """An append-only file of answers, as a context; requests with the same key have one answer.

    The first line identifies the model, and each other line has the key and the answer of a request. An incomplete
    line, left by a killed process, is cut off. Several processes write a file each, and all read all files.
    """

    def __init__(self, path: Path, identity: dict[str, Any], key: Key = by_request, peers: Peers = ALONE) -> None:
        parts = path.with_suffix(".parts")
        self._path = path if peers.is_main else parts / f"{peers.rank}.jsonl"
        self._key = key
        self._answers: dict[bytes, bytes] = {}  # JSON by digest: a third of the memory of dictionaries by hex
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("ab", buffering=0)
        os.truncate(self._path, whole := self._path.read_bytes().rfind(b"\n") + 1)
        if not whole:
            self._write(_encoded({"identity": identity}) + b"\n")
        for file in (path, *sorted(parts.glob("*.jsonl"))):
            self._load(file, identity)

    def _load(self, path: Path, identity: dict[str, Any]) -> None:
        """Add the answers of a file; an incomplete line at its end is being written by another process."""
        if not path.exists():
            return
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):
                    return
                if number == 1:
                    _check_identity(path, line, identity)
                    continue
                key, answer = _read(path, line, number, lambda row: (bytes.fromhex(row["key"]), {**row["answer"]}))
                self._answers[key] = _encoded(answer)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_error: object) -> None:
        os.fsync(self._file.fileno())
        self._file.close()

    def key(self, request: Request) -> bytes:
        """Return the key of a request, which the other methods take."""
        return bytes.fromhex(self._key(request))

    def has(self, key: bytes) -> bool:
        """Return whether there is an answer to a request."""
        return key in self._answers

    def answers(self, keys: Iterable[bytes]) -> list[Answer]:
        """Return the answers to some requests."""
        # Decoded together, four take less than half of the time.
        content = b"[%s]" % b",".join(map(self._answers.__getitem__, keys))
        answers: list[Answer] = _DECODER.raw_decode(content.decode())[0]
        return answers

    def answer(self, key: bytes) -> Answer:
        """Return the answer to a request."""
        (answer,) = self.answers([key])
        return answer

    def add(self, answers: Mapping[bytes, Answer]) -> int:
        """Write answers to the file, by the key of their request; return how many of these had none.

        The first answer to a request is kept, unless it says that the request is too long.
        """
        added = {
            key: _encoded(answer)
            for key, answer in answers.items()
            if key not in self._answers or (TOO_LONG in self.answer(key) and TOO_LONG not in answer)
        }
        lines = (b'{"key": "%s", "answer": %s}\n' % (key.hex().encode(), content) for key, content in added.items())
        self._write(b"".join(lines))
        before = len(self._answers)
        self._answers |= added
        return len(self._answers) - before

    def _write(self, lines: bytes) -> None:
        try:
            while lines:  # one call, unless the disk is full: then the next one raises
                lines = lines[self._file.write(lines) :]
        except OSError:
            with naming(self._path):
                raise

    def share(self, keys: Iterable[bytes], peers: Peers) -> None:
        """Exchange answers with the other processes, which all call this."""
        for answers in peers.exchange({key: self._answers[key] for key in keys}):
            self._answers |= answers


def _check_identity(path: Path, line: bytes, identity: dict[str, Any]) -> None:
    """Raise an error unless the first line is that of a journal of this model."""
    then = _read(path, line, 1, lambda row: row.get("identity"))
    if not isinstance(then, dict):
        raise DataError(f"{path}:1: does not identify the model of its answers: move the file away")
    keys = [key for key in {**then, **identity} if then.get(key) != identity.get(key)]
    if differing := [f"{key} was {then.get(key)!r}, is {identity.get(key)!r}" for key in keys]:
        message = f"{path} holds answers to other questions: {', '.join(differing)}. Choose another run.name"
        raise ConfigError(message)


def _read(path: Path, line: bytes, number: int, content: Callable[[dict[str, Any]], Any]) -> Any:
    """Return the content of a line; a DataError names the line if it is damaged."""
    try:
        return content(json.loads(line))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        remedy = "remove this line, and its request is asked again"
        raise DataError(f"{path}:{number}: damaged ({error}): {remedy}") from error


@dataclass(frozen=True, slots=True)
class AnswerCollector:
    """Queries a reward model about items, and keeps its answers in a journal."""

    rm: RewardModel
    journal: Journal
    advance: Advance
    too_long: TooLong = "error"
    peers: Peers = ALONE

    def predictions(self, items: Sequence[Item]) -> Iterator[ScoredItem]:
        """Yield judgements in the order of the items: one for each item, or for each order of its responses."""
        return apply_too_long(combine(self.rm, self._answers(items, self.rm.requests)), self.too_long)

    def scores(self, items: Sequence[Item]) -> list[tuple[float, ...]]:
        """Return the scores of each item's responses, in its own order; NaN for a parse failure or if too long."""
        scores, reasons = list[tuple[float, ...]](), dict[str, str]()
        for item, answers in self._answers(items, self.rm.score_requests):
            if why := too_long_reason(answers):
                reasons[item.id] = why
            scores.append(self.rm.scores(item, answers))
        check_lengths(reasons, len(scores), self.too_long)
        return scores

    def _answers(
        self, items: Sequence[Item], requests_of: Callable[[Item], Sequence[Request]]
    ) -> Iterator[tuple[Item, list[Answer]]]:
        """Ask for the answers to all requests about items, and return an iterator of items with their answers."""
        counts = list[int]()

        def requests() -> Iterator[Request]:
            for item in items:
                of_item = requests_of(item)
                counts.append(len(of_item))
                yield from of_item

        keys = iter(collect(self.rm, self.journal, self.advance, requests(), self.too_long, self.peers))
        answers = (self.journal.answers(islice(keys, count)) for count in counts)
        return zip(items, answers, strict=True)


def collect(
    queryable: Queryable,
    journal: Journal,
    advance: Advance,
    requests: Iterable[Request],
    too_long: TooLong = "error",
    peers: Peers = ALONE,
) -> list[bytes]:
    """Ask for the answers that a journal lacks, and return the journal's key of each request.

    Requests are sorted by the model's own key (common prefixes, or similar lengths, side by side), and chunks are cut
    from all of them, answered or not: neither the order of the data nor a kill changes a bit of an answer. Several
    processes take the chunks in turn, and each has all answers in the end.
    """
    keys, by_key = list[bytes](), dict[bytes, Request]()
    for request in requests:
        keys.append(key := journal.key(request))
        by_key[key] = request
    # By the model's key, then item, then order. The requests about an item mostly have one key of the model: they
    # are sorted as one, which saves most of the time and memory.
    wanted = sorted(by_key, key=lambda key: _ITEM_AND_ORDER(by_key[key]))
    runs = [(value, list(run)) for value, run in groupby(wanted, lambda key: queryable.sort_key(by_key[key]))]
    runs.sort(key=itemgetter(0))
    wanted = list(chain.from_iterable(run for _, run in runs))
    del runs
    progress = _Progress(advance, len(wanted))
    progress.add(sum(map(journal.has, wanted)))
    progress.show()
    size = queryable.chunk_size

    def is_open(key: bytes) -> bool:
        """Return whether to send a request: no answer yet, or a server (whose limit may change) called it too long."""
        if not journal.has(key):
            return True
        return too_long == "error" and size is None and TOO_LONG in journal.answer(key)

    def keep(chunk: Sequence[bytes], answers: Mapping[int, Answer]) -> None:
        progress.add(journal.add({chunk[index]: answer for index, answer in answers.items()}))

    if size is None:
        wanted = list(filter(is_open, wanted))
    step = size or math.ceil(len(wanted) / peers.size) or 1
    mine = [slice(start, start + step) for start in range(0, len(wanted), step)][peers.rank :: peers.size]
    for part in mine:
        chunk = wanted[part]
        if not any(map(is_open, chunk)):
            continue
        of_chunk = [by_key.pop(key) for key in chunk]  # from here on only this chunk holds them in memory
        query_fitting(queryable, of_chunk, partial(keep, chunk))
        progress.show()
        if missing := [each.item.id for key, each in zip(chunk, of_chunk, strict=True) if not journal.has(key)]:
            raise RuntimeError(f"{len(missing)} requests have no answer, such as one of {missing[0]!r}")
    if peers.size > 1:
        journal.share(chain.from_iterable(wanted[part] for part in mine), peers)
    return keys


def query_with_journal(
    queryable: Queryable,
    path: Path,
    identity: dict[str, Any],
    requests: Sequence[Request],
    advance: Advance,
    *,
    key: Key = by_request,
    too_long: TooLong = "error",
    peers: Peers = ALONE,
) -> list[Answer]:
    """Return the answers to requests, asking only for those that the journal at `path` lacks."""
    with Journal(path, identity, key, peers) as journal:
        peers.exchange(None)  # all have read what there is before anyone writes
        return [journal.answer(key) for key in collect(queryable, journal, advance, requests, too_long, peers)]


class _Progress:
    """Shows how many requests are answered, at most ten times a second: a million updates would take minutes."""

    def __init__(self, advance: Advance, total: int) -> None:
        self._advance, self._total = advance, total
        self._new, self._shown = 0, time.monotonic()

    def add(self, more: int) -> None:
        """Count answers, and show the count if the last time was long enough ago."""
        self._new += more
        if time.monotonic() - self._shown > _SHOW_EVERY:
            self.show()

    def show(self) -> None:
        """Show the count."""
        self._advance(self._new, self._total)
        self._new, self._shown = 0, time.monotonic()
