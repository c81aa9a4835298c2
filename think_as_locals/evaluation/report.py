"""The report of a training run as an offline page: learning curve, accuracies, judgements before and after."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import zip_longest
from pathlib import Path
from typing import Any

import yaml
from markupsafe import Markup
from pandas import DataFrame, Series

from think_as_locals.data.splits import hash_fraction
from think_as_locals.evaluation import carb, tables
from think_as_locals.evaluation.baselines import NAMES
from think_as_locals.evaluation.breakdowns import language_name
from think_as_locals.evaluation.judgements import annotate, read_judgements
from think_as_locals.evaluation.pages import BLUE, GREY, draw, heat_map, page_style, read_settings, svg, templates
from think_as_locals.evaluation.tables import figure
from think_as_locals.runtime.files import write_text
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.types import TEST, DataError

MAX_JUDGEMENTS = 24

PAIRED = ("wrong → right", "right → wrong", "parse failure", "too long", "tie", "still wrong", "still right")
# Metric -> curve, in this order, before the parts of the reward.
_TOTALS = {"reward": "Training reward", "degenerate_reward_share": "Share of the reward earned without judging"}
SINGLE = ("parse failure", "too long", "tie", "wrong", "right")


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """The judgements of an item, annotated rows of a table, at the last step and, if known, before GRPO."""

    before: Any
    after: Any

    @property
    def outcome(self) -> str:
        """The outcome: one of `PAIRED`, or of `SINGLE` without a judgement before."""
        now = str(self.after.outcome)
        if self.before is None:
            return now
        both = (self.before.outcome, now)
        for rare in ("too long", "tie"):
            if rare in both:
                return rare
        if both.count("right") == 1:
            return "wrong → right" if now == "right" else "right → wrong"
        return "parse failure" if "parse failure" in both else f"still {now}"


def write_report(run_dir: Path) -> Path:
    """Write `report.html` into a run's folder, which must have a CARB file; the page names other missing files."""
    run = RunFolder(run_dir)
    summaries = [carb.read(path) for path in run.evaluated_steps().values()]
    if not summaries:
        raise DataError(f"{run.carb_dir}: no step-N.json; a report needs at least one CARB measurement")
    last, first = summaries[-1], summaries[0]
    before = first if first["step"] == 0 and len(summaries) > 1 else None
    files = [run.evaluation(TEST, step["step"]).with_suffix(".parquet") for step in (before, last) if step]
    *earlier, now = (annotate(read_judgements(file)) for file in files)
    pairs = _pairs(earlier[0] if before else None, now)
    counts = Counter(pair.outcome for pair in pairs)
    curves, warned = _logged(run.metrics)
    settings = read_settings(run_dir)
    missing = [
        (len(summaries) == 1 and last["step"] == 0, "No evaluation after step 0, so there is no learning curve."),
        (not before and last["step"] != 0, "No evaluation at step 0 to compare the last step with."),
        (not curves, "No GRPO rewards in metrics.jsonl, so there is no training curve."),
    ]
    contents = (
        templates()
        .get_template("report.html.jinja")
        .render(
            run=run_dir.resolve().name,
            before=before,
            last=last,
            mark="†" if carb.trained_on_note(last) else "",
            benchmark=carb.benchmark(last["dataset"]),
            warnings=[*carb.warnings("this judge", last), *warned[-1:]],
            missing=[what for absent, what in missing if absent],
            purpose=FROM_SCRATCH if is_randomly_initialised(run) else None,
            learning_curve=_learning_curve(summaries),
            training_curves=_training_curves(curves) if curves else "",
            steps=tables.html(_measured({f"step {s['step']}": s for s in summaries}), "All evaluations"),
            map=heat_map(last, before),
            tables=[(caption, tables.html(table, caption)) for caption, table in _tables(run, last, before)],
            pairs=choose_judgements(pairs),
            outcomes={name: counts[name] for name in (*PAIRED, *SINGLE) if counts[name]},
            next_steps=next_steps(run),
            **settings,
        )
    )
    write_text(run.report, contents)
    return run.report


def _tables(
    run: RunFolder, last: Mapping[str, Any], before: Mapping[str, Any] | None
) -> Iterable[tuple[str, DataFrame]]:
    """Yield the tables of accuracies with their captions."""
    sets = {name: run.evaluated_steps(name) for name in run.evaluated_sets()}
    if len(sets) > 1:
        best = carb.best_step(run)
        note = "" if best is None else f"; step {best} is best on the validation items"
        now, then = (
            {name: carb.read(of[step]) for name, of in sets.items() if step in of} for step in (last["step"], 0)
        )
        yield f"Sets evaluated in this run{note}", _measured(now, then if before else None)
    captions = {
        "by_language": "By language of the prompt",
        "by_resource_class": "By resource class of the language (Joshi et al. 2020: 5 has the most data)",
        "by_family": "By family of the language",
        "by_script": "By script of the language",
        "by_position": "By presented position of the best response: a judge without position bias is equally accurate "
        "in every row",
    }
    for key, caption in captions.items():
        yield caption, _measured(last[key], before[key] if before else {}, language_name if "lang" in key else str)
    now, then = ({"items": of, "cells": of["macro"]} if of else {} for of in (last, before))
    yield "Means over all items, and over the cells of culture and domain with equal weight", _measured(now, then)
    both = {step: of["order_consistency"] if of else {"n": 0} for step, of in (("now", last), ("then", before))}
    if both["now"]["n"]:
        rows: list[dict[str, Any]] = [
            {"right in every order": of["all_right"]} if of["n"] else {} for of in both.values()
        ]
        yield "Items presented in several orders", _measured(rows[0], rows[1])
    if last["flips"]["n"]:
        caption = (
            "Flip sets: the same responses for several cultures; a judge that ignores the culture is right in 1 of N"
        )
        yield caption, _measured(_flip_rows(last), _flip_rows(before))
    yield "Baselines: accuracy on these items without judging", _measured(last["baselines"], {}, NAMES.__getitem__)


def _measured(
    now: Mapping[str, Any], then: Mapping[str, Any] | None = None, named: Callable[[str], str] = str
) -> DataFrame:
    """Return a table of accuracies by name, with those of step 0 and the change if these are known."""
    rows = []
    for name, part in now.items():
        earlier, mark = (then or {}).get(name), " †" if carb.trained_on_note(part) else ""
        rows.append(
            {
                "": f"{named(name)}{mark}",
                "n": str(part["n"]),
                "step 0, %": figure(earlier) if earlier else "",
                "accuracy, %": figure(part),
                "change": f"{100 * part['accuracy'] - 100 * earlier['accuracy']:+.1f}" if earlier else "",
                "in format, %": figure(part["in_format"], "share") if "in_format" in part else "",
                "method": tables.METHODS.get(part["ci_method"], part["ci_method"]),
            }
        )
    table = DataFrame(rows)
    return table.drop(columns=[name for name in table.columns[2:] if not table[name].any()])


def _flip_rows(summary: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the two rows of the table of flip sets; none without flip sets."""
    if summary is None or not summary["flips"]["n"]:
        return {}
    return {"items of whole sets": summary["flips"], "sets with every item right": summary["flips"]["by_set"]}


@page_style()
def _learning_curve(summaries: Sequence[Mapping[str, Any]]) -> Markup:
    """Return the accuracy at each evaluated step with its interval."""
    plot, (axes,) = draw(3.2)
    steps, accuracies = [s["step"] for s in summaries], [100 * s["accuracy"] for s in summaries]
    axes.plot(steps, accuracies, "o-", color=BLUE)
    for summary in summaries:
        axes.plot([summary["step"]] * 2, [100 * end for end in summary["ci95"]], color=BLUE)
    axes.annotate(f"  {accuracies[-1]:.1f}", (steps[-1], accuracies[-1]))
    axes.axhline(100 * summaries[-1]["baselines"]["chance"]["accuracy"], color=GREY, linestyle="--")
    axes.set(ylim=(0, 100), xlabel="GRPO steps", ylabel="accuracy, %")
    return svg(plot)


@page_style()
def _training_curves(curves: Mapping[str, Sequence[tuple[int, float]]]) -> Markup:
    """Return the logged values of each name with a moving mean, one plot below the other."""
    plot, axes = draw(1.7 * len(curves), len(curves))
    for each, (name, points) in zip(axes, curves.items(), strict=True):
        steps, values = zip(*points, strict=True)
        each.plot(steps, values, color=BLUE, alpha=0.35, linewidth=1, marker="o" if len(points) == 1 else "")
        each.plot(
            steps, Series(values).rolling(max(1, len(points) // 20), center=True, min_periods=1).mean(), color=BLUE
        )
        each.set_title(name, loc="left", fontsize="medium")
    axes[-1].set_xlabel("GRPO steps")
    return svg(plot)


FROM_SCRATCH = (
    "This judge was trained from scratch: it knows only questions like those it was trained on, and its verdicts on "
    "any others are guesses."
)


def is_randomly_initialised(run: RunFolder) -> bool:
    """Return whether a run's model was randomly initialised, by its configuration."""
    try:
        return bool(yaml.safe_load(run.config.read_text(encoding="utf-8"))["model"]["scratch"])
    except (OSError, yaml.YAMLError, KeyError, TypeError):  # the page says what is missing
        return False


def next_steps(run: RunFolder) -> list[tuple[str, str]]:
    """Return commands to continue with after a training run, each with its purpose."""
    tables = [path.with_suffix(".parquet") for path in run.evaluated_steps().values()]
    steps: list[tuple[tuple[object, ...], str]] = []
    if run.examples.is_file():
        steps.append((("tal", "judge", run.model, run.examples), "judges a few of its test items"))
    if len(tables) > 1:
        steps.append((("tal", "compare", tables[0], tables[-1], "--by", "culture"), "what GRPO changed"))
    if is_randomly_initialised(run):
        steps.append((("tal", "init", "mine"), "a recipe for your own pairs: --from FILE, or a sample"))
    steps.append((("tal", "serve", run.model), "the judge behind HTTP"))
    return [(shlex.join(map(str, words)), why) for words, why in steps]


def choose_judgements(pairs: Iterable[BeforeAfter], limit: int = MAX_JUDGEMENTS) -> list[BeforeAfter]:
    """Return the pairs to show, most informative outcomes first, evenly from outcomes, cultures and domains."""
    by_outcome: dict[str, dict[Any, list[BeforeAfter]]] = {name: defaultdict(list) for name in (*PAIRED, *SINGLE)}
    for pair in sorted(pairs, key=lambda pair: hash_fraction(pair.after.id)):
        by_outcome[pair.outcome][pair.after.culture, pair.after.domain].append(pair)
    chosen = _take_turns(_take_turns(cells.values()) for cells in by_outcome.values())[:limit]
    return sorted(chosen, key=lambda pair: list(by_outcome).index(pair.outcome))


def _take_turns(queues: Iterable[Iterable[BeforeAfter]]) -> list[BeforeAfter]:
    """Return the first of each queue, then the second of each, and so on."""
    return [pair for turn in zip_longest(*queues) for pair in turn if pair]


def _pairs(before: DataFrame | None, after: DataFrame) -> list[BeforeAfter]:
    if before is None:
        return [BeforeAfter(None, row) for row in after.itertuples(index=False)]
    # Labels can be compared only if both steps presented the responses in the same order.
    earlier = {(row.id, row.order): row for row in before.itertuples(index=False)}
    rows = [(earlier.get((row.id, row.order)), row) for row in after.itertuples(index=False)]
    return [BeforeAfter(then, now) for then, now in rows if then is not None]


def _logged(path: Path) -> tuple[dict[str, list[tuple[int, float]]], list[str]]:
    """Return the curves of training by name, and the warnings."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    warned = list[str]()
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            values = json.loads(line)
        except ValueError:  # the torn last line of a run that was stopped
            continue
        if "warning" in values:
            warned.append(str(values["warning"]))
        for key, value in values.items() if values["stage"] == "grpo" else ():
            name = _TOTALS.get(key, f"Reward part: {key[len('rewards/') : -len('/mean')]}")
            if (key in _TOTALS or fnmatchcase(key, "rewards/*/mean")) and math.isfinite(value):
                found[name][int(values["step"])] = float(value)  # a resumed run logs a step again: the later counts
    names = (*_TOTALS.values(), *sorted(found.keys() - {*_TOTALS.values()}))
    return {name: sorted(found[name].items()) for name in names if name in found}, warned
