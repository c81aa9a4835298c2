"""Rows of a chosen and a rejected response: RewardBench, M-RewardBench, your own."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from think_as_locals.data.fields import Identifier, Language, Prompt, Response, RowModel, Text
from think_as_locals.data.rows import Outcome, Row


class PairRow(RowModel):
    """RewardBench (arXiv 2403.13787, HF allenai/reward-bench), or any chosen and rejected; English if they do not say.

    M-RewardBench (arXiv 2410.15522, HF CohereLabsCommunity/multilingual-reward-bench) translates its rows and adds
    `language`. A translation keeps the id, and so is in the question group of its original.
    """

    FIELDS: ClassVar = ("prompt", "chosen", "rejected")
    prompt: Prompt
    chosen: Response
    rejected: Response
    language: Language = "en"
    domain: Text = Field("pairs", validation_alias="subset")
    id: Identifier = ""


def outcome(row: Row) -> Outcome:
    """Return one pair, the chosen response the best."""
    fields = PairRow.read(row)
    key = f"{fields.domain}/{fields.id}" if fields.id else ""
    place = {"id": f"pairs/{fields.language}/{key}", "group": key} if key else {"id": f"pairs/{row.name}"}
    return fields.outcome(*fields.best_first(fields.chosen, [fields.rejected], source="pairs", **place))
