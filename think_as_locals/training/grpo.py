"""GRPO with verifiable rewards, on TRL's GRPOTrainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from peft import LoraConfig
from transformers import AutoTokenizer
from trl import GRPOConfig
from trl.trainer.utils import RepeatSampler

from think_as_locals.generation import Chat, eos_token_ids
from think_as_locals.generation.vllm_engine import generation_config
from think_as_locals.judging import COMPONENTS, Component, present, render
from think_as_locals.judging.own import load_own
from think_as_locals.schema import RunConfig
from think_as_locals.training import probe
from think_as_locals.training.arguments import trl_arguments
from think_as_locals.training.checkpoints import Checkpoints
from think_as_locals.training.criteria_gain import RubricPricer
from think_as_locals.training.faults import StepGuard
from think_as_locals.training.resume import ResumableTrainer
from think_as_locals.training.rewards import Rewards
from think_as_locals.training.rollouts import rollout_arguments, rollout_engine
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
        components: What computes each reward component, besides those of the user's own.

    Raises:
        ConfigError: a component of the user's own cannot be loaded.
    """
    components = {**components, **load_own(config.reward.own)}
    checkpoints = Checkpoints(folder / "checkpoints", config.grpo.save_total_limit)
    arguments = {**trl_arguments(config, config.grpo, checkpoints.folder), **rollout_arguments(config)}
    chat = load_chat(config, model)
    orders = (False, True) if config.reward.both_orders else (False,)
    rows = [(item, reverse) for item in items for reverse in orders]
    shown = [present(item, config.seed, reverse) for item, reverse in rows]
    rewards = Rewards(config, shown, chat, components, folder / "faults", lambda queries: pricer(queries))
    dataset = _dataset(config, rows, chat)

    def log(name: str, value: float) -> None:
        trainer._metrics["train"][name].append(value)

    with rollout_engine(config, chat, dataset["prompt"][: probe.PROMPTS], folder, log):
        trainer = JudgeTrainer(
            both_orders=config.reward.both_orders,
            faults=folder / "faults",
            checkpoints=checkpoints,
            stateful={"rewards": rewards.guard},
            model=model,
            reward_funcs=rewards.functions(),
            args=GRPOConfig(**arguments, reward_weights=rewards.weights()),
            train_dataset=dataset,
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
    ends = eos_token_ids(tokenizer, generation_config(model, config.model.revision))
    return Chat(tokenizer, config.model.chat_template_kwargs, ends)


def _dataset(config: RunConfig, rows: Sequence[tuple[Item, bool]], chat: Chat) -> Dataset:
    special = chat.special_tokens
    return Dataset.from_list(
        [
            {"prompt": chat.turns(render(item, config.prompt.template, config.seed, special, reverse)), "index": index}
            for index, (item, reverse) in enumerate(rows)
        ]
    )
