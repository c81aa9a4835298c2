"""The engine that a trainer samples with, as `rollout=...` says, and which an evaluation in training uses as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from trl import GRPOTrainer
from trl.models import unwrap_model_for_generation
from trl.trainer import grpo_trainer

from think_as_locals.config.schema import RunConfig
from think_as_locals.engines import Chat, Engine, Messages
from think_as_locals.engines.transformers_engine import TransformersEngine
from think_as_locals.engines.vllm_engine import VLLMEngine
from think_as_locals.engines.vllm_server import ServerEngine
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.training.rollouts import ColocatedEngine
from think_as_locals.training.served_engine import ServedEngine


@contextmanager
def rollout_engine(
    config: RunConfig, chat: Chat, conversations: Sequence[Messages], run: RunFolder, log: Callable[[str, float], None]
) -> Iterator[None]:
    """Have a GRPOTrainer that is made within this context sample with our engine instead of TRL's."""
    engine = {"vllm_colocate": ColocatedEngine, "vllm_server": ServedEngine}.get(config.rollout.backend)
    original = grpo_trainer.VLLMGeneration
    if engine:
        grpo_trainer.VLLMGeneration = partial(
            engine, config=config, chat=chat, conversations=conversations, run=run, log=log
        )
    try:
        yield
    finally:
        grpo_trainer.VLLMGeneration = original


@contextmanager
def policy_engine(trainer: GRPOTrainer, chat: Chat, batch_size: int) -> Iterator[Engine]:
    """Return the trainer's own engine with the policy's current weights: an evaluation loads nothing a second time."""
    if not trainer.use_vllm:
        kwargs = {"gradient_checkpointing_kwargs": trainer.args.gradient_checkpointing_kwargs}
        with unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator, **kwargs) as model:
            yield TransformersEngine(model, chat, batch_size)
        return
    engine = trainer.vllm_generation
    engine.sync_weights()
    yield ServerEngine(engine.complete, chat) if isinstance(engine, ServedEngine) else VLLMEngine(engine.llm, chat)


def ranks_per_engine(trainer: GRPOTrainer) -> int:
    """Return how many ranks hold one engine together (`grpo.vllm_tensor_parallel_size`): they must ask it the same."""
    colocated = trainer.use_vllm and isinstance(trainer.vllm_generation, ColocatedEngine)
    return trainer.args.vllm_tensor_parallel_size if colocated else 1
