"""Shared by SCPO tests: the configuration, and a tiny run whose figures can be computed by hand.

Two countries, two seeds, five pairs, four people.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from items import make_item

from think_as_locals.config.checks import load_config
from think_as_locals.config.scpo_schema import ScpoConfig
from think_as_locals.data.sources.globalopinionqa import OpinionQuestion
from think_as_locals.evaluation.journal import content_key
from think_as_locals.scpo.results import HeldOutSet, Scores, VariantResult, VariantSpec
from think_as_locals.types import Item


@cache
def config(*overrides: str) -> ScpoConfig:
    """The quick start's configuration."""
    found = load_config("recipes/scpo_quickstart.yaml", ["run.name=steered", *overrides])
    assert isinstance(found, ScpoConfig)
    return found


def item(name: str, culture: str, person: str) -> Item:
    prompt = f"What about {name}?"
    return make_item(id=name, prompt=prompt, responses=("other", "chosen"), best=1, culture=culture, group=person)


ITEMS = [
    *(item("c1", "CL", "Ana"), item("c2", "CL", "Ana"), item("c3", "CL", "Luis")),
    *(item("t1", "TH", "Mali"), item("t2", "TH", "Chai")),
]
BEFORE = {"c1": 1.0, "c2": -1.0, "c3": 0.0, "t1": -2.0, "t2": 0.5}
"""What the global reward model scores the chosen response more than the other: right, wrong, a tie, wrong, right."""

STEERED = {
    ("CL", 0): {"c1": 1, "c2": 1, "c3": -1, "t1": -1, "t2": -1},
    ("CL", 1): {"c1": 1, "c2": -1, "c3": 1, "t1": 1, "t2": -1},
    ("TH", 0): {"c1": 1, "c2": -1, "c3": 0, "t1": 1, "t2": 1},
    ("TH", 1): {"c1": -1, "c2": -1, "c3": 1, "t1": -1, "t2": 1},
}
"""The same of the models of each country and seed."""


def scores(margins: Mapping[str, float], more: Mapping[str, float] | None = None) -> Scores:
    """Scores in which the chosen responses are so much ahead."""
    found = dict(more or {})
    for name, margin in margins.items():
        found |= {
            content_key(f"What about {name}?", "chosen"): 7 + margin,
            content_key(f"What about {name}?", "other"): 7.0,
        }
    return found


def variant_result(country: str, seed: int, margins: Mapping[str, float], **changes: Any) -> VariantResult:
    spec = {"country": country, "variant": "scpo", "seed": seed}
    record: dict[str, Any] = {"available": 10, "kept": 4, "steps": 6, "mean_weight": 0.5, "scores": scores(margins)}
    spec |= {name: changes.pop(name) for name in ("variant", "num_pairs") if name in changes}
    return VariantResult(spec=VariantSpec(**spec), **record | changes)


def held_out(**changes: Any) -> HeldOutSet:
    known: dict[str, Any] = {
        "items": ITEMS,
        "minority": frozenset({"c2", "c3", "t1"}),
        "disagreed": frozenset({"c2", "t1"}),
        "questions": [],
        "left_out": 0,
        "tie": 0.5,
        "samples": 200,
        "seed": 0,
    }
    return HeldOutSet(**known | changes)


RESULTS = [variant_result(country, seed, margins) for (country, seed), margins in STEERED.items()]

QUESTIONS = [
    OpinionQuestion("q1", "Is it?", ("Yes", "No"), {"CL": (0.5, 0.5), "TH": (1.0, 0.0)}, "WVS"),
    OpinionQuestion("q2", "Does it?", ("Yes", "No"), {"CL": (0.2, 0.8), "TH": (0.2, 0.8)}, "WVS"),
]
"""Of two surveys' questions the second has the same answers in both countries."""


def answers(yes: float, no: float) -> Scores:
    """What the answers to both questions are worth."""
    return {content_key(q.question, o): worth for q in QUESTIONS for o, worth in (("Yes", yes), ("No", no))}
