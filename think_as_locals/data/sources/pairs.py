"""Chosen and rejected: RewardBench 1, M-RewardBench, and any rows of that form.

RewardBench (arXiv 2403.13787, HF allenai/reward-bench): `id, prompt, chosen, chosen_model, rejected, rejected_model,
subset`, in English. M-RewardBench (arXiv 2410.15522, HF CohereLabsCommunity/multilingual-reward-bench) translates its
rows and adds `language`. A translation keeps the id, and so is in the question group of its original.
"""

from __future__ import annotations

from typing import ClassVar

from think_as_locals.data.fields import Identifier, Language, Prompt, Response, RowModel, Text, question_group
from think_as_locals.data.rows import Outcome, Row


class PairRow(RowModel):
    """The fields of a row that are used."""

    FIELDS: ClassVar = ("prompt", "chosen", "rejected")

    prompt: Prompt
    chosen: Response
    rejected: Response
    language: Language = "en"
    subset: Text = "pairs"
    id: Identifier = ""


def outcome(row: Row) -> Outcome:
    """Return one pair, the chosen response the best."""
    fields = PairRow.read(row)
    key = f"{fields.subset}/{fields.id}" if fields.id else ""
    items = fields.best_first(
        fields.chosen,
        (fields.rejected,),
        id=f"pairs/{fields.language}/{key}" if key else f"pairs/{row.name}",
        prompt=fields.prompt,
        language=fields.language,
        domain=fields.subset,
        group=key or question_group(fields.prompt),
        source="pairs",
    )
    return fields.outcome(*items)
