"""The policy's weights to a vLLM server: as files of a shared folder, or by NCCL from GPU to GPUs.

Files are written while others are gathered, and read as soon as they are written. For NCCL vLLM's own transfer engine
(`vllm.distributed.weight_transfer`, its documentation: "Weight Transfer") does the work on both sides; here are the
weights in the form that it requires. Tests run it with a real vLLM server on a CPU, where TCP takes the place of NCCL;
NCCL itself has not run yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from threading import Condition
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from think_as_locals.engines.vllm_server import VLLMServer
from think_as_locals.runtime.processes import in_background

FILE_BYTES = 256 * 2**20
"""A file's size. Two of them are in memory at most: one being filled, one being written."""


class WeightFiles:
    """Safetensors files that one thread fills with `add`, while any number of others iterate over them.

    If a file cannot be written within `limit_s`, `add` goes on, since other ranks gather weights together with this
    one; iterating then raises the OSError.
    """

    def __init__(self, folder: Path, limit_s: float, file_bytes: int = FILE_BYTES) -> None:
        self.folder = folder
        self._limit_s = limit_s
        self._file_bytes = file_bytes
        self._files: list[Future[Path]] = []
        self._changed = Condition()
        self._closed = False
        self._filled: dict[str, Tensor] = {}

    def __iter__(self) -> Iterator[Path]:
        """Yield every file once it is written, until `close`."""
        for index in count():
            with self._changed:
                while not self._closed and index == len(self._files):
                    self._changed.wait()
            if index == len(self._files):
                return
            yield self._files[index].result()

    def add(self, name: str, tensor: Tensor) -> None:
        """Copy a tensor to the host and into the next file."""
        self._filled[name] = tensor.detach().to("cpu", copy=True).contiguous()
        if sum(each.nbytes for each in self._filled.values()) >= self._file_bytes:
            self._write()

    def close(self) -> None:
        """Write the rest, and end iterations."""
        if self._filled:
            self._write()
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _write(self) -> None:
        wait(self._files[-1:], self._limit_s)
        path, tensors = self.folder / f"weights-{len(self._files):05}.safetensors", self._filled
        self._filled = {}

        def write() -> Path:
            self.folder.mkdir(parents=True, exist_ok=True)
            save_file(tensors, path, metadata={"format": "pt"})
            tensors.clear()
            return path

        with self._changed:
            self._files.append(in_background(write))
            self._changed.notify_all()


Weights = Callable[[], Iterator[tuple[str, Tensor]]]
"""Yields every weight under the name that vLLM loads it by; all ranks iterate together."""


class NCCLTransfer:
    """An NCCL group of the main process and all workers, which is made anew if the server was restarted."""

    def __init__(self, weights: Weights, server: VLLMServer | None, rank: int) -> None:
        """Take the weights, the server (only the main process has it) and this process's rank."""
        self._weights = weights
        self._rank = rank
        self._device = torch.cuda.current_device() if torch.cuda.is_available() else None
        self._engine: Any = None
        self._server = server

    @property
    def connected(self) -> bool:
        """Whether this process is in a group."""
        return self._engine is not None

    def send(self, name: str, *, connect: bool) -> None:
        """Send all weights under a name, on all ranks together; `connect` makes the group first."""
        if self._device is not None:
            torch.cuda.set_device(self._device)  # a new thread begins with the first one
        if connect:
            self._engine = self._connect()
        if self._server:
            self._server.next_weights = name
        self._engine.send_weights()

    def _connect(self) -> Any:
        from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo, NCCLTrainerWeightTransferEngine
        from vllm.utils.network_utils import get_ip, get_open_port

        weights = self._weights

        class PolicyWeights(WeightSource):
            """The policy in vLLM's form: first the metadata, then the tensors one by one."""

            def __init__(self) -> None:
                self._meta = [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in weights()]

            def metadata(self) -> list[ParamMeta]:
                return self._meta

            def __iter__(self) -> Iterator[tuple[str, Tensor]]:
                return weights()

        address, port, workers = "", 0, 0
        if self._server:
            address, port = get_ip(), get_open_port()  # by which the server reaches this machine
            workers = self._server.world_size()
        info = NCCLTrainerInitInfo(master_address=address, master_port=port, world_size=1 + workers, rank=self._rank)
        return NCCLTrainerWeightTransferEngine.trainer_init(info, client=self._server, source=PolicyWeights())


def nccl_unsupported_reason(state: dict[str, Any]) -> str | None:
    """Return why weights cannot be sent by NCCL to a server in this state, or `None`."""
    if find_spec("vllm") is None:
        return "vLLM is not installed beside the trainer"
    if not torch.cuda.is_available():
        return "the trainer has no GPU"
    if not state["gpu"]:
        return "the server has no GPU"
    return None
