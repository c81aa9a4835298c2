"""GRPO with verifiable rewards, on TRL's GRPOTrainer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoTokenizer, GenerationConfig
from trl import GRPOConfig, GRPOTrainer

from think_as_locals.generation import Chat, Engine, eos_token_ids, vllm_engine
from think_as_locals.generation.transformers_engine import TransformersEngine
from think_as_locals.judging import present, render
from think_as_locals.schema import RunConfig
from think_as_locals.training.arguments import trl_arguments
from think_as_locals.training.rewards import Rewards
from think_as_locals.training.shared_prefix import SharedPrefixTrainer
from think_as_locals.types import Item


def make_trainer(config: RunConfig, model: str, items: Sequence[Item], output_dir: Path) -> tuple[GRPOTrainer, Rewards]:
    """A GRPOTrainer whose prompts are items and whose rewards are ours.

    Args:
        config: The run.
        model: Directory or Hub id of the judge to start from.
        items: Training items.
        output_dir: Where TRL writes.
    """
    arguments = {**trl_arguments(config, config.grpo, output_dir), **_rollout_arguments(config)}
    chat = load_chat(config, model)
    weights = {str(name): weight for name, weight in config.reward.weights.items()}
    rewards = Rewards([present(item, config.seed) for item in items], weights, chat)
    with _vllm_settings(config):
        trainer = SharedPrefixTrainer(
            model=model,
            reward_funcs=rewards.functions(),
            args=GRPOConfig(**arguments, reward_weights=list(weights.values())),
            train_dataset=_dataset(config, items, chat),
            processing_class=chat.tokenizer,
        )
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
        model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
        yield TransformersEngine(model, chat, batch_size)


def _dataset(config: RunConfig, items: Sequence[Item], chat: Chat) -> Dataset:
    special = chat.special_tokens
    return Dataset.from_list(
        [
            {"prompt": render(item, config.prompt.template, config.seed, special), "index": index}
            for index, item in enumerate(items)
        ]
    )


def _rollout_arguments(config: RunConfig) -> dict[str, Any]:
    """TRL's names for the rollout section."""
    rollout = config.rollout
    arguments: dict[str, Any] = {
        "save_strategy": "steps",
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
