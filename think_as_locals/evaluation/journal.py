"""A journal of a model's answers on disk, and asking only for the answers that it lacks."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from think_as_locals.reward_models.reward_model import (
    Answer,
    Queryable,
    Request,
    RewardModel,
    ScoredItem,
    apply_too_long,
    check_lengths,
    combine,
    is_unanswered,
    query_fitting,
    too_long_reason,
)
from think_as_locals.runtime.files import naming
from think_as_locals.types import ConfigError, DataError, Item, TooLong

Key = Callable[[Request], str]

Advance = Callable[[int, int], None]
"""Reports progress: how many more requests are answered, and how many there are."""


def by_request(request: Request) -> str:
    """Return a key that depends on everything that the answer to a request may depend on."""
    item = request.item
    asked = item.turns or item.prompt
    return _digest([item.id, asked, *item.responses, item.culture, item.language, request.order])


def by_response(request: Request) -> str:
    """Return a key for a request to score one response, which depends only on the prompt and this response."""
    return content_key(request.item.turns or request.item.prompt, request.responses[0])


def content_key(prompt: str | Sequence[Sequence[str]], response: str) -> str:
    """Return the key of a response to a prompt, a text or turns."""
    return _digest([prompt, response])


def _digest(content: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


class Journal:
    """An append-only file of answers, as a context; requests with the same key have one answer.

    The first line identifies the model, and each other line has the key and the answer of a request. An incomplete
    line, left by a killed process, is cut off.
    """

    def __init__(self, path: Path, identity: dict[str, Any], key: Key = by_request) -> None:
        self._path = path
        self.key = key
        self.answers: dict[str, Answer] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        self._file.truncate(self._load(path, identity))
        if not path.stat().st_size:
            self._write({"identity": identity})

    def _load(self, path: Path, identity: dict[str, Any]) -> int:
        """Add the answers of a file; return the length of its whole lines."""
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        then = identity
        for number, line in enumerate(content[:whole].splitlines(), 1):
            try:
                row = json.loads(line)
                if number == 1:
                    then = row["identity"]
                else:
                    self.answers[row["key"]] = row["answer"]
            except (ValueError, KeyError) as error:
                remedy = "remove this line (of the first one: the file), and what is missing is asked again"
                raise DataError(f"{path}:{number}: damaged ({error}): {remedy}") from error
        keys = [key for key in {**then, **identity} if then.get(key) != identity.get(key)]
        if differing := [f"{key} was {then.get(key)!r}, is {identity.get(key)!r}" for key in keys]:
            message = f"{path} holds answers to other questions: {', '.join(differing)}. Choose another run.name"
            raise ConfigError(message)
        return whole

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_error: object) -> None:
        os.fsync(self._file.fileno())
        self._file.close()

    def add(self, key: str, answer: Answer) -> bool:
        """Write the answer to the request with this key to the file; return whether it had none."""
        # The first answer to a request is kept, unless it says that the request was not taken.
        is_new = key not in self.answers
        if is_new or (is_unanswered(self.answers[key]) and not is_unanswered(answer)):
            self._write({"key": key, "answer": answer})
            self.answers[key] = answer
        return is_new

    def _write(self, row: Mapping[str, Any]) -> None:
        line = f"{json.dumps(row, allow_nan=False)}\n".encode()
        with naming(self._path):
            while line:  # one call, unless the disk is full: then the next one raises
                line = line[self._file.write(line) :]


@dataclass(frozen=True, slots=True)
class AnswerCollector:
    """Queries a reward model about items, and keeps its answers in a journal."""

    rm: RewardModel
    journal: Journal
    advance: Advance
    too_long: TooLong = "error"

    def predictions(self, items: Sequence[Item]) -> Iterator[ScoredItem]:
        """Yield judgements in the order of the items: one for each item, or for each order of its responses."""
        return apply_too_long(combine(self.rm, self._answers(items, self.rm.requests)), self.too_long)

    def scores(self, items: Sequence[Item]) -> list[tuple[float, ...]]:
        """Return the scores of each item's responses, in its own order; NaN for a parse failure or if too long."""
        scores, reasons = list[tuple[float, ...]](), dict[str, str]()
        for item, answers in self._answers(items, self.rm.score_requests):
            if found := too_long_reason(answers):
                reasons[item.id] = found[1]
            scores.append(self.rm.scores(item, answers))
        if self.too_long == "error" or all(math.isnan(score) for of_item in scores for score in of_item):
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

        keys = iter(collect(self.rm, self.journal, self.advance, requests(), self.too_long))
        answers = ([self.journal.answers[key] for key in islice(keys, count)] for count in counts)
        return zip(items, answers, strict=True)


def collect(
    queryable: Queryable, journal: Journal, advance: Advance, requests: Iterable[Request], too_long: TooLong = "error"
) -> list[str]:
    """Ask for the answers that a journal lacks, and return the journal's key of each request.

    Requests are sorted by the model's own key (common prefixes, or similar lengths, side by side), and chunks are cut
    from all of them, answered or not: neither the order of the data nor a kill changes a bit of an answer.
    """
    keys, by_key = list[str](), dict[str, Request]()
    for request in requests:
        keys.append(key := journal.key(request))
        by_key[key] = request

    def place(key: str) -> tuple[Any, ...]:
        request = by_key[key]
        return queryable.sort_key(request), request.item.id, request.order

    wanted = sorted(by_key, key=place)
    total, size = len(wanted), queryable.chunk_size
    advance(sum(key in journal.answers for key in wanted), total)

    def is_open(key: str) -> bool:
        """Return whether to send a request: no answer yet, or a server (whose limit may change) did not take it."""
        if key not in journal.answers:
            return True
        return too_long == "error" and size is None and is_unanswered(journal.answers[key])

    if size is None:
        wanted = list(filter(is_open, wanted))
    step = size or len(wanted) or 1
    for start in range(0, len(wanted), step):
        chunk = wanted[start : start + step]
        if not any(map(is_open, chunk)):
            continue
        of_chunk = [by_key.pop(key) for key in chunk]  # from here on only this chunk holds them in memory
        for index, answer in query_fitting(queryable, of_chunk):
            advance(journal.add(chunk[index], answer), total)
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
) -> list[Answer]:
    """Return the answers to requests, asking only for those that the journal at `path` lacks."""
    with Journal(path, identity, key) as journal:
        return [journal.answers[key] for key in collect(queryable, journal, advance, requests, too_long)]
