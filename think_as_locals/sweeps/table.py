"""The table of a sweep: each job beside the model before its training and the first of its like, item by item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pandas import DataFrame

from think_as_locals.evaluation import carb
from think_as_locals.evaluation.judgements import Judgements
from think_as_locals.evaluation.statistics import paired
from think_as_locals.evaluation.tables import escape_markdown, figure, markdown, p_value
from think_as_locals.runtime.files import read_json, write_json, write_text
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.sweeps.grid import Combination, Job
from think_as_locals.types import VALIDATION, Item

State = Literal["done", "stopped", "failed"]

_CAPTION = (
    "Per cent after the last step, with 95 % intervals by question group; best first, by validation items if there are "
    "any. Differences are paired by item, in points: against base, the model before GRPO, and against the first job, "
    "which has the first variant or value of the key that varies first, and all else equal. p by question group, Holm "
    "over the column."
)


@dataclass(frozen=True, slots=True)
class _Row:
    """A judge in the table: a job's, with what it is compared with, or a model before training."""

    name: str
    job: Job
    state: State | None = None  # of a job
    summary: Mapping[str, Any] | None = None  # on test items
    judged: Judgements | None = None
    validation: Mapping[str, Any] | None = None
    base: _Row | None = None
    first: _Row | None = None

    def against(self, other: _Row | None) -> tuple[Any, Any, Any] | None:
        """Return what a paired comparison needs, where both have judged the same items."""
        if other is None or self.judged is None or other.judged is None or self.judged.items != other.judged.items:
            return None
        return other.judged.by_item("credit"), self.judged.by_item("credit"), self.judged.group


def write_table(sweep: Path, jobs: Sequence[Job], states: Mapping[str, State]) -> tuple[DataFrame, str]:
    """Write `sweep.json` and `sweep.md` into a sweep's folder; return the table and its caption."""
    rows = _rows(sweep, jobs, states)
    gains = [_gains(rows, [row.base for row in rows]), _gains(rows, [row.first for row in rows])]
    table = DataFrame([_cells(row, *(found.get(row.name) for found in gains)) for row in rows])
    caption = _CAPTION
    if any(carb.trained_on_note(part) for row in rows for part in (row.summary, row.validation) if part):
        caption += " † The judge was trained on some of these items."
    records = [_record(row, *(found.get(row.name) for found in gains)) for row in rows]
    file = RunFolder(sweep).sweep
    write_json(file, {"sweep": sweep.name, "judges": records})
    write_text(file.with_suffix(".md"), f"# {escape_markdown(sweep.name)}\n\n{caption}\n\n{markdown(table)}\n")
    return table, caption


def _rows(sweep: Path, jobs: Sequence[Job], states: Mapping[str, State]) -> list[_Row]:
    """Return the models before training, each once, then the jobs: what is done comes first, the best of it on top."""
    bases, firsts, known = dict[str, _Row](), dict[Combination, _Row](), dict[str, Item]()
    rows = list[_Row]()
    for job in jobs:
        run = RunFolder(sweep / job.name)
        steps, validated = carb.steps(run), [*run.evaluated_steps(VALIDATION).values()]
        base = None
        if 0 in steps:
            config = job.config
            length = config.grpo.max_completion_length
            setup = repr((config.seed, config.data, config.model, config.prompt, config.sft, length))
            if setup not in bases:
                bases[setup] = _Row(f"base of {job.label}", job, None, *_read(steps[0], known))
            base = bases[setup]
        row = _Row(
            name=job.label,
            job=job,
            state=states[job.name],
            validation=read_json(validated[-1]) if validated else None,
            base=base,
            first=firsts.get(job.combination[1:]),
        )
        if steps:
            summary, judged = _read(steps[max(steps)], known)
            row = replace(row, summary=summary, judged=judged)
        firsts.setdefault(job.combination[1:], row)
        rows.append(row)
    order = {"done": 0, "stopped": 1, "failed": 2, None: 3}
    rows.sort(key=lambda row: (order[row.state], -(row.validation or row.summary or {"accuracy": -1})["accuracy"]))
    return [*bases.values(), *rows]


def _read(path: Path, known: dict[str, Item]) -> tuple[dict[str, Any], Judgements]:
    return carb.read(path), Judgements.read(path.with_suffix(".parquet"), known)


def _gains(rows: Sequence[_Row], others: Sequence[_Row | None]) -> dict[str, dict[str, Any]]:
    """Return by name how much better each is than another, with the p-value adjusted over all."""
    pairs = {row.name: pair for row, other in zip(rows, others, strict=True) if (pair := row.against(other))}
    found = zip(pairs, paired(list(pairs.values())), strict=True)
    return {name: {**gain.as_dict(), "p_holm": p} for name, (gain, p) in found}


def _cells(row: _Row, against_base: dict[str, Any] | None, against_first: dict[str, Any] | None) -> dict[str, str]:
    test = row.summary or {}
    cells = {"job": row.name}
    for heading, part in (("validation, %", row.validation or {}), ("test, %", test)):
        cells[heading] = figure(part, show_n=True) + " †" * bool(part and carb.trained_on_note(part))
    cells |= {
        "flip sets, %": figure(test.get("flips", {})),
        "in format, %": figure(test.get("in_format", {}), "share"),
        "parse failures, %": f"{100 * test['parse_failure']:.1f}" if test else "",
        "step": str(test.get("step", "")),
        "state": row.state or "",
    }
    for heading, gain in (("base", against_base or {}), ("first", against_first or {})):
        cells[f"against {heading}"] = figure(gain, "difference", "+.1f")
        cells[f"p, {heading}"] = p_value(gain.get("p_holm"))
    return cells


def _record(row: _Row, against_base: dict[str, Any] | None, against_first: dict[str, Any] | None) -> dict[str, Any]:
    measured = ("step", "n", "accuracy", "ci95", "in_format", "parse_failure", "flips", "trained_on")
    return {
        "name": row.name,
        "job": row.job.name,
        "combination": row.job.combination,
        "state": row.state,
        **{key: (row.summary or {}).get(key) for key in measured},
        "validation": {key: row.validation.get(key) for key in ("step", "n", "accuracy", "ci95")}
        if row.validation
        else None,
        "against_base": against_base,
        "against_first": against_first,
    }
