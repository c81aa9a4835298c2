"""A reward model whose answers are hashes of its requests, slow and out of order, and a script that measures it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from items import row_of

from think_as_locals.evaluation.journal import AnswerCollector, Journal
from think_as_locals.reward_models.reward_model import Answer, Answered, Request, ScoredItem, favourite
from think_as_locals.types import Item, Judgement

ITEMS = [
    Item(
        id=f"item-{i:03}",
        prompt=f"What is done there, {i}?",
        responses=tuple(f"answer {i}.{j}" for j in range(2 + i % 3)),
        best=i % 2,
        culture="TH",
        language="en",
        domain="value",
        group=f"group-{i // 4}",
        source="test",
    )
    for i in range(60)
]


@dataclass
class Hashing:
    """Scores each response by a hash; notes how often it is asked and in what company."""

    chunk_size: int | None = 16
    pause: float = 0.0
    name: str = "hashing"

    def __post_init__(self) -> None:
        self.asked: list[Request] = []

    @property
    def identity(self) -> dict[str, Any]:
        return {"name": self.name}

    def sort_key(self, request: Request) -> str:
        return request.item.id

    def requests(self, item: Item) -> list[Request]:
        return [Request(item, (i,)) for i in range(len(item.responses))]

    def query(self, requests: Sequence[Request]) -> Answered:
        company = "" if self.chunk_size is None else "".join(r.responses[0] for r in requests)
        for place in range(len(requests))[::-1]:
            time.sleep(self.pause)
            self.asked.append(requests[place])
            text = f"{company}|{requests[place].item.prompt}|{requests[place].responses[0]}"
            yield place, {"score": int(hashlib.sha256(text.encode()).hexdigest()[:12], 16) / 7}

    def score_requests(self, item: Item) -> list[Request]:
        return self.requests(item)

    def scores(self, item: Item, answers: Sequence[Answer]) -> tuple[float, ...]:
        return tuple(answer["score"] for answer in answers)

    def predictions(self, item: Item, answers: Sequence[Answer]) -> list[ScoredItem]:
        scores = tuple(answer["score"] for answer in answers)
        judgement = Judgement(verdict=favourite(scores), rubric=None, analysis=None, issues=(), completion="")
        return [ScoredItem(item=item, presented=item, judgement=judgement, scores=scores)]


def main(folder: Path, chunk_size: int | None, pause: float) -> None:
    """Measure, and write what came of it."""
    rm = Hashing(chunk_size, pause)
    with Journal(folder / "answers.jsonl", rm.identity) as journal:
        predictions = AnswerCollector(rm, journal, lambda more, total: None).predictions(ITEMS)
    (folder / "result.json").write_text(json.dumps([row_of(prediction) for prediction in predictions]))
