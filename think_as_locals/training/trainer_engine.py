"""The engine chosen by `rollout=...`, which a trainer and its evaluations sample with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from accelerate import PartialState
from accelerate.utils import gather_object
from trl.models import unwrap_model_for_generation
from trl.trainer import grpo_trainer

from think_as_locals.config.model_schema import GrpoConfig
from think_as_locals.engines import Chat, Engine, Messages
from think_as_locals.engines.transformers_engine import TransformersEngine
from think_as_locals.engines.vllm_engine import VLLMEngine
from think_as_locals.engines.vllm_server import ServerEngine
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.training.rollouts import ColocatedEngine
from think_as_locals.training.served_engine import ServedEngine

if TYPE_CHECKING:
    from think_as_locals.training.grpo import GroupTrainer

T = TypeVar("T")


@contextmanager
def rollout_engine(
    config: GrpoConfig, chat: Chat, conversations: Sequence[Messages], run: RunFolder, log: Callable[[str, float], None]
) -> Iterator[None]:
    """Make GRPOTrainers that sample with our engine instead of TRL's."""
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
def policy_engine(trainer: GroupTrainer, batch_size: int) -> Iterator[Engine]:
    """Yield the trainer's own engine with the policy's current weights: an evaluation loads no second one."""
    model = trainer.accelerator.unwrap_model(trainer.model).config.get_text_config()
    limits = getattr(model, "max_position_embeddings", None), trainer.args.vllm_max_model_length
    chat = replace(trainer.chat, positions=min(filter(None, limits), default=None))
    if not trainer.use_vllm:
        kwargs = {"gradient_checkpointing_kwargs": trainer.args.gradient_checkpointing_kwargs}
        with unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator, **kwargs) as model:
            yield TransformersEngine(model, chat, batch_size)
        return
    engine = trainer.vllm_generation
    engine.sync_weights()
    yield ServerEngine(engine.complete, chat) if isinstance(engine, ServedEngine) else VLLMEngine(engine.llm, chat)


def share_of_rank(trainer: GroupTrainer, questions: Sequence[T]) -> Sequence[T]:
    """Return the questions of this rank; ranks that hold one engine together have the same."""
    state, together = PartialState(), _ranks_per_engine(trainer)
    return questions[state.process_index // together :: state.num_processes // together]


def gather_shares(trainer: GroupTrainer, found: list[T]) -> list[T]:
    """Return the results of all ranks, once for each engine."""
    gathered: list[T] = gather_object(found if PartialState().process_index % _ranks_per_engine(trainer) == 0 else [])
    return gathered


def _ranks_per_engine(trainer: GroupTrainer) -> int:
    """Return how many ranks hold one engine together (`grpo.vllm_tensor_parallel_size`)."""
    colocated = trainer.use_vllm and isinstance(trainer.vllm_generation, ColocatedEngine)
    return int(trainer.args.vllm_tensor_parallel_size) if colocated else 1
