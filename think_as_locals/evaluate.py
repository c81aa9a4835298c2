"""Evaluate reward models: a policy's candidates, if sampled -> CARB, probes, selections -> leaderboard."""

from __future__ import annotations

import shlex
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accelerate.utils.memory import clear_device_cache
from rich.console import Console

from think_as_locals.config.model_schema import EvaluationConfig, QuerySection
from think_as_locals.data import read
from think_as_locals.data.edits import EditedPair, Edits, edited_pairs, no_edit_reason, read_edits
from think_as_locals.data.load import Candidates, describe_items, load_side, read_candidates
from think_as_locals.data.splits import select
from think_as_locals.engines.transformers_engine import quiet_transformers
from think_as_locals.evaluation import carb, downstream
from think_as_locals.evaluation.breakdowns import BREAKDOWNS
from think_as_locals.evaluation.journal import AnswerCollector, Journal
from think_as_locals.evaluation.leaderboard import on_terminal, write_leaderboard
from think_as_locals.evaluation.probes import applied, probe
from think_as_locals.evaluation.sampling import Question, advance, draw, questions_of
from think_as_locals.evaluation.tables import on_terminal as table_on_terminal
from think_as_locals.judging import reorder_responses, shuffle_responses
from think_as_locals.judging.prompt import shuffled_order
from think_as_locals.machine.doctor import reward_model_faults
from think_as_locals.reward_models.load import load_reward_model, trained_hashes
from think_as_locals.runtime.files import DISK_FAULTS, file_fault, read_json, write_json, write_rows
from think_as_locals.runtime.output import print_result
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.runtime.terminal import Terminal, progress_bar, progress_console
from think_as_locals.types import LABELS, DataError, Item, PreflightError, ThinkAsLocalsError

_COMPARED = 4  # candidates that a judge compares at a time; a model that scores each one gets as many as fit an item


@dataclass(frozen=True, slots=True)
class EvaluationData:
    """What reward models are evaluated on."""

    items: Sequence[Item]
    candidates: Sequence[Candidates] = ()  # of best-of-N selection
    edits: Edits | None = None  # for the probes
    questions: Sequence[Question] = ()  # for which a policy draws the candidates
    faulty: Sequence[str] = ()  # rows that were left out


def load_data(config: EvaluationConfig) -> EvaluationData:
    """Load everything that an evaluation is about; a DataError names a fault."""
    faulty = list[str]()
    items = load_side(config.data, config.seed, config.eval.items, faulty)
    items, candidates = select(items, config.eval.max_items, BREAKDOWNS["cell"]), config.eval.candidates
    return EvaluationData(
        items=items,
        candidates=read_candidates(Path(candidates).expanduser()) if candidates else [],
        edits=_load_edits(config, items) if config.eval.probes else None,
        questions=questions_of(config.sample, config.seed) if config.sample else [],
        faulty=faulty,
    )


def plan(config: EvaluationConfig, data: EvaluationData) -> list[tuple[str, str]]:
    """Return what an evaluation would do."""
    rows = [
        ("reward models", ", ".join(config.rms)),
        ("items", f"{describe_items(data.items)} ({config.data.source}, {config.eval.items})"),
    ]
    if (sample := config.sample) is not None:
        drawn = f"{sample.num_candidates} per question from {sample.policy.name} ({sample.task})"
        rows += [("candidates", drawn), ("questions", describe_items([question.item for question in data.questions]))]
    return rows


def _load_edits(config: EvaluationConfig, items: Sequence[Item]) -> Edits:
    """Return items with their edits, ours or those of a file, both with responses in the order presented."""
    known, probes = tuple(read(config.data, config.seed)), config.eval.probes
    pairs: Edits
    if isinstance(probes, str):
        left_out = {item.id for item in known}.difference(item.id for item in items)
        found = read_edits(Path(probes).expanduser(), known)
        pairs = {edit: [pair for pair in of_edit if pair.before.id not in left_out] for edit, of_edit in found.items()}
    else:
        pairs = edited_pairs(items, known)

    def presented(pair: EditedPair) -> EditedPair:
        order = shuffled_order(pair.before.responses, config.seed)
        return pair._replace(before=reorder_responses(pair.before, order), after=reorder_responses(pair.after, order))

    return {edit: list(map(presented, of_edit)) for edit, of_edit in pairs.items()}


def run(config: EvaluationConfig, data: EvaluationData, folder: RunFolder) -> None:
    """Evaluate reward models one after the other, and write the leaderboard.

    If one fails, the others go on; its error is among the results, and a resumed run tries it again.
    """
    quiet_transformers()
    console, errors = progress_console(), Terminal(stderr=True, style="red")
    console.print(
        f"{config.run.name}: {len(data.items):,} items ({config.data.source}), reward models: {len(config.rms)}"
    )
    if (sample := config.sample) is not None:
        with progress_bar(console) as bar:
            draw(sample, config.seed, data.questions, folder, bar)
        data = replace(data, candidates=read_candidates(folder.candidates))
        clear_device_cache(garbage_collection=True)  # of the policy
    failed = []
    for name in config.rms:
        record = folder.result("failed", name)
        try:
            RewardModelEvaluation(config, name, data, folder, console).run()
            record.unlink(missing_ok=True)
        except Exception as error:  # a bug as well: the other reward models do not depend on it
            if (fault := file_fault(error)) and fault.errno in DISK_FAULTS:
                raise
            failed.append(name)
            ours = isinstance(error, ThinkAsLocalsError)
            message = str(error) if ours else f"{type(error).__name__}: {error}"
            trace = None if ours else "".join(traceback.format_exception(error))
            record.parent.mkdir(exist_ok=True)
            write_json(record, {"model": name, "message": message, "traceback": trace})
            errors.print(f"{name} failed: {message}")
        clear_device_cache(garbage_collection=True)  # of a model that is gone, for the next one
    page = write_leaderboard([folder.path], folder.path)
    print_result(*on_terminal(folder.path), f"leaderboard  {page}")
    if failed:
        errors.print(f"failed       {', '.join(failed)}: run.resume=auto tries again")
        if config.sample is not None:
            command = shlex.join(["tal", "validity", str(folder.path)])
            errors.print(f"no r2        a reward model failed; for the others: {command}", soft_wrap=True)
    elif config.sample is not None:
        _validity(folder, errors)


def _validity(folder: RunFolder, errors: Console) -> None:
    """Write and print how well accuracy predicts the quality of what is selected, if that can be computed."""
    try:
        found = downstream.write_validity(downstream.read_results(folder.path), folder.validity)
    except DataError as error:
        errors.print(f"no r2: {error}")
        return
    if found["warning"]:
        errors.print(f"warning: {found['warning']}")
    print_result(*map(table_on_terminal, downstream.tables(found)))
    print_result(f"validity     {folder.validity.with_suffix('.svg')}")


@dataclass(frozen=True, slots=True)
class RewardModelEvaluation:
    """One reward model of an evaluation; a stage is done once its `STAGE/NAME.json` exists, which it writes last."""

    config: EvaluationConfig
    name: str
    data: EvaluationData
    folder: RunFolder
    console: Console

    def run(self) -> None:
        """Do the stages that are not done; the model is loaded only if there are any."""
        stages = {"carb": self._carb}
        stages |= {"probes": self._probe} if self.data.edits is not None else {}
        stages |= {"selections": self._select} if self.data.candidates else {}
        missing = [stage for stage in stages if not self._done(stage)]
        if not missing:
            return
        section, answers = self.config.rms[self.name], self.folder.journal(self.name)
        if faults := reward_model_faults(section, f"rms.{self.name}"):
            raise PreflightError("; ".join(faults))
        if len(stages) == 1 and isinstance(section, QuerySection):  # verdicts alone, no scores
            section = section.model_copy(update={"label_log_probs": False})
        with ExitStack() as stack:
            rm = stack.enter_context(closing(load_reward_model(section, self.config.seed)))
            journal = stack.enter_context(Journal(answers, rm.identity))
            bar = stack.enter_context(progress_bar(self.console))
            for stage in missing:
                self._result(stage).parent.mkdir(exist_ok=True)
                advance_bar, too_long = advance(bar, f"{self.name}: {stage}"), self.config.eval.too_long
                stages[stage](AnswerCollector(rm, journal, advance_bar, too_long))

    def _done(self, stage: str) -> bool:
        """Return whether a stage has its result, with items that are too long treated as `eval.too_long` says."""
        if not (result := self._result(stage)).is_file():
            return False
        too_long = read_json(result).get("too_long", {})
        return not any(items for how, items in too_long.items() if how != self.config.eval.too_long)

    def _result(self, stage: str) -> Path:
        return self.folder.result(stage, self.name)

    def _carb(self, collector: AnswerCollector) -> None:
        """Measure which responses it chooses."""
        config, items = self.config, self.data.items
        scored = collector.predictions(items)
        section, protocol = config.rms[self.name], "a score for each response"
        if isinstance(section, QuerySection):
            orders = "one order" if section.orders == 1 else f"{section.orders} orders"
            protocol = f"{section.protocol}, greedy, {orders}, {section.convention}"
        carb.record(
            *(scored, items, self._result("carb"), self.name, self.console),
            dataset=config.data.title,
            split="all" if config.eval.items == "all" else config.data.split,
            model=self.name,
            seed=config.seed,
            step=0,
            bootstrap_samples=config.eval.bootstrap_samples,
            protocol=protocol,
            training=trained_hashes(section),
            faulty=len(self.data.faulty),
        )

    def _probe(self, collector: AnswerCollector) -> None:
        """Measure how far its scores move with edits of the items."""
        config = self.config
        found = probe(
            [shuffle_responses(item, config.seed) for item in self.data.items],
            self.data.edits or {},
            collector.scores,
            samples=config.eval.bootstrap_samples,
            seed=config.seed,
            reason=no_edit_reason if config.eval.probes is True else lambda *_: "the file has no such edit of it",
        )
        for line in applied(found):
            self.console.print(f"{self.name}: {line}")
        write_json(self._result("probes"), found)

    def _select(self, collector: AnswerCollector) -> None:
        """Measure which candidates it selects, and how good these are if that is known."""
        config, section, rows = self.config, self.config.rms[self.name], self.data.candidates
        listwise = isinstance(section, QuerySection) and section.protocol == "listwise"
        size = _COMPARED if listwise else len(LABELS)
        chosen, unsure = downstream.tournament(rows, collector.scores, size, config.seed)
        table = self._result("selections").with_suffix(".jsonl")
        table.unlink(missing_ok=True)  # of a run that was killed between the two files
        write_rows(
            table,
            (
                {"id": row.id, "chosen": i, "candidate": row.texts[i], "quality": row.qualities and row.qualities[i]}
                for row, i in zip(rows, chosen, strict=True)
            ),
        )
        found: dict[str, Any] = {"n": len(rows), "unsure": unsure}
        if rows[0].qualities is not None:
            found |= downstream.selection_quality(rows, chosen, config.eval.bootstrap_samples, config.seed)
        write_json(self._result("selections"), found)
