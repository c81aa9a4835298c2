"""One evaluation, top to bottom: reward models -> CARB, probes, selections -> leaderboard."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from accelerate.utils.memory import clear_device_cache
from rich.console import Console

from think_as_locals.config.schema import AskedSection, EvaluationConfig
from think_as_locals.data import read
from think_as_locals.data.edited import of_items, read_edits
from think_as_locals.data.edits import Edits, Pair, edited_pairs, why_not
from think_as_locals.data.load import Candidates, load_side, read_candidates
from think_as_locals.data.splits import select
from think_as_locals.evaluation import carb
from think_as_locals.evaluation.breakdowns import BREAKDOWNS
from think_as_locals.evaluation.candidates import draw
from think_as_locals.evaluation.downstream import (
    best_scored,
    read_results,
    selection_quality,
    tables,
    tournament,
    write_selections,
    write_validity,
)
from think_as_locals.evaluation.journal import AnswerCollector, Journal
from think_as_locals.evaluation.leaderboard import on_terminal, write_leaderboard
from think_as_locals.evaluation.probes import applied, probe
from think_as_locals.evaluation.tables import escape_terminal
from think_as_locals.evaluation.tasks import Question
from think_as_locals.evaluation.tries import advance
from think_as_locals.judging import reorder_responses, shuffle_responses
from think_as_locals.judging.prompt import shuffled_order
from think_as_locals.machine.preflight import reward_model_faults
from think_as_locals.reward_models.load import load_reward_model, trained_hashes
from think_as_locals.reward_models.reward_model import RewardModel
from think_as_locals.runtime.files import DISK_FAULTS, file_fault, read_json, write_json
from think_as_locals.runtime.output import progress_bar, progress_console, quiet_transformers
from think_as_locals.runtime.ranks import ALONE, Peers
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.types import DataError, Item, PreflightError, ThinkAsLocalsError


def items_of(config: EvaluationConfig) -> Sequence[Item]:
    """Load the items to evaluate on."""
    items = load_side(config.data, config.seed, config.eval.items)
    return select(items, config.eval.max_items, BREAKDOWNS["cell"])


def candidates_of(config: EvaluationConfig) -> Sequence[Candidates]:
    """Load the candidates of best-of-N selection, if there are any."""
    return read_candidates(Path(config.eval.candidates).expanduser()) if config.eval.candidates else []


def edits_of(config: EvaluationConfig, items: Sequence[Item]) -> Edits | None:
    """Return the edited pairs of the probes, ours or those of a file, of the items to evaluate on; `None` without any.

    Responses of both sides are in the order in which the item's are presented.
    """
    if not config.eval.probes:
        return None
    known = tuple(read(config.data, config.seed))
    pairs: Edits
    if isinstance(config.eval.probes, str):
        pairs = of_items(read_edits(Path(config.eval.probes).expanduser(), known), items, known)
    else:
        pairs = edited_pairs(items, known)
    return {edit: [_presented(pair, config.seed) for pair in part] for edit, part in pairs.items()}


def _presented(pair: Pair, seed: int) -> Pair:
    order = shuffled_order(pair.before.responses, seed)
    return pair._replace(before=reorder_responses(pair.before, order), after=reorder_responses(pair.after, order))


def run(
    config: EvaluationConfig,
    items: Sequence[Item],
    candidates: Sequence[Candidates],
    folder: RunFolder,
    questions: Sequence[Question] = (),
    edits: Edits | None = None,
    peers: Peers = ALONE,
) -> None:
    """Evaluate reward models one after the other, and write the leaderboard.

    Where a policy is to be asked `questions`, it draws the candidates first, and the downstream validity comes last.

    A reward model that has its files in the folder is done; no answer in the journals of the others is asked for again.
    One that fails is recorded, and the others go on; in the end that is status 1, and a resumed run tries it again.

    Several processes of a launch share what is asked, a chunk each in turn; the main one writes.
    """
    quiet_transformers()
    console = progress_console(is_main=peers.is_main)
    errors = Console(stderr=True, style="red", highlight=False, quiet=not peers.is_main)
    console.print(f"{config.run.name}: {len(items):,} items ({config.data.source}), reward models: {len(config.rms)}")
    if (sample := config.sample) is not None:
        with progress_bar(console) as bar:
            peers.together(lambda: draw(sample, config.seed, questions, folder, bar, peers))
        candidates = read_candidates(folder.candidates)
        clear_device_cache(garbage_collection=True)  # of the policy
    failed = []
    for name in config.rms:
        record = folder.failure(name)
        try:
            RewardModelEvaluation(config, name, folder.path, console, peers).run(items, candidates, edits)
            record.unlink(missing_ok=True)
        except Exception as error:  # a bug as well: the other reward models do not depend on it
            if (fault := file_fault(error)) and fault.errno in DISK_FAULTS:
                raise
            failed.append(name)
            message = record_failure(error, record) if peers.is_main else ""
            errors.print(escape_terminal(f"{name} failed: {message}"))
        clear_device_cache(garbage_collection=True)  # of a model that is gone, for the next one
    if not peers.is_main:
        return
    page = write_leaderboard([folder.path], folder.path, items)
    Console(highlight=False).print(*on_terminal(folder.path))
    print(f"leaderboard  {page}")
    if config.sample is not None and not failed:
        _validity(folder, errors)
    if failed:
        errors.print(f"failed       {', '.join(failed)}: run.resume=auto tries again")
        raise SystemExit(1)


def _validity(folder: RunFolder, errors: Console) -> None:
    """Write and print how well accuracy predicts the quality of what is selected, where that can be said."""
    try:
        drawn = write_validity(read_results(folder.path), folder.path)
    except DataError as error:
        errors.print(f"no r2: {error}", markup=False)
        return
    found = read_json(folder.path / "validity.json")
    if found["warning"]:
        errors.print(f"warning: {found['warning']}", markup=False)
    Console(markup=False, highlight=False).print(*(table.terminal() for table in tables(found)))
    print(f"validity     {drawn}")


def record_failure(error: Exception, path: Path) -> str:
    """Write why a reward model failed, with the traceback of what is no error of ours, and return the message."""
    ours = isinstance(error, ThinkAsLocalsError)
    message = str(error) if ours else f"{type(error).__name__}: {error}"
    trace = None if ours else "".join(traceback.format_exception(error))
    path.parent.mkdir(exist_ok=True)
    write_json(path, {"model": path.stem, "message": message, "traceback": trace})
    return message


@dataclass(frozen=True, slots=True)
class RewardModelEvaluation:
    """One reward model of an evaluation. Each stage writes `STAGE/NAME.json` last: where it is, the stage is done."""

    config: EvaluationConfig
    name: str
    folder: Path
    console: Console
    peers: Peers = ALONE

    def run(self, items: Sequence[Item], candidates: Sequence[Candidates], edits: Edits | None) -> None:
        """Do the stages that are not done; the model is loaded only if there are any."""
        stages: dict[str, Callable[[AnswerCollector], None]] = {"carb": partial(self._carb, items=items)}
        if edits is not None:
            stages["probes"] = partial(self._probe, items=items, edits=edits)
        if candidates:
            stages["selections"] = partial(self._select, rows=candidates)
        # As the main process has it, which writes the results.
        missing, *_ = self.peers.exchange([stage for stage in stages if not self._done(stage)])
        if not missing:
            return
        section, answers = self.config.rms[self.name], RunFolder(self.folder).journal(self.name)
        with ExitStack() as stack:

            def load() -> tuple[RewardModel, Journal]:
                if faults := reward_model_faults(section):
                    raise PreflightError("; ".join(faults))
                rm = stack.enter_context(closing(load_reward_model(section, self.config.seed)))
                return rm, stack.enter_context(Journal(answers, rm.identity, peers=self.peers))

            rm, journal = self.peers.together(load)
            bar = stack.enter_context(progress_bar(self.console))
            for stage in missing:
                self._result(stage).parent.mkdir(exist_ok=True)
                shown, too_long = advance(bar, f"{self.name}: {stage}"), self.config.eval.too_long
                collector = AnswerCollector(rm, journal, shown, too_long, self.peers)
                self.peers.together(partial(stages[stage], collector))

    def _done(self, stage: str) -> bool:
        """Whether a stage has its result, with items that are too long counted as they are to be."""
        if not self._result(stage).is_file():
            return False
        too_long = read_json(self._result(stage)).get("too_long", {})
        return not any(items for how, items in too_long.items() if how != self.config.eval.too_long)

    def _result(self, stage: str) -> Path:
        return self.folder / stage / f"{self.name}.json"

    def _carb(self, collector: AnswerCollector, items: Sequence[Item]) -> None:
        """Measure which responses it chooses."""
        config, scored = self.config, collector.predictions(items)
        if not self.peers.is_main:
            return
        section, protocol = config.rms[self.name], "a score for each response"
        if isinstance(section, AskedSection):
            orders = "one order" if section.orders == 1 else f"{section.orders} orders"
            protocol = f"{section.protocol}, greedy, {orders}, {section.convention}"
        summary = carb.summarise(
            scored,
            dataset=config.data.title,
            split="all" if config.eval.items == "all" else config.data.split,
            model=self.name,
            seed=config.seed,
            step=0,
            bootstrap_samples=config.eval.bootstrap_samples,
            protocol=protocol,
            training=trained_hashes(section),
            excluded=sorted({item.id for item in items} - {s.item.id for s in scored}),
        )
        carb.save(summary, scored, self._result("carb"))
        for line in carb.lines(self.name, summary):
            self.console.print(escape_terminal(line))

    def _probe(self, collector: AnswerCollector, items: Sequence[Item], edits: Edits) -> None:
        """Measure how far its scores move with edits of the items, if it gives scores."""
        config = self.config
        found: dict[str, Any] = {"scores": None}
        if collector.rm.score_requests(items[0]):
            found = probe(
                [shuffle_responses(item, config.seed) for item in items],
                edits,
                collector.scores,
                k=config.eval.consistency_k,
                samples=config.eval.bootstrap_samples,
                seed=config.seed,
                reason=why_not if config.eval.probes is True else lambda *_: "the file has no such edit of it",
            )
            for line in applied(found):
                self.console.print(escape_terminal(f"{self.name}: {line}"))
        if self.peers.is_main:
            write_json(self._result("probes"), found)

    def _select(self, collector: AnswerCollector, rows: Sequence[Candidates]) -> None:
        """Best-of-N: measure which candidates it chooses, and how good these are where that is known."""
        config, section = self.config, self.config.rms[self.name]
        if isinstance(section, AskedSection) and section.protocol == "listwise":
            chosen = tournament(rows, collector.scores, config.eval.tournament_size, config.seed)
        else:
            chosen = best_scored(rows, collector.scores, config.seed)
        if not self.peers.is_main:
            return
        table = self._result("selections").with_suffix(".jsonl")
        table.unlink(missing_ok=True)  # of a run that was killed between the two files
        write_selections(rows, chosen, table)
        found: dict[str, Any] = {"n": len(rows)}
        if rows[0].qualities is not None:
            found |= selection_quality(rows, chosen, config.eval.bootstrap_samples, config.seed)
        write_json(self._result("selections"), found)
