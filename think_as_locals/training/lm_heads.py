"""How the LM heads of TRL's trainers compute log-probabilities, without the logits of all tokens at once."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from trl.kernels.chunked_logprob import TOKEN_CHUNK_SIZE, ChunkedLogProbFunction
from trl.trainer import grpo_trainer, utils

_TILE = TOKEN_CHUNK_SIZE * utils._CHUNKED_LOGPROB_CHUNK_SIZE  # logits that TRL has at once


def lean_heads(model: PreTrainedModel) -> AbstractContextManager[Any]:
    """Have the LM heads of TRL's trainers keep few logits, in tiles no wider than the vocabulary: the same numbers.

    TRL's have 32,768 columns: for a small judge's 600 tokens half a gigabyte, which is zeroed in every pass.
    """
    width = min(utils._CHUNKED_LOGPROB_CHUNK_SIZE, model.config.get_text_config().vocab_size)
    return patch.multiple(utils, _CHUNKED_LOGPROB_CHUNK_SIZE=width, _ChunkedLogProbFunction=_KeptLogits)


class _KeptLogits(ChunkedLogProbFunction):
    """TRL's log-probabilities, but on CPUs the logits are kept for the backward pass if they are few.

    TRL computes them there anew, and goes over them a dozen times, as where there is no Triton nothing is fused.
    """

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        hidden, weight, bias, targets, temperature, width, softcap, scale, outputs = arguments
        full = hidden.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
        plain = bias is None and softcap is None and scale == 1 and {"log_probs", "entropy", "is_top1"} >= {*outputs}
        few = len(weight) <= width and len(hidden) * len(weight) <= _TILE
        ctx.keeps = hidden.device.type == "cpu" and full and plain and few
        if not ctx.keeps:
            return ChunkedLogProbFunction.forward(ctx, *arguments)
        ctx.factor = 1 / temperature
        logits = (hidden @ weight.t()).mul_(ctx.factor)
        largest = logits.amax(-1)
        powers = (logits - largest[:, None]).exp_()
        total = powers.sum(-1)
        log_total = largest + total.log()
        entropy = log_total - powers.mul_(logits).sum(-1) / total if "entropy" in outputs else None
        is_top1 = logits.argmax(-1) == targets if "is_top1" in outputs else None
        ctx.save_for_backward(hidden, weight, targets, logits, log_total, entropy)
        return logits.gather(1, targets[:, None])[:, 0] - log_total, entropy, None, None, is_top1

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if not ctx.keeps:
            return ChunkedLogProbFunction.backward(ctx, *gradients)
        hidden, weight, targets, logits, log_total, entropy = ctx.saved_tensors
        grad_log_probs, at = gradients[0][:, None], targets[:, None]
        log_probs = logits.sub_(log_total[:, None])  # in place: autograd refuses to use them once more
        entropy_term = None
        if entropy is not None and gradients[1].any():
            entropy_term = gradients[1][:, None] * log_probs.exp() * (log_probs + entropy[:, None])
        probs = log_probs.exp_()
        grad_targets = grad_log_probs * (1 - probs.gather(1, at))
        grad_logits = probs.mul_(-grad_log_probs).scatter_(1, at, grad_targets)
        if entropy_term is not None:
            grad_logits -= entropy_term
        grad_logits *= ctx.factor
        grad_weight = None
        with utils.maybe_gather_lm_head_ctx(weight):
            if ctx.needs_input_grad[1]:
                grad_weight = torch.zeros_like(weight)
                for tile, tokens in zip(
                    grad_logits.split(TOKEN_CHUNK_SIZE), hidden.split(TOKEN_CHUNK_SIZE), strict=True
                ):
                    grad_weight.addmm_(tile.t(), tokens)
            return grad_logits @ weight, grad_weight, *[None] * 7


def float32_heads() -> AbstractContextManager[Any]:
    """Make trainers whose LM heads compute log-probabilities in float32.

    TRL's `cast_lm_head_to_fp32` also converts their weights to float32, which FSDP2 refuses beside others in bfloat16,
    and fails with PEFT and tied embeddings.
    """
    original = grpo_trainer.add_fused_lm_head

    def add_fused_lm_head(model: nn.Module, **settings: Any) -> None:
        original(model, **{**settings, "cast_lm_head_to_fp32": True})

    return patch.object(grpo_trainer, "add_fused_lm_head", add_fused_lm_head)


def linear_in_float32(head: nn.Linear, hidden: Tensor) -> Tensor:
    """Return a head's logits, computed in float32 even under autocast."""
    with torch.autocast(hidden.device.type, enabled=False):
        bias = None if head.bias is None else head.bias.float()
        return nn.functional.linear(hidden.float(), head.weight.float(), bias)
