"""One SCPO run, top to bottom: pairs -> the global RM's scores -> a model for each country and variant -> report."""

from __future__ import annotations

import gc
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import rmtree

import torch
from accelerate import PartialState
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from transformers.utils import logging as transformers_logging

from think_as_locals.data import Splits
from think_as_locals.data.importers.globalopinionqa import read_questions
from think_as_locals.data.opinions import OpinionQuestion
from think_as_locals.data.other_countries import others_reference
from think_as_locals.data.select import select, shuffle_labels
from think_as_locals.data.spec import path_of
from think_as_locals.evaluation.journal import by_response, content_key
from think_as_locals.evaluation.legs import Leg, Plan, plans, read_leg, write_leg
from think_as_locals.evaluation.opinions import option_requests
from think_as_locals.evaluation.response_scores import Scores, fitting, response_requests, response_scores
from think_as_locals.evaluation.steering_report import write_steering
from think_as_locals.evaluation.steering_results import Tested
from think_as_locals.learner import Learner
from think_as_locals.models.reward_model import Request
from think_as_locals.models.scalar import ScalarRM
from think_as_locals.models.scratch import make_scalar_rm
from think_as_locals.scpo_schema import ScpoConfig
from think_as_locals.stages import stop_if_asked
from think_as_locals.training.pair_choice import Reference, disagreed, minority
from think_as_locals.training.saving import unsharded
from think_as_locals.training.signals import StopSignals
from think_as_locals.types import DataError, Item


def run(config: ScpoConfig, pairs: Splits, folder: Path) -> None:
    """Steer a reward model to each country; every process of a launch calls this with the same arguments.

    Args:
        config: The run.
        pairs: From `split_people`.
        folder: Its folder, from `open_run`: what is done there already is not done again.

    Raises:
        RunStoppedError: on every rank, where one was sent SIGTERM or SIGUSR1.
    """
    gc.freeze()  # what is loaded by now stays; every training collects garbage, and need not look through all of it
    if config.model.scratch is not None:
        torch.set_num_threads(1)  # a model this small gains nothing from more: two take nearly twice as long
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    console = Console(quiet=not PartialState().is_main_process)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with StopSignals() as signals, Progress(*columns, console=console) as bar:
        Steering(config, folder, signals, bar).run(pairs)


@dataclass(frozen=True, slots=True)
class Material:
    """What every training of a run shares.

    Args:
        rm: The global reward model.
        scores: What it scores every response.
        train: Pairs to learn from; none is too long for it.
        test: Pairs to test on, likewise.
        reference: (r+, r-) of each pair, by its id.
        questions: Of a survey, those that are tested on.
        left_out: Pairs that are too long for it, or of a question that no other country was asked.
    """

    rm: ScalarRM
    scores: Scores
    train: Sequence[Item]
    test: Sequence[Item]
    reference: Mapping[str, Reference]
    questions: Sequence[OpinionQuestion]
    left_out: int

    def asked(self) -> list[Request]:
        """What a steered reward model is to score."""
        return [*response_requests(self.test), *option_requests(self.questions)]


class Steering:
    """One run, and where its results go."""

    def __init__(self, config: ScpoConfig, folder: Path, signals: StopSignals, bar: Progress) -> None:
        self._config = config
        self._folder = folder
        self._signals = signals
        self._bar = bar

    def run(self, pairs: Splits) -> None:
        """From pairs to the report."""
        config, console = self._config, self._bar.console
        train = shuffle_labels(pairs.train, config.seed) if config.data.shuffle_labels else pairs.train
        pairs = Splits(train, select(pairs.test, config.eval.max_items))
        console.print(f"{config.run.name}: {len(pairs.train):,} pairs to learn from, {len(pairs.test):,} to test on")
        material = self._material(pairs)
        learner = Learner(config, self._folder, self._signals, console, material.rm, material.train)
        legs = []
        todo = plans(config, sorted({str(item.culture) for item in material.test}))
        task = self._bar.add_task("", total=len(todo))
        for plan in todo:
            self._bar.update(task, description=plan.name)
            folder = self._folder / "legs" / plan.name
            legs.append(read_leg(folder) or self._leg(plan, folder, learner, material))
            if PartialState().is_main_process:
                self._tidy(plan, folder)
            self._bar.advance(task)
            stop_if_asked(config.run.name, self._signals, plan.name)
        if PartialState().is_main_process:
            report = write_steering(self._folder, config, self._tested(material), material.scores, legs)
            console.print(f"report      {report}\nmodels      {self._folder / 'models'}", highlight=False)

    def _material(self, pairs: Splits) -> Material:
        """The global reward model, and what it makes of all there is."""
        rm = self._load(self._global_rm(pairs.train))
        questions = self._questions()
        every = (*pairs.train, *pairs.test)
        requests = [*response_requests(every), *option_requests(questions)]
        scores = self._score(rm, requests, self._folder / "global_rm", "global RM")
        known = [item for item in every if _fits(item, scores)]
        if lost := len(every) - len(known):
            self._bar.console.print(f"{lost:,} pairs left out: a prompt and its response exceed {rm.max_length} tokens")
        if self._config.scpo.reference == "other_countries":
            reference = others_reference(known, questions)
        else:
            reference = {item.id: _reference(item, scores) for item in known}
        if lost := len(known) - len(reference):
            self._bar.console.print(f"{lost:,} pairs left out: no other country was asked their question")
        train, test = ([item for item in side if item.id in reference] for side in (pairs.train, pairs.test))
        _expect_pairs(train, "learn from")
        _expect_pairs(test, "test on")
        groups = {item.group for item in test}
        asked = [question for question in questions if question.id in groups]
        return Material(rm, scores, train, test, reference, asked, len(every) - len(train) - len(test))

    def _global_rm(self, train: Sequence[Item]) -> str:
        """Where the reward model lies that is steered; made and taught by everybody's pairs, where it is to be."""
        config, folder = self._config, self._folder / "global_rm"
        if config.model.scratch is None or config.global_rm is None:
            return str(config.model.path)
        taught, untrained = folder / "model", folder / "untrained"
        if not taught.is_dir():
            if PartialState().is_main_process:
                texts = [text for item in train for text in (item.prompt, *item.responses)]
                parameters = make_scalar_rm(untrained, texts, config.model.scratch, config.seed)
                self._bar.console.print(f"made a reward model of {parameters / 1e6:.2f} M parameters")
            PartialState().wait_for_everyone()
            rm = self._load(str(untrained))
            fit = {by_response(request) for request in fitting(rm, response_requests(train))}
            short = [item for item in train if _fits(item, fit)]
            _expect_pairs(short, "learn from")
            learner = Learner(config, self._folder, self._signals, self._bar.console, rm, short)
            learner.pooled(config.global_rm, "global_rm", taught)
        return str(taught)

    def _questions(self) -> list[OpinionQuestion]:
        """A survey's questions; none where the data is no survey."""
        if self._config.data.source != "globalopinionqa":
            return []
        return read_questions(path_of(self._config.data))

    def _leg(self, plan: Plan, folder: Path, learner: Learner, material: Material) -> Leg:
        folder.mkdir(parents=True, exist_ok=True)
        model = folder / "model"
        available, weights, steps = learner.one_country(plan, material.reference, model)
        rm = self._load(str(model)) if steps else material.rm
        if steps and self._config.mode.dropout:
            torch.manual_seed(plan.seed)
            rm.model.train()
        scores = self._score(rm, material.asked(), folder, plan.name)
        tenths = torch.histc(torch.tensor(weights).clamp(max=1), bins=10, min=0, max=1).int().tolist()
        leg = Leg(plan=plan, available=available, kept=len(weights), steps=steps, weights=tuple(tenths), scores=scores)
        if PartialState().is_main_process:
            write_leg(folder, leg)
        PartialState().wait_for_everyone()
        return leg

    def _tested(self, material: Material) -> Tested:
        reference = {item.id: material.reference[item.id] for item in material.test}
        return Tested(
            items=material.test,
            minority=minority(reference, self._config.scpo, self._config.mode),
            disagreed=disagreed(reference),
            questions=material.questions,
            left_out=material.left_out,
            tie=0.5 if self._config.mode.ties == "half" else 0.0,
            samples=self._config.eval.bootstrap_samples,
            seed=self._config.seed,
        )

    def _load(self, path: str) -> ScalarRM:
        config = self._config
        with unsharded():  # each rank scores with a model of its own
            return ScalarRM.load(
                path,
                dtype=config.model.dtype,
                batch_size=config.scpo.scoring_batch_size,
                max_length=config.scpo.max_length,
                revision=config.model.revision if path == config.model.path else None,
                template_kwargs=config.model.chat_template_kwargs,
                seed=config.seed,
            )

    def _score(self, rm: ScalarRM, requests: Sequence[Request], folder: Path, what: str) -> Scores:
        """What a reward model says to requests."""
        task = self._bar.add_task(f"{what}: scores", total=None)
        advance = partial(_advance, self._bar, task)
        scores = response_scores(rm, requests, folder / "scores", advance)
        self._bar.remove_task(task)
        return scores

    def _tidy(self, plan: Plan, folder: Path) -> None:
        """What is left of a training that is done: its reward model, where it is to be kept, and its scores."""
        kept = self._folder / "models" / plan.name
        if (folder / "model").is_dir() and plan.variant in self._config.scpo.keep_models and plan.num_pairs is None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            (folder / "model").rename(kept)
        for name in ("model", "adapter", "checkpoints", "scores"):
            rmtree(folder / name, ignore_errors=True)


def _advance(bar: Progress, task: TaskID, more: int, total: int) -> None:
    bar.update(task, advance=more, total=total)


def _expect_pairs(pairs: Sequence[Item], use: str) -> None:
    if not pairs:
        raise DataError(
            f"no pairs are left to {use}: all are too long (raise scpo.max_length where the model can read more), or "
            "of a question that no other country was asked"
        )


def _fits(item: Item, known: Container[str]) -> bool:
    return all(content_key(item.prompt, response) in known for response in item.responses)


def _reference(item: Item, scores: Scores) -> Reference:
    chosen, rejected = (scores[content_key(item.prompt, item.responses[i])] for i in (item.best, 1 - item.best))
    return chosen, rejected
