"""SCPO's training (arXiv 2606.18606): TRL's RewardTrainer on the pairs that `select` keeps, each with its weight.

The loss is -mean(w log sigmoid(s+ - s-)) over the kept pairs, where s+ and s- are the model's scores of both responses.
A decoder reads the prompt of a pair once: both responses are packed behind it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import InitVar, dataclass, replace
from functools import partial
from typing import Any

import torch
from accelerate.utils.memory import clear_device_cache
from datasets import Dataset
from peft import LoraConfig
from rich.console import Console
from torch import Tensor
from torch.nn.functional import logsigmoid
from torch.utils.data import SequentialSampler
from transformers import AutoModelForSequenceClassification
from transformers.modeling_outputs import SequenceClassifierOutput
from trl import RewardConfig, RewardTrainer

from think_as_locals.config.schema import LoraSection
from think_as_locals.config.scpo_schema import GlobalRMSection, ScpoConfig, ScpoSection
from think_as_locals.data.splits import hash_fraction
from think_as_locals.engines import Chat, packed_passes, packing
from think_as_locals.engines.transformers_engine import bare_model
from think_as_locals.evaluation.journal import by_response
from think_as_locals.evaluation.judgements import grouped
from think_as_locals.judging.prompt import break_tokens
from think_as_locals.reward_models.scalar import HEADS, ScalarRM, TokenRow, padded_batch, until_scored, unused_end
from think_as_locals.reward_models.training_items import save_training_items, training_hashes
from think_as_locals.runtime.run_folder import RunFolder, StageFolder
from think_as_locals.scpo.results import VariantSpec, pair_keys, response_requests
from think_as_locals.scpo.select import Reference, select_pairs
from think_as_locals.training.checkpoints import CheckpointedTrainer, Checkpoints, StopSignals, save_model, train_stage
from think_as_locals.training.grpo import trains_adapter, trl_arguments
from think_as_locals.training.logging import LiveView
from think_as_locals.types import Item

_logger = logging.getLogger(__name__)


@dataclass(eq=False)
class VariantTrainer:
    """Trains copies of a reward model on subsets of the given pairs; each training loads the weights anew."""

    config: ScpoConfig
    folder: RunFolder
    signals: StopSignals
    console: Console
    rm: ScalarRM
    items: InitVar[Sequence[Item]]

    def __post_init__(self, items: Sequence[Item]) -> None:
        self._by_country = grouped(items, lambda item: str(item.culture))
        rm, requests = self.rm, response_requests(items)
        if self.config.mode.training_text == "as_scored":
            rows = rm.rows(requests) if requests else []
        else:
            rm.chat.check_texts(items)
            # A tokenizer that has truncated would be saved as one that truncates.
            chat = replace(rm.chat, tokenizer=deepcopy(rm.chat.tokenizer))
            rows = [released_text(chat, r.item.prompt, r.responses[0], rm.max_length) for r in requests]
        self._tokens = {by_response(request): row for request, row in zip(requests, rows, strict=True)}

    def train_pooled(self, section: GlobalRMSection, stage: str, output: StageFolder) -> None:
        """Train on the pairs of all countries, each with weight 1."""
        items = [(item, 1.0) for of_country in self._by_country.values() for item in of_country]
        changes: dict[str, float] = {"seed": self.config.seed, "max_steps": section.max_steps}
        self._train(stage, items, section, changes, output)

    def train_variant(
        self, spec: VariantSpec, references: Mapping[str, Reference], output: StageFolder
    ) -> tuple[int, list[float], int]:
        """Train on a country's kept pairs, if any; return the number of its pairs, the weights of kept ones, steps."""
        scpo, mode = self.config.scpo, self.config.mode
        items = self._by_country.get(spec.country, [])
        if spec.num_pairs is not None:
            items = sorted(items, key=lambda item: hash_fraction(f"{spec.seed}:{item.id}"))[: spec.num_pairs]
        kept = select_pairs([references[item.id] for item in items], spec.variant, scpo, mode)
        if not kept:
            return len(items), [], 0
        steps = num_steps(scpo, len(kept), exactly=mode.steps == "exactly")
        if not output.model.is_dir():
            weighted = [(items[index], weight) for index, weight in kept.items()]
            self._train(spec.name, weighted, scpo, {"seed": spec.seed, "max_steps": steps}, output)
        return len(items), list(kept.values()), steps

    def _train(
        self,
        stage: str,
        weighted: Sequence[tuple[Item, float]],
        section: GlobalRMSection,
        changes: dict[str, float],
        output: StageFolder,
    ) -> None:
        config, rm = self.config, self.rm
        checkpoints = Checkpoints(output.checkpoints, section.save_total_limit)
        keys = [pair_keys(item) for item, _ in weighted]
        trainer = make_trainer(
            rm,
            [(self._tokens[chosen], self._tokens[rejected]) for chosen, rejected in keys],
            [weight for _, weight in weighted],
            arguments=trl_arguments(config, section, checkpoints.folder) | changes,
            checkpoints=checkpoints,
            lora=config.lora if trains_adapter(config, section) else None,
            dropout=config.mode.dropout,
        )
        with closing(LiveView(self.console, stage)) as view:
            is_long = stage == "global_rm" or config.model.scratch is None  # a small model takes seconds a country
            train_stage(self.folder, trainer, stage, self.signals, self.console, [view] * is_long)
        trainer.model.config.get_text_config().pad_token_id = rm.pad_id  # as in the base model, even if None
        hashes = training_hashes([item for item, _ in weighted], rm.path, config.model.revision)
        finish = partial(save_training_items, hashes)
        load = partial(AutoModelForSequenceClassification.from_pretrained, num_labels=1, key_mapping=HEADS)
        save_model(trainer, rm.path, config.model, output, load, finish)
        trainer.accelerator.free_memory()
        del trainer  # trainer, callbacks and the model's wrapped forward reference one another
        clear_device_cache(garbage_collection=True)


def num_steps(scpo: ScpoSection, num_pairs: int, *, exactly: bool) -> int:
    """Return the number of optimizer steps: `num_train_epochs` epochs, at most `max_steps`, or exactly `max_steps`."""
    if exactly:
        return scpo.max_steps
    return min(scpo.max_steps, max(1, math.ceil(scpo.num_train_epochs * num_pairs / scpo.batch_size)))


def weighted_bradley_terry(chosen: Tensor, rejected: Tensor, weights: Tensor) -> Tensor:
    """Return -mean(w log sigmoid(s+ - s-)) of tensors (B,); finite for scores of 1e4 and more."""
    return -(weights * logsigmoid(chosen - rejected)).mean()


class ScpoTrainer(CheckpointedTrainer, RewardTrainer):
    """TRL's RewardTrainer with a weight for each pair; it can be stopped and resumed.

    If the two responses of a pair cannot be packed behind one prompt, `unshared_reason` says why.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._checked = False
        self.unshared_reason: str | None = None
        bare = bare_model(self.accelerator.unwrap_model(self.model))
        if self.args.disable_dropout:
            packed_passes.disable_functional_dropout(bare)
        reason = packed_passes.prepare_classifier(bare, self.processing_class)
        if reason := reason or packed_passes.dropout_reason(self.model):
            self._stop_sharing(reason)

    def _stop_sharing(self, reason: str) -> None:
        self.unshared_reason = reason
        if self.accelerator.is_main_process:
            _logger.warning("prompts are not shared, each response is trained with its own: %s", reason)

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        return dataset  # indices of pairs, whose tokens the collator has

    def _set_signature_columns_if_needed(self) -> None:
        self._signature_columns = ["pair"]

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        return SequentialSampler(self.train_dataset)  # already in order

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the weighted loss; TRL's loss is only computed for its metrics."""
        # The head skips this token. TRL, and transformers at the start of training, set it to the tokenizer's.
        self.model.config.get_text_config().pad_token_id = pad_id = self.data_collator.pad_id
        weights = inputs.pop("weight")
        if self.unshared_reason is None and not self._checked:
            full, self._checked = self.accelerator.mixed_precision == "no" and self.model.dtype == torch.float32, True
            if reason := packed_passes.scores_differ(model, pad_id, self.accelerator.device, full_precision=full):
                self._stop_sharing(reason)
        compute = model if self.unshared_reason else partial(_shared_outputs, model, pad_id)
        _, outputs = super().compute_loss(compute, inputs, True, num_items_in_batch)
        chosen, rejected = outputs.logits.squeeze(-1).float().chunk(2)
        loss = weighted_bradley_terry(chosen, rejected, weights)
        if self.args.center_rewards_coefficient is not None:
            loss = loss + self.args.center_rewards_coefficient * ((chosen + rejected) ** 2).mean()
        return (loss, outputs) if return_outputs else loss


def _shared_outputs(model: Any, pad_id: int, *, input_ids: Tensor, **_: Any) -> SequenceClassifierOutput:
    """Return a classifier's outputs for tokens (2B, L), chosen before rejected responses, reading each prompt once."""
    rows = [until_scored(row, pad_id) for row in input_ids.tolist()]
    pairs = [*zip(*(rows[: len(rows) // 2], rows[len(rows) // 2 :]), strict=True)]
    logits = packed_passes.scores(model, packing.pack_rows(pairs, input_ids.device)).view(-1, 2)
    return SequenceClassifierOutput(logits=logits.T.reshape(-1, 1))


def make_trainer(
    rm: ScalarRM,
    pairs: Sequence[TokenPair],
    weights: Sequence[float],
    *,
    arguments: dict[str, Any],
    checkpoints: Checkpoints,
    lora: LoraSection | None,
    dropout: bool,
) -> ScpoTrainer:
    """Return a trainer of a copy of a reward model on weighted pairs; for TRL, all passes over them are one epoch."""
    # The padding token of the model, by which it scores; that of the tokenizer may differ.
    pad_id = unused_end([row for pair in pairs for row in pair]) if rm.pad_id is None else rm.pad_id
    arguments["model_init_kwargs"]["key_mapping"] = HEADS
    args = RewardConfig(**arguments, max_length=None, disable_dropout=not dropout)
    count = args.max_steps * args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    return ScpoTrainer(
        checkpoints=checkpoints,
        model=rm.path,
        args=args,
        data_collator=PairCollator(pairs, weights, pad_id),
        train_dataset=Dataset.from_dict({"pair": pair_order(len(pairs), count, args.seed)}),
        processing_class=rm.chat.tokenizer,
        peft_config=LoraConfig(**lora.model_dump(), task_type="SEQ_CLS") if lora else None,
    )


TokenPair = tuple[TokenRow, TokenRow]
"""The tokens of the chosen and of the rejected response, each with its prompt."""


def pair_order(num_pairs: int, count: int, seed: int) -> list[int]:
    """Return `count` indices of pairs, from passes over all of them in random orders.

    Batches span passes, so that all are full: accelerate would repeat pairs to fill the last one of a pass.
    """
    generator = torch.Generator().manual_seed(seed)
    passes = [torch.randperm(num_pairs, generator=generator) for _ in range(math.ceil(count / num_pairs))]
    return torch.cat(passes)[:count].tolist()


@dataclass(frozen=True, slots=True)
class PairCollator:
    """Collates B pairs into tokens (2B, L), chosen responses before rejected ones, and weights (B,)."""

    pairs: Sequence[TokenPair]
    weights: Sequence[float]
    pad_id: int

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """Pad on the right."""
        indices = [row["pair"] for row in rows]
        sides = [self.pairs[index][side] for side in (0, 1) for index in indices]
        return padded_batch(sides, self.pad_id, "cpu") | {"weight": torch.tensor([self.weights[i] for i in indices])}


def released_text(chat: Chat, prompt: str, response: str, max_length: int) -> TokenRow:
    """Return the tokens of the released code's training text: prompt, " [SEP] ", response, at most 512 tokens."""
    texts = (break_tokens(text, chat.special_tokens) for text in (prompt, response))
    row = chat.tokenizer(" [SEP] ".join(texts), truncation=True, max_length=min(512, max_length))
    return {"input_ids": row["input_ids"], "attention_mask": [1] * len(row["input_ids"])}
