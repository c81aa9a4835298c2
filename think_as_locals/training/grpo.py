"""GRPO with verifiable rewards, on TRL's GRPOTrainer."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from accelerate import PartialState
from accelerate.utils import gather, gather_object
from datasets import Dataset
from datasets.table import InMemoryTable
from peft import LoraConfig
from torch import Tensor
from transformers.utils import is_torch_tf32_available
from trl import GRPOConfig, RewardConfig, SFTConfig
from trl.models import unwrap_model_for_generation
from trl.trainer import grpo_trainer
from trl.trainer.utils import RepeatSampler

from think_as_locals.config.model_schema import TrainingConfig
from think_as_locals.config.run_schema import RunConfig
from think_as_locals.config.schema import SftSection, TrlSection
from think_as_locals.config.scpo_schema import GlobalRMSection
from think_as_locals.engines import Chat, Engine
from think_as_locals.engines.transformers_engine import TransformersEngine, neutral_generation
from think_as_locals.engines.vllm_engine import VLLMEngine
from think_as_locals.engines.vllm_server import ServerEngine
from think_as_locals.judging import render, render_presented, shuffle_responses
from think_as_locals.runtime.ranks import current_launch, device_arguments, shards
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.training.ahead import SampledAhead
from think_as_locals.training.checkpoints import CheckpointedTrainer, Checkpoints, Values
from think_as_locals.training.criteria_gain import CriteriaGainScorer
from think_as_locals.training.rollout_rewards import Rewards
from think_as_locals.training.rollouts import CHECK_PROMPTS, ColocatedGeneration, rollout_arguments
from think_as_locals.training.served_engine import ServedGeneration
from think_as_locals.training.shared_prefix import SharedPrefixTrainer
from think_as_locals.training.throughput import count_parameters, operations_per_token, product_rate
from think_as_locals.types import LABELS, ConfigError, Item

T = TypeVar("T")

MAX_CHECKED, _SAMPLE = 20_000, 5_000  # the texts of more items are not all checked before training: 0.6 ms each


class JudgeTrainer(CheckpointedTrainer, SharedPrefixTrainer):
    """A GRPOTrainer of items and our rewards, which samples with our engines and can be stopped and resumed exactly."""

    section = "grpo"
    _last_loaded_step: int  # TRL's own: the optimizer step at which weights were sent last

    def __init__(
        self,
        config: RunConfig,
        model: str,
        items: Sequence[Item],
        folder: RunFolder,
        checkpoints: Checkpoints,
        sources: Sequence[str] = (),
    ) -> None:
        """Train on items; metrics are logged by `sources`, the source of each item."""
        self.chat, self._both_orders = load_chat(config, model), config.reward.both_orders
        sources = sources or [item.source for item in items]
        labels = LABELS[: max(len(item.responses) for item in items)]
        self.rewards = Rewards(config, sorted(set(sources)), labels, self.chat, folder)
        dataset, weights = PromptDataset(config, items, sources, self.chat), self.rewards.weights
        functions = {**self.rewards.components, **self.rewards.own}  # whose names TRL logs; it does not call them
        gain_scorer = config.reward.criteria_gain.scorer
        self._gain_scorer = CriteriaGainScorer(self, self.chat, gain_scorer, both_orders=self._both_orders)
        arguments = GRPOConfig(
            **trl_arguments(config, config.grpo, checkpoints.folder),
            **rollout_arguments(config),
            reward_weights=list(weights.values()),
            num_completions_to_print=-1,  # TRL would print strangers' control characters
        )
        check_num_items(arguments, len(items))
        engine = ServedGeneration if config.rollout.backend == "vllm_server" else ColocatedGeneration
        checked = dataset[:CHECK_PROMPTS]["prompt"]
        settings = {"config": config, "chat": self.chat, "conversations": checked, "run": folder}
        with patch.object(grpo_trainer, "VLLMGeneration", partial(engine, **settings, log=self.log_rollouts)):
            super().__init__(
                checkpoints=checkpoints,
                float32_head=config.grpo.cast_lm_head_to_fp32,
                max_tokens=config.grpo.max_tokens_per_micro_batch,
                scores_rubrics="criteria_gain" in weights and gain_scorer == "policy",
                model=model,
                reward_funcs=[functions[name] for name in weights],
                args=arguments,
                train_dataset=dataset,
                processing_class=self.chat.tokenizer,
                peft_config=adapter_config(config, config.grpo),
            )
        self._operations_per_token = operations_per_token(*count_parameters(self.model.parameters()))
        on_gpu = self.accelerator.device.type == "cuda"  # what else a CPU does changes its rate
        self._product_rate = product_rate(config.model.dtype) if on_gpu else None
        self._logged_tokens, self._update_seconds = 0, 0.0
        self._ahead = SampledAhead(self, config.rollout.ahead) if config.rollout.ahead else None

    def log_rollouts(self, name: str, value: float) -> None:
        """Log a metric of rollouts with the others of this step."""
        # TRL's `_log_metric` keeps a value until the next rewards: one from an evaluation at the end would be lost.
        self._metrics["train"][name].append(value)

    def sync_weights(self) -> None:
        """Send the policy's weights to the engine, unless it got them after the last optimizer step."""
        if self._last_loaded_step != self.state.global_step:
            self.vllm_generation.sync_weights()
            self._last_loaded_step = self.state.global_step

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return TRL's loss, and log tokens a second of forward and backward passes, without sampling.

        On a GPU also their MFU, of the rate of a large matrix product; what gradient checkpointing computes again does
        not count.
        """
        loss: Tensor = super().training_step(*args, **kwargs)
        if self.accelerator.device.type == "cuda":
            torch.cuda.synchronize()
        self._update_seconds += time.perf_counter() - self._update_start
        if self.accelerator.sync_gradients:  # of all micro-steps, of which some have no advantages and few tokens
            rate = (self.num_updated_tokens - self._logged_tokens) / self._update_seconds
            self._logged_tokens, self._update_seconds = self.num_updated_tokens, 0.0
            self.log_rollouts("update/tokens_per_s", rate)
            if self._product_rate:
                self.log_rollouts("update/mfu", rate * self._operations_per_token / self._product_rate)
        return loss

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Return TRL's loss; a TrainingError if it is not finite on every rank."""
        self._update_start = time.perf_counter()
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        self.step_guard.check_loss(loss, inputs, self.state.global_step + 1)
        return loss

    def rank_state(self) -> tuple[Values, dict[str, Tensor]]:
        """Add the rollouts still used, the position among them, and what the guards of the rewards count."""
        values, tensors = super().rank_state()
        window = self.args.steps_per_generation * self.num_iterations
        batches = (self._buffered_inputs or []) if self._step % window else []
        values |= {
            "micro_step": self._step,
            "rollouts": [{k: v for k, v in batch.items() if not isinstance(v, Tensor)} for batch in batches],
            "rewards": {"failed": list(self.rewards.guard.failed), "unparsed": self.rewards.parse_failures.batches},
        }
        for number, batch in enumerate(batches):
            # Micro-batches may be views of one tensor, which safetensors does not store.
            tensors |= {f"{number}/{k}": v.clone().contiguous() for k, v in batch.items() if isinstance(v, Tensor)}
        if self._ahead:
            values["ahead"] = self._ahead.state()
        return values, tensors

    def load_rank_state(self, values: Values, tensors: dict[str, Tensor]) -> None:
        """Restore these and the order of the items in this epoch."""
        super().load_rank_state(values, tensors)
        self._step = values["micro_step"]
        self._buffered_inputs = values["rollouts"] or None
        self.rewards.guard.failed.extend(values["rewards"]["failed"])
        self.rewards.parse_failures.batches = values["rewards"]["unparsed"]
        for name, tensor in tensors.items():
            number, _, key = name.partition("/")
            values["rollouts"][int(number)][key] = tensor
        if self._ahead:
            self._ahead.load_state(values.get("ahead", []))
        if self.shuffle_dataset:
            for _ in range(int(self.state.epoch or 0)):  # else TRL's sampler repeats the order of the first epoch
                torch.randperm(self._order.num_samples, generator=self._order.generator)

    def _generate_single_turn(self, prompt_ids: list[list[int]], *arguments: Any, **more: Any) -> Any:
        if self._ahead and self.model.training:
            return self._ahead.take(prompt_ids)
        if self.use_vllm:
            return super()._generate_single_turn(prompt_ids, *arguments, **more)
        with neutral_generation(self.accelerator.unwrap_model(self.model)):
            return super()._generate_single_turn(prompt_ids, *arguments, **more)

    def _get_train_sampler(self, dataset: Dataset | None = None) -> RepeatSampler:
        self._order = self.make_order(dataset)
        return self._order

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        """Return the components of all ranks' rollouts (B, components), NaN for a rollout without a reward."""
        step, device = int(self.state.global_step), self.accelerator.device
        scored = self.rewards.score(completion_ids_list, inputs, step, self._log_metric, self._gain_scorer.score)
        nothing = dict.fromkeys(self.rewards.weights, math.nan)
        parts = [[*(breakdown.parts if breakdown else nothing).values()] for breakdown in scored]
        rewards: Tensor = gather(torch.tensor(parts, dtype=torch.float32, device=device))
        if self._both_orders and "criteria_gain" in self.rewards.weights:
            # Its term log pi(j | q, y) depends on the prompt alone, and the mean of a group of one prompt cancels it. A
            # group of both orders has two prompts: each gets a mean of its own, so that no rollout is rewarded for the
            # order it was given.
            gains = rewards[:, [*self.rewards.weights].index("criteria_gain")].view(-1, 2, self.num_generations // 2)
            gains -= gains.nanmean(2, keepdim=True) - gains.nanmean((1, 2), keepdim=True)
        return rewards

    def make_order(self, dataset: Dataset | None = None) -> RepeatSampler:
        """Return a new sampler of rows; with both orders of an item, if both are presented."""
        order = super()._get_train_sampler(dataset)
        if self._both_orders:
            settings = {name: getattr(order, name) for name in ("batch_size", "repeat_count", "shuffle", "seed")}
            order = BothOrdersSampler(order.num_samples, self.num_generations, **settings)
        return order


@contextmanager
def policy_engine(trainer: JudgeTrainer, batch_size: int) -> Iterator[Engine]:
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
    if isinstance(engine, ServedGeneration):
        trainer.sync_weights()
        yield ServerEngine(engine.complete, chat)
    else:
        engine.sync_weights()  # always: one that sleeps has forgotten them
        yield VLLMEngine(engine.llm, chat)
        engine.sleep()


def share_of_rank(trainer: JudgeTrainer, questions: Sequence[T]) -> Sequence[T]:
    """Return the questions of this rank; ranks that hold one engine together have the same."""
    state, together = PartialState(), _ranks_per_engine(trainer)
    return questions[state.process_index // together :: state.num_processes // together]


def gather_shares(trainer: JudgeTrainer, found: list[T]) -> list[T]:
    """Return the results of all ranks, once for each engine."""
    gathered: list[T] = gather_object(found if PartialState().process_index % _ranks_per_engine(trainer) == 0 else [])
    return gathered


def _ranks_per_engine(trainer: JudgeTrainer) -> int:
    """Return how many ranks hold one engine together and call it alike: all of them a server."""
    if not trainer.use_vllm:
        return 1
    served = isinstance(trainer.vllm_generation, ServedGeneration)
    return PartialState().num_processes if served else int(trainer.args.vllm_tensor_parallel_size)


class BothOrdersSampler(RepeatSampler):
    """TRL's RepeatSampler over items of two rows: item i is row 2i, then row 2i + 1, for G / 2 rollouts each."""

    def __init__(self, num_rows: int, num_generations: int, **settings: Any) -> None:
        super().__init__(range(num_rows // 2), mini_repeat_count=num_generations, **settings)

    def __iter__(self) -> Iterator[int]:
        for index, item in enumerate(super().__iter__()):
            reverse = index % self.mini_repeat_count >= self.mini_repeat_count // 2
            yield 2 * item + reverse


def load_chat(config: RunConfig, model: str) -> Chat:
    """Load the tokenizer of a model, with this run's arguments of its chat template."""
    return Chat.load(model, config.model.revision, config.model.chat_template_kwargs)


def count_prompt_tokens(config: RunConfig, model: str, items: Sequence[Item], reverse: bool = False) -> list[int]:
    """Return the number of tokens of each item's prompt."""
    chat = load_chat(config, model)
    arguments = {"seed": config.seed, "special_tokens": chat.special_tokens, **config.prompt.arguments()}
    return [len(ids) for ids in chat.encode([render(item, reverse=reverse, **arguments) for item in items])]


class LazyDataset(Dataset, ABC):
    """Rows that are made when they are accessed.

    `Dataset.set_transform` would do the same, but pickles all items for the fingerprint of its cache, 50 kB each.
    """

    def __init__(self, size: int) -> None:
        super().__init__(InMemoryTable.from_pydict({"index": range(size)}))

    def __getitem__(self, key: Any) -> dict[str, Any]:
        if isinstance(key, int):
            return {name: values[0] for name, values in self[[key]].items()}
        return self.rows(super().__getitem__(key)["index"])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[index] for index in range(len(self)))

    @abstractmethod
    def rows(self, indices: Sequence[int]) -> dict[str, Any]:
        """Return the columns of some rows."""


class PromptDataset(LazyDataset):
    """The `Example` of each item, or of each order of its responses, presented and rendered when accessed."""

    def __init__(self, config: RunConfig, items: Sequence[Item], sources: Sequence[str], chat: Chat) -> None:
        """Look for texts that are read as control tokens: of many items in a sample, in others when accessed."""
        self._orders = (False, True) if config.reward.both_orders else (False,)
        super().__init__(len(items) * len(self._orders))
        self._items, self._sources, self._chat, self._seed = items, sources, chat, config.seed
        self._settings = {"special_tokens": chat.special_tokens, **config.prompt.arguments()}
        count = len(items)
        self._checked = range(count) if count <= MAX_CHECKED else {i * count // _SAMPLE for i in range(_SAMPLE)}
        chat.check_texts(items[number] for number in self._checked)

    def rows(self, indices: Sequence[int]) -> dict[str, Any]:
        """Return the columns of some rows."""
        numbers = [divmod(index, len(self._orders)) for index in indices]
        self._chat.check_texts(self._items[number] for number, _ in numbers if number not in self._checked)
        presented = [shuffle_responses(self._items[number], self._seed, self._orders[turn]) for number, turn in numbers]
        return {
            "index": indices,
            "presented": presented,
            "source": [self._sources[number] for number, _ in numbers],
            "prompt": [self._chat.turns(render_presented(p, p.responses, **self._settings)) for p in presented],
        }


def trl_arguments(
    config: TrainingConfig, section: TrlSection, output_dir: Path, processes: int | None = None
) -> dict[str, Any]:
    """Return keyword arguments for GRPOConfig, SFTConfig or RewardConfig; for so many processes, or those that run."""
    # For nearly every weight an update of 1e-6 is less than half of the last digit of bfloat16, and would be rounded
    # away. So trained weights are float32, and autocast computes in `model.dtype`. DeepSpeed and FSDP have float32
    # copies of their own, and PEFT's adapters are float32.
    float32 = config.model.dtype == "bfloat16" and not trains_adapter(config, section) and not shards()
    sizes: dict[str, Any] = {}
    if isinstance(section, GlobalRMSection):
        names = "per_device_train_batch_size", "gradient_accumulation_steps"
        sizes = dict(zip(names, section.micro_steps(processes or current_launch().processes), strict=True))
    if current_launch().kind == "FSDP":  # it would keep whole gradients in `model.dtype` between micro-steps
        sizes["accelerator_config"] = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    return {
        "output_dir": str(output_dir),
        "seed": config.seed,
        **device_arguments(),
        "bf16": config.model.dtype == "bfloat16",
        # For the LM head (cast_lm_head_to_fp32): TF32 multiplies bfloat16 exactly, at half the speed of bfloat16.
        "tf32": (config.model.dtype == "bfloat16" and is_torch_tf32_available()) or None,
        "disable_tqdm": True,  # `LiveView` shows progress
        "save_strategy": "steps",
        "report_to": [],
        "project": "think-as-locals",  # the project's name at trackio, and as WANDB_PROJECT at W&B
        "run_name": config.run.name,
        "model_init_kwargs": {
            "dtype": "float32" if float32 else config.model.dtype,
            "attn_implementation": config.model.attn_implementation,
            "revision": config.model.revision,
        },
        **section.model_dump(exclude=set(section.OURS)),
        **sizes,
    }


def trains_adapter(config: TrainingConfig, section: TrlSection) -> bool:
    """Return whether a stage trains a LoRA adapter: the first one of a model from scratch trains all weights."""
    is_first = isinstance(section, SftSection) or type(section) is GlobalRMSection
    return config.lora is not None and not (is_first and config.model.scratch is not None)


def adapter_config(config: RunConfig, section: TrlSection) -> LoraConfig | None:
    """Return the adapter that a stage trains, if any."""
    return LoraConfig(**config.lora.model_dump()) if config.lora and trains_adapter(config, section) else None


def check_arguments(config: TrainingConfig, num_items: int, processes: int | None = None) -> None:
    """Check all settings with TRL's configurations, for this many processes (`None`: those that have joined)."""
    kinds = {"grpo": GRPOConfig, "sft": SFTConfig, "scpo": RewardConfig, "global_rm": RewardConfig}
    faults = []
    for name, kind in kinds.items():
        if (section := getattr(config, name, None)) is not None:
            try:
                if processes is not None:
                    kind = type(kind.__name__, (kind,), {"world_size": processes})
                arguments = kind(**trl_arguments(config, section, Path(config.run.dir), processes))  # makes no folder
                if isinstance(arguments, GRPOConfig):
                    check_num_items(arguments, num_items)
            except Exception as error:  # any exception: libraries check their own settings
                faults.append(f"\n  - {name}.*: {error}" if str(error) else f"\n  - {name}.*: {type(error).__name__}")
    if faults:
        raise ConfigError(f"TRL does not take this configuration:{''.join(faults)}")


def check_num_items(arguments: GRPOConfig, num_items: int) -> None:
    """Raise a ConfigError if the items do not fill a generation batch: TRL would train on none, and end."""
    if num_items < (prompts := arguments.generation_batch_size // arguments.num_generations):
        raise ConfigError(
            f"completions are sampled for {prompts:,} prompts at a time (processes {arguments.world_size}, times "
            f"per_device_train_batch_size {arguments.per_device_train_batch_size}, times steps_per_generation "
            f"{arguments.steps_per_generation}, which is gradient_accumulation_steps unless set, over num_generations "
            f"{arguments.num_generations}), expected at most the number of training items, {num_items:,}: lower one of "
            "them, or add data"
        )
