"""CARB (arXiv 2509.21798): Best-of-N accuracy over cultures and domains, with n, interval and baselines beside it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from think_as_locals.data import flip_sets
from think_as_locals.evaluation.baselines import TRAITS, trait_scores
from think_as_locals.evaluation.statistics import accuracy
from think_as_locals.files import parquet, write_bytes, write_json
from think_as_locals.types import LABELS, Item, Prediction

Measured = Callable[[Sequence[Prediction]], dict[str, Any]]


def summarise(
    predictions: Sequence[Prediction],
    *,
    dataset: str,
    split: str,
    model: str,
    seed: int,
    step: int,
    bootstrap_samples: int,
) -> dict[str, Any]:
    """The contents of a CARB file.

    Args:
        predictions: One for each item; an unparsable judgement is wrong and counted apart.
        dataset: Name of the data.
        split: How test items were kept apart from training items.
        model: What judged.
        seed: Seed of the run.
        step: Optimizer step of the policy.
        bootstrap_samples: Resamples for each interval.
    """
    measured = partial(_measured, samples=bootstrap_samples, seed=seed)
    by = partial(_by, predictions, measured)
    return {
        "dataset": dataset,
        "split": split,
        "model": model,
        "seed": seed,
        "step": step,
        "protocol": "listwise, greedy, one order for each item",
        **measured(predictions),
        "parse_failure": sum(p.judgement.verdict is None for p in predictions) / len(predictions),
        "by_culture": by(lambda p: p.item.culture or "none"),
        "by_domain": by(lambda p: p.item.domain),
        "by_language": by(lambda p: p.item.language),
        "by_cell": by(lambda p: f"{p.item.culture or 'none'}/{p.item.domain}"),
        "by_position": by(lambda p: LABELS[p.shown.best]),
        "flips": _flips(predictions, measured),
        "baselines": _baselines([p.item for p in predictions], bootstrap_samples, seed),
    }


def save(summary: dict[str, Any], predictions: Sequence[Prediction], folder: Path) -> Path:
    """Write `step-N.json` and, with every judgement's text, `step-N.parquet`; returns the former's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{summary['step']}.json"
    write_bytes(path.with_suffix(".parquet"), parquet([prediction.row() for prediction in predictions]))
    write_json(path, summary)  # last: where it is, the measurement is whole
    return path


def best_step(folder: Path) -> int | None:
    """The step with the highest accuracy of those that were measured."""
    measured = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("step-*.json")]
    return max(measured, key=lambda summary: (summary["accuracy"], summary["step"]), default={"step": None})["step"]


def metrics(summary: dict[str, Any]) -> dict[str, float]:
    """The figures that a tracker follows, as `carb/...`."""
    flips = summary["flips"]
    return {
        "carb/accuracy": summary["accuracy"],
        "carb/ci95_low": summary["ci95"][0],
        "carb/ci95_high": summary["ci95"][1],
        "carb/parse_failure": summary["parse_failure"],
        **({"carb/flips": flips["accuracy"]} if flips["n"] else {}),
        **{f"carb/culture/{name}": part["accuracy"] for name, part in summary["by_culture"].items()},
        **{f"carb/domain/{name}": part["accuracy"] for name, part in summary["by_domain"].items()},
    }


def _measured(predictions: Sequence[Prediction], samples: int, seed: int) -> dict[str, Any]:
    scores = [float(p.correct) for p in predictions]
    return accuracy(scores, [p.item.group for p in predictions], samples, seed).as_dict()


def _by(predictions: Sequence[Prediction], measured: Measured, key: Callable[[Prediction], str]) -> dict[str, Any]:
    parts: dict[str, list[Prediction]] = defaultdict(list)
    for prediction in predictions:
        parts[key(prediction)].append(prediction)
    return {name: measured(part) for name, part in sorted(parts.items())}


def _flips(predictions: Sequence[Prediction], measured: Measured) -> dict[str, Any]:
    """Accuracy on whole flip sets, where a judge blind to the culture scores exactly 1/N."""
    by_id = {p.item.id: p for p in predictions}
    sets = [[by_id[item.id] for item in members] for members in flip_sets([p.item for p in predictions])]
    flat = [prediction for members in sets for prediction in members]
    if not flat:
        return {"n": 0, "sets": 0}
    return {
        **measured(flat),
        "sets": len(sets),
        "all_right": sum(all(p.correct for p in members) for members in sets) / len(sets),
    }


def _baselines(items: Sequence[Item], samples: int, seed: int) -> dict[str, Any]:
    groups = [item.group for item in items]
    chance = accuracy([1 / len(item.responses) for item in items], groups, samples, seed).as_dict()
    return {
        "chance": chance,
        **{
            name: accuracy(trait_scores(items, trait), groups, samples, seed).as_dict()
            for name, trait in TRAITS.items()
        },
    }
