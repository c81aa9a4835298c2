"""Tables for terminals, markdown files and pages, and judgements for terminals. Untrusted text is escaped here.

markdown(DataFrame({"reward model": ["mine"], "accuracy, %": [figure(summary)]}))
"""

from __future__ import annotations

import html as html_escape
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup
from pandas import DataFrame
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from think_as_locals.judging import RULES
from think_as_locals.judging.prompt import culture_name
from think_as_locals.reward_models.reward_model import ScoredItem, favourite
from think_as_locals.runtime.output import shorten_repeats, visible
from think_as_locals.types import LABELS, Item

METHODS = {"cluster_bootstrap": "bootstrap by group", "cluster_wilson": "Wilson by group", "wilson": "Wilson by item"}
"""The name of a `ci_method` on pages."""

_MARKDOWN = re.compile(r"[\\`*_{}\[\]()#+!|~$@]|:(?=//)|(?<=www)\.", re.IGNORECASE)
"""The last alternatives break up addresses, which GitHub turns into links even without markup."""

_NUMBER = re.compile(r"[-+−<±]?\s?\d.*|[–-]?|none")


def escape_markdown(value: str) -> str:
    """Return a text on one line, escaped for markdown and HTML."""
    return _MARKDOWN.sub(r"\\\g<0>", html_escape.escape(" ".join(value.split()), quote=False))


def escape_terminal(value: str) -> Text:
    """Return a text as a `Terminal` prints it: escaped before columns get their widths."""
    return Text(visible(value))


def figure(
    part: Mapping[str, Any], key: str = "accuracy", form: str = ".1f", scale: float = 100, show_n: bool = False
) -> str:
    """Return e.g. `61.2 [55.0, 67.1], n 134` for an estimate in JSON (`Estimate.as_dict(key)`), or nothing."""
    if not part.get("n") or part.get(key) is None:
        return ""
    ends = part.get("ci95")
    interval = f" [{scale * ends[0]:{form}}, {scale * ends[1]:{form}}]" if ends else ""
    n = f", n {part['n']}" if show_n else ""
    return f"{scale * part[key]:{form}}{interval}{n}"


def p_value(p: float | None) -> str:
    """Return a p-value as text; empty without one."""
    return "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def on_terminal(table: DataFrame, title: str = "", caption: str = "") -> Table:
    """Return a table for rich; columns of numbers are aligned right."""
    shown = Table(
        title=escape_terminal(title) if title else None, caption=escape_terminal(caption) if caption else None
    )
    for name in table:
        numeric = all(map(_NUMBER.fullmatch, table[name]))
        shown.add_column(escape_terminal(str(name)), justify="right" if numeric else "left", overflow="fold")
    for row in table.itertuples(index=False):
        shown.add_row(*map(escape_terminal, row))
    return shown


def markdown(table: DataFrame) -> str:
    """Return a table as GitHub's markdown."""
    return str(table.map(escape_markdown).to_markdown(index=False, tablefmt="github", disable_numparse=True))


def html(table: DataFrame, label: str) -> Markup:
    """Return a table as HTML, in a region called `label` that scrolls sideways; the first column names the rows."""
    stub = table.columns[0]
    named = table.set_index(stub).rename_axis(index=None, columns=stub)
    region = Markup('<div class="scroll" role="region" aria-label="{}" tabindex="0">{}</div>')
    return region.format(label, Markup(named.to_html(classes="measures", border=0, justify="unset")))  # noqa: S704


# --- Judgements and scores for a terminal ---


def judgement_view(prediction: ScoredItem) -> RenderableType:
    """Return prompt, responses, rubric, analysis and verdict, or why there is none; responses are numbered from 1."""
    judgement, order = prediction.answer, prediction.order
    labels = [LABELS[order.index(number)] for number in range(len(order))]
    parts: list[RenderableType] = [*_prompt_view(prediction.item), _responses(prediction.item, "shown as", labels)]
    if judgement.rubric:
        table = _grid("weight", "criterion", "rubric")
        for each in judgement.rubric.criteria:
            table.add_row(str(each.weight), escape_terminal(each.name), escape_terminal(each.description))
        parts.append(table)
    if judgement.analysis:
        parts += [Text("Analysis", style="bold"), escape_terminal(judgement.analysis.strip())]
    if judgement.verdict is None:
        parts += [Text("No verdict", style="bold red"), *(Text(f"- {i}: {RULES[i]}") for i in judgement.issues)]
        parts += [Text("It wrote", style="bold"), escape_terminal(shorten_repeats(judgement.completion))]
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
    return Group(*_prompt_view(item), _responses(item, "score", [f"{score:.4g}" for score in scores]), highest)


def _prompt_view(item: Item) -> Iterator[RenderableType]:
    yield Rule(escape_terminal(item.id))
    yield escape_terminal(item.prompt)
    yield Text.assemble(escape_terminal(culture_name(item.culture)), style="dim")


def _responses(item: Item, head: str, values: Sequence[str]) -> Table:
    table = _grid("response", head, "")
    for number, (value, response) in enumerate(zip(values, item.responses, strict=True), 1):
        table.add_row(str(number), value, escape_terminal(response))
    return table


def _grid(*heads: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for head in heads:
        table.add_column(head, justify="left" if head == heads[-1] else "right")
    return table
