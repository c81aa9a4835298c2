"""Passes of a model over packed rows, and how exact they are beside those over separate rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from typing import Any, cast

import torch
from accelerate.utils import extract_model_from_parallel
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import SequenceClassifierOutput

from think_as_locals.engines import shared_layers
from think_as_locals.engines.packing import ARGUMENT, Packed, PackedCompletions, pack_rows

_SCORE_TOLERANCE = 1e-4  # of scores in full precision, relative to the largest
# In half precision, in which the mere shape of a batch changes results (log-probabilities of a 7B by .04 nats), this is
# how many times the mean error of separate rows, compared with float32, that of packed rows may be.
_MAX_ERROR_RATIO = 2.0
_NEGLIGIBLE = 1e-6


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


_HALF = (torch.bfloat16, torch.float16)
_PROMOTED = {  # functions of which float32 activations need float32 weights
    *(nn.functional.embedding, nn.functional.linear, nn.functional.layer_norm, nn.functional.rms_norm),
    *(nn.functional.scaled_dot_product_attention, nn.functional.conv1d),
    *(torch.matmul, torch.bmm, torch.addmm, Tensor.matmul, Tensor.__matmul__),
}


@contextmanager
def computing_in_float32(model: Any) -> Iterator[None]:
    """Have a model compute in float32, whatever the type of its weights and their sharding; no weight is changed."""
    autocast, plain = model.__dict__.get("forward"), model.__dict__.get("_original_forward")  # accelerate's
    device, backends = next(model.parameters()).device.type, cast("Any", torch.backends)
    precision = backends.fp32_precision
    if plain is not None:
        model.forward = plain
    backends.fp32_precision = "ieee"  # not TF32
    try:
        with torch.autocast(device, enabled=False), _Promoting():
            yield
    finally:
        backends.fp32_precision = precision
        if plain is not None:
            model.forward = autocast


class _Promoting(TorchFunctionMode):
    """Passes float32 copies of half-precision tensors to functions that use weights, one function at a time."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _PROMOTED:
            args, kwargs = tree_map_only(Tensor, lambda t: t.float() if t.dtype in _HALF else t, (args, kwargs))
        elif func is Tensor.to and any(
            wanted is half for wanted in (*args[1:2], kwargs.get("dtype")) for half in _HALF
        ):
            return args[0]  # PEFT rounds activations to the type of an adapter
        return func(*args, **kwargs)


def scores_differ(model: nn.Module, pad_id: int | None, device: torch.device, *, full_precision: bool) -> str | None:
    """Return how much the scores of packed and separate rows differ, if by more than rounding, or `None`."""
    known = [token for token in range(5, 24) if token != pad_id]
    ends = [[], *(known[start : start + length] for length in (1, 2, 4, 7) for start in range(4))]
    rows = [known[:16] + end for end in ends]

    def separately() -> Tensor:
        return torch.stack([model(input_ids=torch.tensor([row], device=device)).logits[0, 0] for row in rows]).float()

    with torch.no_grad():
        expected = separately()
        try:
            found = scores(model, pack_rows([rows], device)).float()
        except Exception as error:  # of a layer that does not take packed rows
            return not_taken(error)
        if not full_precision:
            with computing_in_float32(extract_model_from_parallel(model)):
                true = separately()
            ours, theirs = (float((values - true).abs().mean()) for values in (found, expected))
            return worse_than_separate("scores", ours, theirs)
    difference = float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-9))
    return None if difference <= _SCORE_TOLERANCE else f"scores differ by {difference:.1e} from those of separate rows"


def not_taken(error: Exception) -> str:
    """Return that a model's layers fail on packed rows, as those do that drop the arguments meant for attention."""
    return f"the layers do not take packed rows ({type(error).__name__}: {error})"


def worse_than_separate(results: str, ours: float, theirs: float) -> str | None:
    """Return how much greater the mean error of packed rows is, if by more than rounding, or `None`."""
    if ours <= _MAX_ERROR_RATIO * theirs + _NEGLIGIBLE:
        return None
    return (
        f"{results} differ by {ours:.1e} from float32's in the mean, those of separate rows by {theirs:.1e}: "
        f"more than {_MAX_ERROR_RATIO:g} times as much"
    )
