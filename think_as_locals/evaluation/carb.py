"""CARB (arXiv 2509.21798): Best-of-N accuracy over cultures and domains, with n, interval and baselines beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from think_as_locals.data.sources import SOURCES
from think_as_locals.evaluation.breakdowns import BREAKDOWNS, macro_cells, macro_warning
from think_as_locals.evaluation.judgements import (
    Judgements,
    composite,
    order_consistency,
    row_name,
    slot_bias,
    tabulate,
)
from think_as_locals.evaluation.statistics import Codes, Floats, accuracies, accuracy, indices_by_name
from think_as_locals.reward_models.reward_model import ScoredItem
from think_as_locals.reward_models.training_items import count_trained_on
from think_as_locals.runtime.files import read_json, write_json, written_atomically
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.types import LABELS, VALIDATION, DataError, Item, first_of

KEYS = (
    *("dataset", "split", "model", "protocol", "seed", "step", "n", "accuracy", "ci95", "ci_method", "baselines"),
    *("macro", *(f"by_{name}" for name in (*BREAKDOWNS, "position")), "flips", "slot_bias", "order_consistency"),
    *("in_format", "parse_failure", "parse_failure_ci95", "too_long", "faulty_rows", "trained_on"),
)
"""The keys of a CARB file."""
_CONSTANT, _UNLIKE = 0.9, 0.2  # share of one label among the verdicts, and how much more often than it is best


def benchmark(dataset: str) -> str:
    """Return the name of a data set on pages: CARB only for its own rows, a user's own as it is."""
    if dataset == "carb":
        return "CARB"
    stands_in = dataset in SOURCES and SOURCES[dataset].stands_in
    return f"{dataset.replace('_', ' ')}, a stand-in for CARB," if stands_in else dataset


def summarise(
    judged: Judgements,
    *,
    dataset: str,
    split: str,
    model: str,
    seed: int,
    step: int,
    bootstrap_samples: int,
    protocol: str = "listwise, greedy, one order for each item",
    training: frozenset[str] | None = None,
    queried: Sequence[Item] = (),
    faulty: int = 0,
) -> dict[str, Any]:
    """Return the contents of a CARB file: each accuracy with its n, interval and baselines.

    `training` has the hashes of the model's training items, if they are known. Items that were `queried` about and have
    no judgement are too long and left out; those that count as wrong are among the judgements. `faulty` rows of
    the data were left out.
    """
    items, group, rows = judged.items, judged.group, judged.rows
    known = {row_name(item.id) for item in items}
    drawn: dict[str, Any] = {"samples": bootstrap_samples, "seed": seed}
    credit, every = judged.by_item("credit"), np.arange(len(items))
    measure = partial(_measure, group, judged.baselines(), bootstrap_samples, seed)
    shares = (rows[name].to_numpy(float) for name in ("parse_failure", "in_format"))
    failures, in_format = (accuracy(share, group[rows["item"]], **drawn) for share in shares)
    # An item in several orders counts in several positions, and one that was not presented in none.
    presented = rows[~rows["too_long"]]
    names = {key: list(map(of, items)) for key, of in BREAKDOWNS.items()}
    return {
        "dataset": dataset,
        "split": split,
        "model": model,
        "seed": seed,
        "step": step,
        "protocol": protocol,
        "trained_on": count_trained_on(items, training),
        **measure(every, credit),
        "in_format": in_format.as_dict("share"),
        "parse_failure": failures.value,
        "parse_failure_ci95": list(failures.ci95),
        "too_long": {
            "exclude": sorted(item.id for item in queried if row_name(item.id) not in known),
            "wrong": [items[index].id for index in rows["item"][rows["too_long"]]],
        },
        "macro": {**accuracy(credit, group, cells=names["cell"], **drawn).as_dict(), **macro_cells(items)},
        **{
            f"by_{key}": {name: measure(part, credit[part]) for name, part in indices_by_name(of_items)}
            for key, of_items in names.items()
        },
        "by_position": {
            label: measure(presented["item"].to_numpy()[part], presented["credit"].to_numpy()[part])
            for label, part in indices_by_name([LABELS[slot] for slot in presented["best_slot"]])
        },
        "faulty_rows": {"n": faulty},
        "slot_bias": slot_bias(judged, **drawn),
        "order_consistency": order_consistency(judged, **drawn),
        "flips": _flips(judged, credit, measure, drawn),
    }


def _measure(
    group: Codes, baselines: Mapping[str, Floats], samples: int, seed: int, indices: Codes, credit: Floats
) -> dict[str, Any]:
    """Return the accuracy on the items at some indices, given their credit, and that of the baselines."""
    columns = [credit, *(column[indices] for column in baselines.values())]
    ours, *of_baselines = accuracies(columns, group[indices], samples, seed)
    named = zip(baselines, of_baselines, strict=True)
    return {**ours.as_dict(), "baselines": {name: estimate.as_dict() for name, estimate in named}}


def _flips(
    judged: Judgements, credit: Floats, measure: Callable[..., dict[str, Any]], drawn: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the accuracy on complete flip sets, on which a judge that ignores the culture scores exactly 1/N."""
    if not (sets := judged.flip_sets()):
        return {"n": 0, "sets": 0}
    all_right = [float((credit[members] == 1).all()) for members in sets]
    by_set = accuracy(all_right, judged.group[[members[0] for members in sets]], **drawn)
    every = np.concatenate(sets)
    return {**measure(every, credit[every]), "sets": len(sets), "all_right": by_set.value, "by_set": by_set.as_dict()}


def lines(name: str, summary: Mapping[str, Any]) -> list[str]:
    """Return the lines about a CARB file in a terminal: accuracy and format, then the warnings."""
    low, high = summary["ci95"]
    accuracy = f"{summary['accuracy']:.1%} [{low:.1%}, {high:.1%}] on n={summary['n']}"
    form = f"in format {summary['in_format']['share']:.1%}, parse failures {summary['parse_failure']:.1%}"
    if orders := summary["order_consistency"]["n"]:
        form += f", right in every order {summary['order_consistency']['all_right']['accuracy']:.1%} (n {orders:,})"
    if "rewardbench2_ties" in summary:
        form += f", RewardBench 2's score of Ties {summary['rewardbench2_ties']:.1%}"
    if shares := [f"{label} {of['chosen']:.0%}" for label, of in summary["slot_bias"].items()]:
        form += f", verdicts {', '.join(shares)}"
    return [f"{name}: {accuracy}, {form}", *(f"warning: {warning}" for warning in warnings(name, summary))]


def warnings(name: str, summary: Mapping[str, Any]) -> list[str]:
    """Return warnings about training items among the items, items that are too long, and missing cells."""
    trained_on, constant, faulty = trained_on_note(summary), constant_note(summary), summary["faulty_rows"]["n"]
    too_long = {"left out": summary["too_long"]["exclude"], "counted as wrong": summary["too_long"]["wrong"]}
    unjudged = "items too long for it or refused"
    found = [
        f"{name} was {trained_on}" if trained_on else "",
        *(f"{name}: {len(ids)} {unjudged}, {how}: {first_of(ids, 5)}" for how, ids in too_long.items() if ids),
        f"{name}: {constant}" if constant else "",
        f"{faulty:,} rows with faults left out, which tal data validate names" if faulty else "",
        macro_warning(summary["macro"]),
    ]
    return list(filter(None, found))


def constant_note(summary: Mapping[str, Any]) -> str:
    """Return which verdict a judge gives nearly always; empty if none."""
    for label, of in summary["slot_bias"].items():
        if of["chosen"] > _CONSTANT and of["best"] < of["chosen"] - _UNLIKE:
            constant = f"{of['chosen']:.0%} of its verdicts are {label}, whatever the responses are"
            return f"{constant}: that alone would be right in {of['best']:.0%} of them"
    return ""


def trained_on_note(summary: Mapping[str, Any]) -> str:
    """Return in words how many of the items a model was trained on; empty if none, or if that is unknown."""
    counted = summary.get("trained_on")
    return f"trained on {counted['items']:,} of these {counted['n']:,} items" if counted and counted["items"] else ""


def save(scored: Iterable[ScoredItem], path: Path, **about: Any) -> dict[str, Any]:
    """Write a CARB file and a table of its judgements; `about` are arguments of `summarise`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = tabulate(scored)
    known = set(table["id"])  # a row of Ties is left out as a whole
    if missing := {row_name(item.id) for item in about.get("queried", ()) if item.id not in known}:
        table = table[~table["id"].map(row_name).isin(missing)]
    with written_atomically(path.with_suffix(".parquet")) as content:
        table.to_parquet(content, index=False)
    by_itself = about.get("protocol", "").partition(",")[0] not in ("pairwise", "round_robin")
    judged, ties = Judgements.of(table), composite(table) if by_itself and not missing else None
    del table  # before the statistics
    summary = summarise(judged, **about) | ({} if ties is None else {"rewardbench2_ties": ties})
    write_json(path, summary)  # last: if it exists, the measurement is complete
    return summary


def record(
    scored: Iterable[ScoredItem], items: Sequence[Item], path: Path, title: str, console: Console, **about: Any
) -> dict[str, Any]:
    """Write, show and return the CARB file of the judgements of items, which `about` describes."""
    summary = save(scored, path, queried=items, **about)
    for line in lines(title, summary):
        console.print(line)
    return summary


def read(path: Path) -> dict[str, Any]:
    """Load a CARB file; a DataError names the keys that it lacks."""
    summary = read_json(path)
    if lacks := [key for key in KEYS if key not in summary]:
        raise DataError(f"{path}: not a CARB file: it lacks {first_of(lacks, 5)}; measure again")
    return summary


def steps(run: RunFolder) -> dict[int, Path]:
    """Return the CARB files of a training run by step; not those of an evaluation with a model called `step-N`."""
    found = {}
    for step, path in run.evaluated_steps().items():
        summary = read(path)
        if summary["step"] == step and summary["model"] != path.stem:
            found[step] = path
    return found


def best_step(run: RunFolder) -> int | None:
    """Return the step with the highest accuracy on validation items; `None` without validation items."""
    by_step = {step: read_json(path)["accuracy"] for step, path in run.evaluated_steps(VALIDATION).items()}
    return max(by_step, key=lambda step: (by_step[step], step), default=None)


def metrics(name: str, summary: dict[str, Any]) -> dict[str, float]:
    """Return the metrics of a set for trackers, as `eval/NAME/...`."""
    flips, orders = summary["flips"], summary["order_consistency"]
    found = {
        "accuracy": summary["accuracy"],
        "ci95_low": summary["ci95"][0],
        "ci95_high": summary["ci95"][1],
        "macro": summary["macro"]["accuracy"],
        "in_format": summary["in_format"]["share"],
        "parse_failure": summary["parse_failure"],
        **({"flips": flips["accuracy"]} if flips["n"] else {}),
        **({"right_in_every_order": orders["all_right"]["accuracy"]} if orders["n"] else {}),
        **{f"verdict/{label}": of["chosen"] for label, of in summary["slot_bias"].items()},
        **{f"position/{label}": part["accuracy"] for label, part in summary["by_position"].items()},
        **{f"culture/{culture}": part["accuracy"] for culture, part in summary["by_culture"].items()},
        **{f"domain/{domain}": part["accuracy"] for domain, part in summary["by_domain"].items()},
    }
    return {f"eval/{name}/{key}": value for key, value in found.items()}
