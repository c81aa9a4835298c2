"""CARB (arXiv 2509.21798): Best-of-N accuracy over cultures and domains, with n, interval and baselines beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from think_as_locals.evaluation.baselines import baseline_credits
from think_as_locals.evaluation.breakdowns import BREAKDOWNS, macro_cells, macro_warning
from think_as_locals.evaluation.scored import (
    ItemCredit,
    estimate_credits,
    flip_set_credits,
    grouped,
    item_credits,
    order_consistency,
    slot_bias,
    too_long_note,
    verdict_only,
    write_scored,
)
from think_as_locals.evaluation.statistics import Estimate, accuracies, calibration
from think_as_locals.evaluation.tables import escape_terminal
from think_as_locals.reward_models.reward_model import ScoredItem
from think_as_locals.reward_models.training_items import count_trained_on
from think_as_locals.runtime.files import read_json, write_json
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.types import LABELS, VALIDATION, DataError, Item

KEYS = (
    *("dataset", "split", "model", "seed", "step", "protocol", "n", "accuracy", "ci95", "ci_method", "micro", "macro"),
    *("verdict_only", "parse_failure", "parse_failure_ci95", "by_position", *(f"by_{name}" for name in BREAKDOWNS)),
    *("too_long", "flips", "baselines", "slot_bias", "order_consistency", "calibration"),
)
"""The keys of a CARB file that a report needs."""

Measure = Callable[[Sequence[ItemCredit]], dict[str, Any]]


_STAND_INS = ("culture_cards", "blend", "carb_open")


def benchmark(dataset: str) -> str:
    """Return the name of a data set on pages: CARB only for its own rows, a user's own as it is."""
    known = {"carb": "CARB", **{name: f"{name.replace('_', ' ')}, a stand-in for CARB," for name in _STAND_INS}}
    return known.get(dataset, dataset)


def summarise(
    scored: Sequence[ScoredItem],
    *,
    dataset: str,
    split: str,
    model: str,
    seed: int,
    step: int,
    bootstrap_samples: int,
    protocol: str = "listwise, greedy, one order for each item",
    training: frozenset[str] | None = None,
    excluded: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the contents of a CARB file: each accuracy with its n, its interval and the baselines on the same items.

    `scored` has a judgement for each item, or for each order of its responses; parse failures count as wrong.
    `training` has the hashes of the model's training items, if they are known. `excluded` has the ids of items that are
    too long and left out; those that count as wrong are in `scored`.
    """
    # Sorted, since sums are rounded: the result must not depend on the order of judgements.
    scored = sorted(scored, key=lambda s: (s.item.id, s.presented.responses))
    credited = item_credits(scored)
    items, estimate = tuple(c.item for c in credited), partial(estimate_credits, samples=bootstrap_samples, seed=seed)
    measure = partial(_measure, baselines=baseline_credits(items), samples=bootstrap_samples, seed=seed)
    failures = estimate([ItemCredit(s.item, float(s.parse_failure)) for s in scored])
    # An item in several orders counts in several positions, and one that was not presented in none.
    presented = grouped([s for s in scored if not s.too_long], lambda s: LABELS[s.presented.best])
    by_position = {slot: [ItemCredit(s.item, s.credit) for s in part] for slot, part in sorted(presented.items())}
    return {
        "dataset": dataset,
        "split": split,
        "model": model,
        "seed": seed,
        "step": step,
        "protocol": protocol,
        "trained_on": count_trained_on(items, training),
        **measure(credited),
        "verdict_only": estimate(verdict_only(credited)).as_dict(),
        "parse_failure": failures.value,
        "parse_failure_ci95": list(failures.ci95),
        "too_long": {"exclude": sorted(excluded), "wrong": [s.item.id for s in scored if s.too_long]},
        "micro": estimate(credited).as_dict(),
        "macro": {**estimate(credited, over_cells=True).as_dict(), **macro_cells(items)},
        **{f"by_{name}": _measure_by(key, credited, measure) for name, key in BREAKDOWNS.items()},
        "by_position": {slot: measure(part) for slot, part in by_position.items()},
        "slot_bias": slot_bias(scored, bootstrap_samples, seed),
        "order_consistency": order_consistency(scored, bootstrap_samples, seed),
        "calibration": _calibration(scored, bootstrap_samples, seed),
        "flips": _flips(credited, estimate, measure),
    }


def _measure(
    part: Sequence[ItemCredit], baselines: Mapping[str, Mapping[str, float]], samples: int, seed: int
) -> dict[str, Any]:
    """Return the accuracy on some of the items, and those of the baselines."""
    ids, groups = [c.item.id for c in part], [c.item.group for c in part]
    columns = [[c.credit for c in part], *([by_id[name] for name in ids] for by_id in baselines.values())]
    own, *beside = (estimate.as_dict() for estimate in accuracies(columns, groups, samples, seed))
    return {**own, "baselines": dict(zip(baselines, beside, strict=True))}


def _measure_by(key: Callable[[Item], str], credited: Sequence[ItemCredit], measure: Measure) -> dict[str, Any]:
    return {name: measure(part) for name, part in sorted(grouped(credited, lambda c: key(c.item)).items())}


def _calibration(scored: Sequence[ScoredItem], samples: int, seed: int) -> dict[str, Any]:
    """Return the calibration of the judgements that have a margin."""
    sure = [(s.margin, s.credit, s.item.group) for s in scored if s.margin is not None]
    if not sure:
        return {"n": 0}
    margins, worth, names = zip(*sure, strict=True)
    return calibration(margins, worth, names, samples, seed)


def _flips(credited: Sequence[ItemCredit], estimate: Callable[..., Estimate], measure: Measure) -> dict[str, Any]:
    """Return the accuracy on complete flip sets, on which a judge that ignores the culture scores exactly 1/N."""
    sets = flip_set_credits(credited)
    if not sets:
        return {"n": 0, "sets": 0}
    by_set = estimate([ItemCredit(members[0].item, float(all(c.credit == 1 for c in members))) for members in sets])
    return {
        **measure([c for members in sets for c in members]),
        "sets": len(sets),
        "all_right": by_set.value,
        "by_set": by_set.as_dict(),
    }


def lines(name: str, summary: Mapping[str, Any]) -> list[str]:
    """Return the lines about a CARB file in a terminal: the accuracy, then the warnings."""
    low, high = summary["ci95"]
    accuracy = f"{summary['accuracy']:.1%} [{low:.1%}, {high:.1%}] on n={summary['n']}"
    lenient = f"verdict-only {summary['verdict_only']['accuracy']:.1%}"
    shown = f"{name}: {accuracy}, {lenient}, parse failures {summary['parse_failure']:.1%}"
    return [shown, *(f"warning: {warning}" for warning in warnings(name, summary))]


def warnings(name: str, summary: Mapping[str, Any]) -> list[str]:
    """Return warnings about training items among the items, items that are too long, and missing cells."""
    trained_on = trained_on_note(summary)
    found = [f"{name} was {trained_on}"] if trained_on else []
    found += [f"{name}: {too_long_note(how, ids)}" for how, ids in summary["too_long"].items() if ids]
    return found + [warning for warning in [macro_warning(summary["macro"])] if warning]


def trained_on_note(summary: Mapping[str, Any]) -> str:
    """Return in words how many of the items a model was trained on; empty if none, or if that is unknown."""
    counted = summary.get("trained_on")
    return f"trained on {counted['items']:,} of these {counted['n']:,} items" if counted and counted["items"] else ""


def save(summary: dict[str, Any], scored: Sequence[ScoredItem], path: Path) -> None:
    """Write a CARB file, `path`, and a table of all judgements with the same name and the suffix `.parquet`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_scored(path.with_suffix(".parquet"), scored)
    write_json(path, summary)  # last: if it exists, the measurement is complete


def record(
    scored: Sequence[ScoredItem], items: Sequence[Item], path: Path, title: str, console: Console, **about: Any
) -> dict[str, Any]:
    """Summarise the judgements of items, which `about` describes, write the CARB file, show and return it."""
    excluded = sorted({item.id for item in items} - {s.item.id for s in scored})
    summary = summarise(scored, excluded=excluded, **about)
    save(summary, scored, path)
    for line in lines(title, summary):
        console.print(escape_terminal(line))
    return summary


def read(path: Path) -> dict[str, Any]:
    """Load a CARB file; a DataError names the keys that it lacks."""
    summary = read_json(path)
    if lacks := sorted(set(KEYS) - set(summary)):
        raise DataError(f"{path}: a CARB file lacks {', '.join(lacks)}; measure again")
    return summary


def steps(run: RunFolder) -> dict[int, Path]:
    """Return the CARB files of a training run by step; not those of an evaluation with a model called `step-N`."""
    found = {}
    for step, path in run.measured_steps().items():
        summary = read(path)
        if summary["step"] == step and summary["model"] != path.stem:
            found[step] = path
    return found


def best_step(run: RunFolder) -> int | None:
    """Return the step with the highest accuracy on validation items; `None` without validation items."""
    measured = {step: read_json(path)["accuracy"] for step, path in run.measured_steps(VALIDATION).items()}
    return max(measured, key=lambda step: (measured[step], step), default=None)


def metrics(name: str, summary: dict[str, Any]) -> dict[str, float]:
    """Return the metrics of a set for trackers, as `eval/NAME/...`."""
    flips = summary["flips"]
    found = {
        "accuracy": summary["accuracy"],
        "ci95_low": summary["ci95"][0],
        "ci95_high": summary["ci95"][1],
        "macro": summary["macro"]["accuracy"],
        "verdict_only": summary["verdict_only"]["accuracy"],
        "parse_failure": summary["parse_failure"],
        **({"flips": flips["accuracy"]} if flips["n"] else {}),
        **{f"culture/{culture}": part["accuracy"] for culture, part in summary["by_culture"].items()},
        **{f"domain/{domain}": part["accuracy"] for domain, part in summary["by_domain"].items()},
    }
    return {f"eval/{name}/{key}": value for key, value in found.items()}
