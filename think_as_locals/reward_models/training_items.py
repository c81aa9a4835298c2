"""Hashes of a model's training items, stored beside its weights; evaluations on these items are marked.

The hashes reveal no text, but whoever has an item can check whether the model was trained on it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from think_as_locals.runtime.files import write_text
from think_as_locals.runtime.model_files import model_file
from think_as_locals.types import Item, ModelError

TRAINING_ITEMS_FILE = "training_items.txt"  # one hash a line


def item_hash(item: Item) -> str:
    """Return a hash of an item's prompt, culture and responses in any order."""
    content = json.dumps([item.prompt, sorted(item.responses), item.culture])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def training_hashes(items: Iterable[Item], base: str | None, revision: str | None = None) -> frozenset[str]:
    """Return the hashes of training items and of the known training items of the base model."""
    earlier = read_training_items(base, revision) if base else None
    return frozenset(map(item_hash, items)) | (earlier or frozenset())


def save_training_items(hashes: Iterable[str], folder: Path) -> None:
    """Write hashes beside a model's weights."""
    write_text(folder / TRAINING_ITEMS_FILE, "".join(f"{each}\n" for each in sorted(hashes)))


def read_training_items(path: str, revision: str | None = None) -> frozenset[str] | None:
    """Read the hashes beside a model in a directory or on the Hub; `None` if there are none or it cannot be reached."""
    try:
        file = model_file(path, TRAINING_ITEMS_FILE, revision)
    except ModelError:
        return None
    return frozenset(file.read_text(encoding="utf-8").split()) if file else None


def count_trained_on(items: Iterable[Item], hashes: frozenset[str] | None) -> dict[str, int] | None:
    """Return `n`, the number of items, and `items`, how many of them a model was trained on; `None` if unknown.

    An item that had no culture in training is the same with any.
    """
    if hashes is None:
        return None
    found = [not hashes.isdisjoint({item_hash(item), item_hash(replace(item, culture=None))}) for item in items]
    return {"items": sum(found), "n": len(found)}
