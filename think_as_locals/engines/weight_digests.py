"""Digests of an engine's weights, to compare them bit for bit with those that it was sent.

vLLM keeps tensors in a layout of its own: query, key and value in one, the vocabulary padded, each worker with a part.
So its own loader is asked where they are: it gets tensors without data, and wherever it would copy one into a weight,
the elements of that weight are read instead. Nothing is written, and no tensor is copied as a whole.

A sample of each tensor's elements is compared, a different one at each weight sync. An update by 1e-6 changes 4 % of a
matrix's elements in bfloat16 (of standard deviation .02), so that a sample shows whether it has arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from think_as_locals.types import TrainingError, first_of

SAMPLED = 4096
"""Elements of each tensor that are compared; of a smaller one, all."""

ADAPTER_PREFIX = "base_model.model."
"""Of the names that PEFT saves an adapter's tensors by; the rest is the layer's name."""

_COMPARABLE = (torch.bfloat16, torch.float16, torch.float32)
_INTEGERS = {2: torch.int16, 4: torch.int32}
_MODULUS = 2**64

Digest = tuple[int, int]
"""How many of the sampled elements were found, and the sum of their hashes: digests of parts add up."""


class DigestRequest(TypedDict):
    """The tensors whose digests are requested: their shapes, the type they were sent in, the number of the sync."""

    shapes: dict[str, list[int]]
    dtype: str
    sync: int
    adapter: bool


def digest(tensor: Tensor, sync: int) -> Digest:
    """Return the digest of a tensor."""
    positions = _sampled_positions(tensor.numel(), sync)
    flat = tensor.detach().reshape(-1)
    return _elements_digest(flat[torch.from_numpy(positions).to(flat.device)], positions)


def read(model_runner: Any, request: DigestRequest) -> dict[str, Digest]:
    """Return the digests of a vLLM worker's part of the weights, or of the adapter that it applied last.

    A tensor that cannot be read, for example a quantised one, has (0, 0); without an adapter there are none of it.
    """
    reader = _Reader(request)
    with torch.no_grad(), reader:
        if request["adapter"]:
            _read_adapter(model_runner.lora_manager._adapter_manager, reader)
        elif model_runner.model_config.quantization is None:
            _read_through_loader(model_runner.get_model().load_weights, reader)
        else:  # a quantised layer's loader may do anything
            _read_through_loader(_by_name(model_runner.get_model()), reader)
    return reader.found


def _sampled_positions(count: int, sync: int) -> NDArray[np.int64]:
    """Return which of so many elements are compared."""
    if count <= SAMPLED:
        return np.arange(count)
    numbers = np.arange(sync * SAMPLED, (sync + 1) * SAMPLED, dtype=np.uint64)
    return (_hash(numbers) % np.uint64(count)).astype(np.int64)


def _elements_digest(elements: Tensor, positions: NDArray[np.int64]) -> Digest:
    bits = elements.cpu().view(_INTEGERS[elements.element_size()]).numpy().astype(np.uint64)
    return len(positions), int(_hash(bits ^ _hash(positions.astype(np.uint64))).sum(dtype=np.uint64))


def _hash(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the hash of each number: the output function of SplitMix64 (Steele et al. 2014)."""
    numbers = numbers + np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


class _Reader(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode in which a copy from a placeholder reads the weight at its destination, and no tensor is written."""

    def __init__(self, request: DigestRequest) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._request = request
        self._dtype = getattr(torch, request["dtype"])
        self._placeholders: dict[int, tuple[str, Tensor]] = {}  # by their storage, which views share
        self.found: dict[str, Digest] = dict.fromkeys(request["shapes"], (0, 0))

    def placeholders(self) -> Iterator[tuple[str, Tensor | None]]:
        """Yield a placeholder for every tensor, with its name."""
        return ((name, self.placeholder(name)) for name in self._request["shapes"])

    def placeholder(self, name: str) -> Tensor | None:
        """Return a tensor without data in place of one that the request names, or `None`."""
        if (shape := self._request["shapes"].get(name)) is None:
            return None
        placeholder = torch.empty(shape, dtype=self._dtype, device="meta")
        self._placeholders[placeholder.untyped_storage()._cdata] = name, placeholder
        return placeholder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            self._read(*args[:2])
        elif not func._schema.is_mutable:
            return func(*args, **(kwargs or {}))
        return args[0]

    def _read(self, weight: Tensor, view: Tensor) -> None:
        name, placeholder = self._placeholders.get(view.untyped_storage()._cdata, ("", None))
        if placeholder is None or weight.shape != view.shape or weight.dtype not in _COMPARABLE:
            return
        positions = _sampled_positions(placeholder.numel(), self._request["sync"])
        inside, indices = _indices(view, positions)
        elements = weight[tuple(torch.from_numpy(each).to(weight.device) for each in indices)].to(self._dtype)
        count, total = self.found[name]
        more, digest = _elements_digest(elements.reshape(-1), positions[inside])
        self.found[name] = count + more, (total + digest) % _MODULUS


def _indices(view: Tensor, positions: NDArray[np.int64]) -> tuple[NDArray[np.bool_], list[NDArray[np.int64]]]:
    """Return which positions of a storage lie in a view, and their indices in each of its dimensions."""
    rest = positions - int(view.storage_offset())
    inside, indices = rest >= 0, [np.zeros_like(positions)] * view.dim()
    for dim in sorted(range(view.dim()), key=view.stride, reverse=True):
        if view.shape[dim] > 1:
            indices[dim], rest = np.divmod(rest, max(1, view.stride(dim)))
            inside = inside & (indices[dim] < view.shape[dim])
    inside = inside & (rest == 0)
    return inside, [each[inside] for each in indices]


def _read_through_loader(load_weights: Any, reader: _Reader) -> None:
    """Pass all placeholders to a loader; one at which it fails stays (0, 0)."""
    placeholders = reader.placeholders()
    for _ in range(len(reader.found) + 1):
        with suppress(Exception):  # any exception: layers that are packed or quantised have no place for it
            load_weights(each for each in placeholders)
            return


def _by_name(model: nn.Module) -> Any:
    """Return a loader for those weights of a quantised model that are not quantised."""
    parameters = dict(model.named_parameters())

    def load_weights(weights: Iterable[tuple[str, Tensor]]) -> None:
        for name, weight in weights:
            if name in parameters:
                parameters[name].data.copy_(weight)

    return load_weights


def _read_adapter(manager: Any, reader: _Reader) -> None:
    """Pass placeholders to every layer of vLLM's LoRA manager, in the slot of the adapter that was loaded last."""
    slot, active = max(enumerate(manager.lora_index_to_id), key=lambda each: each[1] or 0)
    if not active:
        reader.found = {}
        return
    for name, layer in manager.modules.items():
        parts = manager.packed_modules.get(name, [name])
        sides = [[reader.placeholder(f"{ADAPTER_PREFIX}{part}.lora_{side}.weight") for part in parts] for side in "AB"]
        if any(placeholder is not None for placeholder in sides[0]):
            layer.set_lora(slot, *(sides if len(parts) > 1 else (side[0] for side in sides)))


def differing(expected: Mapping[str, Digest], workers: Sequence[Mapping[str, Digest]]) -> tuple[list[str], list[str]]:
    """Return which tensors differ in an engine, given the digests of its workers, and which could not be read.

    Each worker has a part of a tensor, and several may have the same: together each element is there equally often.
    """
    different, unreadable = [], []
    for name, (count, total) in expected.items():
        parts = [worker.get(name) for worker in workers]
        read = sum(part[0] for part in parts if part)
        copies, remainder = divmod(read, count)
        if None in parts or remainder or (sum(part[1] for part in parts if part) - copies * total) % _MODULUS:
            different.append(name)
        elif not read:
            unreadable.append(name)
    return different, unreadable


class SentTensors:
    """The tensors of a weight sync: the request for their digests, and the expected answers.

    Experts of a mixture are left out: kernels have them in layouts of their own.
    """

    def __init__(self, dtype: str, sync: int, *, adapter: bool = False) -> None:
        self.request: DigestRequest = {"shapes": {}, "dtype": dtype, "sync": sync, "adapter": adapter}
        self.expected: dict[str, Digest] = {}
        self._dtype = getattr(torch, dtype)

    def add(self, name: str, tensor: Tensor) -> None:
        """Note a tensor that is sent."""
        if tensor.numel() and ".experts." not in name:
            self.request["shapes"][name] = list(tensor.shape)
            self.expected[name] = digest(tensor.to(self._dtype), self.request["sync"])

    def check(self, workers: Sequence[Mapping[str, Digest]], where: str) -> list[str]:
        """Return the tensors that cannot be read back from an engine, given the answers of its workers.

        A TrainingError is raised if one differs from what was sent, or if none can be read: its loader takes nothing.
        """
        different, unreadable = differing(self.expected, workers)
        if different or len(unreadable) == len(self.expected):
            named = first_of(different or unreadable, 3) or "none was sent"
            kind, how = "adapter" if self.request["adapter"] else "weights", "differ from"
            if unreadable and not different:
                how = "cannot be compared with"
            raise TrainingError(
                f"after a weight sync {len(different or unreadable)} of {len(self.expected)} tensors of the {kind} in "
                f"{where} {how} the policy's ({named}), expected the same {self.request['dtype']} bits in all: "
                "the sync did not arrive, in part or as a whole. Nothing was sampled with them"
            )
        return unreadable
