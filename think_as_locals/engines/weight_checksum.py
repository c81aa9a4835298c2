"""A checksum of one tensor of an engine, which shows whether a weight sync has arrived.

An update by 1e-6 changes 4 % of a matrix's elements in bfloat16 (of standard deviation .02): too little for
log-probabilities to show, but not for the bits. The tensor is one that training has changed since the last sync, among
those that vLLM holds under the name by which they are sent, as a whole or divided over its workers: the matrix behind
attention, of an adapter its B.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor

from think_as_locals.types import TrainingError

_READABLE = (".o_proj", ".out_proj", ".c_proj", ".dense")
_WEIGHT, _ADAPTER = ".weight", ".lora_B.weight"
_ADAPTER_PREFIX = "base_model.model."  # of the names by which PEFT saves an adapter
_INTEGERS = {2: torch.int16, 4: torch.int32}


class ChecksumRequest(TypedDict):
    """The tensor whose checksum is requested, and the type it was sent in."""

    name: str
    dtype: str


def checksum(tensor: Tensor) -> int:
    """Return the sum of the squares of a tensor's elements, read as integers: those of its parts add up."""
    bits = tensor.detach().contiguous().view(_INTEGERS[tensor.element_size()]).int()
    return int((bits * bits).sum())


def read(model_runner: Any, request: ChecksumRequest) -> int | None:
    """Return the checksum of a vLLM worker's part of a tensor, of an adapter the last; `None` if it has none so."""
    name = request["name"]
    if name.endswith(_ADAPTER):
        manager = model_runner.lora_manager._adapter_manager
        slot, _ = max(enumerate(manager.lora_index_to_id), key=lambda each: each[1] or 0)
        layer = manager.modules.get(name.removeprefix(_ADAPTER_PREFIX).removesuffix(_ADAPTER))
        tensor = layer.lora_b_stacked[0][slot] if layer is not None else None
    else:
        named = model_runner.get_model().named_parameters()  # `base_layer`: where vLLM may apply an adapter
        tensor = {own.replace(".base_layer", ""): parameter for own, parameter in named}.get(name)
    if tensor is None or tensor.dtype != getattr(torch, request["dtype"]):  # it may be quantised
        return None
    return checksum(tensor)


class SentTensors:
    """The tensors of the weight syncs of a process: which one to read back, and the checksum expected."""

    def __init__(self, dtype: str) -> None:
        self.request: ChecksumRequest | None = None
        self._dtype = dtype
        self._last: dict[str, int] = {}
        self._has_changed = False

    def begin(self) -> None:
        """Begin another sync."""
        self.request, self._has_changed = None, False

    def add(self, name: str, tensor: Tensor) -> None:
        """Note a tensor that is sent, in the engine's type."""
        suffix = _ADAPTER if name.endswith(_ADAPTER) else _WEIGHT
        if self._has_changed or not name.removesuffix(suffix).endswith(_READABLE):
            return
        found = checksum(tensor)
        self._has_changed = found != self._last.get(name)
        if self.request is None or self._has_changed:
            self.request = {"name": name, "dtype": self._dtype}
        self._last[name] = found

    @property
    def expected(self) -> int:
        """The checksum of the requested tensor."""
        return self._last[self.request["name"]] if self.request else 0


def check(name: str, expected: int, workers: Sequence[int | None], where: str) -> bool:
    """Return whether any worker could read a tensor; a TrainingError if it is not the one that was sent."""
    found = [each for each in workers if each is not None]
    if found and sum(found) != expected and set(found) != {expected}:  # divided over the workers, or whole on each
        raise TrainingError(
            f"after a weight sync {name} in {where} differs from the policy's, expected the same bits: the sync did "
            "not arrive. Nothing was sampled with it"
        )
    return bool(found)
