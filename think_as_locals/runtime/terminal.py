"""The terminal by rich: consoles on which nothing is markup, for results, and for the progress of a run on stderr."""

from __future__ import annotations

import os
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment

from think_as_locals.runtime.output import LEVEL, visible

_WIDTH = 160  # columns of a file or a pipe: rich's 80 would break the words of tables


class Terminal(Console):
    """A console on which texts are no markup, and what a terminal would interpret in them is escaped."""

    def __init__(self, *, stderr: bool = False, quiet: bool = False, style: str | None = None) -> None:
        super().__init__(stderr=stderr, quiet=quiet, style=style, markup=False, highlight=False, emoji=False)
        if not (self.is_terminal or "COLUMNS" in os.environ):
            self.width = _WIDTH

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, with the text of each part escaped."""
        for part in super().render(renderable, options):
            yield part if part.control else part._replace(text=visible(part.text))


def progress_console(*, is_main: bool = True) -> Terminal:
    """Return the console for progress and logs of a run: stderr, of the main process only."""
    return Terminal(stderr=True, quiet=not is_main or os.environ.get(LEVEL) == "quiet")


def progress_bar(console: Console) -> Progress:
    """Return a progress bar with counts and the remaining time."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console)
