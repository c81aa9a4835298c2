"""The `data` section of a run, for tests that set only what matters to them."""

from __future__ import annotations

from typing import Any

from think_as_locals.config.schema import DataSection


def data_section(**changes: Any) -> DataSection:
    """English culture cards, but for the changes."""
    generated = changes.get("source", "culture_cards") in ("culture_cards", "blend")
    defaults: dict[str, Any] = {
        "source": "culture_cards",
        "path": None,
        "split": "group",
        "test_share": 0.2,
        "validation_share": None,
        "languages": ["en"] if generated else None,
        "groups": None,
        "countries": None,
        "culture": None,
        "language": None,
        "domain": None,
        "num_responses": 4 if generated else None,
        "as_pairs": False,
        "max_items": None,
        "hide_place": False,
        "max_prompt_tokens": None,
        "sets_per_group": 5 if generated else None,
        "max_groups": None,
        "min_share_gap": None,
        "columns": None,
        "labels": None,
        "faulty_rows": "error",
        "shuffle_labels": False,
    }
    return DataSection(**defaults | changes)
