"""Each response scored once, by content, and kept: whatever pairs it stands in and whenever the scorer is killed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import pytest
import torch
from items import make_item
from models.tiny import WORDS, write_classifier

from think_as_locals.evaluation.journal import by_response, content_key
from think_as_locals.evaluation.response_scores import Scores, response_requests, response_scores
from think_as_locals.models.reward_model import Request
from think_as_locals.models.scalar import ScalarRM
from think_as_locals.types import ConfigError, Item


def pair(number: int, one: int, other: int) -> Item:
    responses = tuple(" ".join(WORDS[(number + i) % 7 :][: 2 + i]) for i in (one, other))
    prompt = f"What do people say on day {number}?"
    return make_item(id=f"{one}-{other}/{number}", prompt=prompt, responses=responses, group=f"person-{number % 3}")


ITEMS = [pair(number, *sides) for number in range(8) for sides in combinations(range(4), 2)]
"""Six pairs of four responses to each of eight prompts: 96 places, 32 responses."""

KEYS = {content_key(item.prompt, response) for item in ITEMS for response in item.responses}


@dataclass
class Batches:
    """What a model was given."""

    ids: list[list[list[int]]]

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Rows and length of each batch."""
        return [(len(rows), len(rows[0])) for rows in self.ids]

    @property
    def scored(self) -> int:
        return sum(rows for rows, _ in self.shapes)


@contextmanager
def watched(rm: ScalarRM) -> Iterator[Batches]:
    found = Batches([])

    def note(module: torch.nn.Module, words: object, given: dict[str, torch.Tensor]) -> None:
        found.ids.append(given["input_ids"].tolist())

    handle = rm.model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield found
    finally:
        handle.remove()


@pytest.fixture(scope="module")
def rm(tmp_path_factory: pytest.TempPathFactory) -> ScalarRM:
    path = write_classifier(tmp_path_factory.mktemp("classifier"))
    return ScalarRM.load(path, batch_size=4, chunk_size=8)


def silent(more: int, total: int) -> None:
    """No progress bar."""


def scores(rm: ScalarRM, folder: Path, items: Sequence[Item] = ITEMS) -> Scores:
    return response_scores(rm, response_requests(items), folder, silent)


def test_a_request_for_each_response_and_none_twice() -> None:
    requests = response_requests(ITEMS)
    assert len(requests) == len(KEYS) == 32
    assert {by_response(request) for request in requests} == KEYS


def test_each_response_is_scored_once_however_many_pairs_it_stands_in(rm: ScalarRM, tmp_path: Path) -> None:
    with watched(rm) as batches:
        found = scores(rm, tmp_path)
    assert found.keys() == KEYS
    assert batches.scored == 32
    one_by_one = dict(zip((i.id for i in ITEMS), rm.score(ITEMS), strict=True))
    for item in ITEMS:
        known = [found[content_key(item.prompt, response)] for response in item.responses]
        assert known == pytest.approx(one_by_one[item.id], abs=1e-5)


def test_several_requests_for_one_response_are_one(rm: ScalarRM, tmp_path: Path) -> None:
    every = [Request(item, (i,)) for item in ITEMS for i in (0, 1)]
    with watched(rm) as batches:
        assert response_scores(rm, every, tmp_path, silent).keys() == KEYS
    assert batches.scored == 32


def test_batches_hold_responses_of_like_length(rm: ScalarRM, tmp_path: Path) -> None:
    lengths = {len(row["input_ids"]) for row in rm.rows(response_requests(ITEMS))}
    assert len(lengths) > 3
    with watched(rm) as batches:
        scores(replace(rm, chunk_size=32), tmp_path)
    assert [rows for rows, _ in batches.shapes] == [4] * 8
    widths = [width for _, width in batches.shapes]
    assert widths == sorted(
        widths, reverse=True
    )  # the longest first, and no batch as wide as the longest but the first
    assert widths[-1] < widths[0]


def test_the_order_of_items_changes_no_batch_and_no_bit(rm: ScalarRM, tmp_path: Path) -> None:
    with watched(rm) as batches:
        straight = scores(rm, tmp_path / "a")
    for seed in range(3):
        with watched(rm) as again:
            assert scores(rm, tmp_path / f"{seed}", random.Random(seed).sample(ITEMS, len(ITEMS))) == straight
        assert again.ids == batches.ids


def test_what_is_on_disk_is_not_scored_again(rm: ScalarRM, tmp_path: Path) -> None:
    first = scores(rm, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "rank-0.jsonl").read_text().splitlines()]
    assert {line["key"]: line["answer"]["score"] for line in lines[1:]} == first
    with watched(rm) as batches:
        assert scores(rm, tmp_path) == first
        assert scores(rm, tmp_path, ITEMS[:6]).keys() < KEYS
    assert batches.scored == 0


def test_more_items_cost_their_own_responses(rm: ScalarRM, tmp_path: Path) -> None:
    scores(replace(rm, chunk_size=1), tmp_path, ITEMS[:24])
    with watched(rm) as batches:
        scores(replace(rm, chunk_size=1), tmp_path)
    assert batches.scored == 16


@pytest.mark.parametrize("torn", [b"", b'{"key": "0123456789'])
def test_a_killed_scorer_goes_on_from_the_chunk_it_was_in(rm: ScalarRM, tmp_path: Path, torn: bytes) -> None:
    undisturbed = scores(rm, tmp_path / "undisturbed")
    done = 0

    def die(more: int, total: int) -> None:
        nonlocal done
        done += more
        if done == 18:  # in the third of four chunks of 8
            raise KeyboardInterrupt

    with watched(rm) as before, pytest.raises(KeyboardInterrupt):
        response_scores(rm, response_requests(ITEMS), tmp_path / "killed", die)
    with (tmp_path / "killed" / "rank-0.jsonl").open("ab") as file:
        file.write(torn)
    with watched(rm) as after:
        assert scores(rm, tmp_path / "killed") == undisturbed
    assert (before.scored, after.scored) == (20, 16)  # 16 of whole chunks once, those of the torn chunk together again
    written = [
        sorted((tmp_path / name / "rank-0.jsonl").read_bytes().splitlines()) for name in ("undisturbed", "killed")
    ]
    assert written[0] == written[1]


def test_scores_of_another_model_are_refused(rm: ScalarRM, tmp_path: Path) -> None:
    scores(rm, tmp_path / "scores", ITEMS[:1])
    other = ScalarRM.load(write_classifier(tmp_path / "other"), batch_size=4, chunk_size=8)
    with pytest.raises(ConfigError, match=r"rank-0\.jsonl holds answers to other questions: weights was"):
        scores(other, tmp_path / "scores", ITEMS[:1])


def test_what_is_too_long_is_left_out_not_cut(rm: ScalarRM, tmp_path: Path) -> None:
    lengths = {
        by_response(request): len(row["input_ids"])
        for request, row in zip(response_requests(ITEMS), rm.rows(response_requests(ITEMS)), strict=True)
    }
    limit = sorted(lengths.values())[20]
    found = scores(replace(rm, max_length=limit), tmp_path)
    assert found.keys() == {key for key, length in lengths.items() if length <= limit}
    assert 20 < len(found) < 32


def test_progress_counts_each_response_once(rm: ScalarRM, tmp_path: Path) -> None:
    counted: list[tuple[int, int]] = []
    for items, total in ((ITEMS[:12], 8), (ITEMS, 32)):
        counted.clear()
        response_scores(rm, response_requests(items), tmp_path, lambda *told: counted.append(told))
        assert sum(more for more, _ in counted) == total
        assert {of for _, of in counted} == {total}
