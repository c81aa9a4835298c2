"""The variants of a sweep, each compared with the model before training and with the first one, item by item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from think_as_locals.evaluation import carb
from think_as_locals.evaluation.scored import ItemCredit, grouped, item_credits, paired_differences, read_scored
from think_as_locals.evaluation.tables import Cell, Figure, Table, figure
from think_as_locals.runtime.files import write_json, write_text
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.sweeps.jobs import Job
from think_as_locals.sweeps.settings import VARIANT

CAPTION = (
    "Per cent on the same test items, with 95 % intervals by question group; base: the model before GRPO. Differences "
    "are paired by item, in points; p by question group, Holm over the column. Verdict-only: by the last verdict tag, "
    "whatever the format."
)


@dataclass(frozen=True, slots=True)
class Measured:
    """A measurement of a judge, and the measurements that it is compared with."""

    name: str
    summary: dict[str, Any]
    credits: list[ItemCredit]
    base: Measured | None = None  # the model before its training
    first: Measured | None = None  # the first variant


def write_variants(sweep: Path, jobs: Sequence[Job]) -> Table:
    """Write `variants.json` and `variants.md` about the measured jobs, and return their table."""
    # Compared are jobs that differ in their variant alone, and not in the seed, say.
    parts = grouped(jobs, lambda job: job.combination[1:]).values()
    measured = list(chain.from_iterable(_measured(sweep, part) for part in parts))
    gains = {kind: _gains(measured, kind) for kind in ("base", "first")}
    write_json(
        sweep / "variants.json",
        {
            "variants": [
                {
                    "name": m.name,
                    **{key: m.summary[key] for key in ("step", "n", "accuracy", "ci95", "verdict_only", "flips")},
                    "parse_failure": m.summary["parse_failure"],
                    **{f"against_{kind}": found.get(m.name) for kind, found in gains.items()},
                }
                for m in measured
            ]
        },
    )
    rows: list[list[Cell]] = [
        [
            m.name,
            figure(m.summary),
            figure(m.summary["verdict_only"]),
            figure(m.summary["flips"]),
            Figure(100 * m.summary["parse_failure"], strong=False),
            *chain.from_iterable(_cells(found.get(m.name)) for found in gains.values()),
            str(m.summary["n"]),
            str(m.summary["step"]),
        ]
        for m in measured
    ]
    headings = ["variant", "accuracy, %", "verdict-only, %", "flip sets, %", "parse failures, %"]
    table = Table([*headings, "against base", "p", "against the first", "p", "n", "step"], rows)
    write_text(sweep / "variants.md", f"# Variants\n\n{CAPTION}\n\n{table.markdown()}\n")
    return table


def _measured(sweep: Path, jobs: Sequence[Job]) -> list[Measured]:
    """Return the models before training, each once, then the variants."""
    bases: dict[str, Measured] = {}
    found = list[Measured]()
    for job in jobs:
        steps = carb.steps(RunFolder(sweep / job.name))
        variant, *rest = job.combination
        name = " ".join([variant.removeprefix(VARIANT), *rest])
        base = None
        if 0 in steps:
            asked = repr((job.config.model, job.config.prompt, job.config.sft, job.config.grpo.max_completion_length))
            base = bases.setdefault(asked, Measured(f"base of {name}", *_read(steps[0])))
        if steps and (last := max(steps)):
            found.append(Measured(name, *_read(steps[last]), base, found[0] if found else None))
    return [*bases.values(), *found]


def _read(path: Path) -> tuple[dict[str, Any], list[ItemCredit]]:
    credited = item_credits(read_scored(path.with_suffix(".parquet")))
    return carb.read(path), sorted(credited, key=lambda c: c.item.id)


def _gains(measured: Sequence[Measured], kind: str) -> dict[str, dict[str, Any]]:
    """Return by name how much better each is than its base or the first, where both have the same items."""
    pairs = {}
    for m in measured:
        other: Measured | None = getattr(m, kind)
        if other is not None and [c.item for c in other.credits] == [c.item for c in m.credits]:
            pairs[m.name] = other.credits, m.credits
    found = zip(pairs, paired_differences(list(pairs.values())), strict=True)
    return {name: {**gain.as_dict(), "p_holm": p} for name, (gain, p) in found}


def _cells(gain: dict[str, Any] | None) -> list[Cell]:
    if gain is None:
        return [None, None]
    return [figure(gain, "difference", "+.1f"), Figure(gain["p_holm"], form="p", strong=False)]
