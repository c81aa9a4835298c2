"""What offline pages share: templates that escape, plots, and data that is safe inside a script element."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from think_as_locals.evaluation import carb
from think_as_locals.evaluation.baselines import NAMES
from think_as_locals.evaluation.breakdowns import language_name
from think_as_locals.evaluation.tables import METHODS, isolate, without_bidi
from think_as_locals.judging.prompt import culture_name
from think_as_locals.runtime.files import read_json
from think_as_locals.runtime.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class Axis:
    """A scale from values to SVG user units."""

    low: float
    high: float
    step: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return the position of a value."""
        return round(self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start), 1)

    @property
    def ticks(self) -> list[float]:
        """Return round values from `low` to `high`."""
        return [round(self.low + i * self.step, 10) for i in range(round((self.high - self.low) / self.step) + 1)]


def spread(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move ascending positions so that they are `gap` apart and, as far as possible, between `low` and `high`."""
    apart: list[float] = []
    for position in positions:
        apart.append(max(position, apart[-1] + gap if apart else low))
    most = high - gap * (len(apart) - 1)
    return [round(min(position, most + gap * number), 1) for number, position in enumerate(apart)]


@cache
def templates(*folders: Path) -> Environment:
    """Return the templates of this and other folders; values are escaped, and an unknown one is an error."""
    environment = Environment(
        loader=FileSystemLoader([Path(__file__).parent, *folders]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        axis=axis, spread=spread, shade=shade, strip=strip, isolated=isolate, baseline_names=NAMES
    )
    environment.filters |= {
        "trained_on_note": carb.trained_on_note,
        "at": lambda value, axis: axis.at(value),
        "culture": culture_name,
        "language": language_name,
        "sha256": lambda text: base64.b64encode(hashlib.sha256(str(text).encode()).digest()).decode(),
        "embedded": partial(htmlsafe_json_dumps, ensure_ascii=False, allow_nan=False, separators=(",", ":")),
        "without_bidi": without_bidi,
        "method": lambda name: METHODS.get(name, name),
    }
    return environment


def axis(low: float, high: float, start: float, end: float, ticks: int = 5) -> Axis:
    """Return an axis from a round value at or below `low` to one at or above `high`, with about `ticks` steps."""
    span = high - low or 1
    power: float = 10 ** math.floor(math.log10(span / ticks))
    step = next(m * power for m in (1, 2, 5, 10, 20) if m * power * ticks >= span * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return Axis(first * step, max(last, first + 1) * step, step, start, end)


def strip(now: dict[str, Any] | None, then: dict[str, Any] | None, chance: float | None) -> Markup:
    """Return a plot for a row of a table: two estimates with intervals, from 0 to 100 %, and a tick at chance."""

    def at(share: float) -> str:
        return f"{5 + 150 * share:g}"

    drawn = '<line class="rule" x1="5" x2="155" y1="10" y2="10"/>'
    if chance is not None:
        drawn += f'<line class="chance" x1="{at(chance)}" x2="{at(chance)}" y1="2" y2="18"/>'
    for part, mark, y in ((then, "then", 6), (now, "now", 14 if then else 10)):
        if part:
            low, high = map(at, part["ci95"])
            drawn += f'<line class="whisker {mark}" x1="{low}" x2="{high}" y1="{y}" y2="{y}"/>'
            drawn += f'<circle class="dot {mark}" cx="{at(part["accuracy"])}" cy="{y}" r="3.5"/>'
    return Markup(f'<svg class="strip" viewBox="0 0 160 20" aria-hidden="true">{drawn}</svg>')  # noqa: S704 - figures


def shade(share_right: float, chance: float) -> float:
    """Return the position on the heat map's scale: -100 if all is wrong, 0 at chance, 100 if all is right."""
    room = 1 - chance if share_right >= chance else chance
    return 100 * (share_right - chance) / room


def read_settings(run: Path) -> dict[str, Any]:
    """Return a run's `config.yaml` (text, as `settings`) and `environment.json` (as `environment`), or `None`."""
    settings, environment = RunFolder(run).config, RunFolder(run).environment
    return {
        "settings": settings.read_text(encoding="utf-8") if settings.is_file() else None,
        "environment": read_json(environment) if environment.is_file() else None,
    }
