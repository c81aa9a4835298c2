"""Passes of a model over packed rows, and how exact they are beside those over separate rows."""

from __future__ import annotations

from functools import wraps
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import SequenceClassifierOutput

from think_as_locals.engines import shared_layers
from think_as_locals.engines.packing import ARGUMENT, Packed, PackedCompletions, pack_rows

FULL_PRECISION = {torch.float32: 1e-4, torch.float64: 1e-8}
"""How far log-probabilities of packed and separate rows may be apart; scores relative to the largest."""
HALF_PRECISION = 0.1
"""The same in the median: the mere shape of a batch changes log-probabilities of a 7B by .04 nats."""


def log_probs(model: nn.Module, packed: PackedCompletions) -> tuple[Tensor, Tensor | None]:
    """Return the log-probabilities of the labels and, if the model's head computes them, entropies, (L',) each."""
    outputs = model(**packed.inputs, shift_labels=packed.labels, fused_lm_head=True)
    return outputs.log_probs[0], None if outputs.entropy is None else outputs.entropy[0]


def dropout_reason(model: nn.Module) -> str | None:
    """Return why rows of a model that trains with dropout cannot share a prompt, or `None`."""
    rates = [module.p for module in model.modules() if isinstance(module, nn.Dropout)]
    rate = max([*rates, *(getattr(module, name) for module, name in _functional_dropouts(model))], default=0.0)
    return f"dropout ({rate:g}) would be the same for all rows of a prompt" if rate else None


def disable_functional_dropout(model: nn.Module) -> None:
    """Set the rates of dropout to 0 that TRL's `disable_dropout`, which looks for `nn.Dropout`, does not see."""
    for module, name in _functional_dropouts(model):
        setattr(module, name, 0.0)


def _functional_dropouts(model: nn.Module) -> list[tuple[nn.Module, str]]:
    return [
        (module, name)
        for module in model.modules()
        for name, rate in vars(module).items()
        if "dropout" in name and isinstance(rate, float)
    ]


def pass_positions(model: PreTrainedModel) -> None:
    """Have a model count positions from the first token that is not padding, as when it samples.

    Rotary positions are relative, so that padding on the left changes nothing; learned ones (GPT-2) are not, and
    neither transformers' forward nor TRL counts them so. Where positions are given, they stay.
    """
    rotary = any(getattr(model.config.get_text_config(), f"rope_{name}", None) for name in ("parameters", "theta"))
    if rotary or "position_ids" not in signature(model.forward).parameters:
        return

    def count(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        mask = kwargs.get("attention_mask")
        if mask is None or mask.dim() != 2 or kwargs.get("position_ids") is not None:
            return args, kwargs
        return args, {**kwargs, "position_ids": (mask.long().cumsum(1) - 1).clamp(min=0)}

    model.register_forward_pre_hook(count, with_kwargs=True)


def prepare(model: PreTrainedModel) -> None:
    """Prepare a model for packed rows; ordinary rows are computed as before."""
    shared_layers.prepare(model)
    if _keep_scored not in model.base_model._forward_hooks.values():
        model.base_model.register_forward_hook(_keep_scored, with_kwargs=True)


def _keep_scored(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
    """Pass only the scored positions on to the LM head."""
    if (packed := kwargs.get(ARGUMENT)) is not None:
        output.last_hidden_state = output.last_hidden_state[:, packed.scored]
    return output


def prepare_classifier(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Prepare a classifier with one label for packed rows and `scores`; return why it cannot take them, or `None`."""
    names = signature(model.forward).parameters.keys() & set(tokenizer.model_input_names)
    directions = {module.is_causal for module in model.modules() if hasattr(module, "is_causal")}
    if directions != {True}:
        return "tokens see those that follow them, so that the prompt depends on its response"
    if more := names - {"input_ids", "attention_mask"}:
        return f"the model also reads {', '.join(sorted(more))}"
    if reason := shared_layers.unsupported_reason(model):
        return reason
    if not hasattr(model, "score"):
        return f"the head of {type(model).__name__} has another name than `score`"
    prepare(model)
    separate_forward = model.forward

    @wraps(separate_forward)
    def forward(*args: Any, **kwargs: Any) -> Any:
        packed: Packed | None = kwargs.get(ARGUMENT)
        if packed is None:
            return separate_forward(*args, **kwargs)
        # The usual head uses only one token of each row.
        return SequenceClassifierOutput(logits=model.score(model.base_model(**packed.inputs).last_hidden_state[0]))

    model.forward = forward
    return None


def scores(model: nn.Module, packed: Packed) -> Tensor:
    """Return the scores (rows,) of packed rows by a prepared classifier, which may be wrapped."""
    return model(**packed.inputs).logits[:, 0]  # type: ignore[no-any-return]


def scores_differ(model: nn.Module, pad_id: int | None, device: torch.device, *, full_precision: bool) -> str | None:
    """Return how much the scores of packed and separate rows differ, if by more than rounding, or `None`."""
    known = [token for token in range(5, 24) if token != pad_id]
    ends = [[], *(known[start : start + length] for length in (1, 2, 4, 7) for start in range(4))]
    rows = [known[:16] + end for end in ends]
    with torch.no_grad():
        alone = [model(input_ids=torch.tensor([row], device=device)).logits[0, 0] for row in rows]
        expected = torch.stack(alone).float()
        try:
            found = scores(model, pack_rows([rows], device)).float()
        except Exception as error:  # of a layer that does not take packed rows
            return not_taken(error)
    apart = (found - expected).abs() / expected.abs().max().clamp(min=1e-9)
    return difference_reason("scores", apart, FULL_PRECISION[torch.float32] if full_precision else None)


def difference_reason(results: str, apart: Tensor, tolerance: float | None) -> str | None:
    """Return how far results are apart, if by more than a tolerance (`None`: that of half precision), or `None`."""
    found = float(apart.median() if tolerance is None else apart.max()) if apart.numel() else 0.0
    if found <= (HALF_PRECISION if tolerance is None else tolerance):
        return None
    return f"{results} differ by {found:.1e} from those of separate rows"


def not_taken(error: Exception) -> str:
    """Return that a model's layers fail on packed rows, as those do that drop the arguments meant for attention."""
    return f"the layers do not take packed rows ({type(error).__name__}: {error})"
