"""RewardBench 2 (arXiv 2506.01937, HF allenai/reward-bench-2), in English.

Fields: `id, prompt, chosen (list), rejected (list), num_correct, num_incorrect, total_completions, models, subset,
additional_metadata`. Five subsets are Best-of-4. In the sixth, `Ties`, a row `tied:K` has several right answers and
`ref:K` one, and a model is right where *every* right answer scores above *every* wrong one.

An item has one best response, so a row of Ties becomes one item per right answer and up to seven wrong ones. The row is
right exactly where all of its items are, and the scores behind the margins of the published metric are in them too. The
items of a row share its group.
"""

from __future__ import annotations

from typing import ClassVar

from think_as_locals.data.fields import Identifier, Prompt, Responses, RowModel, Text
from think_as_locals.data.rows import Defect, Outcome, Row
from think_as_locals.types import LABELS, Item

_TIES = "Ties"


class RewardBench2Row(RowModel):
    """The fields of a row that are used."""

    FIELDS: ClassVar = ("id", "prompt", "chosen", "rejected", "num_correct", "num_incorrect", "subset")

    id: Identifier
    subset: Text
    prompt: Prompt
    chosen: Responses
    rejected: Responses


def outcome(row: Row) -> Outcome:
    """Return one Best-of-N item, or for a row of Ties one per right answer and up to seven wrong ones."""
    fields = RewardBench2Row.read(row)
    chosen, rejected, is_ties = fields.chosen, fields.rejected, fields.subset == _TIES
    both = ("chosen", "rejected")
    fields.check_counts(num_correct=both[:1], num_incorrect=both[1:], total_completions=both)
    if fields.count_texts("chosen") not in (None, 1) and not (chosen and is_ties):
        fields.add(Defect.WRONG_COUNT, f"expected 1 chosen response (several in {_TIES}), got {len(chosen)}")
    key = f"rewardbench2/{fields.id}"
    common = {"prompt": fields.prompt, "domain": fields.subset.lower(), "source": "rewardbench2"}
    if not is_ties:
        best = chosen[0] if chosen else ""
        return fields.outcome(*fields.best_first(best, rejected, id=key, **common))
    fields.check_distinct((*chosen, *rejected))  # of the whole row: an item holds only some of them
    items: list[Item] = []
    for i, right in enumerate(chosen):
        for start in range(0, max(1, len(rejected)), len(LABELS) - 1):
            items += fields.best_first(
                right,
                rejected[start : start + len(LABELS) - 1],
                id=f"{key}/{i}-{start}",
                group=f"ties:{fields.id.rpartition(':')[2]}",
                **common,
            )
    return fields.outcome(*items)
