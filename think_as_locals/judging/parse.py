"""Completion -> Judgement: strict, total and linear in the length of the text.

Only `str.find`, `str.split` and `str.count` touch model text: a backtracking expression takes seconds on a
completion of repeated tags. Tags match exactly; whatever is not the grammar is an issue, never a guess.
"""

from __future__ import annotations

from think_as_locals.judging.grammar import MAX_CRITERIA, MIN_CRITERIA, RULES, SECTIONS, WEIGHT_TOTAL
from think_as_locals.types import LABELS, Criterion, Judgement, Rubric


def parse(text: str, num_responses: int, finish_reason: str | None = "stop") -> Judgement:
    """Read a judge's completion.

    Args:
        text: The completion, without the tokenizer's special tokens.
        num_responses: N, how many labels were on offer (2 to 8).
        finish_reason: How the completion ended. Anything but `"stop"` is an issue: a text cut off inside a quotation
            could end in somebody else's verdict.

    Returns:
        A Judgement whose `verdict` is the index of the chosen response as shown, or `None` where `issues` is not empty.

    Raises:
        ValueError: `num_responses` is not from 2 to 8 (the caller's mistake; model text never raises).

    Example:
        >>> parse("The answer is B.", num_responses=2).verdict is None
        True
    """
    if not 2 <= num_responses <= len(LABELS):
        raise ValueError(f"num_responses must be from 2 to {len(LABELS)}, got {num_responses}")
    broken: set[str] = set()
    if finish_reason != "stop":
        broken.add("finished")
    bodies = _sections(text, broken)
    rubric = _rubric(bodies["rubric"], broken)
    if not (bodies["analysis"] or "").strip():
        broken.add("analysis_text")
    label = bodies["verdict"]
    if label is None or len(label) != 1 or label not in LABELS[:num_responses]:
        broken.add("verdict_label")
    return Judgement(
        verdict=None if broken or label is None else LABELS.index(label),
        rubric=rubric,
        analysis=bodies["analysis"],
        issues=tuple(rule for rule in RULES if rule in broken),
        text=text,
    )


def _sections(text: str, broken: set[str]) -> dict[str, str | None]:
    """The body of each section that stands exactly once; notes repeated, missing and misplaced ones."""
    bodies: dict[str, str | None] = {}
    outside, end = [], 0
    for name in SECTIONS:
        opening, closing = f"<{name}>", f"</{name}>"
        start, stop = text.find(opening), text.find(closing)
        bodies[name] = None
        if text.count(opening) != 1 or text.count(closing) != 1 or stop < start:
            broken |= {f"{name}_once", "order"}
            continue
        bodies[name] = text[start + len(opening) : stop]
        if start < end:
            broken.add("order")
        else:
            outside.append(text[end:start])
        end = max(end, stop + len(closing))
    outside.append(text[end:])
    if any(part.strip() for part in outside):
        broken.add("order")
    return bodies


def _rubric(body: str | None, broken: set[str]) -> Rubric | None:
    """The criteria of a rubric, or `None` where a line cannot be read."""
    lines = [line for line in (body or "").split("\n") if line.strip()]
    criteria = tuple(criterion for line in lines if (criterion := _criterion(line)))
    if not lines or len(criteria) != len(lines):
        broken.add("criterion_lines")
    if not MIN_CRITERIA <= len(criteria) <= MAX_CRITERIA:
        broken.add("criterion_count")
    if not criteria or sum(c.weight for c in criteria) != WEIGHT_TOTAL or any(c.weight < 1 for c in criteria):
        broken.add("criterion_weights")
    if not criteria or len({c.name.casefold() for c in criteria}) != len(criteria):
        broken.add("criterion_names")
    return Rubric(criteria) if criteria and len(criteria) == len(lines) else None


def _criterion(line: str) -> Criterion | None:
    """`- weight | name | description`, or `None`."""
    parts = [part.strip() for part in line.strip().removeprefix("- ").split("|")]
    if not line.strip().startswith("- ") or len(parts) != 3 or not all(parts):
        return None
    weight, name, description = parts
    # Three ASCII digits at most: `int` would take other scripts' digits, and time quadratic in a long string of them.
    if not (weight.isascii() and weight.isdecimal() and len(weight) <= 3):
        return None
    return Criterion(int(weight), name, description)
