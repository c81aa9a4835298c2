"""CARB (arXiv 2509.21798): Best-of-N accuracy over cultures and domains, with n, interval and baselines beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from think_as_locals.evaluation.baselines import baseline_credits
from think_as_locals.evaluation.calibration import calibration
from think_as_locals.evaluation.judged import BREAKDOWNS, JudgedItem, grouped, judged_flip_sets, judged_items, read_json
from think_as_locals.evaluation.orders import order_consistency, slot_bias
from think_as_locals.evaluation.statistics import Accuracy, accuracy, macro
from think_as_locals.files import parquet, write_bytes, write_json
from think_as_locals.models.prediction import Prediction
from think_as_locals.types import LABELS, DataError, Item

KEYS = (
    "dataset split model seed step protocol n accuracy ci95 interval parse_failure parse_failure_ci95 "
    "by_culture by_domain by_language by_cell by_position by_resource_class by_family by_script "
    "micro macro flips baselines slot_bias order_consistency calibration"
)
"""What a report needs of a CARB file."""

Measured = Callable[[Sequence[JudgedItem]], dict[str, Any]]
Estimate = Callable[[Sequence[float], Sequence[str]], Accuracy]


def summarise(
    predictions: Sequence[Prediction],
    *,
    dataset: str,
    split: str,
    model: str,
    seed: int,
    step: int,
    bootstrap_samples: int,
    protocol: str = "listwise, greedy, one order for each item",
) -> dict[str, Any]:
    """The contents of a CARB file: each accuracy with its n, its interval and what baselines score on the same items.

    Args:
        predictions: One for each item, or one for each order that its responses were shown in; an unparsable judgement
            is wrong and counted apart.
        dataset: Name of the data.
        split: How test items were kept apart from training items.
        model: What judged.
        seed: Seed of the run.
        step: Optimizer step of the policy.
        bootstrap_samples: Resamples of question groups for each interval.
        protocol: How the items were put to it.

    Raises:
        ValueError: no predictions.
    """
    predictions = sorted(predictions, key=_place)  # sums are rounded: of any order they shall have the same bits
    judged = judged_items(predictions)
    estimate = partial(accuracy, samples=bootstrap_samples, seed=seed)
    measured = partial(_measured, estimate=estimate, baselines=baseline_credits([j.item for j in judged]))
    return {
        "dataset": dataset,
        "split": split,
        "model": model,
        "seed": seed,
        "step": step,
        "protocol": protocol,
        **measured(judged),
        **_parse_failure(predictions, estimate),
        "micro": estimate(*_columns(judged)).as_dict(),
        "macro": _macro(judged, bootstrap_samples, seed),
        **{f"by_{name}": _by(judged, key, measured) for name, key in BREAKDOWNS.items()},
        "by_position": _by_position(predictions, measured),
        "slot_bias": slot_bias(predictions, bootstrap_samples, seed),
        "order_consistency": order_consistency(predictions, bootstrap_samples, seed),
        "calibration": _calibration(predictions, bootstrap_samples, seed),
        "flips": _flips(judged, measured, estimate),
    }


def save(summary: dict[str, Any], predictions: Sequence[Prediction], path: Path) -> None:
    """Write a CARB file, `path`, and with every judgement's text a table of the same name, `.parquet`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path.with_suffix(".parquet"), parquet([prediction.row() for prediction in predictions]))
    write_json(path, summary)  # last: where it is, the measurement is whole


def read(path: Path) -> dict[str, Any]:
    """The contents of a CARB file.

    Raises:
        DataError: it is no JSON object, or lacks what a report needs; the message names it.
    """
    summary = read_json(path)
    if lacks := sorted(set(KEYS.split()) - set(summary)):
        raise DataError(f"{path}: a CARB file lacks {', '.join(lacks)}; measure again")
    return summary


def steps(folder: Path) -> dict[int, Path]:
    """The CARB files of a training run, by step; those of an evaluation, whose reward models may be called alike, not.

    Raises:
        DataError: from `read`.
    """
    found = {path: read(path) for path in folder.glob("step-*.json")}
    return {
        summary["step"]: path
        for path, summary in found.items()
        if path.stem == f"step-{summary['step']}" and summary["model"] != path.stem
    }


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
        "carb/macro": summary["macro"]["accuracy"],
        "carb/parse_failure": summary["parse_failure"],
        **({"carb/flips": flips["accuracy"]} if flips["n"] else {}),
        **{f"carb/culture/{name}": part["accuracy"] for name, part in summary["by_culture"].items()},
        **{f"carb/domain/{name}": part["accuracy"] for name, part in summary["by_domain"].items()},
    }


def _place(prediction: Prediction) -> tuple[str, tuple[str, ...]]:
    return prediction.item.id, prediction.shown.responses


def _measured(
    judged: Sequence[JudgedItem], estimate: Estimate, baselines: dict[str, dict[str, float]]
) -> dict[str, Any]:
    credit, groups = _columns(judged)
    beside = {name: [worth[j.item.id] for j in judged] for name, worth in baselines.items()}
    return {
        **estimate(credit, groups).as_dict(),
        "baselines": {name: estimate(worth, groups).as_dict() for name, worth in beside.items()},
    }


def _columns(judged: Sequence[JudgedItem]) -> tuple[list[float], list[str]]:
    return [j.credit for j in judged], [j.item.group for j in judged]


def _parse_failure(predictions: Sequence[Prediction], estimate: Estimate) -> dict[str, Any]:
    unread = estimate([float(p.unread) for p in predictions], [p.item.group for p in predictions])
    return {"parse_failure": unread.accuracy, "parse_failure_ci95": list(unread.ci95)}


def _macro(judged: Sequence[JudgedItem], samples: int, seed: int) -> dict[str, Any]:
    """Each culture and domain counts the same, as in the paper's averages."""
    cells = [BREAKDOWNS["cell"](j.item) for j in judged]
    return {**macro(*_columns(judged), cells, samples, seed).as_dict(), "cells": len(set(cells))}


def _by(judged: Sequence[JudgedItem], key: Callable[[Item], str], measured: Measured) -> dict[str, Any]:
    parts = grouped(judged, lambda j: key(j.item))
    return {name: measured(part) for name, part in sorted(parts.items())}


def _by_position(predictions: Sequence[Prediction], measured: Measured) -> dict[str, Any]:
    """By the slot of the best response as shown; an item that was shown in several orders counts in several."""
    parts = grouped(predictions, lambda p: LABELS[p.shown.best])
    return {slot: measured([JudgedItem(p.item, p.credit) for p in part]) for slot, part in sorted(parts.items())}


def _calibration(predictions: Sequence[Prediction], samples: int, seed: int) -> dict[str, Any]:
    """Of the judgements that say how sure they are."""
    sure = [(p.margin, p.credit, p.item.group) for p in predictions if p.margin is not None]
    if not sure:
        return {"n": 0}
    margins, right, groups = zip(*sure, strict=True)
    return calibration(margins, right, groups, samples, seed)


def _flips(judged: Sequence[JudgedItem], measured: Measured, estimate: Estimate) -> dict[str, Any]:
    """Accuracy on whole flip sets, where a judge blind to the culture scores exactly 1/N."""
    sets = judged_flip_sets(judged)
    if not sets:
        return {"n": 0, "sets": 0}
    all_right = estimate(
        [float(all(j.credit == 1 for j in members)) for members in sets], [members[0].item.group for members in sets]
    )
    return {
        **measured([j for members in sets for j in members]),
        "sets": len(sets),
        "all_right": all_right.accuracy,
        "by_set": all_right.as_dict(),
    }
