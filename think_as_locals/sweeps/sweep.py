"""Run a sweep: overrides -> a grid of jobs -> frozen recipes -> one of Hydra's launchers -> a paired table.

A sweep's folder has, for each job, `jobs/NAME/` with its frozen recipe (which can also be run by hand), log and exit
status, and `NAME/`, the folder of its run.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any, Literal

from pandas import DataFrame

from think_as_locals.config.checks import load_recipe
from think_as_locals.config.compose import ASSETS, compose_recipe, group_options, nearest, quoted, read_override, reason
from think_as_locals.config.launch import read_launch
from think_as_locals.config.run_schema import RunConfig
from think_as_locals.evaluation import carb
from think_as_locals.evaluation.judgements import Judgements
from think_as_locals.evaluation.statistics import paired
from think_as_locals.evaluation.tables import escape_markdown, figure, markdown, on_terminal, p_value
from think_as_locals.runtime.files import read_json, write_json, write_text
from think_as_locals.runtime.output import print_result
from think_as_locals.runtime.processes import STOP_SIGNALS, on_signals
from think_as_locals.runtime.run_folder import RunFolder, check_resumable, lock_run_dir, refuse_links, resumable
from think_as_locals.runtime.terminal import progress_console
from think_as_locals.sweeps.runner import LOG, STATUS, STOP, STOPPED_STATUS, read_status
from think_as_locals.types import VALIDATION, ConfigError, Item, RunStoppedError

JOBS = "jobs"
_VARIANT = "variant="
_MAX_NAME = 60  # characters, before the hash

Combination = tuple[str, ...]
"""An override for each varied key, e.g. `("seed=1", "grpo.beta=0.0")`; a variant comes first."""

State = Literal["done", "stopped", "failed"]


def plan(recipe: str, overrides: Sequence[str]) -> list[tuple[str, str]]:
    """Return the name of each job that a sweep would run, and its overrides."""
    launcher, rest = split_overrides(overrides)
    check_launcher(launcher)
    return [(job.name, " ".join(job.overrides)) for job in make_jobs(recipe, rest)]


def sweep(recipe: str, overrides: Sequence[str]) -> tuple[Path, bool]:
    """Run every combination of values; return the sweep's folder, and whether all jobs are done."""
    launcher, rest = split_overrides(overrides)
    check_launcher(launcher)
    jobs = make_jobs(recipe, rest)
    run = jobs[0].config.run
    folder = Path(run.dir).expanduser().resolve() / run.name
    if folder.exists() and run.resume == "never":
        raise ConfigError(f"{folder} exists: choose another run.name, or continue it with run.resume=auto")
    if folder.exists() and not (folder / JOBS).is_dir():
        raise ConfigError(f"{folder} exists and is not the folder of a sweep: choose another run.name")
    refuse_links(folder)
    (folder / JOBS).mkdir(parents=True, exist_ok=True)
    stop = folder / JOBS / STOP

    def request_stop(_: int) -> None:
        with stop.open("ab") as file:
            file.write(b".")

    signals = (*STOP_SIGNALS, signal.SIGHUP)  # a closing terminal would otherwise end the sweep but not its jobs
    with resumable(folder), lock_run_dir(folder) as lock, on_signals(request_stop, signals):
        stop.unlink(missing_ok=True)
        _run_pending(jobs, folder, launcher, lock)
        states = {job.name: _state(folder, job) for job in jobs}
        table, caption = write_table(folder, jobs, states)
    failed = [job for job in jobs if states[job.name] == "failed"]
    print_result(
        on_terminal(table, folder.name, caption),
        *(f"failed: {job.label}: {folder / JOBS / job.name / LOG}" for job in failed),
        f"table {RunFolder(folder).sweep.with_suffix('.md')}",
    )
    if stop.exists():
        raise RunStoppedError(
            f"{folder.name} was stopped: repeat the command with run.name={folder.name} run.resume=auto"
        )
    return folder, all(state == "done" for state in states.values())


# --- The grid: a job for each combination of the values that the overrides list, in Hydra's grammar ---


@dataclass(frozen=True, slots=True)
class Job:
    """A run of a sweep."""

    name: str
    combination: Combination
    overrides: list[str]  # of its combination and variant, and those that all jobs share
    config: RunConfig

    @property
    def label(self) -> str:
        """The combination, for tables and messages."""
        return " ".join(text.removeprefix(_VARIANT) for text in self.combination) or self.name


def job_name(combination: Combination) -> str:
    """Return a unique, readable name of a combination, whatever the order of its overrides."""
    combination = tuple(sorted(combination))
    parts = [text.lstrip("+~").partition("=") for text in combination]
    text = "_".join(f"{key.rpartition('.')[2]}-{value.replace('e+', 'e')}" for key, _, value in parts)
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:_MAX_NAME].strip("._-")
    unique = sha256("\n".join(combination).encode()).hexdigest()[:10]
    return f"{readable}-{unique}" if readable else unique


def split_values(overrides: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return the overrides with one value, and for each of the others one override for each of its values."""
    from hydra.errors import HydraException

    shared, axes, keys = list[str](), list[list[str]](), list[str]()
    for text in overrides:
        override = read_override(text)
        keys.append(override.key_or_group)
        if not override.is_sweep_override():
            shared.append(text)
            continue
        try:
            axes.append([f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()])
        except HydraException as error:
            raise ConfigError(f"{text}: {reason(error)}; expected KEY=A,B,... or range(FIRST,END)") from error
        if not axes[-1]:
            raise ConfigError(f"{text}: holds no value, so there is nothing to run")
        if keys[-1] == "variant":
            raise ConfigError(f"{text}: each variant of a recipe is run; leave one out by ~variants.NAME")
        if keys[-1].startswith("run."):
            raise ConfigError(f"{text}: a sweep has one {keys[-1]}; its jobs get names of their own")
    if several := [axis[0].partition("=")[0] for axis in axes if keys.count(axis[0].partition("=")[0].lstrip("+")) > 1]:
        raise ConfigError(f"{several[0]}: a key that varies is given once")
    return shared, axes


def make_jobs(recipe: str, overrides: Sequence[str]) -> list[Job]:
    """Compose and validate the job of each combination; one ConfigError names all faulty ones."""
    shared, axes = split_values(overrides)
    variants: Mapping[str, Sequence[str]] = compose_recipe(recipe, shared).get("variants") or {}
    if variants:
        axes = [[f"{_VARIANT}{name}" for name in variants], *axes]
    combinations = [*dict.fromkeys(product(*axes))]
    jobs, faults = list[Job](), list[str]()
    for combination in combinations:
        own = [*shared]
        for text in combination:
            own += variants[text.removeprefix(_VARIANT)] if text.startswith(_VARIANT) else [text]
        try:
            config = load_recipe(recipe, own).model_copy(update={"variants": {}})
            if (launch := read_launch(config.run.launch)).machines > 1:
                raise ConfigError(f"run.launch: {launch.name} is for several machines, a job of a sweep has one")
            jobs.append(Job(job_name(combination), combination, own, config))
        except ConfigError as error:
            faults.append(f"{' '.join(combination)}\n    {str(error).replace(chr(10), chr(10) + '    ')}")
    if faults:
        raise ConfigError(
            f"{len(faults)} of {len(combinations)} combinations are invalid, none was started:\n" + "\n".join(faults)
        )
    return jobs


# --- Hydra's launchers: each starts `runner.py` for every job ---


def split_overrides(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides that choose and set Hydra's launcher, and those of the jobs."""
    ours = [text for text in overrides if text.lstrip("+~").startswith(("sweep=", "hydra.", "hydra/"))]
    return ours, [text for text in overrides if text not in ours]


def check_launcher(overrides: Sequence[str]) -> None:
    """Compose a launcher's settings, so that a fault shows before anything is written."""
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    option, words = _option(overrides)
    known = group_options()["sweep"]
    if option not in known:
        raise ConfigError(f"sweep={option}: no such option{nearest(option, known)}; available: {', '.join(known)}")
    try:
        with initialize_config_dir(str(ASSETS / "conf"), version_base="1.3"):
            compose(f"sweep/{option}", words, return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        message = reason(error)
        missing = "; pip install 'think-as-locals[sweep]'" if "hydra/launcher" in message else ""
        raise ConfigError(f"sweep={option}: {message}{missing}") from error


def _option(overrides: Sequence[str]) -> tuple[str, list[str]]:
    """Return the option of conf/sweep that is chosen, and the overrides of Hydra's keys."""
    chosen = [text.removeprefix("sweep=") for text in overrides if text.startswith("sweep=")]
    return (chosen or ["local"])[-1], [text for text in overrides if not text.startswith("sweep=")]


def _run_pending(jobs: Sequence[Job], folder: Path, launcher: Sequence[str], lock: int) -> None:
    """Freeze and run the jobs that are not done."""
    for job in jobs:
        if (run := RunFolder(folder / job.name)).config.is_file():
            check_resumable(job.config, run)
    pending = [job for job in jobs if read_status(folder / JOBS / job.name) != 0]
    if skipped := len(jobs) - len(pending):
        progress_console().print(f"{skipped} of {len(jobs)} jobs are done already")
    for job in pending:
        (folder / JOBS / job.name / STATUS).unlink(missing_ok=True)
        freeze(job, folder)
    if pending:
        launch([job.name for job in pending], folder, launcher, lock)


def freeze(job: Job, sweep: Path) -> Path:
    """Write a job's recipe with all values as composed, independent of conf/, and return its path."""
    run = job.config.run.model_copy(update={"name": job.name, "dir": str(sweep), "resume": "auto"})
    path = sweep / JOBS / job.name / f"{job.config.recipe}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, job.config.model_copy(update={"run": run}).to_yaml())
    return path


def launch(names: Sequence[str], sweep: Path, launcher: Sequence[str], lock: int) -> None:
    """Run frozen jobs to their ends by Hydra's launcher.

    The launcher has a session of its own, so that a terminal's Ctrl-C reaches this process alone, and holds the lock of
    the sweep as long as it lives.
    """
    option, words = _option(launcher)
    listed = ",".join(f'"{name}"' for name in names)
    ours = [f"hydra.sweep.dir={quoted(str(sweep / JOBS))}", f"job={listed}"]
    command = [sys.executable, "-m", "think_as_locals.sweeps.runner", "-m", f"--config-name=sweep/{option}"]
    subprocess.run(  # noqa: S603
        [*command, *words, *ours], stdin=subprocess.DEVNULL, start_new_session=True, pass_fds=[lock], check=False
    )


def _state(sweep: Path, job: Job) -> State:
    """Return the state of a job that is not running; without an exit status it was stopped, if the sweep was."""
    status = read_status(sweep / JOBS / job.name)
    if status == 0:
        return "done"
    stopped = status == STOPPED_STATUS or (status is None and (sweep / JOBS / STOP).exists())
    return "stopped" if stopped else "failed"


# --- The table: each job beside the model before its training and the first of its like, item by item ---

_CAPTION = (
    "Per cent after the last step, with 95 % intervals by question group; best first, by validation items if there are "
    "any. Differences are paired by item, in points: against base, the model before GRPO, and against the first job, "
    "which has the first variant or value of the key that varies first, and all else equal. p by question group, Holm "
    "over the column."
)
_ON_VALIDATION = ("step", "n", "accuracy", "ci95", "trained_on")
_ON_TEST = (*_ON_VALIDATION, "in_format", "parse_failure", "flips")


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
    against_base, against_first = (_gains(rows, [getattr(row, other) for row in rows]) for other in ("base", "first"))
    records: list[dict[str, Any]] = [
        {
            "name": row.name,
            "job": row.job.name,
            "combination": row.job.combination,
            "state": row.state,
            **{key: (row.summary or {}).get(key) for key in _ON_TEST},
            "validation": row.validation and {key: row.validation.get(key) for key in _ON_VALIDATION},
            "against_base": against_base.get(row.name),
            "against_first": against_first.get(row.name),
        }
        for row in rows
    ]
    table, caption = DataFrame(map(_cells, records)), _CAPTION
    if any(carb.trained_on_note(part) for record in records for part in (record, record["validation"]) if part):
        caption += " † The judge was trained on some of these items."
    file = RunFolder(sweep).sweep
    write_json(file, {"sweep": sweep.name, "judges": records})
    write_text(file.with_suffix(".md"), f"# {escape_markdown(sweep.name)}\n\n{caption}\n\n{markdown(table)}\n")
    return table, caption


def _rows(sweep: Path, jobs: Sequence[Job], states: Mapping[str, State]) -> list[_Row]:
    """Return the models before training, each once, then the jobs: what is done comes first, the best of it on top."""
    bases, firsts, known = dict[tuple[Any, ...], _Row](), dict[Combination, _Row](), dict[str, Item]()
    rows = list[_Row]()
    for job in jobs:
        run = RunFolder(sweep / job.name)
        steps, validated = carb.steps(run), [*run.evaluated_steps(VALIDATION).values()]
        base = None
        if 0 in steps:
            summary, judged = _read(steps[0], known)
            # One row for all that judge alike: of the same settings another machine or engine may make another model.
            shown = repr((job.config.model, job.config.prompt, *map(summary.get, _ON_TEST)))
            key = (shown, judged.items, *judged.by_item("credit"))
            base = bases.setdefault(key, _Row(f"base of {job.label}", job, None, summary, judged))
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


def _cells(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the row of the table about a judge."""
    cells = {"job": record["name"]}
    for heading, part in (("validation, %", record["validation"] or {}), ("test, %", record)):
        cells[heading] = figure(part, show_n=True) + " †" * bool(carb.trained_on_note(part))
    cells |= {
        "flip sets, %": figure(record["flips"] or {}),
        "in format, %": figure(record["in_format"] or {}, "share"),
        "parse failures, %": f"{100 * record['parse_failure']:.1f}" if record["n"] else "",
        "step": str(record["step"] if record["n"] else ""),
        "state": record["state"] or "",
    }
    for name in ("base", "first"):
        gain = record[f"against_{name}"] or {}
        cells[f"against {name}"] = figure(gain, "difference", "+.1f")
        cells[f"p, {name}"] = p_value(gain.get("p_holm"))
    return cells
