"""What offline pages share: templates that escape, plots as SVG, maps of cultures and domains."""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup
from pandas import DataFrame

from think_as_locals.evaluation.breakdowns import language_name
from think_as_locals.evaluation.tables import METHODS
from think_as_locals.judging.prompt import culture_name
from think_as_locals.runtime.files import read_json
from think_as_locals.runtime.run_folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, GREY = "#3c82c8", "#8a94a3"
_INK = "#010203"  # stands for the colour of a page's text, light or dark
_NOT_XML = re.compile(r"[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # however it is escaped
_STYLE = {
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.grid.axis": "both",
    "axes.labelcolor": _INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "savefig.transparent": True,
    "svg.fonttype": "none",  # texts stay texts: browsers have fonts for every script
    "svg.hashsalt": "think-as-locals",
    "text.color": _INK,
    "text.parse_math": False,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


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
    environment.filters |= {
        "culture": culture_name,
        "language": language_name,
        "sha256": lambda text: base64.b64encode(hashlib.sha256(str(text).encode()).digest()).decode(),
        "embedded": partial(htmlsafe_json_dumps, ensure_ascii=False, allow_nan=False, separators=(",", ":")),
        "method": lambda name: METHODS.get(name, name),
    }
    return environment


@contextmanager
def page_style() -> Iterator[None]:
    """The style of pages for plots, as a context or as the decorator of a function that draws."""
    from matplotlib import rc_context

    with rc_context(_STYLE):
        yield


def draw(height: float, plots: int = 1) -> tuple[Figure, Sequence[Axes]]:
    """Return a figure of 8 x `height` inches, with plots below one another."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, height), layout="constrained")
    return figure, list(figure.subplots(plots, squeeze=False)[:, 0])


def svg(figure: Figure) -> Markup:
    """Return a figure as SVG for a page, in the colour of its text."""
    content = io.StringIO()
    figure.savefig(content, format="svg", metadata={"Date": None})
    text = content.getvalue()
    return Markup(_NOT_XML.sub("\ufffd", text[text.index("<svg") :].replace(_INK, "currentColor")))  # noqa: S704


@page_style()
def intervals_plot(
    estimates: Sequence[tuple[str, Mapping[str, Any]]],
    marked: float | None = None,
    key: str = "accuracy",
    label: str = "accuracy, %",
    limits: tuple[float, float] | None = (0, 100),
) -> Markup:
    """Return a plot of estimates with their intervals, one below the other, in per cent; dashed: chance, or no gain."""
    figure, (axes,) = draw(0.8 + 0.28 * len(estimates))
    for height, (_, part) in enumerate(reversed(estimates)):
        low, high = (100 * end for end in part["ci95"] or [part[key]] * 2)
        axes.plot([low, high], [height, height], color=BLUE)
        axes.plot(100 * part[key], height, "o", color=BLUE)
    axes.set_yticks(range(len(estimates)), [name for name, _ in reversed(estimates)])
    axes.set(xlim=limits, xlabel=label, ylim=(-0.5, len(estimates) - 0.5))
    if marked is not None:
        axes.axvline(100 * marked, color=GREY, linestyle="--")
    return svg(figure)


def heat_map(now: Mapping[str, Any], before: Mapping[str, Any] | None = None, number: int = 0) -> Markup:
    """Return accuracy by culture and domain, coloured from chance, with the change against an earlier measurement.

    Cells get their colours by ids, so each map on a page needs a `number` of its own.
    """
    domains = [*now["by_domain"], "all domains"]
    texts, shades = DataFrame(columns=domains), DataFrame(columns=domains, dtype=float)
    for culture in (*now["by_culture"], "all cultures"):
        cells, tones = [], []
        for domain in domains:
            part, earlier = (_part(of, culture, domain) if of else None for of in (now, before))
            change = f" ({100 * (part['accuracy'] - earlier['accuracy']):+.1f})" if part and earlier else ""
            ends = "{:.0f}–{:.0f}".format(*(100 * end for end in part["ci95"])) if part else ""
            cells.append(f"{100 * part['accuracy']:.1f}{change} [{ends}], n {part['n']}" if part else "–")
            tones.append(shade(part["accuracy"], now["baselines"]["chance"]["accuracy"]) if part else 0.0)
        texts.loc[culture], shades.loc[culture] = cells, tones
    style = texts.style.background_gradient("RdBu", vmin=-110, vmax=110, gmap=shades, axis=None)
    heat = style.format(escape="html").format_index(culture_name, escape="html", axis=0)
    heat = heat.format_index(escape="html", axis=1)
    table = heat.set_uuid(f"map{number}").set_table_attributes('class="heat"').to_html()
    return Markup('<div class="scroll" tabindex="0">{}</div>').format(Markup(table))  # noqa: S704


def _part(summary: Mapping[str, Any], culture: str, domain: str) -> Any:
    if domain == "all domains":
        return summary if culture == "all cultures" else summary["by_culture"].get(culture)
    if culture == "all cultures":
        return summary["by_domain"].get(domain)
    return summary["by_cell"].get(f"{culture}/{domain}")


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
