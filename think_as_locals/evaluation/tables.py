r"""One table for terminals, markdown files and pages, and judgements for terminals. Untrusted text is escaped here.

print(Table(["reward model", "accuracy, %"], [["mine", figure(summary)]]).markdown())
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from markupsafe import Markup
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.rule import Rule
from rich.table import Table as TerminalTable
from rich.text import Text

from think_as_locals.judging import RULES
from think_as_locals.judging.prompt import culture_name
from think_as_locals.reward_models.reward_model import ScoredItem, favourite
from think_as_locals.types import LABELS, Item

METHODS = {"cluster_bootstrap": "bootstrap by group", "cluster_wilson": "Wilson by group", "wilson": "Wilson by item"}
"""The name of a `ci_method` on pages."""

_MARKDOWN = re.compile(r"[\\`*_{}\[\]()#+!|~$@]|:(?=//)|(?<=www)\.", re.IGNORECASE)
"""The last alternatives break up addresses, which GitHub turns into links even without markup."""

_NUMBER = re.compile(r"\d.*|–||none|no such pairs")
_JOINERS_AND_MARKS = "\u200c\u200d\u200e\u200f\u061c"  # invisible, and needed to write some languages
_DIRECTION = dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)])


def escape_markdown(value: str) -> str:
    """Return a text on one line, escaped for markdown and HTML."""
    return _MARKDOWN.sub(r"\\\g<0>", html.escape(" ".join(value.split()), quote=False))


def escape_terminal(value: str) -> Text:
    """Return a text in which characters that a terminal interprets or hides (control, bidi) are escaped."""

    def visible(character: str) -> str:
        if character in "\n\t" or character in _JOINERS_AND_MARKS:
            return character
        hidden = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
        return character.encode("unicode_escape").decode() if hidden else character

    return Text("".join(map(visible, value.replace("\r\n", "\n"))))


def without_bidi(name: str) -> str:
    """Return a name without bidirectional control characters, which would reorder the figures next to it."""
    return name.translate(_DIRECTION)


def isolate(name: str) -> Markup:
    """Return a name as HTML that does not change the direction of the text around it."""
    return Markup("<bdi>{}</bdi>").format(without_bidi(name))


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with its 95 % interval, n and the interval's method, as far as there are any.

    `form` is a number format such as `.1f` or `+.1f`, or `p` for a p-value. `label` precedes the number, which is bold
    on a page if `strong`.
    """

    value: float
    ci95: tuple[float, float] | None = None
    n: int | None = None
    method: str = ""
    form: str = ".1f"
    label: str = ""
    strong: bool = True

    def text(self) -> str:
        """Return e.g. `A 61.2 [55.0, 67.1], n 134`."""
        interval = " [{}, {}]".format(*map(self._number, self.ci95)) if self.ci95 else ""
        n = "" if self.n is None else f", n {self.n}"
        return f"{self.label} {self._number(self.value)}{interval}{n}".strip()

    def html(self) -> Markup:
        """Return the same as HTML: a typographic minus, interval and n in small print, the method as a title."""
        join = " to " if "+" in self.form else "–"
        small = [join.join(map(self._signed, self.ci95))] if self.ci95 else []
        small += [] if self.n is None else [f"n\u00a0{self.n}"]
        title = Markup(' title="{}"').format(METHODS.get(self.method, self.method)) if self.method else ""
        number = Markup("<b>{}</b>").format(self._signed(self.value)) if self.strong else self._signed(self.value)
        note = Markup(" <small{}>{}</small>").format(title, ", ".join(small)) if small else ""
        return Markup("{} {}{}").format(self.label, number, note) if self.label else Markup("{}{}").format(number, note)

    def _number(self, value: float) -> str:
        if self.form == "p":
            return "< 0.001" if value < 0.001 else f"{value:.3f}"
        return f"{value:{self.form}}"

    def _signed(self, value: float) -> str:
        written = self._number(value)
        zero = "+" in self.form and not any(digit in written for digit in "123456789")
        return f"±{written[1:]}" if zero else written.replace("-", "−")


def figure(
    part: Mapping[str, Any],
    key: str = "accuracy",
    form: str = ".1f",
    scale: float = 100,
    show_n: bool = False,
    **how: Any,
) -> Figure | None:
    """Return the scaled figure of an estimate in JSON (`Estimate.as_dict(key)`); `None` without a value."""
    if not part.get("n") or part.get(key) is None:
        return None
    ci95 = part.get("ci95")
    ends = (scale * ci95[0], scale * ci95[1]) if ci95 else None
    n = part["n"] if show_n else None
    return Figure(scale * part[key], ends, n, part.get("ci_method", ""), form, **how)


@dataclass(frozen=True, slots=True)
class Named:
    """A name with a mark, which `meaning` explains on a page, and a note in small print."""

    text: str
    mark: str = ""
    meaning: str = ""
    note: str = ""

    def html(self) -> Markup:
        """Return the label as HTML."""
        mark = Markup(' <span class="mark" title="{0}">{1}<span class="unseen"> {0}</span></span>')
        return Markup("{}{}{}").format(
            isolate(self.text),
            mark.format(self.meaning, self.mark) if self.mark else "",
            Markup(" <small>{}</small>").format(self.note) if self.note else "",
        )


Cell = str | Named | Figure | Sequence[Figure] | None
"""Text is untrusted, except for `Markup` (such as plots), which only pages show; `None` is a missing value."""


@dataclass(frozen=True, slots=True)
class Table:
    """Headings and rows of cells; column `header` names the row, and a line precedes each row in `sections`.

    A column whose heading begins with "plot" is only for pages. Columns of figures and numbers are aligned right.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    header: int = 0
    sections: Sequence[int] = ()

    def __bool__(self) -> bool:
        return bool(self.rows)

    def terminal(self, title: str = "", caption: str = "") -> _OnTerminal:
        """Return the table for rich; one that is too wide is split into parts, each with the names of the rows."""
        return _OnTerminal(self, title, caption)

    def markdown(self) -> str:
        """Return the table as GitHub's markdown."""
        indices = list(self._written())
        head = [self.headings[index] for index in indices]
        rows = [[_text(row[index], escape_markdown) for index in indices] for row in self.rows]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))

    def html(self, label: str, style: str = "") -> Markup:
        """Return the table as HTML, in a region called `label` that scrolls sideways, with a further class `style`."""
        columns = range(len(self.headings))
        classes = [Markup(' class="number"') if self._numeric(index) else "" for index in columns]
        classes[self.header] = Markup(' class="stub"')  # it stays where it is as the table scrolls
        written = set(self._written())
        unseen = Markup('<span class="unseen">{}</span>')
        head = [text if index in written else unseen.format(text) for index, text in enumerate(self.headings)]
        cells = [Markup('<th scope="col"{}>{}</th>').format(classes[index], head[index]) for index in columns]
        rows = []
        for row in self.rows:
            tags = [Markup("<td{}>{}</td>").format(classes[index], _html(row[index])) for index in columns]
            tags[self.header] = Markup('<th scope="row">{}</th>').format(_html(row[self.header]))
            rows.append(Markup("<tr>{}</tr>").format(Markup().join(tags)))
        cuts = pairwise([0, *self.sections, len(rows)])
        bodies = [Markup("<tbody>\n{}\n</tbody>\n").format(Markup("\n").join(rows[a:b])) for a, b in cuts]
        return Markup(
            '<div class="scroll" role="region" aria-label="{}" tabindex="0">\n<table class="measures {}">\n'
            "<thead><tr>{}</tr></thead>\n{}</table>\n</div>"
        ).format(label, style, Markup().join(cells), Markup().join(bodies))

    def _written(self) -> Iterator[int]:
        return (index for index, heading in enumerate(self.headings) if not heading.startswith("plot"))

    def _numeric(self, index: int) -> bool:
        texts = [cell for row in self.rows if isinstance(cell := row[index], str | Named)]
        return index != self.header and all(isinstance(cell, str) and _NUMBER.fullmatch(cell) for cell in texts)


@dataclass(frozen=True, slots=True)
class _OnTerminal:
    table: Table
    title: str
    caption: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.title:
            yield Text.assemble(escape_terminal(self.title), style="italic")
        rows = self.table.rows
        texts = {index: [escape_terminal(_text(row[index])) for row in rows] for index in self.table._written()}
        for widths in self._parts(texts, options.max_width):
            part = TerminalTable()
            for index, width in widths.items():
                justify: JustifyMethod = "right" if self.table._numeric(index) else "left"
                part.add_column(self.table.headings[index], justify=justify, overflow="fold", width=width)
            values = [texts[index] for index in widths if index != self.table.header or len(widths) == 1]
            for number, cells in enumerate(zip(*(texts[index] for index in widths), strict=True), start=1):
                if any(found[number - 1] for found in values):
                    part.add_row(*cells)
                if number in self.table.sections:
                    part.add_section()
            yield part
        if self.caption:
            yield Text.assemble(escape_terminal(self.caption), style="dim italic")

    def _parts(self, texts: Mapping[int, Sequence[Text]], room: int) -> list[dict[int, int]]:
        """Return the columns of each part and their widths, such that no figure or heading word is broken."""
        header, headings = self.table.header, self.table.headings
        content = {index: max((text.cell_len for text in found), default=0) for index, found in texts.items()}
        widths = {index: max(width, cell_len(headings[index])) for index, width in content.items()}
        if _drawn(widths) <= room:
            return [widths]
        widths = {index: max(width, *map(cell_len, headings[index].split())) for index, width in content.items()}
        names = " ".join([headings[header], *map(str, texts[header])])
        longest_word = max(map(cell_len, names.split()), default=0)
        # Long names are wrapped.
        widths[header] = min(widths[header], max(room // 4, min(longest_word, room // 3)))
        parts = [{header: widths[header]}]
        for index in (index for index in widths if index != header):
            width = min(widths[index], room - _drawn({header: widths[header], index: 0}))
            if _drawn({**parts[-1], index: width}) > room:
                parts.append({header: widths[header]})
            parts[-1][index] = width
        return [dict(sorted(part.items())) for part in parts]


def _drawn(widths: Mapping[int, int]) -> int:
    """Return the width of columns with lines and margins."""
    return 1 + sum(width + 3 for width in widths.values())


def _text(cell: Cell, escape: Callable[[str], str] = str) -> str:
    match cell:
        case None:
            return ""
        case Figure():
            return cell.text()
        case Named():
            return escape(" ".join(filter(None, (cell.text, cell.mark, cell.note and f"({cell.note})"))))
        case str():
            return escape(cell)
        case _:
            return "; ".join(each.text() for each in cell)


def _html(cell: Cell) -> Markup | str:
    match cell:
        case None:
            return "–"
        case Figure() | Named():
            return cell.html()
        case Markup():
            return cell
        case str():
            return without_bidi(cell)
        case _:
            return Markup().join(Markup('<span class="item">{}</span>').format(each.html()) for each in cell)


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
    return Group(*_prompt_view(item), _responses(item, "score", [f"{score:.4g}" for score in scores]), highest)


def _prompt_view(item: Item) -> Iterator[RenderableType]:
    yield Rule(escape_terminal(item.id))
    yield escape_terminal(item.prompt)
    yield Text.assemble(escape_terminal(culture_name(item.culture)), style="dim")


def _responses(item: Item, head: str, values: Sequence[str]) -> TerminalTable:
    table = _grid("response", head, "")
    for number, (value, response) in enumerate(zip(values, item.responses, strict=True), 1):
        table.add_row(str(number), value, escape_terminal(response))
    return table


def _grid(*heads: str) -> TerminalTable:
    table = TerminalTable(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for head in heads:
        table.add_column(head, justify="left" if head == heads[-1] else "right")
    return table
