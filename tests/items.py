"""Factories of test items: a test sets only the fields that matter to it."""

from __future__ import annotations

from typing import Any

from think_as_locals.reward_models.reward_model import ScoredItem
from think_as_locals.types import ITEM_FIELDS, Criterion, Item, Rubric

RUBRIC = Rubric((Criterion(50, "Custom", "Done."), Criterion(30, "Place", "There."), Criterion(20, "Fit", "It fits.")))
"""A rubric that keeps the grammar."""


def make_item(**changes: Any) -> Item:
    """An item of three responses, but for the fields given."""
    fields: dict[str, Any] = {
        "id": "th-1",
        "prompt": "How do people greet an elder?",
        "responses": ("With a bow.", "With a wai.", "With a nod."),
        "best": 0,
        "culture": "TH",
        "language": "en",
        "domain": "value",
        "group": "greeting",
        "source": "mine",
    }
    return Item(**fields | changes)


def row_of(scored: ScoredItem) -> dict[str, Any]:
    """The row of a judgement and its item, as a table of judgements has it."""
    row = {name: getattr(scored.item, name) for name in ITEM_FIELDS} | scored.judgement_row()
    return {name: list(value) if isinstance(value, tuple) else value for name, value in row.items()}


def day_items(count: int, *responses: str) -> list[Item]:
    """Items of two cultures about the days of a count, with these responses, of which each is best in turn."""
    return [
        make_item(
            id=f"item-{i}",
            prompt=f"What do people do on day {i}?",
            responses=tuple(response.format(i) for response in responses),
            best=i % len(responses),
            culture=("TH", "JP")[i % 2],
            group=f"day-{i}",
        )
        for i in range(count)
    ]
