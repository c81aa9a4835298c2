"""vLLM's weight transfer by NCCL with TCP in place of NCCL, for a trainer and servers without GPUs.

Importing it replaces the communicator and the streams; handshake, ranks, packing and routes are vLLM's. A server has it
as its worker extension.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from vllm.distributed.device_communicators import pynccl
from vllm.distributed.weight_transfer import nccl_common, packed_tensor

from think_as_locals.engines.vllm_worker import WorkerExtension

__all__ = ["WorkerExtension"]


class Communicator:
    """A broadcast through the store by which the processes have found each other."""

    def __init__(self, group: Any, device: Any) -> None:
        self._group = group

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        tensor.copy_(self._group.broadcast_obj(tensor if self._group.rank == src else None, src))


pynccl.PyNcclCommunicator = Communicator  # type: ignore[assignment,misc]
nccl_common.torch = packed_tensor.torch = SimpleNamespace(  # type: ignore[attr-defined]
    **{name: getattr(torch, name) for name in ("Tensor", "cat", "empty", "uint8")},
    accelerator=SimpleNamespace(current_device_index=lambda: 0),
    cuda=SimpleNamespace(stream=nullcontext),
)
packed_tensor._get_streams = lambda _, count: (SimpleNamespace(synchronize=lambda: None),) * count
