"""The answer journal: every request is answered once, in any item order and across killed processes."""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import random
import resource
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from items import make_item, row_of

from think_as_locals.evaluation.journal import (
    AnswerCollector,
    Journal,
    by_request,
    by_response,
    content_key,
    query_with_journal,
)
from think_as_locals.reward_models.reward_model import Answered, Request, ScoredItem
from think_as_locals.reward_models.scalar import ResponseScorer
from think_as_locals.types import ConfigError, DataError, Item, TooLong, TooLongError

ITEMS = [
    make_item(id=f"item-{i:03}", prompt=f"{i}?", responses=tuple(f"answer {i}.{j}" for j in range(2 + i % 3)))
    for i in range(60)
]
REQUESTS = sum(len(item.responses) for item in ITEMS)


@dataclass(frozen=True, kw_only=True)
class Hashing(ResponseScorer):
    """Scores each response by a hash, slowly and out of order; notes how often it is asked and in what company."""

    chunk_size: int | None = 16
    pause: float = 0.0
    name: str = "hashing"
    asked: list[Request] = field(default_factory=list)

    @property
    def identity(self) -> dict[str, Any]:
        return {"name": self.name}

    def query(self, requests: Sequence[Request]) -> Answered:
        company = "" if self.chunk_size is None else "".join(r.responses[0] for r in requests)
        for place in range(len(requests))[::-1]:
            time.sleep(self.pause)
            self.asked.append(requests[place])
            text = f"{company}|{requests[place].item.prompt}|{requests[place].responses[0]}"
            yield place, {"score": int(hashlib.sha256(text.encode()).hexdigest()[:12], 16) / 7}


def main(folder: Path, chunk_size: int | None, pause: float) -> None:
    """Measure, and write what came of it."""
    rm = Hashing(chunk_size=chunk_size, pause=pause)
    with Journal(folder / "answers.jsonl", rm.identity) as journal:
        predictions = AnswerCollector(rm, journal, silent).predictions(ITEMS)
    (folder / "result.json").write_text(json.dumps([row_of(prediction) for prediction in predictions]))


def silent(more: int, total: int) -> None:
    """No progress bar."""


def measured(rm: Hashing, path: Path, items: Sequence[Item] = ITEMS) -> list[ScoredItem]:
    with Journal(path, rm.identity) as journal:
        return list(AnswerCollector(rm, journal, silent).predictions(items))


@pytest.mark.parametrize("chunk_size", [None, 1, 16, 1000])
def test_every_request_is_asked_once_and_predictions_keep_item_order(tmp_path: Path, chunk_size: int | None) -> None:
    rm = Hashing(chunk_size=chunk_size)
    predictions = measured(rm, tmp_path / "answers.jsonl")
    with Journal(tmp_path / "answers.jsonl", rm.identity) as journal:
        scores = AnswerCollector(rm, journal, silent).scores(ITEMS)
    assert [tuple(of[i] for i in p.order) for of, p in zip(scores, predictions, strict=True)] == [
        p.scores for p in predictions
    ]
    assert [p.item for p in predictions] == ITEMS
    assert len(rm.asked) == len({by_request(r) for r in rm.asked}) == REQUESTS


def test_answered_requests_are_not_asked_again_in_any_order(tmp_path: Path) -> None:
    shuffled = random.Random(1).sample(ITEMS, len(ITEMS))
    straight = measured(Hashing(), tmp_path / "a.jsonl")
    turned = {p.item.id: p for p in measured(Hashing(), tmp_path / "b.jsonl", shuffled)}
    assert [turned[p.item.id] for p in straight] == straight
    path = tmp_path / "answers.jsonl"
    first = measured(Hashing(), path)
    before = path.read_bytes()
    again = Hashing()
    assert measured(again, path) == first
    assert again.asked == []
    assert path.read_bytes() == before


def test_progress_counts_every_request_once_including_journaled_ones(tmp_path: Path) -> None:
    counted: list[tuple[int, int]] = []
    rm = Hashing()
    for items in (ITEMS[:30], ITEMS):
        counted.clear()
        with Journal(tmp_path / "answers.jsonl", rm.identity) as journal:
            AnswerCollector(rm, journal, lambda more, total: counted.append((more, total))).predictions(items)
        total = sum(len(item.responses) for item in items)
        assert sum(more for more, _ in counted) == total
        assert {of for _, of in counted} == {total}


def test_truncated_line_is_removed_and_its_request_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    first = measured(Hashing(chunk_size=None), path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    again = Hashing(chunk_size=None)
    assert measured(again, path) == first
    assert len(again.asked) == 1
    assert path.read_bytes() == whole


def test_answer_that_does_not_fit_on_disk_is_not_kept(tmp_path: Path) -> None:
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with Journal(tmp_path / "answers.jsonl", {}) as journal:
        first, second = (journal.key(Request(item, (0,))) for item in ITEMS[:2])
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "answers.jsonl").stat().st_size + 250, limits[1]))
            assert journal.add(first, {"text": "there"})
            with pytest.raises(OSError, match="too large"):
                journal.add(second, {"text": "not there" * 100})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, handler)
        assert [first in journal.answers, second in journal.answers] == [True, False]
    with Journal(tmp_path / "answers.jsonl", {}) as journal:
        assert [journal.add(key, {"text": "there"}) for key in (first, second)] == [False, True]
    with Journal(tmp_path / "answers.jsonl", {}) as journal:
        assert journal.answers[second] == {"text": "there"}


def test_damaged_line_is_reported_and_the_file_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    measured(Hashing(), path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[6] = lines[6].replace(b"answer", b"anXwer")
    path.write_bytes(b"".join(lines))
    with pytest.raises(DataError, match=r"answers\.jsonl:7: damaged .*remove this line"):
        measured(Hashing(), path)
    assert path.read_bytes() == b"".join(lines)


class Brief(Hashing):
    """It takes no response with a 1 at its end."""

    def query(self, requests: Sequence[Request]) -> Answered:
        if long := [place for place, each in enumerate(requests) if each.responses[0].endswith("1")]:
            raise TooLongError("at most a few tokens", long)
        yield from super().query(requests)


def test_scores_fail_only_if_no_response_fits_or_that_is_an_error(tmp_path: Path) -> None:
    rm, without_short = Brief(), [replace(item, responses=("a1", "b1")) for item in ITEMS[::3]]
    with Journal(tmp_path / "answers.jsonl", rm.identity) as journal:
        how: TooLong
        for how in ("wrong", "exclude"):
            found = AnswerCollector(rm, journal, silent, how).scores(ITEMS)  # each item has one that is too long
            assert [[math.isnan(score) for score in of_item].index(True) for of_item in found] == [1] * len(ITEMS)
            assert sum(not math.isnan(score) for of_item in found for score in of_item) == REQUESTS - len(ITEMS)
            with pytest.raises(TooLongError, match="20 of 20 items are too long"):
                AnswerCollector(rm, journal, silent, how).scores(without_short)
        with pytest.raises(TooLongError, match="60 of 60 items are too long"):
            AnswerCollector(rm, journal, silent, "error").scores(ITEMS)


def test_journal_of_another_reward_model_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    measured(Hashing(), path)
    with pytest.raises(ConfigError, match=r"name was 'hashing', is 'other'.*another run\.name"):
        measured(Hashing(name="other"), path)


def test_keys_depend_on_what_is_asked_alone() -> None:
    keys = {by_request(Request(item, order)) for item in ITEMS for order in ((0,), (1,), (0, 1), (1, 0))}
    assert len(keys) == 4 * len(ITEMS)
    item = ITEMS[1]
    request = Request(item, (1,))
    assert by_response(request) == content_key(item.prompt, item.responses[1])
    elsewhere = replace(item, id="x", culture=None, language="th", responses=(item.responses[1], "new"), best=1)
    assert by_response(Request(elsewhere, (0,))) == by_response(request)
    assert by_request(Request(elsewhere, (0,))) != by_request(request)
    assert by_response(Request(item, (0,))) != by_response(request)
    assert by_response(Request(replace(item, prompt="Now?"), (1,))) != by_response(request)
    assert content_key("a", "b c") != content_key("a b", "c")
    text = make_item(prompt="user: Hi\n\nassistant: Hello\n\nuser: ?")
    turns = replace(text, turns=(("user", "Hi"), ("assistant", "Hello"), ("user", "?")))
    for key in (by_request, by_response):
        assert key(Request(text, (0,))) != key(Request(turns, (0,)))
    assert by_response(Request(turns, (0,))) == content_key(turns.turns, turns.responses[0])


def test_requests_with_equal_keys_are_asked_once(tmp_path: Path) -> None:
    rm, path = Hashing(chunk_size=None), tmp_path / "answers.jsonl"
    twins = [replace(item, id=f"twin-{item.id}") for item in ITEMS]
    requests = [Request(item, (0,)) for item in (*ITEMS, *twins)]
    answers = query_with_journal(rm, path, rm.identity, requests, silent, key=by_response)
    assert len(rm.asked) == len(ITEMS)
    assert answers[: len(ITEMS)] == answers[len(ITEMS) :]
    with Journal(path, rm.identity, by_response) as journal:
        assert all(journal.key(request) in journal.answers for request in requests)
        assert journal.key(Request(ITEMS[0], (1,))) not in journal.answers


@pytest.mark.parametrize("chunk_size", [0, 16])
def test_measurement_killed_twenty_times_gives_the_same_bytes(tmp_path: Path, chunk_size: int) -> None:
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    undisturbed.mkdir()
    disturbed.mkdir()
    main(undisturbed, chunk_size or None, 0.0)
    rng, kills = random.Random(chunk_size), 0
    processes = multiprocessing.get_context("fork")  # they begin at once
    while not (disturbed / "result.json").is_file():
        process = processes.Process(target=main, args=(disturbed, chunk_size or None, 0.004))
        process.start()
        if kills < 20:
            answers = disturbed / "answers.jsonl"
            held = answers.stat().st_size if answers.is_file() else 0
            # Not before it has begun: a process that is killed while it starts up tells nothing.
            while not (answers.is_file() and answers.stat().st_size > held) and process.is_alive():
                time.sleep(0.001)
            time.sleep(rng.uniform(0, 0.02))
            process.kill()
            kills += 1
        process.join()
    assert kills == 20
    for name in ("result.json", "answers.jsonl"):
        lines = [sorted((folder / name).read_bytes().splitlines()) for folder in (undisturbed, disturbed)]
        assert lines[0] == lines[1]
    keys = [json.loads(line)["key"] for line in (disturbed / "answers.jsonl").read_bytes().splitlines()[1:]]
    assert len(keys) == len(set(keys)) == REQUESTS
