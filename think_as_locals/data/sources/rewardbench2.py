"""RewardBench 2's rows (arXiv 2506.01937)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from think_as_locals.data.fields import Identifier, RowModel, Text, Texts, best_first, count_faults
from think_as_locals.data.rows import Fault, Row
from think_as_locals.types import LABELS, Item

FIELDS = ("id", "prompt", "chosen", "rejected", "num_correct", "num_incorrect", "subset")
"""The columns by which its rows are recognised."""


class RewardBench2Row(RowModel):
    """RewardBench 2 (arXiv 2506.01937, HF allenai/reward-bench-2), in English: Best-of-4, but for the subset Ties.

    A row of Ties has several right answers (one in its `ref:K`), and a model is right if *every* right answer scores
    above *every* wrong one. So it becomes one item per right answer and up to seven wrong ones, all in one group: the
    row is right if all of them are.
    """

    id: Identifier
    subset: Text
    prompt: Text
    chosen: Texts
    rejected: Texts


def items(row: Row, culture: str | None) -> Iterator[Item | Fault]:
    """Yield one item, or for Ties one per right answer and up to seven wrong ones; rows name no culture."""
    fields = RewardBench2Row.model_validate(row.value)
    right, wrong = len(fields.chosen), len(fields.rejected)
    yield from count_faults(row.value, num_correct=right, num_incorrect=wrong, total_completions=right + wrong)
    common = {"prompt": fields.prompt, "domain": fields.subset.lower(), "source": "rewardbench2", "culture": culture}
    if fields.subset != "Ties":
        if right != 1:
            yield Fault("too_many_chosen", f"chosen: expected one response, got {right}")
        else:
            yield best_first(fields.chosen[0], fields.rejected, id=f"rewardbench2/{fields.id}", **common)
        return
    chosen, rejected = (tuple(dict.fromkeys(texts)) for texts in (fields.chosen, fields.rejected))
    if not right or {*chosen} & {*rejected}:  # an item holds only some of them
        yield Fault("invalid_ties", "expected at least one chosen response, and none that is rejected too")
    step, group = len(LABELS) - 1, f"ties:{fields.id.rpartition(':')[2]}"
    size = f"{len(chosen)}x{len(rejected)}"  # by which an evaluation knows that it has the whole row
    for i, start in product(range(len(chosen)), range(0, max(1, len(rejected)), step)):
        rivals = rejected[start : start + step]
        yield best_first(chosen[i], rivals, id=f"rewardbench2/{fields.id}/{i}-{start}-of-{size}", group=group, **common)
