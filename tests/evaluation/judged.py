"""Flip sets, hand-made judgements of them, and runs that hold both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from items import RUBRIC

from think_as_locals.evaluation import carb
from think_as_locals.judging import parse, shuffle_responses, write
from think_as_locals.reward_models.reward_model import ScoredItem, favourite
from think_as_locals.types import Item, Judgement

CULTURES = ("DE", "EG", "JP", "TH")

Right = Callable[[int], float | None]
"""Of the i-th item: 1 right, 0 wrong, .5 a tie of scores, None a parse failure."""


def flip_items(groups: int = 12, last: int = 6, prompt: str = "", response: str = "custom") -> list[Item]:
    """Flip sets of two, six in each question group but the last; groups are of two domains by turns."""
    return [
        Item(
            id=f"{group}-{culture}-{'-'.join(pair)}",
            prompt=f"{prompt}What is done in {culture}, in case {group}?",
            responses=tuple(f"{response} {group} of {c}" for c in pair),
            best=pair.index(culture),
            culture=culture,
            language="th" if culture == "TH" else "en",
            domain="value" if group % 2 else "safety",
            group=f"g{group}",
            source="test",
            origins=pair,
        )
        for group in range(groups)
        for pair in list(combinations(CULTURES, 2))[: 6 if group < groups - 1 else last]
        for culture in pair
    ]


def judged(item: Item, right: float | None, note: str = "weighed", seed: int = 0) -> ScoredItem:
    presented = shuffle_responses(item, seed)
    if right == 0.5:
        return tied(item, (2.0, 2.0))
    wrong = (presented.best + 1) % len(item.responses)
    text = f"no idea {note}" if right is None else write(RUBRIC, note, presented.best if right else wrong)
    return ScoredItem(item=item, presented=presented, judgement=parse(text, len(item.responses)))


def judgement(verdict: int | None, *issues: str) -> Judgement:
    return Judgement(verdict=verdict, rubric=None, analysis=None, issues=issues, completion="")


def tied(item: Item, scores: tuple[float, ...]) -> ScoredItem:
    presented = shuffle_responses(item)
    return ScoredItem(item=item, presented=presented, judgement=judgement(favourite(scores)), scores=scores)


def judge_all(right: Right, items: Sequence[Item], note: str = "weighed", seed: int = 0) -> list[ScoredItem]:
    return [judged(item, right(i), note, seed) for i, item in enumerate(items)]


def measure(run: Path, name: str | int, made: Sequence[ScoredItem], model: str = "", **changes: Any) -> Path:
    """Write `carb/NAME.json` and its table, whose path is returned; a number is a step of a training run."""
    step = name if isinstance(name, int) else 0
    name = f"step-{name}" if isinstance(name, int) else name
    asked: dict[str, Any] = {"dataset": "cards", "split": "group", "seed": 0, "step": step, "protocol": "listwise"}
    model = model or ("judge" if name.startswith("step-") and step else name)
    path = run / "carb" / f"{name}.json"
    carb.save(made, path, **{"model": model, "bootstrap_samples": 200, **asked} | changes)
    return path.with_suffix(".parquet")
