"""Hashes of training items that are saved with a model's weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from items import make_item

from think_as_locals.reward_models.training_items import (
    count_trained_on,
    item_hash,
    read_training_items,
    save_training_items,
    training_hashes,
)
from think_as_locals.types import Item, ModelError, reorder_responses

ITEM = make_item()


def test_item_hash_depends_only_on_prompt_responses_and_culture() -> None:
    assert item_hash(ITEM) == "072cd42467255676"  # recorded: those beside published weights must stay valid
    same = [reorder_responses(ITEM, (2, 0, 1)), replace(ITEM, id="x", group="x", source="x", best=1, domain="safety")]
    other = [
        replace(ITEM, prompt="How do people greet a child?"),
        replace(ITEM, culture="JP"),
        replace(ITEM, culture=None),
        replace(ITEM, responses=("With a bow.", "With a wai.")),
    ]
    assert {item_hash(item) for item in same} == {item_hash(ITEM)}
    assert len({item_hash(item) for item in (ITEM, *other)}) == 5
    texts = Item(**{**{n: getattr(ITEM, n) for n in ITEM.__slots__}, "prompt": "สวัสดี 🙏\u0000\u2028", "culture": None})
    assert len(item_hash(texts)) == 16


def test_training_items_include_those_of_the_base_model(tmp_path: Path) -> None:
    first, second, never = (replace(ITEM, prompt=f"Question {n}") for n in range(3))
    for name, items, base in (("a", [first], None), ("b", [second, second], str(tmp_path / "a"))):
        (tmp_path / name).mkdir()
        save_training_items(training_hashes(items, base), tmp_path / name)
    found = read_training_items(str(tmp_path / "b"))
    assert found == {item_hash(first), item_hash(second)}
    assert (tmp_path / "b" / "training_items.txt").read_text() == "".join(f"{each}\n" for each in sorted(found))
    assert count_trained_on([first, second, never, never], found) == {"items": 2, "n": 4}
    assert count_trained_on([never], found) == {"items": 0, "n": 1}
    without = frozenset({item_hash(replace(never, culture=None))})
    assert count_trained_on([never, first, replace(never, culture=None)], without) == {"items": 2, "n": 3}


def test_missing_training_items_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_training_items(str(tmp_path)) is None
    assert count_trained_on([ITEM], None) is None
    assert training_hashes([ITEM], str(tmp_path)) == {item_hash(ITEM)}

    def unreachable(*_: object) -> Path:
        raise ModelError("no network")

    monkeypatch.setattr("think_as_locals.reward_models.training_items.model_file", unreachable)
    assert read_training_items("owner/name") is None
