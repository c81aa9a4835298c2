"""Guards that end a run before the policy is damaged: failing rewards, parse failures, numbers that are not finite.

All ranks decide together: a rank that raised alone would leave the others waiting.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType, gather_object
from transformers import TrainerCallback, TrainerState

from think_as_locals.config.run_schema import RunConfig
from think_as_locals.config.schema import RewardSection
from think_as_locals.judging import RULES, Component, Evidence
from think_as_locals.judging.rewards import described
from think_as_locals.runtime.files import append_json, parquet, write_bytes, write_json
from think_as_locals.runtime.processes import in_background
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.types import Item, Judgement, TrainingError, TrainingWarning


class RewardGuard:
    """Keeps a user's own reward that fails for one rollout from affecting the others, until too many fail."""

    def __init__(self, config: RewardSection, folder: Path) -> None:
        self._config = config
        self._folder = folder
        self.failed: deque[bool] = deque(maxlen=config.fault_window)  # for each of the last rollouts of this rank

    def attempt(
        self, functions: Mapping[str, Component], rollouts: Sequence[tuple[Judgement, Item, Evidence]]
    ) -> list[dict[str, float] | str]:
        """Return for each rollout what these functions give it, or the fault of one that raised or came too late.

        A thread of its own has `reward.timeout_s` for all of them. If one hangs, the process can end nevertheless.
        """
        found: list[dict[str, float] | str] = []

        def work() -> None:
            if (device := PartialState().device).type == "cuda":
                torch.cuda.set_device(device.index or 0)  # a new thread begins with the first GPU
            for rollout in rollouts:
                try:
                    found.append({name: float(function(*rollout)) for name, function in functions.items()})
                except Exception as error:
                    found.append(described(error))

        with suppress(TimeoutError):
            in_background(work).result(self._config.timeout_s)
        rewards = found[: len(rollouts)]
        late = f"TimeoutError: the batch took longer than {self._config.timeout_s:g} s"
        rewards += [late] * (len(rollouts) - len(rewards))
        self.failed.extend(isinstance(reward, str) for reward in rewards)
        return rewards

    def check_failures(self, rows: list[dict[str, Any]], step: int) -> int:
        """Return how many rewards failed on all ranks; too many, or one that is not finite, are a TrainingError."""
        faults = [row["fault"] for row in rows if row["fault"] is not None]
        rewards = [v for row in rows for name, v in row.items() if name.startswith("reward") and v is not None]
        # In TRL's type, which squares them for their spread.
        infinite = not bool(torch.tensor(rewards, dtype=torch.float32).square().sum().isfinite())
        too_many = sum(self.failed) > self._config.max_fault_share * self._config.fault_window
        # The first fault alone: later ones may be its consequences.
        ranks = gather_object([(len(faults), too_many, infinite, *faults[:1])])
        if infinite or too_many:
            fault = "reward not finite" if infinite else "rewards failed"
            _record(self._folder, step, PartialState().process_index, fault, parquet(rows), ".parquet")
        if bad := [rank for rank, (_, _, infinite, *_) in enumerate(ranks) if infinite]:
            raise _not_finite_error(
                "reward", step, bad, self._folder, "fix the component that gave it: its square must fit float32"
            )
        if over := [rank for rank, (_, too_many, *_) in enumerate(ranks) if too_many]:
            config, first = self._config, ranks[over[0]][3]
            raise TrainingError(
                f"step {step}: on {_named(over)} the rewards of more than {config.max_fault_share:.1%} of the last "
                f"{config.fault_window} rollouts failed (reward.max_fault_share, reward.fault_window), with {first}. "
                f"Batch: {self._folder}/step-{step}-rank-*. "
                "Fix the component, or raise reward.timeout_s if it is slow."
            )
        return sum(count for count, *_ in ranks)


class ParseFailureGuard:
    """Warns, or ends the run, if hardly any completion can be parsed in several batches in a row."""

    def __init__(self, config: RunConfig, run: RunFolder) -> None:
        self._config = config
        self._run = run
        self.batches = 0  # in a row with too many failures

    def check(self, share: float, judgements: Sequence[Judgement], step: int) -> None:
        """Count a batch, given its share of parse failures on all ranks and the judgements of this one."""
        reward = self._config.reward
        self.batches = self.batches + 1 if share > reward.max_parse_failure else 0
        times, rest = divmod(self.batches, reward.parse_failure_batches)
        if rest or not times or times & (times - 1):  # again after twice as many each time
            return
        message = (
            f"step {step}: {share:.0%} of completions cannot be parsed, and more than {reward.max_parse_failure:.0%}"
        )
        message += f" in {self.batches} batches in a row. {parse_failure_causes(self._config, judgements)} "
        message += f"Look at {self._run.completions_dir}."
        if reward.on_parse_failure == "stop":
            raise TrainingError(f"{message} To continue anyway: reward.on_parse_failure=warn.")
        if PartialState().is_main_process:
            warnings.warn(message, TrainingWarning, stacklevel=2)
            append_json(self._run.metrics, {"stage": "grpo", "step": step, "warning": message})  # for the report


def parse_failure_causes(config: RunConfig, judgements: Sequence[Judgement]) -> str:
    """Return why completions may have no verdict, the likeliest cause first, and what to change, in plain words."""
    broken = Counter(issue for judgement in judgements for issue in judgement.issues)
    cut, limit = broken.pop("finished", 0) / len(judgements), config.grpo.max_completion_length
    causes = [
        f"completions are too short ({cut:.0%} were cut at {limit} tokens): raise grpo.max_completion_length",
        "the model does not know the format: teach it (trainer=demonstrated_grpo; better, with the completions of a "
        "larger model: tal demonstrate, then sft.data), or take a prompt that it follows (tal doctor --model)"
        if config.sft is None
        else f"the cold start ({config.sft.length}) was too short to teach the format: train it longer (sft.*)",
        "the model is too small for it: take a larger one",
    ]
    if "structure" not in config.reward.weighted():
        causes.append("nothing rewards the format: reward.weights.structure=0.2")
    if cut < 0.5:
        causes = [*causes[1:], causes[0]]
    often = "".join(f"Broken most: {RULES[rule]}. " for rule, _ in broken.most_common(1))
    return often + "Likely causes: " + "; ".join(f"({i}) {cause}" for i, cause in enumerate(causes, 1)) + "."


class StepGuard(TrainerCallback):
    """Ends training if a loss or a gradient is not finite, before the optimizer uses it.

    The micro-batches since the last step are written to `folder`, as `<number>/<tensor>`. DeepSpeed's engine steps
    within the backward pass, before the gradients can be checked here; it skips the step of a bad gradient itself.
    """

    def __init__(self, accelerator: Accelerator, folder: Path, section: str) -> None:
        self._accelerator = accelerator
        self._folder = folder
        self._section = section  # of the settings that the message names
        self._batches: list[dict[str, Any]] = []

    def check_loss(self, loss: torch.Tensor, inputs: dict[str, Any], step: int) -> None:
        """Raise TrainingError on all ranks if the loss of this micro-batch is NaN or infinite on one of them."""
        if loss.requires_grad:
            self._batches.append(inputs)
        self._stop_unless(bool(torch.isfinite(loss.detach()).all()), "loss", step)

    def on_pre_optimizer_step(
        self, args: Any, state: TrainerState, control: Any, model: torch.nn.Module, **kwargs: Any
    ) -> None:
        """Raise TrainingError on all ranks if a gradient is NaN or infinite on one of them."""
        if self._accelerator.distributed_type == DistributedType.DEEPSPEED:
            norm = float(self._accelerator.deepspeed_engine_wrapped.get_global_grad_norm() or 0.0)
        else:
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            norm = float(torch.nn.utils.get_total_norm(gradients))
        self._stop_unless(math.isfinite(norm), "gradient", state.global_step + 1)
        self._batches.clear()

    def _stop_unless(self, finite: bool, quantity: str, step: int) -> None:
        here = torch.tensor([0 if finite else 1], device=self._accelerator.device)
        ranks = [rank for rank, bad in enumerate(self._accelerator.gather(here).tolist()) if bad]
        if not ranks:
            return
        if not finite and self._batches:
            tensors = {
                f"{number}/{name}": value.detach().cpu().contiguous().clone()
                for number, batch in enumerate(self._batches)
                for name, value in batch.items()
                if isinstance(value, torch.Tensor)
            }
            batch = safetensors.torch.save(tensors)
            _record(self._folder, step, self._accelerator.process_index, quantity, batch, ".safetensors")
        remedy = f"start again with a lower {self._section}.learning_rate or {self._section}.max_grad_norm"
        raise _not_finite_error(quantity, step, ranks, self._folder if self._batches else None, remedy)


def _record(folder: Path, step: int, rank: int, fault: str, batch: bytes, suffix: str) -> None:
    """Write a rank's batch to `step-N-rank-R<suffix>`, and beside it the fault, as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step}-rank-{rank}{suffix}"
    write_bytes(path, batch)
    write_json(path.with_suffix(".json"), {"fault": fault, "step": step, "rank": rank, "batch": path.name})


def _not_finite_error(quantity: str, step: int, ranks: list[int], folder: Path | None, remedy: str) -> TrainingError:
    batch = f". Batch: {folder}/step-{step}-rank-*. Look at its rewards and lengths, and" if folder else ":"
    return TrainingError(
        f"step {step}: {quantity} not finite on {_named(ranks)}; the optimizer did not use it{batch} {remedy}."
    )


def _named(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
