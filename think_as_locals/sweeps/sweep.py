"""Run a sweep: overrides -> combinations -> frozen recipes -> jobs -> a table, best first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, product
from pathlib import Path
from typing import Any, Literal

from pandas import DataFrame
from rich.console import Console

from think_as_locals.config.compose import compose_recipe
from think_as_locals.evaluation import carb
from think_as_locals.evaluation.judgements import Judgements, grouped
from think_as_locals.evaluation.statistics import paired
from think_as_locals.evaluation.tables import escape_markdown, figure, markdown, on_terminal, p_value
from think_as_locals.machine.doctor import packages
from think_as_locals.runtime.files import check_writable, read_json, write_json, write_text
from think_as_locals.runtime.output import progress_console
from think_as_locals.runtime.run_folder import RunFolder, check_resumable, lock_run_dir, make_folder, resumable
from think_as_locals.sweeps.jobs import (
    JOBS,
    LOG,
    STATUS,
    Job,
    State,
    freeze,
    job_state,
    launch,
    make_jobs,
    read_status,
    stop_signals,
)
from think_as_locals.sweeps.settings import (
    VARIANT,
    Combination,
    Settings,
    Space,
    load_settings,
    parse,
    split_overrides,
    suggest,
)
from think_as_locals.types import TEST, VALIDATION, ConfigError, Item, PreflightError, RunStoppedError

_STATES: tuple[State, ...] = ("done", "stopped", "failed")  # in the order of the table


def plan(recipe: str, overrides: Sequence[str]) -> list[tuple[str, str]]:
    """Return the name of each job that a sweep would run, and its overrides; of a search, how many it would run."""
    space, settings, jobs = prepare(recipe, overrides)
    if (section := settings.section).search != "grid":
        return [("trials", f"{section.num_trials:,}, proposed by {section.search}")]
    return [(job.name, " ".join(space.overrides(job.combination))) for job in jobs]


def prepare(recipe: str, overrides: Sequence[str]) -> tuple[Space, Settings, list[Job]]:
    """Return what a sweep varies, its settings and its possible jobs: of a search, the extremes."""
    ours, theirs = split_overrides(overrides)
    space = parse(theirs)
    composed = compose_recipe(recipe, space.fixed)
    settings = load_settings(ours, composed["run"]["launch"])
    space = replace(space, variants=composed.get("variants", {}))
    # Of all that a search may propose, so that it fails now and not job by job.
    return space, settings, make_jobs(recipe, space, space.combinations(settings.section.search))


def sweep(recipe: str, overrides: Sequence[str]) -> tuple[Path, bool]:
    """Run every combination, or those that optuna proposes; return the sweep's folder, and whether all are done."""
    if missing := packages("train"):
        raise PreflightError("\n".join(missing))
    space, settings, possible = prepare(recipe, overrides)
    section = settings.section
    run = possible[0].config.run
    folder = Path(run.dir).expanduser().resolve() / run.name
    if folder.exists() and run.resume == "never":
        raise ConfigError(f"{folder} exists: choose another run.name, or continue it with run.resume=auto")
    if folder.exists() and not (folder / JOBS).is_dir():
        raise ConfigError(f"{folder} exists and is not the folder of a sweep: choose another run.name")
    make_folder(folder / JOBS)
    progress, console = progress_console(), Console(markup=False, highlight=False)
    again = f"run.name={folder.name} run.resume=auto"
    with resumable(folder), lock_run_dir(folder) as lock, stop_signals(folder) as received:
        this = Sweep(recipe, space, settings, folder, received, lock, progress)
        if section.search == "grid":
            this.run(possible)
        else:
            suggest(space, this.score, section.num_trials, section.trials_at_once, section.seed)
        if len(received) > 1:
            progress.print(f"{folder.name}: its jobs were ended at once: continue it with {again}", markup=False)
            raise SystemExit(128 + received[-1])
        metric, rows = read_job_results(folder, this.combinations, bool(received))
        print_results(console, folder, metric, rows)
        if space.variants:
            console.print(on_terminal(write_variants(folder, possible), "variants", _VARIANTS))
            console.print(f"table {RunFolder(folder).variants.with_suffix('.md')}", soft_wrap=True)
        if any(row.state == "failed" for row in rows):
            check_writable(folder)  # on a full disk, jobs cannot write why they failed
    if received or any(row.state == "stopped" for row in rows):
        raise RunStoppedError(f"{folder.name} was stopped: continue it with {again}")
    return folder, all(row.state == "done" for row in rows)


def print_results(console: Console, folder: Path, metric: Metric, rows: Sequence[JobResult]) -> None:
    """Write and print the table of the jobs, and the logs of failed ones."""
    table, caption = write_summary(folder, metric, rows)
    console.print(on_terminal(table, folder.name, caption))
    for row in rows:
        if row.state == "failed":
            console.print(f"failed: {' '.join(row.combination) or row.name}: {folder / row.log}", soft_wrap=True)
    console.print(f"table {RunFolder(folder).sweep.with_suffix('.md')}", soft_wrap=True)


@dataclass(slots=True)
class Sweep:
    """A running sweep, with the jobs that are known so far."""

    recipe: str
    space: Space
    settings: Settings
    folder: Path
    received: Sequence[int]  # signals
    lock: int  # the sweep's, as a file descriptor
    progress: Console
    combinations: dict[str, Combination] = field(default_factory=dict)  # by the name of a job

    def run(self, jobs: Sequence[Job]) -> None:
        """Run the jobs that are not done."""
        self.combinations |= {job.name: job.combination for job in jobs}
        for job in jobs:
            if (run := RunFolder(self.folder / job.name)).config.is_file():
                check_resumable(job.config, run)
        pending = [job for job in jobs if read_status(self.folder / JOBS / job.name) != 0]
        for job in pending:
            (self.folder / JOBS / job.name / STATUS).unlink(missing_ok=True)
            freeze(job, self.folder)
        if skipped := len(jobs) - len(pending):
            self.progress.print(f"{skipped} of {len(jobs)} jobs are done already")
        if pending:
            names = [job.name for job in pending]
            launch(names, self.folder, self.settings, self.received, self.lock, self.print_end)

    def score(self, combinations: list[Combination]) -> list[float | None] | None:
        """Run proposals and return the score of each, or `None` if the sweep stops."""
        jobs = make_jobs(self.recipe, self.space, combinations)
        self.run(list({job.name: job for job in jobs}.values()))
        if self.received:
            return None
        _, rows = read_job_results(self.folder, self.combinations, stop_requested=False)
        scores = {row.name: row.evaluated["accuracy"] for row in rows if row.evaluated and row.state == "done"}
        return [scores.get(job.name) for job in jobs]

    def print_end(self, name: str) -> None:
        """Print how a job ended; if the terminal is gone, for which rich exits, jobs go on or stop in order."""
        state = job_state(read_status(self.folder / JOBS / name))
        with suppress(OSError, SystemExit):
            combination = " ".join(self.combinations[name]) or name
            self.progress.print(f"{state}  {combination}", markup=False, highlight=False)


@dataclass(frozen=True, slots=True)
class Metric:
    """The accuracy by which jobs are compared."""

    set: Literal["validation", "test"]
    flips: bool  # on complete flip sets, where a judge that ignores the culture is at chance

    def of(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        """Return accuracy, interval, n and step, and whether the judge was trained on some of the items."""
        part = summary["flips"] if self.flips else summary
        found = {key: part[key] for key in ("accuracy", "ci95", "n")}
        return {**found, "step": summary["step"], "trained_on": bool(carb.trained_on_note(summary))}


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of one job."""

    name: str
    combination: Combination
    state: State
    status: int | None  # exit status, if there is one
    evaluated: dict[str, Any] | None  # after its last step: accuracy, ci95, n, step and trained_on
    test: dict[str, Any] | None  # the same on test items
    log: str


def read_job_results(
    sweep: Path, combinations: Mapping[str, Combination], stop_requested: bool
) -> tuple[Metric, list[JobResult]]:
    """Return the metric, on validation items if all jobs have some, and a result for each job, the best first."""
    found: dict[str, dict[str, Any]] = {VALIDATION: {}, TEST: {}}
    for name, by_set in product(combinations, found):
        if paths := list(RunFolder(sweep / name).evaluated_steps(by_set).values()):
            found[by_set][name] = read_json(paths[-1])
    validated = found[VALIDATION].keys() == found[TEST].keys() and bool(found[TEST])
    chosen = found[VALIDATION] if validated else found[TEST]
    flips = all(summary["flips"]["n"] for by_name in (chosen, found[TEST]) for summary in by_name.values())
    metric = Metric("validation" if validated else "test", flips)
    rows = []
    for name, combination in combinations.items():
        evaluated, tested = (metric.of(by[name]) if name in by else None for by in (chosen, found[TEST]))
        status = read_status(sweep / JOBS / name)
        state = job_state(status, stop_requested)
        rows.append(JobResult(name, combination, state, status, evaluated, tested, f"{JOBS}/{name}/{LOG}"))
    rows.sort(key=lambda r: (_STATES.index(r.state), -r.evaluated["accuracy"] if r.evaluated else 1.0, r.name))
    return metric, rows


def write_summary(sweep: Path, metric: Metric, rows: Sequence[JobResult]) -> tuple[DataFrame, str]:
    """Write `sweep.json` and `sweep.md` into a sweep's folder; return the table for a terminal, and its caption."""
    jobs = [asdict(row) for row in rows]
    files = RunFolder(sweep)
    write_json(files.sweep, {"sweep": sweep.name, "metric": asdict(metric), "jobs": jobs})
    items = f"{metric.set} items{' of whole flip sets' if metric.flips else ''}"
    caption = f"Accuracy on {items} after the last step, with n and 95 % intervals by question group; best first. "
    if any(found and found["trained_on"] for row in rows for found in (row.evaluated, row.test)):
        caption += " † The judge was trained on some of these items."
    table = DataFrame([_cells(row) for row in rows]).fillna("")
    with_logs = markdown(table.assign(log=[row.log for row in rows]))
    write_text(files.sweep.with_suffix(".md"), f"# {escape_markdown(sweep.name)}\n\n{caption}\n\n{with_logs}\n")
    return table, caption


def _cells(row: JobResult) -> dict[str, str]:
    cells = {"job": " ".join(row.combination) or row.name}
    for heading, found in (("accuracy, %", row.evaluated), ("test accuracy, %", row.test)):
        cells[heading] = f"{figure(found, show_n=True)}{' †' * found['trained_on']}" if found else ""
    cells["step"] = str(row.evaluated["step"]) if row.evaluated else ""
    ended = f"failed, status {row.status or 'unknown'}" if row.state == "failed" else row.state
    return {**cells, "ended": ended}


# --- Variants, each compared with the model before training and with the first one, item by item ---

_VARIANTS = (
    "Per cent on the same test items, with 95 % intervals by question group; base: the model before GRPO. Differences "
    "are paired by item, in points; p by question group, Holm over the column."
)


@dataclass(frozen=True, slots=True)
class EvaluatedVariant:
    """An evaluation of a judge, and the evaluations that it is compared with."""

    name: str
    summary: dict[str, Any]
    judged: Judgements
    base: EvaluatedVariant | None = None  # the model before its training
    first: EvaluatedVariant | None = None  # the first variant


def write_variants(sweep: Path, jobs: Sequence[Job]) -> DataFrame:
    """Write `variants.json` and `variants.md` about the evaluated jobs, and return their table."""
    # Compared are jobs that differ in their variant alone, and not in the seed, say.
    parts = grouped(jobs, lambda job: job.combination[1:]).values()
    evaluated = list(chain.from_iterable(_evaluated_variants(sweep, part) for part in parts))
    gains, file = {kind: _gains(evaluated, kind) for kind in ("base", "first")}, RunFolder(sweep).variants
    write_json(
        file,
        {
            "variants": [
                {
                    "name": m.name,
                    **{key: m.summary[key] for key in ("step", "n", "accuracy", "ci95", "in_format", "flips")},
                    "parse_failure": m.summary["parse_failure"],
                    **{f"against_{kind}": found.get(m.name) for kind, found in gains.items()},
                }
                for m in evaluated
            ]
        },
    )
    rows = [
        {
            "variant": m.name,
            "accuracy, %": figure(m.summary),
            "flip sets, %": figure(m.summary["flips"]),
            "in format, %": figure(m.summary["in_format"], "share"),
            "parse failures, %": f"{100 * m.summary['parse_failure']:.1f}",
            "against base": figure(gains["base"].get(m.name, {}), "difference", "+.1f"),
            "p": p_value(gains["base"].get(m.name, {}).get("p_holm")),
            "against the first": figure(gains["first"].get(m.name, {}), "difference", "+.1f"),
            "p, first": p_value(gains["first"].get(m.name, {}).get("p_holm")),
            "n": str(m.summary["n"]),
            "step": str(m.summary["step"]),
        }
        for m in evaluated
    ]
    table = DataFrame(rows)
    write_text(file.with_suffix(".md"), f"# Variants\n\n{_VARIANTS}\n\n{markdown(table)}\n")
    return table


def _evaluated_variants(sweep: Path, jobs: Sequence[Job]) -> list[EvaluatedVariant]:
    """Return the models before training, each once, then the variants."""
    bases, known = dict[str, EvaluatedVariant](), dict[str, Item]()
    found = list[EvaluatedVariant]()
    for job in jobs:
        steps = carb.steps(RunFolder(sweep / job.name))
        variant, *rest = job.combination
        name = " ".join([variant.removeprefix(VARIANT), *rest])
        base = None
        if 0 in steps:
            config = job.config
            length = config.grpo.max_completion_length
            setup = repr((config.data, config.model, config.prompt, config.sft, length))
            base = bases.setdefault(setup, EvaluatedVariant(f"base of {name}", *_read(steps[0], known)))
        if steps and (last := max(steps)):
            found.append(EvaluatedVariant(name, *_read(steps[last], known), base, found[0] if found else None))
    return [*bases.values(), *found]


def _read(path: Path, known: dict[str, Item]) -> tuple[dict[str, Any], Judgements]:
    return carb.read(path), Judgements.read(path.with_suffix(".parquet"), known)


def _gains(evaluated: Sequence[EvaluatedVariant], kind: str) -> dict[str, dict[str, Any]]:
    """Return by name how much better each is than its base or the first, where both have the same items."""
    pairs = {}
    for m in evaluated:
        other: EvaluatedVariant | None = getattr(m, kind)
        if other is not None and other.judged.items == m.judged.items:
            pairs[m.name] = other.judged.by_item("credit"), m.judged.by_item("credit"), m.judged.group
    found = zip(pairs, paired(list(pairs.values())), strict=True)
    return {name: {**gain.as_dict(), "p_holm": p} for name, (gain, p) in found}
