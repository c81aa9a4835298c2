"""Pairs of people -> a reward model that has learnt from them: the stages of an SCPO run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path

from accelerate import PartialState
from rich.console import Console
from transformers import AutoModelForSequenceClassification

from think_as_locals.data.flips import share
from think_as_locals.evaluation.journal import by_response, content_key
from think_as_locals.evaluation.legs import Plan
from think_as_locals.evaluation.response_scores import response_requests
from think_as_locals.models.scalar import ScalarRM
from think_as_locals.models.scoring import Row
from think_as_locals.schema import TrlSection
from think_as_locals.scpo_schema import ScpoConfig
from think_as_locals.stages import save_whole, train_stage
from think_as_locals.training.arguments import trl_arguments
from think_as_locals.training.callbacks import MetricsWriter
from think_as_locals.training.checkpoints import Checkpoints
from think_as_locals.training.pair_choice import Reference, choose
from think_as_locals.training.pairs import Pair, joined
from think_as_locals.training.saving import save_model
from think_as_locals.training.scpo import make_scpo, num_steps
from think_as_locals.training.shards import ShardsWriter
from think_as_locals.training.signals import StopSignals
from think_as_locals.types import Item


class Learner:
    """Trains from one reward model, as often as asked for.

    Args:
        config: The run.
        folder: Its folder, where metrics go.
        signals: Whether it was asked to stop.
        console: Where a person reads.
        rm: The reward model to begin with, for its text format; its weights are loaded anew for each training.
        items: Pairs that may be learnt from.
    """

    def __init__(
        self,
        config: ScpoConfig,
        folder: Path,
        signals: StopSignals,
        console: Console,
        rm: ScalarRM,
        items: Sequence[Item],
    ) -> None:
        self._config = config
        self._folder = folder
        self._signals = signals
        self._console = console
        self._path = rm.path
        self._tokenizer = rm.chat.tokenizer
        self._pad_id = rm.pad_id
        self._tokens = _tokens(rm, items, as_scored=config.mode.training_text == "as_scored")
        self._by_country: dict[str, list[Item]] = defaultdict(list)
        for item in items:
            self._by_country[str(item.culture)].append(item)

    def pooled(self, section: TrlSection, stage: str, to: Path) -> None:
        """Everybody's pairs, each counting 1."""
        items = [item for of_country in self._by_country.values() for item in of_country]
        self._train(stage, items, [1.0] * len(items), section, self._config.seed, section.max_steps, to)

    def one_country(self, plan: Plan, reference: Mapping[str, Reference], to: Path) -> tuple[int, list[float], int]:
        """A country's pairs, as its variant says.

        Args:
            plan: Which training.
            reference: (r+, r-) by the id of a pair.
            to: Folder of the reward model; it is not there where no pair is left to learn from.

        Returns:
            How many pairs there were, the weights of those that were learnt from, and the number of optimizer steps.
        """
        scpo, mode = self._config.scpo, self._config.mode
        items = self._by_country[plan.country]
        if plan.num_pairs is not None:
            items = sorted(items, key=lambda item: share(f"{plan.seed}:{item.id}"))[: plan.num_pairs]
        chosen = choose([reference[item.id] for item in items], plan.variant, scpo, mode)
        if not chosen:
            return len(items), [], 0
        batch = scpo.per_device_train_batch_size * scpo.gradient_accumulation_steps * PartialState().num_processes
        steps = num_steps(scpo, len(chosen), scpo.num_train_epochs, batch, exactly=mode.steps == "exactly")
        weights = list(chosen.values())
        if not to.is_dir():
            self._train(plan.name, [items[place] for place in chosen], weights, scpo, plan.seed, steps, to)
        return len(items), weights, steps

    def _train(
        self,
        stage: str,
        items: Sequence[Item],
        weights: Sequence[float],
        section: TrlSection,
        seed: int,
        steps: int,
        to: Path,
    ) -> None:
        config = self._config
        checkpoints = Checkpoints(to.with_name("checkpoints"), section.save_total_limit)
        arguments = trl_arguments(config, section, checkpoints.folder) | {"seed": seed, "max_steps": steps}
        trainer = make_scpo(
            self._path,
            self._tokenizer,
            self._pad_id,
            [self._pair(item) for item in items],
            weights,
            arguments=arguments,
            checkpoints=checkpoints,
            lora=config.lora,
            dropout=config.mode.dropout,
        )
        for callback in (
            self._signals,
            MetricsWriter(self._folder / "metrics.jsonl", stage),
            ShardsWriter(trainer.accelerator, self._folder / "workers.json"),
        ):
            trainer.add_callback(callback)
        train_stage(config.run.name, trainer, stage, self._folder, self._signals, self._console)
        trainer.model.config.get_text_config().pad_token_id = self._pad_id  # what it declares, none where it is none
        adapter = to.with_name("adapter") if config.lora else None
        write = partial(save_model, trainer, self._path, config.model, adapter, kind=AutoModelForSequenceClassification)
        save_whole(write, lambda folder: None, to)
        accelerator = trainer.accelerator
        del trainer, write  # so that the collection finds it: it and its callbacks hold one another
        accelerator.free_memory()

    def _pair(self, item: Item) -> Pair:
        chosen, rejected = (
            self._tokens[content_key(item.prompt, item.responses[i])] for i in (item.best, 1 - item.best)
        )
        return chosen, rejected


def _tokens(rm: ScalarRM, items: Sequence[Item], *, as_scored: bool) -> dict[str, Row]:
    """What is learnt from, by response: the same text as is scored, or the one of the released code."""
    requests = response_requests(items)
    if as_scored:
        rows = rm.rows(requests)
    else:
        chat = replace(rm.chat, tokenizer=deepcopy(rm.chat.tokenizer))  # what cut once would be saved as one that cuts
        rows = [joined(chat, r.item.prompt, r.responses[0], rm.max_length) for r in requests]
    return {by_response(request): row for request, row in zip(requests, rows, strict=True)}
