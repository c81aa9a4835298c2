"""The `data` section of a run, for tests that set only what matters to them."""

from __future__ import annotations

from functools import cache
from typing import Any

from think_as_locals.config.checks import load_data_config
from think_as_locals.config.schema import DataSection


@cache
def _defaults() -> dict[str, Any]:
    return load_data_config(["data=culture_cards"]).data.model_dump()


def data_section(**changes: Any) -> DataSection:
    """English culture cards as in conf/, but for the changes; a file has no limits."""
    generated = changes.get("source", "culture_cards") in ("culture_cards", "blend")
    few = {"languages": ["en"] if generated else None, "sets_per_group": 5 if generated else None}
    few |= {"num_responses": 4 if generated else None, "validation_share": None, "faulty_rows": "error"}
    return DataSection(**_defaults() | few | changes)
