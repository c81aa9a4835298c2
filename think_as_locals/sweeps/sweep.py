"""A sweep, top to bottom: overrides -> combinations -> frozen recipes -> jobs -> a table, best first."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from think_as_locals.preflight import packages
from think_as_locals.schema import RunConfig
from think_as_locals.sweeps import jobs
from think_as_locals.sweeps.jobs import JOBS, Job
from think_as_locals.sweeps.launcher import launch, stop_signals
from think_as_locals.sweeps.settings import Settings, load_settings, split
from think_as_locals.sweeps.space import Combination, Space, parse, suggest
from think_as_locals.sweeps.summary import Row, read_rows, table, write_summary
from think_as_locals.types import ConfigError, PreflightError, RunStoppedError
from think_as_locals.workspace import alone, check_resumable


def sweep(recipe: str, overrides: Sequence[str]) -> bool:
    """Run every combination, or those that optuna proposes; `run.name` names the sweep, whose jobs lie in its folder.

    Returns:
        Whether all jobs are done.

    Raises:
        ConfigError: an override or a combination does not hold, or the folder exists; no job was started.
        PreflightError: what jobs train with is not installed; no job was started.
        RunStoppedError: a signal stopped it, or a job.
    """
    if missing := packages("train"):
        raise PreflightError("\n".join(missing))
    ours, theirs = split(overrides)
    settings, space = load_settings(ours), parse(theirs)
    # For a search this is what it may propose at most, so that its jobs do not fail one by one.
    possible = jobs.make_jobs(recipe, space, space.combinations(settings.section.search))
    folder = _open(possible[0].config)
    console = Console(markup=False, highlight=False)
    with alone(folder), stop_signals(folder) as received:
        this = _Sweep(recipe, space, settings, folder, received, console)
        if settings.section.search == "grid":
            this.run(possible)
        else:
            suggest(space, settings.section, this.score)
    metric, rows = this.rows()
    write_summary(folder, metric, rows)
    console.print(table(folder, metric, rows))
    for row in (row for row in rows if row.state == "failed"):
        console.print(f"failed: {' '.join(row.combination)}: {folder / row.log}", soft_wrap=True)
    console.print(f"table {folder / 'sweep.md'}", soft_wrap=True)
    if received or any(row.state == "stopped" for row in rows):
        raise RunStoppedError(f"{folder.name} was stopped: continue it with run.name={folder.name} run.resume=auto")
    return all(row.state == "done" for row in rows)


def _open(config: RunConfig) -> Path:
    """The folder of a sweep, made or come back to."""
    folder = Path(config.run.dir).expanduser().resolve() / config.run.name
    if folder.exists() and config.run.resume == "never":
        raise ConfigError(f"{folder} exists: choose another run.name, or continue it with run.resume=auto")
    if folder.exists() and not (folder / JOBS).is_dir():
        raise ConfigError(f"{folder} exists and is not the folder of a sweep: choose another run.name")
    (folder / JOBS).mkdir(parents=True, exist_ok=True)
    return folder


class _Sweep:
    """The jobs of one sweep, as they become known."""

    def __init__(
        self,
        recipe: str,
        space: Space,
        settings: Settings,
        folder: Path,
        received: Sequence[int],
        console: Console,
    ) -> None:
        self._recipe = recipe
        self._space = space
        self._settings = settings
        self._folder = folder
        self._received = received
        self._console = console
        self._known: dict[str, Combination] = {}

    def run(self, wanted: Sequence[Job]) -> None:
        """Run the jobs that are not done."""
        self._known |= {job.name: job.combination for job in wanted}
        open_ones = [job for job in wanted if not self._done(job)]
        for job in open_ones:
            jobs.freeze(job, self._folder)
        if skipped := len(wanted) - len(open_ones):
            self._console.print(f"{skipped} of {len(wanted)} jobs are done already")
        if open_ones:
            launch([job.name for job in open_ones], self._folder, self._settings, self._received, self._say)

    def score(self, combinations: list[Combination]) -> list[float | None] | None:
        """Run proposals; what each scored, or `None` where the sweep is to stop."""
        wanted = jobs.make_jobs(self._recipe, self._space, combinations)
        self.run(list({job.name: job for job in wanted}.values()))
        if self._received:
            return None
        _, rows = self.rows()
        found = {row.name: row.measured.accuracy if row.measured and row.state == "done" else None for row in rows}
        return [found[job.name] for job in wanted]

    def rows(self) -> tuple[str, list[Row]]:
        """What is known of all jobs."""
        return read_rows(self._folder, self._known, bool(self._received))

    def _done(self, job: Job) -> bool:
        """Whether a job is done; one that is not leaves no word of how it ended."""
        folder = self._folder / JOBS / job.name
        if (self._folder / job.name / "config.yaml").is_file():
            check_resumable(job.config, self._folder / job.name)
        if jobs.ended(folder) == 0:
            return True
        (folder / jobs.ENDED).unlink(missing_ok=True)
        return False

    def _say(self, name: str) -> None:
        said = " ".join(self._known[name])
        with suppress(
            OSError, SystemExit
        ):  # a terminal that is gone, as rich says it; the jobs go on, or stop in order
            self._console.print(f"{jobs.state(jobs.ended(self._folder / JOBS / name))}  {said}")
