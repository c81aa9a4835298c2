"""The results of an SCPO run as `scpo.json`, `scpo.md` and an offline page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from rich.console import RenderableType

from think_as_locals.config.schema import ScpoConfig
from think_as_locals.evaluation.pages import Axis, axis, read_settings, templates
from think_as_locals.evaluation.tables import Cell, Figure, Named, Table, escape_markdown, figure
from think_as_locals.judging.prompt import culture_name
from think_as_locals.runtime.files import read_json, write_json, write_text
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.scpo.results import GLOBAL, MAX_LOSS, HeldOutSet, Scores, VariantResult, summarise

VARIANT_NAMES = {
    GLOBAL: "global RM",
    "full": "full fine-tuning",
    "filter": "filter only",
    "weight": "weight only",
    "scpo": "SCPO (filter and weight)",
    "inverse_weight": "inverse weight",
    "filter_inverse_weight": "filter and inverse weight",
    "scpo_tuned": "SCPO, tuned by country",
}

DIFFERENCES = {
    ("dropout", True): "A country's model is trained and scored with dropout on.",
    ("training_text", "joined"): 'The text for training differs from the one for scoring: prompt and response with " '
    '[SEP] " between, cut at 512 tokens.',
    ("long_texts", "scored"): "Pairs of any length are scored whole, by models that have no last position: DeBERTa.",
    ("minority_test", "disagreement"): "The filter keeps p < tau, but a test pair is a minority's view if r+ < r-.",
    ("split", "together"): "People are split all at once, not by country; on PRISM as in the released code.",
    ("steps", "exactly"): "Every training takes max_steps, whatever num_train_epochs says.",
    ("probability", "exponentials"): "p is computed by exponentials: where r+ is above 88, or both scores are below "
    "-103, it is not a number and the pair is not kept.",
    ("inverse_weight", "ratio"): "The inverse weight has no temperature and no bound.",
    ("ties", "wrong"): "Two equal scores count as wrong.",
}
"""Differences of the released code from its description, by a key of `conf/mode` and its value."""

_PAIRS = {
    "minority": "minority's view",
    "overall": "all pairs of that country",
    "others": "pairs of all other countries",
}


def write_report(
    folder: Path, config: ScpoConfig, held_out: HeldOutSet, global_scores: Scores, results: Sequence[VariantResult]
) -> Path:
    """Write `scpo.json`, `scpo.md` and `report.html` into a run's folder, and return the page's path."""
    run, mode = RunFolder(folder), config.mode.model_dump()
    summary = {
        "dataset": config.data.title,
        "model": config.model.path or "randomly initialised",
        "seed": config.seed,
        "mode": mode,
        "differences": [sentence for (key, value), sentence in DIFFERENCES.items() if mode[key] == value],
        "filter_threshold": config.scpo.filter_threshold,
        "weight_temperature": config.scpo.weight_temperature,
        "country_filter_thresholds": config.scpo.country_filter_thresholds,
        "country_learning_rates": config.scpo.country_learning_rates,
        "reference": config.scpo.reference,
        "n": len(held_out.items),
        "left_out": held_out.left_out,
        "resampled": "questions of the survey" if held_out.questions else "people",
        "minority_share": len(held_out.minority) / len(held_out.items),
        "max_loss": MAX_LOSS,
        **summarise(held_out, global_scores, results),
    }
    write_json(run.steering, summary)
    tables = _tables(summary)
    write_text(run.steering.with_suffix(".md"), _markdown(summary, tables))
    template = templates(Path(__file__).parent).get_template("steering.html.jinja")
    about = {"run": config.run.name, "settings": read_settings(folder)}
    write_text(run.report, template.render(found=summary, tables=tables, names=VARIANT_NAMES, **about))
    return run.report


def on_terminal(folder: Path) -> Iterator[RenderableType]:
    """Yield the tables of means and of trainings of a folder's `scpo.json` for a terminal."""
    summary = read_json(RunFolder(folder).steering)
    tables = _tables(summary)
    yield tables["means"].terminal(
        f"SCPO on {summary['dataset']}: {summary['n']} test pairs",
        f"Per cent with 95 % intervals over {summary['resampled']}; gains are over the global RM on the same pairs. "
        "others: pairs of all other countries, judged by a country's model. disagreed: pairs with r+ < r-, which the "
        "reference ranks the other way.",
    )
    yield tables["training"].terminal()


def _markdown(summary: dict[str, Any], tables: dict[str, Table]) -> str:
    countries = {row["country"] for row in summary["rows"]}
    explained = (
        f"Per cent with 95 % intervals over {summary['resampled']}; n = {summary['n']} test pairs of {len(countries)} "
        f"countries, {100 * summary['minority_share']:.1f} % of them a minority's view. Gains are over the global RM "
        f"on the same pairs. Others: pairs of all other countries, judged by a country's model. {summary['left_out']} "
        f"training and test pairs are left out. Mode: {summary['mode']['name']}."
    )
    improved = [
        f"- {VARIANT_NAMES[variant]}: minority accuracy rises and overall accuracy falls by {100 * MAX_LOSS:.0f} "
        f"points at most in {counts['helped']} of {counts['countries']} countries; in {counts['significantly']} of "
        "these the interval of the rise excludes 0. Over-biased, with a rise for the minority and a fall on all pairs, "
        f"in {counts['over_biased']}; in {counts['surely_over_biased']} of these the interval of the fall excludes 0."
        for variant, counts in summary["improved"].items()
    ]
    if others := figure(summary["others_distance"], "mean", ".3f", 1, show_n=True):
        improved.append(f"- Distance of the mean of all other countries: {others.text()}.")
    parts = [
        f"# SCPO on {escape_markdown(summary['dataset'])}",
        explained,
        *(f"- {sentence}" for sentence in summary["differences"]),
        tables["means"].markdown(),
        *improved,
        tables["training"].markdown(),
        *(f"## {title.capitalize()}\n\n{tables[title].markdown()}" for title in ("gains", *_PAIRS.values())),
    ]
    return "\n\n".join(parts) + "\n"


def _tables(summary: dict[str, Any]) -> dict[str, Table]:
    """Return the tables of a run by name: `means`, `training`, `gains`, and one by country for each of `_PAIRS`."""
    means, rows = summary["means"], [row for row in summary["rows"] if row["num_pairs"] is None]
    whole = [row for row in means if row["num_pairs"] is None]
    tables = {"means": _means(means), "training": _training(means[1:], summary["improved"])}
    in_front = next((row["variant"] for row in whole if row["variant"] == "scpo"), whole[1]["variant"])
    tables["gains"] = _gains([row for row in rows if row["variant"] == in_front])
    headings = ["country", *(VARIANT_NAMES[row["variant"]] for row in whole)]
    for part, title in _PAIRS.items():
        by_country: dict[str, list[Cell]] = {}
        for row in rows:
            cells = by_country.setdefault(row["country"], [_country(row, f", n {row[part]['n']}")])
            cells.append([found for found in (figure(row[part]), _gain(row, part)) if found] or "none")
        tables[title] = Table(headings, list(by_country.values()))
    return tables


def _means(rows: Sequence[dict[str, Any]]) -> Table:
    parts = {"minority": "minority's view", "overall": "all pairs", "others": "others"}
    headings = ["variant", *(name for heading in parts.values() for name in (heading, "gain")), "disagreed"]
    distances = any(row["distance"]["n"] for row in rows)
    headings += ["distance", "change"] if distances else []
    cells: list[list[Cell]] = []
    for row in rows:
        line: list[Cell] = [_variant(row)]
        for part in parts:
            line += [figure(row[part], show_n=True) or "none", _gain(row, part)]
        line.append(figure(row["disagreed"], show_n=True) or "none")
        if distances:
            line += [figure(row["distance"], "mean", ".3f", 1, show_n=True), _gain(row, "distance", "+.3f", 1)]
        cells.append(line)
    return Table(headings, cells)


def _training(rows: Sequence[dict[str, Any]], improved: dict[str, Any]) -> Table:
    counted = {"helps in": "helped", "significantly": "significantly", "over-biased": "over_biased"}
    headings = ["variant", *counted, "pairs of a country", "kept", "steps", "seeds"]
    cells: list[list[Cell]] = []
    for row in rows:
        counts, training = improved.get(row["variant"]) if row["num_pairs"] is None else None, row["training"]
        helps = [f"{counts[key]} of {counts['countries']}" if counts else "" for key in counted.values()]
        sizes = [f"{training['pairs']:.0f}", f"{100 * training['kept']:.1f} %", f"{training['steps']:.0f}"]
        deviations = [row["seeds"][part] for part in ("minority", "overall")]
        spreads = ["–" if value is None else f"{100 * value:.1f}" for value in deviations]
        cells.append([_variant(row), *helps, *sizes, str(row["seeds"]["n"]), *spreads])
    return Table([*headings, "spread: minority", "spread: all pairs"], cells)


def _gains(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the gains of one variant by country, the greatest for the minority first."""
    known = [row[part]["gain"] for row in rows for part in _PAIRS if row[part]["n"]]
    ends = [end for gain in known for end in gain["ci95"] or (gain["mean"],)]
    scale = axis(min(0.0, *ends), max(0.0, *ends), 5, 155)
    headings = ["country", "helps", *(heading for title in _PAIRS.values() for heading in (f"plot: {title}", title))]
    cells: list[list[Cell]] = []
    for row in sorted(rows, key=lambda r: -r["minority"]["gain"]["mean"] if r["minority"]["n"] else math.inf):
        helps = {"no": "no", "yes": "yes", "significantly": "yes, significantly"}.get(row["helps"], "–")
        line: list[Cell] = [_country(row), helps]
        for part in _PAIRS:
            plot = _strip(row[part]["gain"], scale) if row[part]["n"] else None
            line += [plot, _gain(row, part, show_n=True) or "no such pairs"]
        cells.append(line)
    return Table(headings, cells)


def _strip(gain: dict[str, Any], scale: Axis) -> Markup:
    """Return the plot of a gain, on the same scale for a whole table; its style says whether it is a gain or a loss."""
    low, high = gain["ci95"] or (gain["mean"], gain["mean"])
    mark = "then" if low <= 0 <= high or not gain["ci95"] else "now" if low > 0 else "lost"
    return Markup(  # noqa: S704 - figures
        '<svg class="strip" viewBox="0 0 160 20" aria-hidden="true">'
        '<line class="rule" x1="5" x2="155" y1="10" y2="10"/>'
        f'<line class="chance" x1="{scale.at(0)}" x2="{scale.at(0)}" y1="2" y2="18"/>'
        f'<line class="whisker {mark}" x1="{scale.at(low)}" x2="{scale.at(high)}" y1="10" y2="10"/>'
        f'<circle class="dot {mark}" cx="{scale.at(gain["mean"])}" cy="10" r="3.5"/></svg>'
    )


def _gain(
    row: dict[str, Any], part: str, form: str = "+.1f", scale: float = 100, *, show_n: bool = False
) -> Figure | None:
    """Return the gain over the global RM, bold if its interval excludes 0."""
    if row["variant"] == GLOBAL or not row[part]["n"]:
        return None
    gain = row[part]["gain"]
    sure = bool(gain["ci95"]) and not gain["ci95"][0] <= 0 <= gain["ci95"][1]
    return figure(gain, "mean", form, scale, show_n=show_n, strong=sure)


def _variant(row: dict[str, Any]) -> Named:
    return Named(VARIANT_NAMES[row["variant"]], note=f"{row['num_pairs']} pairs" if row["num_pairs"] else "")


def _country(row: dict[str, Any], note: str = "") -> Named:
    return Named(culture_name(row["country"]), note=f"{row['country']}{note}")
