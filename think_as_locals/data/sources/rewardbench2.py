"""RewardBench 2's rows (arXiv 2506.01937)."""

from __future__ import annotations

from itertools import product
from typing import ClassVar

from think_as_locals.data.fields import Culture, Identifier, Prompt, Responses, RowModel, Text
from think_as_locals.data.rows import Defect, Outcome, Row
from think_as_locals.types import LABELS, Item

_TIES = "Ties"
_BOTH = ("chosen", "rejected")
_COUNTS = {"num_correct": _BOTH[:1], "num_incorrect": _BOTH[1:], "total_completions": _BOTH}


class RewardBench2Row(RowModel):
    """RewardBench 2 (arXiv 2506.01937, HF allenai/reward-bench-2), in English: Best-of-4, but for the subset Ties.

    A row of Ties has several right answers (one in its `ref:K`), and a model is right if *every* right answer scores
    above *every* wrong one. So it becomes one item per right answer and up to seven wrong ones, all in one group: the
    row is right if all of them are.
    """

    FIELDS: ClassVar = ("id", "prompt", "chosen", "rejected", "num_correct", "num_incorrect", "subset")
    DEFAULTS: ClassVar = ("culture",)
    id: Identifier
    culture: Culture = None  # not published: RewardBench 2 has none
    subset: Text
    prompt: Prompt
    chosen: Responses
    rejected: Responses


def outcome(row: Row) -> Outcome:
    """Return one item, or for Ties one per right answer and up to seven wrong ones."""
    fields = RewardBench2Row.read(row)
    chosen, rejected, is_ties = fields.chosen, fields.rejected, fields.subset == _TIES
    if fields.count_texts("chosen") not in (None, 1) and not (chosen and is_ties):
        fields.add(Defect.WRONG_COUNT, f"expected 1 chosen response (several in {_TIES}), got {len(chosen)}")
    fields.check_counts(**_COUNTS)
    key = f"rewardbench2/{fields.id}"
    common = {"domain": fields.subset.lower(), "source": "rewardbench2"}
    if not is_ties:
        best = chosen[0] if chosen else ""
        return fields.outcome(*fields.best_first(best, rejected, id=key, **common))
    fields.check_distinct((*chosen, *rejected))  # of the whole row: an item holds only some of them
    items: list[Item] = []
    step, group = len(LABELS) - 1, f"ties:{fields.id.rpartition(':')[2]}"
    for i, start in product(range(len(chosen)), range(0, max(1, len(rejected)), step)):
        wrong = rejected[start : start + step]
        items += fields.best_first(chosen[i], wrong, id=f"{key}/{i}-{start}", group=group, **common)
    return fields.outcome(*items)
