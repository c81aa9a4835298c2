"""A measurement: every request answered once, whatever the order of items and whenever the process is killed."""

from __future__ import annotations

import json
import multiprocessing
import random
import resource
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from evaluation.answering import ITEMS, Hashing, main

from think_as_locals.evaluation.journal import (
    AnswerCollector,
    Journal,
    by_request,
    by_response,
    content_key,
    query_with_journal,
)
from think_as_locals.reward_models.reward_model import Keep, Request, ScoredItem
from think_as_locals.types import ConfigError, DataError


def silent(more: int, total: int) -> None:
    """No progress bar."""


REQUESTS = sum(len(item.responses) for item in ITEMS)


def measured(rm: Hashing, path: Path, items: list = ITEMS) -> list[ScoredItem]:  # type: ignore[type-arg]
    with Journal(path, rm.identity) as journal:
        return list(AnswerCollector(rm, journal, silent).predictions(items))


@pytest.mark.parametrize("chunk_size", [None, 1, 16, 1000])
def test_every_request_is_asked_once_and_predictions_stand_in_the_order_of_items(
    tmp_path: Path, chunk_size: int | None
) -> None:
    rm = Hashing(chunk_size)
    predictions = measured(rm, tmp_path / "answers.jsonl")
    assert [p.item for p in predictions] == ITEMS
    assert len(rm.asked) == len({by_request(r) for r in rm.asked}) == REQUESTS


def test_the_order_of_items_changes_nothing(tmp_path: Path) -> None:
    shuffled = random.Random(1).sample(ITEMS, len(ITEMS))
    straight = measured(Hashing(), tmp_path / "a.jsonl")
    turned = {p.item.id: p for p in measured(Hashing(), tmp_path / "b.jsonl", shuffled)}
    assert [turned[p.item.id] for p in straight] == straight


def test_what_is_in_the_journal_is_not_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    first = measured(Hashing(), path)
    before = path.read_bytes()
    again = Hashing()
    assert measured(again, path) == first
    assert again.asked == []
    assert path.read_bytes() == before


def test_progress_counts_each_request_once_also_those_answered_before(tmp_path: Path) -> None:
    counted: list[tuple[int, int]] = []
    rm = Hashing()
    for items in (ITEMS[:30], ITEMS):
        counted.clear()
        with Journal(tmp_path / "answers.jsonl", rm.identity) as journal:
            AnswerCollector(rm, journal, lambda more, total: counted.append((more, total))).predictions(items)
        total = sum(len(item.responses) for item in items)
        assert sum(more for more, _ in counted) == total
        assert {of for _, of in counted} == {total}


def test_scores_stand_in_the_order_of_the_items_own_responses(tmp_path: Path) -> None:
    rm = Hashing(None)
    with Journal(tmp_path / "answers.jsonl", rm.identity) as journal:
        scores = AnswerCollector(rm, journal, silent).scores(ITEMS)
        predicted = list(AnswerCollector(rm, journal, silent).predictions(ITEMS))
    assert scores == [prediction.scores for prediction in predicted]
    assert len(rm.asked) == REQUESTS  # the same requests: what one asked, the other found


def test_a_reward_model_that_leaves_a_request_out_is_found_out(tmp_path: Path) -> None:
    class Forgetful(Hashing):
        def query(self, requests: list[Request], keep: Keep) -> None:  # type: ignore[override]
            super().query(requests[1:], lambda place, answer: keep(place + 1, answer))

    with pytest.raises(RuntimeError, match="1 requests have no answer, such as one of 'item-000'"):
        measured(Forgetful(), tmp_path / "answers.jsonl")


def test_half_a_line_is_cut_off_and_its_request_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    first = measured(Hashing(None), path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    again = Hashing(None)
    assert measured(again, path) == first
    assert len(again.asked) == 1
    assert path.read_bytes() == whole


def test_an_answer_for_which_there_is_no_room_is_not_taken_for_kept(tmp_path: Path) -> None:
    first, second = (Request(item, (0,)) for item in ITEMS[:2])
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with Journal(tmp_path / "answers.jsonl", {}) as journal:
        journal.add(journal.key(first), {"text": "there"})
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "answers.jsonl").stat().st_size + 50, limits[1]))
            with pytest.raises(OSError, match="too large"):
                journal.add(journal.key(second), {"text": "not there" * 100})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, handler)
        assert not journal.has(journal.key(second))
    with Journal(tmp_path / "answers.jsonl", {}) as journal:
        assert journal.has(journal.key(first))
        assert not journal.has(journal.key(second))


def test_a_damaged_line_is_named_and_the_file_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    measured(Hashing(), path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[6] = lines[6].replace(b"answer", b"anXwer")
    path.write_bytes(b"".join(lines))
    with pytest.raises(DataError, match=r"answers\.jsonl:7: damaged .*remove this line"):
        measured(Hashing(), path)
    assert path.read_bytes() == b"".join(lines)


def test_answers_of_another_reward_model_are_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    measured(Hashing(), path)
    with pytest.raises(ConfigError, match=r"name was 'hashing', is 'other'.*another run\.name"):
        measured(Hashing(name="other"), path)


def test_another_prompt_or_order_is_another_request() -> None:
    keys = {by_request(Request(item, order)) for item in ITEMS for order in ((0,), (1,), (0, 1), (1, 0))}
    assert len(keys) == 4 * len(ITEMS)


def test_by_response_the_prompt_and_this_response_alone_are_the_key() -> None:
    item = ITEMS[1]
    request = Request(item, (1,))
    assert by_response(request) == content_key(item.prompt, item.responses[1])
    elsewhere = replace(item, id="x", culture=None, language="th", responses=(item.responses[1], "new"), best=1)
    assert by_response(Request(elsewhere, (0,))) == by_response(request)
    assert by_request(Request(elsewhere, (0,))) != by_request(request)
    assert by_response(Request(item, (0,))) != by_response(request)
    assert by_response(Request(replace(item, prompt="Now?"), (1,))) != by_response(request)
    assert content_key("a", "b c") != content_key("a b", "c")


def test_requests_of_one_key_are_asked_once_and_have_one_answer(tmp_path: Path) -> None:
    rm, path = Hashing(None), tmp_path / "answers.jsonl"
    twins = [replace(item, id=f"twin-{item.id}") for item in ITEMS]
    requests = [Request(item, (0,)) for item in (*ITEMS, *twins)]
    answers = query_with_journal(rm, path, rm.identity, requests, silent, key=by_response)
    assert len(rm.asked) == len(ITEMS)
    assert answers[: len(ITEMS)] == answers[len(ITEMS) :]
    with Journal(path, rm.identity, by_response) as journal:
        assert all(journal.has(journal.key(request)) for request in requests)
        assert not journal.has(journal.key(Request(ITEMS[0], (1,))))


@pytest.mark.parametrize("chunk_size", [0, 16])
def test_twenty_kills_leave_the_same_bytes(tmp_path: Path, chunk_size: int) -> None:
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
            answers, held = disturbed / "answers.jsonl", 0
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
