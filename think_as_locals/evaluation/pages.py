"""What the offline pages share: templates that escape, and data that a script can read and nobody can break out of."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from babel import Locale
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from think_as_locals.evaluation.judged import read_json
from think_as_locals.judging.render import culture_name

_TURNS = dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)])
_ESCAPED = str.maketrans({character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"})


@dataclass(frozen=True, slots=True)
class Axis:
    """Values -> SVG user units."""

    low: float
    high: float
    step: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Where a value lies."""
        return round(self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start), 1)

    @property
    def ticks(self) -> list[float]:
        """Round values from `low` to `high`."""
        return [round(self.low + i * self.step, 10) for i in range(round((self.high - self.low) / self.step) + 1)]


def templates() -> Environment:
    """The templates beside this module: all that is put into them is escaped, and a name they lack is an error."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(axis=axis, shade=shade)
    environment.filters |= {
        "culture": culture_name,
        "language": language_name,
        "sha256": lambda text: base64.b64encode(hashlib.sha256(str(text).encode()).digest()).decode(),
        "embedded": embedded,
        "unturned": unturned,
    }
    return environment


def language_name(tag: str) -> str:
    """The English name of a language, e.g. `th` -> `Thai`; a tag that CLDR does not know stays as it is."""
    return str(Locale("en").languages.get(tag, tag))


def embedded(value: Any) -> Markup:
    r"""A value as JSON that may stand inside a script element: no text in it can end the element or begin a tag.

    Example:
        >>> print(embedded({"said": "</script>"}))
        {"said":"\u003c/script\u003e"}
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.translate(_ESCAPED))  # noqa: S704 - nothing is left that HTML gives a meaning to


def unturned(name: str) -> str:
    r"""A name without the characters that turn the direction of what follows, which may be a figure.

    Example:
        >>> unturned("best \u202e")
        'best '
    """
    return name.translate(_TURNS)


def axis(low: float, high: float, start: float, end: float, ticks: int = 5) -> Axis:
    """An axis from a round value at or below `low` to one at or above `high`, with about as many steps as `ticks` says.

    Example:
        >>> axis(0.0, 0.9, start=0, end=100).ticks
        [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    span = high - low or 1
    power: float = 10 ** math.floor(math.log10(span / ticks))
    step = next(m * power for m in (1, 2, 5, 10, 20) if m * power * ticks >= span * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return Axis(first * step, max(last, first + 1) * step, step, start, end)


def shade(share_right: float, chance: float) -> float:
    """Position on the heat map's scale: -100 where nothing is right, 0 at chance, 100 where everything is.

    Example:
        >>> shade(0.625, chance=0.25)
        50.0
    """
    room = 1 - chance if share_right >= chance else chance
    return 100 * (share_right - chance) / room


def read_settings(run: Path) -> dict[str, Any]:
    """A run's `config.yaml` as text and `environment.json` as values, under `settings` and `environment`; or `None`."""
    settings, environment = run / "config.yaml", run / "environment.json"
    return {
        "settings": settings.read_text(encoding="utf-8") if settings.is_file() else None,
        "environment": read_json(environment) if environment.is_file() else None,
    }
