"""Judgements and scores for a terminal; untrusted text cannot act as markup or control codes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from think_as_locals.evaluation.tables import escape_terminal
from think_as_locals.judging import RULES
from think_as_locals.judging.prompt import culture_name
from think_as_locals.reward_models.reward_model import ScoredItem, favourite
from think_as_locals.types import LABELS, Item


def judgement_view(prediction: ScoredItem) -> RenderableType:
    """Return prompt, responses, rubric, analysis and verdict, or why there is none; responses are numbered from 1."""
    judgement, order = prediction.answer, prediction.order
    labels = [LABELS[order.index(number)] for number in range(len(order))]
    parts: list[RenderableType] = [*_asked(prediction.item), _responses(prediction.item, "shown as", labels)]
    if judgement.rubric:
        table = _table("weight", "criterion", "rubric")
        for each in judgement.rubric.criteria:
            table.add_row(str(each.weight), escape_terminal(each.name), escape_terminal(each.description))
        parts.append(table)
    if judgement.analysis:
        parts += [Text("Analysis", style="bold"), escape_terminal(judgement.analysis.strip())]
    if judgement.verdict is None:
        parts += [Text("No verdict", style="bold red"), *(Text(f"- {i}: {RULES[i]}") for i in judgement.issues)]
        parts += [Text("It wrote", style="bold"), escape_terminal(judgement.completion)]
    else:
        verdict = f"{judgement.label}, your response {judgement.verdict + 1}: "
        response = escape_terminal(prediction.item.responses[judgement.verdict])
        parts.append(Text.assemble(("Verdict: ", "bold green"), verdict, response))
    return Group(*parts)


def scores_view(item: Item, scores: Sequence[float]) -> RenderableType:
    """Return prompt, responses with their scores, and the one with the highest score."""
    best = favourite(scores)
    which = "several share it" if best is None else f"your response {best + 1}"
    highest = Text.assemble(("Highest score: ", "bold green"), which)
    return Group(*_asked(item), _responses(item, "score", [f"{score:.4g}" for score in scores]), highest)


def scores_record(item: Item, scores: Sequence[float]) -> dict[str, Any]:
    """Return the scores of an item's responses and the index of the highest, as JSON; `None` if several share it."""
    return {"id": item.id, "verdict": favourite(scores), "scores": list(scores)}


def _asked(item: Item) -> Iterator[RenderableType]:
    yield Rule(escape_terminal(item.id))
    yield escape_terminal(item.prompt)
    yield Text.assemble(escape_terminal(culture_name(item.culture)), style="dim")


def _responses(item: Item, head: str, values: Sequence[str]) -> Table:
    table = _table("response", head, "")
    for number, (value, response) in enumerate(zip(values, item.responses, strict=True), 1):
        table.add_row(str(number), value, escape_terminal(response))
    return table


def _table(*heads: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for head in heads:
        table.add_column(head, justify="left" if head == heads[-1] else "right")
    return table
