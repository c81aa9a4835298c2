"""Run SCPO: pairs -> the global RM's scores -> a model for each country and variant -> report."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from shutil import rmtree

import torch
from accelerate import PartialState
from rich.progress import Progress
from transformers import PreTrainedConfig

from think_as_locals.config.launch import read_launch
from think_as_locals.config.scpo_schema import ScpoConfig
from think_as_locals.data import Splits
from think_as_locals.data.load import describe_items
from think_as_locals.data.rows import path_of
from think_as_locals.data.sources.globalopinionqa import others_reference, read_questions
from think_as_locals.data.splits import select, shuffle_labels
from think_as_locals.engines.transformers_engine import quiet_transformers
from think_as_locals.evaluation.breakdowns import BREAKDOWNS
from think_as_locals.evaluation.journal import by_response
from think_as_locals.machine.estimates import estimates
from think_as_locals.reward_models.published import architecture
from think_as_locals.reward_models.reward_model import Request
from think_as_locals.reward_models.scalar import ScalarRM
from think_as_locals.reward_models.scratch import add_head, make_scalar_rm
from think_as_locals.runtime.output import print_result
from think_as_locals.runtime.run_folder import RunFolder, StageFolder
from think_as_locals.runtime.terminal import progress_bar, progress_console
from think_as_locals.scpo.report import on_terminal, write_report
from think_as_locals.scpo.results import (
    HeldOutSet,
    Scores,
    VariantResult,
    VariantSpec,
    fitting_requests,
    pair_keys,
    read_result,
    response_requests,
    score_responses,
    variant_specs,
    write_result,
)
from think_as_locals.scpo.select import Reference, disagreed_ids, minority_ids
from think_as_locals.scpo.trainer import VariantTrainer, num_steps
from think_as_locals.training.checkpoints import StopSignals, stop_if_requested, unsharded
from think_as_locals.types import DataError, Item, ModelError


def plan(config: ScpoConfig, pairs: Splits) -> list[tuple[str, str]]:
    """Return what a run would do."""
    scpo, lines = config.scpo, [("model", config.model.path or "randomly initialised")]
    if pooled := config.global_rm:
        lines.append(("global RM", f"trained on all pairs: {pooled.max_steps:,} steps of {pooled.batch_size:,} pairs"))
    if specs := variant_specs(config, sorted({str(item.culture) for item in pairs.test})):
        most = max(Counter(item.culture for item in pairs.train).values())
        steps = num_steps(scpo, most, exactly=config.mode.steps == "exactly")
        length = f"each up to {steps:,} steps of {scpo.batch_size:,} pairs; seeds {', '.join(map(str, scpo.seeds))}"
        lines.append(("trainings", f"{len(specs):,}, of each country ({', '.join(scpo.variants)}), {length}"))
    return [
        *lines,
        ("training items", f"{describe_items(pairs.train)} ({config.data.source})"),
        ("test items", describe_items(pairs.test)),
        *estimates(config, read_launch(config.run.launch)),
    ]


def run(config: ScpoConfig, pairs: Splits, folder: RunFolder) -> None:
    """Steer a reward model to each country, as every process of a launch does; results in the folder are not redone."""
    gc.freeze()  # each training collects garbage, and need not search what stays loaded
    if config.model.scratch is not None:
        torch.set_num_threads(1)  # a model this small is nearly twice as slow on two threads
    quiet_transformers()
    console = progress_console(is_main=PartialState().is_main_process)
    with StopSignals() as signals, progress_bar(console) as bar:
        ScpoRun(config, folder, signals, bar).run(pairs)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What all trainings of a run share."""

    global_rm: ScalarRM
    scores: Scores  # of all responses, by the global RM
    trainer: VariantTrainer
    references: Mapping[str, Reference]  # (r+, r-) by the id of a pair
    held_out: HeldOutSet


@dataclass(frozen=True, slots=True)
class ScpoRun:
    """An SCPO run: its configuration, folder, stop signals and progress bar."""

    config: ScpoConfig
    folder: RunFolder
    signals: StopSignals
    bar: Progress

    def run(self, pairs: Splits) -> None:
        """Prepare the scores, train every variant, and write the report."""
        config, main = self.config, PartialState().is_main_process
        train = shuffle_labels(pairs.train, config.seed) if config.data.shuffle_labels else pairs.train
        test = select(pairs.test, config.eval.max_items, BREAKDOWNS["cell"])
        self.bar.console.print(f"{config.run.name}: {len(train):,} training pairs, {len(test):,} test pairs")
        prepared = self._prepare(train, test, len(pairs.faulty))
        specs = variant_specs(config, sorted({str(item.culture) for item in prepared.held_out.items}))
        results = []
        task = self.bar.add_task("", total=len(specs), visible=bool(specs))
        for spec in specs:
            self.bar.update(task, description=spec.name)
            folder = self.folder.variant(spec.name)
            results.append(read_result(folder.path) or self._train_variant(spec, folder, prepared))
            if main:
                self._clean_up(spec, folder)
            self.bar.advance(task)
            if not self.bar.console.is_terminal:  # a log shows no bar
                self.bar.console.print(f"{spec.name}: {len(results):,} of {len(specs):,} are trained")
            stop_if_requested(config.run.name, self.signals, spec.name)
        if main:
            report = write_report(self.folder.path, config, prepared.held_out, prepared.scores, results)
            print_result(*on_terminal(self.folder.path))
            print_result(f"report      {report}")
            print_result(f"models      {self.folder.steered_models if specs else self.folder.global_rm.model}")

    def _prepare(self, train: Sequence[Item], test: Sequence[Item], faulty: int) -> Prepared:
        """Load the global RM, score all responses, and drop the pairs that cannot be used."""
        config = self.config
        rm = self._load(self._global_rm_path(train))
        if not config.scpo.variants:
            train = ()
        survey = config.data.source == "globalopinionqa"
        questions = read_questions(path_of(config.data)) if survey else []
        pairs = (*train, *test)
        requests = response_requests(pairs, questions)
        scores = self._score(rm, requests, self.folder.global_rm, "global RM")
        known = [item for item in pairs if scores.keys() >= set(pair_keys(item))]
        if lost := len(pairs) - len(known):
            self.bar.console.print(f"{lost:,} pairs left out: a prompt and its response exceed {rm.max_length} tokens")
        if config.scpo.reference == "other_countries":
            references = others_reference(known, questions)
        else:
            keys = {item.id: pair_keys(item) for item in known}
            references = {name: (scores[chosen], scores[rejected]) for name, (chosen, rejected) in keys.items()}
        if lost := len(known) - len(references):
            self.bar.console.print(f"{lost:,} pairs left out: no other country was asked their question")
        train, test = ([item for item in side if item.id in references] for side in (train, test))
        if config.scpo.variants:
            _expect_pairs(train, "train on")
        _expect_pairs(test, "test on")
        tested = {item.id: references[item.id] for item in test}
        groups = {item.group for item in test}
        held_out = HeldOutSet(
            items=test,
            minority=minority_ids(tested, config.scpo, config.mode),
            disagreed=disagreed_ids(tested),
            questions=[question for question in questions if question.id in groups],
            left_out=len(pairs) - len(train) - len(test),
            tie=0.5 if config.mode.ties == "half" else 0.0,
            samples=config.eval.bootstrap_samples,
            seed=config.seed,
            faulty=faulty,
        )
        return Prepared(rm, scores, self._trainer(rm, train), references, held_out)

    def _global_rm_path(self, train: Sequence[Item]) -> str:
        """Return the path of the global RM, which is trained on all countries' pairs first if `global_rm` says so."""
        config, folder = self.config, self.folder.global_rm
        if config.global_rm is None:
            return str(config.model.path)
        if not folder.model.is_dir():
            if PartialState().is_main_process:
                if config.model.scratch:
                    texts = [text for item in train for text in (item.prompt, *item.responses)]
                    parameters = make_scalar_rm(folder.untrained, texts, config.model.scratch, config.seed)
                else:
                    parameters = add_head(folder.untrained, config.model, config.seed)
                self.bar.console.print(f"initialised a reward model with {parameters / 1e6:.2f} M parameters")
            PartialState().wait_for_everyone()
            rm = self._load(str(folder.untrained))
            fitting = {by_response(request) for request in fitting_requests(rm, response_requests(train))}
            short = [item for item in train if fitting >= set(pair_keys(item))]
            if lost := len(train) - len(short):
                self.bar.console.print(f"{lost:,} training pairs left out: they exceed {rm.max_length} tokens")
            _expect_pairs(short, "train on")
            self._trainer(rm, short).train_pooled(config.global_rm, "global_rm", folder)
        return str(folder.model)

    def _train_variant(self, spec: VariantSpec, folder: StageFolder, prepared: Prepared) -> VariantResult:
        """Train a variant, score the test responses and record both; without pairs, the scores are the global RM's."""
        folder.path.mkdir(parents=True, exist_ok=True)
        available, weights, steps = prepared.trainer.train_variant(spec, prepared.references, folder)
        rm = self._load(str(folder.model)) if steps else prepared.global_rm
        if steps and self.config.mode.dropout:
            torch.manual_seed(spec.seed)
            rm.model.train()
        requests = response_requests(prepared.held_out.items, prepared.held_out.questions)
        scores = self._score(rm, requests, folder, spec.name)
        mean_weight = sum(weights) / max(1, len(weights))
        counts = {"available": available, "kept": len(weights), "steps": steps}
        result = VariantResult(spec=spec, **counts, mean_weight=mean_weight, scores=scores)
        if PartialState().is_main_process:
            write_result(folder.path, result)
        PartialState().wait_for_everyone()
        return result

    def _trainer(self, rm: ScalarRM, items: Sequence[Item]) -> VariantTrainer:
        return VariantTrainer(self.config, self.folder, self.signals, self.bar.console, rm, items)

    def _load(self, path: str) -> ScalarRM:
        config = self.config
        revision = config.model.revision if path == config.model.path else None
        with unsharded():  # each rank scores with the whole model
            rm = ScalarRM.load(
                path,
                dtype=config.model.dtype,
                batch_size=config.scpo.scoring_batch_size,
                max_length=config.scpo.max_length,
                revision=revision,
                template_kwargs=config.model.chat_template_kwargs,
                seed=config.seed,
            )
        if architecture(PreTrainedConfig.get_config_dict(path, revision=revision)[0]):
            raise ModelError(f"{path}: SCPO trains plain classifiers, and its head is one of its own: choose another")
        # The declared maximum of a model without absolute position embeddings is not a limit.
        relative = getattr(rm.model.config, "position_biased_input", True) is False
        scores_all = config.mode.long_texts == "scored" and config.scpo.max_length is None and relative
        return replace(rm, max_length=sys.maxsize) if scores_all else rm

    def _score(self, rm: ScalarRM, requests: Sequence[Request], folder: StageFolder, name: str) -> Scores:
        """Score responses, with a progress bar."""
        task = self.bar.add_task(f"{name}: scores", total=None)
        scores = score_responses(
            rm, requests, folder.scores, lambda more, total: self.bar.update(task, advance=more, total=total)
        )
        self.bar.remove_task(task)
        return scores

    def _clean_up(self, spec: VariantSpec, folder: StageFolder) -> None:
        """Move the model of a finished training to `models/` if it is kept, and remove its other files."""
        kept = self.folder.steered_model(spec.name)
        if folder.model.is_dir() and spec.variant in self.config.scpo.keep_models and spec.num_pairs is None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            rmtree(kept, ignore_errors=True)  # of a training that was repeated
            folder.model.rename(kept)
        for path in (folder.model, folder.adapter, folder.checkpoints, folder.scores):
            rmtree(path, ignore_errors=True)


def _expect_pairs(pairs: Sequence[Item], use: str) -> None:
    if not pairs:
        raise DataError(
            f"no pairs are left to {use}: all are too long (raise scpo.max_length where the model can read more), or "
            "no other country was asked their question"
        )
