"""GRPO with verifiable rewards, on TRL's GRPOTrainer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoTokenizer, GenerationConfig
from trl import GRPOConfig, GRPOTrainer
from trl.models import unwrap_model_for_generation
from trl.trainer.utils import RepeatSampler

from think_as_locals.generation import Chat, Engine, eos_token_ids, vllm_engine
from think_as_locals.generation.transformers_engine import TransformersEngine
from think_as_locals.judging import COMPONENTS, Component, present, render
from think_as_locals.schema import RunConfig
from think_as_locals.training.arguments import trl_arguments
from think_as_locals.training.checkpoints import Checkpoints
from think_as_locals.training.criteria_gain import RubricPricer
from think_as_locals.training.faults import StepGuard
from think_as_locals.training.resume import ResumableTrainer
from think_as_locals.training.rewards import Rewards
from think_as_locals.training.sampler import BothOrdersSampler
from think_as_locals.types import Item


class JudgeTrainer(ResumableTrainer):
    """Both orders of an item in one group, and an end where loss or gradient is not finite.

    Args:
        both_orders: Whether the data set has two rows for each item, one after the other.
        faults: Folder for batches that ended the run.
        settings: ResumableTrainer's.
    """

    def __init__(self, *, both_orders: bool, faults: Path, **settings: Any) -> None:
        super().__init__(**settings)
        self._both_orders = both_orders
        self._guard = StepGuard(self.accelerator, faults)
        self.add_callback(self._guard)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """TRL's loss, which has to be finite on every rank."""
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        self._guard.check_loss(loss, inputs, self.state.global_step + 1)
        return loss

    def _get_train_sampler(self, dataset: Dataset | None = None) -> RepeatSampler:
        self.order = super()._get_train_sampler(dataset)
        if self._both_orders:
            self.order = BothOrdersSampler(
                len(self.train_dataset if dataset is None else dataset),
                self.num_generations,
                batch_size=self.args.generation_batch_size // self.num_generations,
                repeat_count=self.num_iterations * self.args.steps_per_generation,
                shuffle=self.shuffle_dataset,
                seed=self.args.seed,
            )
        return self.order


def make_trainer(
    config: RunConfig,
    model: str,
    items: Sequence[Item],
    folder: Path,
    components: Mapping[str, Component] = COMPONENTS,
) -> tuple[JudgeTrainer, Rewards]:
    """A GRPOTrainer whose prompts are items and whose rewards are ours.

    Args:
        config: The run.
        model: Directory or Hub id of the judge to start from.
        items: Training items.
        folder: The run's: checkpoints go to its `checkpoints`, batches that end the run to its `faults`.
        components: What computes each reward component.
    """
    checkpoints = Checkpoints(folder / "checkpoints", config.grpo.save_total_limit)
    arguments = {**trl_arguments(config, config.grpo, checkpoints.folder), **_rollout_arguments(config)}
    chat = load_chat(config, model)
    orders = (False, True) if config.reward.both_orders else (False,)
    rows = [(item, reverse) for item in items for reverse in orders]
    shown = [present(item, config.seed, reverse) for item, reverse in rows]
    rewards = Rewards(config, shown, chat, components, folder / "faults", lambda queries: pricer(queries))
    with _vllm_settings(config):
        trainer = JudgeTrainer(
            both_orders=config.reward.both_orders,
            faults=folder / "faults",
            checkpoints=checkpoints,
            stateful={"rewards": rewards.guard},
            model=model,
            reward_funcs=rewards.functions(),
            args=GRPOConfig(**arguments, reward_weights=rewards.weights()),
            train_dataset=_dataset(config, rows, chat),
            processing_class=chat.tokenizer,
            peft_config=LoraConfig(**config.lora.model_dump()) if config.lora else None,
        )
    scorer = config.reward.criteria_gain.scorer
    pricer = RubricPricer(trainer, chat, scorer)
    trainer.prices_rubrics = "criteria_gain" in config.reward.weighted() and scorer == "policy"
    return trainer, rewards


def load_chat(config: RunConfig, model: str) -> Chat:
    """The tokenizer of a judge and how this run calls its template."""
    tokenizer = AutoTokenizer.from_pretrained(model, revision=config.model.revision, padding_side="left")
    generation = GenerationConfig.from_pretrained(model, revision=config.model.revision)
    return Chat(tokenizer, config.model.chat_template_kwargs, eos_token_ids(tokenizer, generation))


@contextmanager
def policy_engine(trainer: GRPOTrainer, chat: Chat, batch_size: int) -> Iterator[Engine]:
    """The trainer's own engine with the policy's current weights: an evaluation loads nothing a second time."""
    if trainer.use_vllm:
        trainer.vllm_generation.sync_weights()
        yield vllm_engine.VLLMEngine(trainer.vllm_generation.llm, chat)
    else:
        gather = {"gradient_checkpointing_kwargs": trainer.args.gradient_checkpointing_kwargs}
        with unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator, **gather) as model:
            yield TransformersEngine(model, chat, batch_size)


def _dataset(config: RunConfig, rows: Sequence[tuple[Item, bool]], chat: Chat) -> Dataset:
    special = chat.special_tokens
    return Dataset.from_list(
        [
            {"prompt": render(item, config.prompt.template, config.seed, special, reverse), "index": index}
            for index, (item, reverse) in enumerate(rows)
        ]
    )


def _rollout_arguments(config: RunConfig) -> dict[str, Any]:
    """TRL's names for the rollout section."""
    rollout = config.rollout
    arguments: dict[str, Any] = {
        "chat_template_kwargs": dict(config.model.chat_template_kwargs),
        "use_vllm": rollout.backend == "vllm",
    }
    if rollout.backend == "vllm":
        arguments |= {
            "vllm_mode": "colocate",
            "vllm_gpu_memory_utilization": rollout.gpu_memory_utilization,
            "vllm_max_model_length": rollout.max_model_length,
            "vllm_tensor_parallel_size": rollout.tensor_parallel_size,
        }
    return arguments


@contextmanager
def _vllm_settings(config: RunConfig) -> Iterator[None]:
    """Give TRL's vLLM the policy's dtype: TRL passes none, and vLLM would serve an fp32 policy in half precision."""
    if config.rollout.backend != "vllm":
        yield
        return
    vllm_engine.prepare()
    from trl.generation import vllm_generation

    original = vllm_generation.LLM
    vllm_generation.LLM = partial(original, dtype=config.model.dtype, enforce_eager=not torch.cuda.is_available())
    try:
        yield
    finally:
        vllm_generation.LLM = original
