"""RewardBench 2 (arXiv 2506.01937, HF allenai/reward-bench-2), in English.

`id, prompt, chosen (list), rejected (list), num_correct, num_incorrect, total_completions, models, subset,
additional_metadata`. Five subsets are Best-of-4. In the sixth, `Ties`, a row `tied:K` has several right answers and
`ref:K` one, and a model is right where *every* right answer scores above *every* wrong one.

An item has one best response, so a row of Ties becomes one item for each right answer: that answer and the wrong ones,
at most seven at a time. The row is right exactly where all of its items are, and the scores that the margins of the
published metric are made of stand in them too. The items of a row share its group.
"""

from __future__ import annotations

from think_as_locals.data.defects import Defect
from think_as_locals.data.fields import Fields, question_group
from think_as_locals.data.outcomes import Outcome
from think_as_locals.data.rows import Row
from think_as_locals.types import LABELS, Item

FIELDS = ("id", "prompt", "chosen", "rejected", "num_correct", "num_incorrect", "subset")
_TIES = "Ties"


def outcome(row: Row) -> Outcome:
    """One Best-of-N item, or of a row of Ties one for each right answer and every seven wrong ones."""
    fields = Fields(row, FIELDS)
    identifier, subset = fields.identifier("id"), fields.text("subset")
    prompt = fields.text("prompt", Defect.EMPTY_PROMPT)
    chosen, rejected = fields.texts("chosen"), fields.texts("rejected")
    both = ("chosen", "rejected")
    fields.check_counts(num_correct=both[:1], num_incorrect=both[1:], total_completions=both)
    common = {"prompt": prompt, "culture": None, "language": "en", "domain": subset.lower(), "source": "rewardbench2"}
    if fields.length("chosen") not in (None, 1) and not (chosen and subset == _TIES):
        fields.add(Defect.WRONG_COUNT, f"expected 1 chosen response (several in {_TIES}), got {len(chosen)}")
    if subset != _TIES:
        best = chosen[0] if chosen else ""
        key, group = f"rewardbench2/{identifier}", question_group(prompt)
        return fields.outcome(*fields.best_first(best, rejected, id=key, group=group, **common))
    fields.check_distinct((*chosen, *rejected))  # all of them, not only those that come into one item
    items: list[Item] = []
    for i, right in enumerate(chosen):
        for start in range(0, max(1, len(rejected)), len(LABELS) - 1):
            items += fields.best_first(
                right,
                rejected[start : start + len(LABELS) - 1],
                id=f"rewardbench2/{identifier}/{i}-{start}",
                group=f"ties:{identifier.rpartition(':')[2]}",
                **common,
            )
    return fields.outcome(*items)
