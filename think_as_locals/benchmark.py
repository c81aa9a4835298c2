"""One evaluation, top to bottom: items -> each reward model's answers -> CARB, probes, selections -> leaderboard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from think_as_locals.data import load, read
from think_as_locals.data.candidates import Candidates, read_candidates
from think_as_locals.data.select import select
from think_as_locals.evaluation import carb
from think_as_locals.evaluation.downstream import best_scored, selection_quality, tournament, write_selections
from think_as_locals.evaluation.journal import Journal
from think_as_locals.evaluation.leaderboard import write_leaderboard
from think_as_locals.evaluation.measure import Measurement
from think_as_locals.evaluation.probes import probe
from think_as_locals.files import write_json
from think_as_locals.judging import present
from think_as_locals.models.load import load_reward_model
from think_as_locals.rm_schema import AskedSection, EvaluationConfig, RewardModelSection
from think_as_locals.types import Item

Stage = Callable[[Measurement], None]
"""What is measured of a reward model: it writes `STAGE/NAME.json` last."""


def items_of(config: EvaluationConfig) -> Sequence[Item]:
    """What is measured on.

    Raises:
        DataError: a fault in the data.
    """
    every = config.eval.items == "all"
    items = tuple(read(config.data, config.seed)) if every else load(config.data, config.seed).test
    return select(items, config.eval.max_items)


def candidates_of(config: EvaluationConfig) -> Sequence[Candidates]:
    """What is chosen from, if anything.

    Raises:
        DataError: a fault in the file.
    """
    return read_candidates(Path(config.eval.candidates).expanduser()) if config.eval.candidates else []


def run(config: EvaluationConfig, items: Sequence[Item], candidates: Sequence[Candidates], folder: Path) -> None:
    """Measure reward models, one after the other.

    Args:
        config: The evaluation.
        items: From `items_of`.
        candidates: From `candidates_of`.
        folder: Its folder, from `open_run`: a reward model that has its files is done, and of the others no answer that
            is in their journals is asked for again.
    """
    console = Console()
    console.print(f"{config.run.name}: {len(items):,} items ({config.data.source}), reward models: {len(config.rms)}")
    for name in config.rms:
        bench = Bench(config, name, folder, console)
        stages: dict[str, Stage] = {"carb": partial(bench.judge, items=items)}
        if config.eval.probes:
            stages["probes"] = partial(bench.probe, items=items)
        if candidates:
            stages["selections"] = partial(bench.choose, rows=candidates)
        bench.run({stage: run for stage, run in stages.items() if not bench.result(stage).is_file()})
    console.print(f"leaderboard  {write_leaderboard([folder], folder)}", highlight=False)


class Bench:
    """One reward model of an evaluation, and where its results go."""

    def __init__(self, config: EvaluationConfig, name: str, folder: Path, console: Console) -> None:
        self._config = config
        self._name = name
        self._folder = folder
        self._console = console

    def result(self, stage: str) -> Path:
        """The file that says that a stage is done."""
        return self._folder / stage / f"{self._name}.json"

    def run(self, stages: dict[str, Stage]) -> None:
        """Load the reward model, where there is anything to do, and do it."""
        if not stages:
            return
        rm = load_reward_model(self._config.rms[self._name], self._config.seed)
        answers = self._folder / "journals" / f"{self._name}.jsonl"
        bar = Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Journal(answers, rm.identity) as journal, bar:
            for stage, measure in stages.items():
                task = bar.add_task(f"{self._name}: {stage}", total=None)
                self.result(stage).parent.mkdir(exist_ok=True)
                measure(Measurement(rm, journal, partial(_advance, bar, task)))

    def judge(self, measurement: Measurement, items: Sequence[Item]) -> None:
        """CARB: which response it chooses."""
        config, predictions = self._config, measurement.predictions(items)
        summary = carb.summarise(
            predictions,
            dataset=config.data.source,
            split="all" if config.eval.items == "all" else config.data.split,
            model=self._name,
            seed=config.seed,
            step=0,
            bootstrap_samples=config.eval.bootstrap_samples,
            protocol=protocol_of(config.rms[self._name]),
        )
        carb.save(summary, predictions, self.result("carb"))
        low, high = summary["ci95"]
        self._console.print(
            f"{self._name}: {summary['accuracy']:.1%} [{low:.1%}, {high:.1%}] on n={summary['n']}, "
            f"unreadable {summary['parse_failure']:.1%}",
            highlight=False,
        )

    def probe(self, measurement: Measurement, items: Sequence[Item]) -> None:
        """How far its scores move with what is edited; nothing for one that gives no scores."""
        config = self._config
        found: dict[str, Any] = {"scores": None}
        if measurement.rm.score_requests(items[0]):
            found = probe(
                [present(item, config.seed) for item in items],
                measurement.scores,
                k=config.eval.consistency_k,
                samples=config.eval.bootstrap_samples,
                seed=config.seed,
            )
        write_json(self.result("probes"), found)

    def choose(self, measurement: Measurement, rows: Sequence[Candidates]) -> None:
        """Best-of-N: which candidate it chooses, and how good that is where it is known."""
        config, section = self._config, self._config.rms[self._name]
        if isinstance(section, AskedSection) and section.protocol == "listwise":
            chosen = tournament(rows, measurement.scores, config.eval.tournament_size, config.seed)
        else:
            chosen = best_scored(rows, measurement.scores, config.seed)
        table = self.result("selections").with_suffix(".jsonl")
        table.unlink(missing_ok=True)  # of a run that was killed between the two files
        write_selections(rows, chosen, table)
        found: dict[str, Any] = {"n": len(rows)}
        if rows[0].qualities is not None:
            found |= selection_quality(rows, chosen, config.eval.bootstrap_samples, config.seed)
        write_json(self.result("selections"), found)


def _advance(bar: Progress, task: TaskID, more: int, total: int) -> None:
    bar.update(task, advance=more, total=total)


def protocol_of(section: RewardModelSection) -> str:
    """How items are put to a reward model, for its CARB file."""
    if not isinstance(section, AskedSection):
        return "a score for each response"
    orders = "one order" if section.orders == 1 else f"{section.orders} orders"
    return f"{section.protocol}, greedy, {orders}, {section.convention}"
