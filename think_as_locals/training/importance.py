"""The correction for a sampler that differs from the policy, with log-probabilities that the loss computes anyway.

TRL computes the policy's log-probabilities of vLLM's completions in a pass of their own, to weigh them by
pi(token) / pi_vllm(token). On policy that pass equals the one of the loss, so the weights can wait for it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from trl import GRPOTrainer
from trl.trainer.utils import nanmax, nanmin


def on_policy(trainer: GRPOTrainer) -> bool:
    """Whether every update uses rollouts of the very policy it updates."""
    window = trainer.args.steps_per_generation * trainer.num_iterations
    return bool(trainer.args.gradient_accumulation_steps % window == 0)


def waits(trainer: GRPOTrainer) -> bool:
    """Whether TRL would compute old log-probabilities for this correction alone."""
    return bool(trainer.use_vllm and trainer.vllm_importance_sampling_correction and on_policy(trainer))


def put_off(trainer: GRPOTrainer, batch: dict[str, Any], old: list[Tensor]) -> None:
    """Take out of a generation batch, and of TRL's metrics, what it made of log-probabilities that were all NaN.

    Args:
        trainer: The trainer.
        batch: What TRL made of B rollouts.
        old: The policy's log-probabilities from another pass, (rows, tokens) for B rows in all; empty where the loss
            computes them.

    Raises:
        RuntimeError: they are missing, and the loss would come too late for them.
    """
    for name in ("old_per_token_logps", "importance_sampling_ratio"):
        batch.pop(name, None)
    for name, values in trainer._metrics["train"].items():
        if name.startswith("sampling/"):
            values.pop()
    if on_policy(trainer):
        return
    if not old:
        raise RuntimeError("off policy, the pass that prices rubrics computes old log-probabilities; it did not run")
    width = batch["completion_ids"].shape[1]
    batch["old_per_token_logps"] = torch.cat([pad(part[:, :width], (0, width - part.shape[1])) for part in old])
    if trainer.use_vllm and trainer.vllm_importance_sampling_correction:
        make_up(trainer, batch, batch["old_per_token_logps"], None)


def make_up(trainer: GRPOTrainer, inputs: dict[str, Any], log_probs: Tensor, computed: list[bool] | None) -> None:
    """Put the weights of a micro-batch into it, and their metrics into TRL's.

    Args:
        trainer: The trainer.
        inputs: The micro-batch.
        log_probs: The policy's, (B, C).
        computed: Which of the B rows have them; `None` for all. The others carry no gradient and get the weight 1.
    """
    rows = torch.tensor(computed or [True] * len(log_probs), device=log_probs.device)[:, None]
    mask = (inputs["completion_mask"] * inputs.get("tool_mask", 1) * rows).bool()
    difference = log_probs.detach() - inputs["sampling_per_token_logps"]  # NaN where vLLM could not score a token
    ratio = _ratio(trainer, difference.nan_to_num(nan=0.0) * mask)
    inputs["importance_sampling_ratio"] = torch.where(rows, ratio, 1.0)
    _log(trainer, difference[mask & ~difference.isnan()].abs(), ratio, mask)


def _ratio(trainer: GRPOTrainer, difference: Tensor) -> Tensor:
    """(B, C) weights of tokens or (B, 1) of sequences: truncated to the clip range, or 0 outside of it."""
    level, _, form = trainer.vllm_importance_sampling_mode.partition("_")
    ratio = (difference.sum(-1, keepdim=True) if level == "sequence" else difference).exp()
    low, high = trainer.vllm_importance_sampling_clip_min, trainer.vllm_importance_sampling_clip_max
    clipped = ratio if low is None and high is None else ratio.clamp(min=low, max=high)
    return clipped if form == "truncate" else ratio * (clipped == ratio)


def _log(trainer: GRPOTrainer, difference: Tensor, ratio: Tensor, mask: Tensor) -> None:
    """What TRL logs of the correction, by its names."""
    gather, metrics = trainer.accelerator.gather, trainer._metrics["train"]
    nothing = ratio.new_full((1,), torch.nan)
    tokens = difference if difference.numel() else nothing
    weights = ratio[mask.any(-1)].flatten() if ratio.shape[1] == 1 else ratio[mask]
    weights = weights if weights.numel() else nothing
    for name, value, over_ranks in (
        ("sampling_logp_difference/mean", tokens.mean(), torch.nanmean),
        ("sampling_logp_difference/max", tokens.max(), nanmax),
        ("importance_sampling_ratio/min", weights.min(), nanmin),
        ("importance_sampling_ratio/mean", weights.mean(), torch.nanmean),
        ("importance_sampling_ratio/max", weights.max(), nanmax),
    ):
        metrics[f"sampling/{name}"].append(over_ranks(gather(value.reshape(1))).item())
