"""The results of an SCPO run as `scpo.json`, `scpo.md` and an offline page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from pandas import DataFrame
from rich.console import RenderableType

from think_as_locals.config.scpo_schema import ScpoConfig
from think_as_locals.evaluation import tables
from think_as_locals.evaluation.pages import intervals_plot, read_settings, templates
from think_as_locals.evaluation.tables import escape_markdown, figure
from think_as_locals.judging.prompt import culture_name
from think_as_locals.runtime.files import read_json, write_json, write_text
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.scpo.results import GLOBAL, MAX_ACCURACY_DROP, HeldOutSet, Scores, VariantResult, summarise

VARIANT_NAMES = {
    GLOBAL: "global RM",
    "full": "full fine-tuning",
    "filter": "filter only",
    "weight": "weight only",
    "scpo": "SCPO (filter and weight)",
    "inverse_weight": "inverse weight",
    "filter_inverse_weight": "filter and inverse weight",
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
    """Write `scpo.json`, `scpo.md` and `report.html` into a run's folder, and return the page's path.

    Without results there is nothing but the global RM: only `scpo.json` is written.
    """
    run, mode = RunFolder(folder), config.mode.model_dump()
    by_source = "people" if config.data.source in ("prism", "opinion_cards") else "question groups"
    summary = {
        "dataset": config.data.title,
        "model": config.model.path or "randomly initialised",
        "seed": config.seed,
        "mode": mode,
        "differences": [sentence for (key, value), sentence in DIFFERENCES.items() if mode[key] == value],
        "filter_threshold": config.scpo.filter_threshold,
        "weight_temperature": config.scpo.weight_temperature,
        "reference": config.scpo.reference,
        "n": len(held_out.items),
        "left_out": held_out.left_out,
        "faulty_rows": held_out.faulty,
        "resampled": "questions of the survey" if held_out.questions else by_source,
        "minority_share": len(held_out.minority) / len(held_out.items),
        "max_accuracy_drop": MAX_ACCURACY_DROP,
        **summarise(held_out, global_scores, results),
    }
    write_json(run.steering, summary)
    if not results:
        return run.steering
    found = _tables(summary)
    write_text(run.steering.with_suffix(".md"), _markdown(summary, found))
    whole = [row for row in summary["means"] if row["num_pairs"] is None]
    fewer = [row for row in summary["means"] if row["num_pairs"] is not None]
    page = (
        templates(Path(__file__).parent)
        .get_template("steering.html.jinja")
        .render(
            run=config.run.name,
            found=summary,
            steered=(steered := _in_front(whole)),
            name=VARIANT_NAMES[steered["variant"]],
            countries=sorted({row["country"] for row in summary["rows"]}),
            tables={title: tables.html(table, title) for title, table in found.items()},
            gains=_accuracies(
                [row for row in summary["rows"] if (row["variant"], row["num_pairs"]) == (steered["variant"], None)],
                lambda row: culture_name(row["country"]),
                "gain",
            ),
            variants=_accuracies(whole, _variant),
            efficiency=_accuracies([row for row in (*whole, *fewer) if row["variant"] in ("full", "scpo")], _variant)
            if fewer
            else "",
            parts=_PAIRS,
            settings=read_settings(folder),
        )
    )
    write_text(run.report, page)
    return run.report


def on_terminal(folder: Path) -> Iterator[RenderableType]:
    """Yield the tables of means and of trainings of a folder's `scpo.json` for a terminal."""
    summary = read_json(RunFolder(folder).steering)
    means = _means(summary["means"])
    shown = means[[name for name in means if name not in ("others", "gain, others", "disagreed")]]
    yield tables.on_terminal(
        shown,
        f"SCPO on {summary['dataset']}: {summary['n']} test pairs",
        f"Per cent with 95 % intervals over {summary['resampled']}; gains are over the global RM on the same pairs.",
    )
    if trained := summary["means"][1:]:
        yield tables.on_terminal(_training(trained, summary["improved"]))


def _markdown(summary: dict[str, Any], found: Mapping[str, DataFrame]) -> str:
    countries = {row["country"] for row in summary["rows"]}
    explained = (
        f"Per cent with 95 % intervals over {summary['resampled']}; n = {summary['n']} test pairs of {len(countries)} "
        f"countries, {100 * summary['minority_share']:.1f} % of them a minority's view. Gains are over the global RM "
        f"on the same pairs. Others: pairs of all other countries, judged by a country's model. {summary['left_out']} "
        f"training and test pairs are left out, and {summary['faulty_rows']} rows with faults. Mode: "
        f"{summary['mode']['name']}."
    )
    improved = [
        f"- {VARIANT_NAMES[variant]}: minority accuracy rises and overall accuracy falls by "
        f"{100 * MAX_ACCURACY_DROP:.0f} points at most in {counts['helped']} of {counts['countries']} countries; in "
        f"{counts['significantly']} of these the interval of the rise excludes 0. Over-biased, with a rise for the "
        "minority and a fall on all pairs, "
        f"in {counts['over_biased']}; in {counts['surely_over_biased']} of these the interval of the fall excludes 0."
        for variant, counts in summary["improved"].items()
    ]
    if others := figure(summary["others_distance"], "mean", ".3f", 1, show_n=True):
        improved.append(f"- Distance of the mean of all other countries: {others}.")
    parts = [
        f"# SCPO on {escape_markdown(summary['dataset'])}",
        explained,
        *(f"- {sentence}" for sentence in summary["differences"]),
        tables.markdown(found["means"]),
        *improved,
        tables.markdown(found["training"]),
        *(f"## {title.capitalize()}\n\n{tables.markdown(found[title])}" for title in ("gains", *_PAIRS.values())),
    ]
    return "\n\n".join(parts) + "\n"


def _in_front(whole: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the means of the variant that a report is about: SCPO's, or the first steered one's."""
    return next((row for row in whole if row["variant"] == "scpo"), whole[1])


def _tables(summary: dict[str, Any]) -> dict[str, DataFrame]:
    """Return the tables of a run by name: `means`, `training`, `gains`, and one by country for each of `_PAIRS`."""
    means, rows = summary["means"], [row for row in summary["rows"] if row["num_pairs"] is None]
    whole = [row for row in means if row["num_pairs"] is None]
    steered = [row for row in rows if row["variant"] == _in_front(whole)["variant"]]
    found = {"means": _means(means), "training": _training(means[1:], summary["improved"]), "gains": _gains(steered)}
    for part, title in _PAIRS.items():
        by_country: dict[str, dict[str, str]] = {}
        for row in rows:
            cells = by_country.setdefault(row["country"], {"country": _country(row), "n": str(row[part]["n"])})
            both = " ".join(filter(None, (figure(row[part]), _gain(row, part))))
            cells[VARIANT_NAMES[row["variant"]]] = both or "none"
        found[title] = DataFrame(by_country.values())
    return found


def _means(rows: Sequence[dict[str, Any]]) -> DataFrame:
    parts = {"minority": "minority's view", "overall": "all pairs", "others": "others"}
    table = []
    for row in rows:
        line = {"variant": _variant(row)}
        for part, heading in parts.items():
            line |= {heading: figure(row[part], show_n=True) or "none", f"gain, {heading}": _gain(row, part)}
        line["disagreed"] = figure(row["disagreed"], show_n=True) or "none"
        if row["distance"]["n"]:
            line["distance"] = figure(row["distance"], "mean", ".3f", 1, show_n=True)
            line["change"] = _gain(row, "distance", "+.3f", 1)
        table.append(line)
    return DataFrame(table).fillna("")


def _training(rows: Sequence[dict[str, Any]], improved: dict[str, Any]) -> DataFrame:
    counted = {"helps in": "helped", "significantly": "significantly", "over-biased": "over_biased"}
    table = []
    for row in rows:
        counts, training = improved.get(row["variant"]) if row["num_pairs"] is None else None, row["training"]
        line = {"variant": _variant(row)}
        for heading, key in counted.items():
            line[heading] = f"{counts[key]} of {counts['countries']}" if counts else ""
        line |= {"pairs of a country": f"{training['pairs']:.0f}", "kept": f"{100 * training['kept']:.1f} %"}
        line["mean weight"] = f"{training['weight']:.2f}"
        line |= {"steps": f"{training['steps']:.0f}", "seeds": str(row["seeds"]["n"])}
        for heading, part in (("spread: minority", "minority"), ("spread: all pairs", "overall")):
            line[heading] = "–" if (value := row["seeds"][part]) is None else f"{100 * value:.1f}"
        table.append(line)
    return DataFrame(table)


def _gains(rows: Sequence[dict[str, Any]]) -> DataFrame:
    """Return the gains of one variant by country, the greatest for the minority first."""
    helps = {"no": "no", "yes": "yes", "significantly": "yes, significantly"}
    table = [
        {"country": _country(row), "helps": helps.get(row["helps"], "–")}
        | {title: _gain(row, part, show_n=True) or "no such pairs" for part, title in _PAIRS.items()}
        for row in _by_gain(rows)
    ]
    return DataFrame(table)


def _by_gain(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda r: -r["minority"]["gain"]["mean"] if r["minority"]["n"] else math.inf)


def _gain(row: dict[str, Any], part: str, form: str = "+.1f", scale: float = 100, *, show_n: bool = False) -> str:
    """Return the gain over the global RM; empty for that itself, and without such pairs."""
    if row["variant"] == GLOBAL or not row[part]["n"]:
        return ""
    return figure(row[part]["gain"], "mean", form, scale, show_n=show_n)


def _variant(row: dict[str, Any]) -> str:
    name = VARIANT_NAMES[row["variant"]]
    return f"{name}, {row['num_pairs']} pairs" if row["num_pairs"] else name


def _country(row: dict[str, Any]) -> str:
    return f"{culture_name(row['country'])} ({row['country']})"


def _accuracies(rows: Sequence[dict[str, Any]], name: Callable[[dict[str, Any]], str], part: str = "") -> Markup:
    """Return a plot of the accuracies on the minority's view and on all pairs of each row, or of their gains."""
    estimates = [
        (f"{name(row)}: {_PAIRS[of]}", row[of]["gain"] if part else row[of])
        for row in (_by_gain(rows) if part else rows)
        for of in ("minority", "overall")
        if row[of]["n"]
    ]
    axis = (0.0, "mean", "gain over the global RM, points", None) if part else ()
    return intervals_plot(estimates, *axis) if estimates else Markup()
