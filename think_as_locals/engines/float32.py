"""Compute in float32 with a model in half precision, for its results without rounding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

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
            args, kwargs = tree_map_only(Tensor, _promoted, (args, kwargs))
        elif func is Tensor.to and any(
            wanted is half for wanted in (*args[1:2], kwargs.get("dtype")) for half in _HALF
        ):
            return args[0]  # PEFT rounds activations to the type of an adapter
        return func(*args, **kwargs)


def _promoted(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in _HALF else tensor
