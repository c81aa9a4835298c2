"""Scoring each response once with resumption, and distances between scores and a country's survey answers."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from items import make_item
from reward_models.tiny import WORDS, write_classifier

from think_as_locals.data.sources.globalopinionqa import OpinionQuestion, others_mean
from think_as_locals.evaluation.journal import by_response, content_key
from think_as_locals.reward_models.reward_model import Request
from think_as_locals.reward_models.scalar import ScalarRM
from think_as_locals.scpo.results import Scores, js_distance, opinion_distances, response_requests, score_responses
from think_as_locals.types import DataError, Item


def pair(number: int, one: int, other: int) -> Item:
    responses = tuple(" ".join(WORDS[(number + i) % 7 :][: 2 + i]) for i in (one, other))
    prompt = f"What do people say on day {number}?"
    return make_item(id=f"{one}-{other}/{number}", prompt=prompt, responses=responses, group=f"person-{number % 3}")


ITEMS = [pair(number, *sides) for number in range(8) for sides in combinations(range(4), 2)]
"""Six pairs of four responses to each of eight prompts: 96 places, 32 responses."""

KEYS = {content_key(item.prompt, response) for item in ITEMS for response in item.responses}


@pytest.fixture(scope="module")
def rm(tmp_path_factory: pytest.TempPathFactory) -> ScalarRM:
    path = write_classifier(tmp_path_factory.mktemp("classifier"))
    return ScalarRM.load(path, batch_size=4, chunk_size=8)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[list[Request]]:
    """The requests of each batch that a model has scored."""
    found, scored = list[list[Request]](), ScalarRM._scored_batches

    def noted(self: ScalarRM, requests: Sequence[Request], rows: Any) -> Iterator[Any]:
        for indices, values in scored(self, requests, rows):
            found.append([requests[index] for index in indices])
            yield indices, values

    monkeypatch.setattr(ScalarRM, "_scored_batches", noted)
    return found


def no_progress(more: int, total: int) -> None:
    """No progress bar."""


def scores(rm: ScalarRM, folder: Path, items: Sequence[Item] = ITEMS) -> Scores:
    return score_responses(rm, response_requests(items), folder, no_progress)


def test_response_shared_by_pairs_and_a_survey_is_scored_once(
    rm: ScalarRM, tmp_path: Path, batches: list[list[Request]]
) -> None:
    found = scores(rm, tmp_path)
    assert found.keys() == KEYS
    assert sum(map(len, batches)) == 32
    one_by_one = dict(zip((i.id for i in ITEMS), rm.score(ITEMS), strict=True))
    for item in ITEMS:
        known = [found[content_key(item.prompt, response)] for response in item.responses]
        assert known == pytest.approx(one_by_one[item.id], abs=1e-5)
    asked = OpinionQuestion("q", ITEMS[0].prompt, (ITEMS[0].responses[0], "Never"), {"CL": (0.5, 0.5)}, "WVS")
    requests = response_requests(ITEMS, [asked])
    assert {by_response(request) for request in requests} == KEYS | {content_key(ITEMS[0].prompt, "Never")}
    assert len(requests) == 33


def test_batches_group_responses_by_prompt_or_length_in_any_order(
    rm: ScalarRM, tmp_path: Path, batches: list[list[Request]]
) -> None:
    scores(replace(rm, chunk_size=32, unshared_reason="rows of their own are asked for"), tmp_path)
    lengths = [len(row["input_ids"]) for batch in batches for row in rm.rows(batch)]
    assert [len(batch) for batch in batches] == [4] * 8
    assert len(set(lengths)) > 3
    assert lengths == sorted(lengths, reverse=True)  # the longest first
    batches.clear()
    straight = scores(rm, tmp_path / "by prompt")
    assert [len(batch) for batch in batches] == [4] * 8
    assert all(len({request.item.prompt for request in batch}) == 1 for batch in batches)
    assert scores(rm, tmp_path / "b", random.Random(1).sample(ITEMS, len(ITEMS))) == straight
    assert batches[8:] == batches[:8]


def test_killed_scoring_resumes_from_the_unfinished_chunk(
    rm: ScalarRM, tmp_path: Path, batches: list[list[Request]]
) -> None:
    undisturbed = scores(rm, tmp_path / "undisturbed")
    done = 0

    def die(more: int, total: int) -> None:
        nonlocal done
        done += more
        if done == 20:  # five batches of 4: in the third of four chunks of 8
            raise KeyboardInterrupt

    batches.clear()
    with pytest.raises(KeyboardInterrupt):
        score_responses(rm, response_requests(ITEMS), tmp_path / "killed", die)
    assert sum(map(len, batches)) == 20
    assert scores(rm, tmp_path / "killed") == undisturbed
    assert sum(map(len, batches)) == 20 + 16  # 16 of whole chunks once, those of the torn chunk together again
    files = [tmp_path / name / "rank-0.jsonl" for name in ("undisturbed", "killed")]
    assert sorted(files[0].read_bytes().splitlines()) == sorted(files[1].read_bytes().splitlines())


def test_too_long_responses_are_excluded_not_truncated(rm: ScalarRM, tmp_path: Path) -> None:
    requests = response_requests(ITEMS)
    rows = zip(requests, rm.rows(requests), strict=True)
    lengths = {by_response(request): len(row["input_ids"]) for request, row in rows}
    limit = sorted(lengths.values())[20]
    found = scores(replace(rm, max_length=limit), tmp_path)
    assert found.keys() == {key for key, length in lengths.items() if length <= limit}
    assert 20 < len(found) < 32


# --- the distance of two distributions ---

shares = st.lists(st.integers(0, 1000), min_size=4, max_size=4).filter(any).map(lambda c: [x / sum(c) for x in c])


def test_js_distance_matches_a_hand_computed_value() -> None:
    # m = (3/4, 1/4). KL(p || m) = log2(4/3); KL(q || m) = 1/2 log2(2/3) + 1/2 log2(2) = 1 - 1/2 log2(3).
    divergence = (math.log2(4 / 3) + 1 - math.log2(3) / 2) / 2
    assert js_distance((1, 0), (0.5, 0.5)) == pytest.approx(math.sqrt(divergence), abs=1e-15)


@given(p=shares, q=shares, step=st.floats(0, 1e-15))
def test_js_distance_is_symmetric_in_0_to_1_and_no_nan(p: list[float], q: list[float], step: float) -> None:
    distance = js_distance(p, q)
    assert 0 <= distance <= 1
    assert distance == pytest.approx(js_distance(q, p), abs=1e-7)
    assert js_distance(p, [share * (1 + step * i) for i, share in enumerate(p)]) < 1e-6


@pytest.mark.parametrize("p", [(1, 0, 0), (), (0, 0), (1.5, -0.5), (float("nan"), 1), (float("inf"), 1)], ids=str)
def test_js_distance_rejects_invalid_distributions(p: tuple[float, ...]) -> None:
    with pytest.raises(DataError, match="expected shares of the same options"):
        js_distance(p, (1, 0) if p else ())


# --- a reward model's opinion ---


def question(
    options: tuple[str, ...] = ("Yes", "No", "Don't know", "Never"), name: str = "q", **shares: tuple[float, ...]
) -> OpinionQuestion:
    return OpinionQuestion(name, f"Is it {name}?", options, shares or {"CL": (0.5, 0.2, 0.2, 0.1)}, "WVS")


def answer_scores(asked: OpinionQuestion, **scores: float) -> dict[str, float]:
    return {content_key(asked.question, answer): score for answer, score in scores.items()}


def test_distance_compares_score_softmax_with_answer_shares() -> None:
    asked = question()
    # e^0 : e^1 : e^2 of 11.107; the shares without those who do not know are 5/8, 2/8 and 1/8.
    softmax = (0.09003057317038046, 0.24472847105479767, 0.6652409557748219)
    found = opinion_distances([asked], "CL", answer_scores(asked, Yes=0.0, No=1.0, Never=2.0))
    assert found == {0: pytest.approx(js_distance((0.625, 0.25, 0.125), softmax), abs=1e-12)}
    assert found[0] == pytest.approx(0.555436427398, abs=1e-12)  # by hand, from logarithms to the base 2
    for zero in (0.0, -1e4, 1e4):
        scores = answer_scores(asked, Yes=zero + math.log(5), No=zero + math.log(2), Never=zero)
        scores[content_key(asked.question, "Don't know")] = 9e9  # what is no answer counts nothing
        assert opinion_distances([asked], "CL", scores)[0] == pytest.approx(0, abs=1e-5)


def test_incomparable_questions_are_excluded() -> None:
    of_another = question(name="another", TH=(0.5, 0.2, 0.2, 0.1))
    single = question(("Yes", "Missing"), "single", CL=(0.9, 0.1))
    nobody = question(("Yes", "No", "Missing"), "nobody", CL=(0.0, 0.0, 1.0))
    too_long, sound = question(name="too long"), question(name="sound")
    asked = [of_another, single, nobody, too_long, sound]
    scores: dict[str, float] = {}
    for one in asked:
        scores |= answer_scores(one, Yes=0.0, No=0.0, Never=0.0)
    del scores[content_key(too_long.question, "Never")]
    assert opinion_distances(asked, "CL", scores).keys() == {4}


def test_distance_without_scores_uses_the_mean_of_other_countries() -> None:
    asked = question(("Yes", "No", "Missing"), CL=(0.2, 0.6, 0.2), TH=(0.8, 0.2, 0.0), EG=(0.4, 0.2, 0.4))
    others = others_mean(asked, "CL")
    assert others == pytest.approx((0.6, 0.2, 0.2))
    assert opinion_distances([asked], "CL", None) == {0: pytest.approx(js_distance((1, 3), (3, 1)))}
    alone = question(("Yes", "No"), "alone", CL=(0.5, 0.5))
    assert opinion_distances([alone], "CL", None) == {}
