"""Extensions of a vLLM server, which launch/vllm_server.sh names on its command line."""

from __future__ import annotations

import os
import secrets
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

from think_as_locals.engines.vllm_engine import ChecksumRequest, adapter_limits, keep_weights_plain, read_checksum

keep_weights_plain()  # vLLM imports this module in every worker, before the model loads


class TransferEngine(NCCLWeightTransferEngine):
    """vLLM's transfer of weights by NCCL, extended by files in a shared folder.

    Each update has the name of the weights in `weights`; `tal_state` reports it once the update is finished.
    """

    _name = ""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load the weights of a file, or receive them as vLLM's own transfer does."""
        self._name = update_info.pop("weights")
        if "file" not in update_info:
            super().update_weights(update_info)
            return
        with safe_open(update_info["file"], "pt") as file:
            self.model.load_weights((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118  (a file is no mapping)
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def finish_weight_update(self) -> None:
        """Have the model compute with the new weights."""
        super().finish_weight_update()
        self.model_config.model = self._name


WeightTransferEngineFactory.register_engine("tal", TransferEngine)


class WorkerExtension:
    """Methods of a worker for `/collective_rpc`."""

    model_runner: Any
    device: torch.device
    weight_transfer_engine: TransferEngine
    _weight_update_active: bool

    def tal_state(self) -> dict[str, Any]:
        """Return the name of the weights, whether an update or an NCCL group is open, numeric types, adapter limits."""
        config = self.model_runner.model_config
        return {
            "weights": config.model,
            "updating": self._weight_update_active,
            "gpu": self.device.type == "cuda",
            "connected": self.weight_transfer_engine.model_update_group is not None,
            "dtype": str(config.dtype).removeprefix("torch."),
            "head_dtype": str(config.head_dtype).removeprefix("torch."),
            "logprobs_mode": config.logprobs_mode,
            "adapters": adapter_limits(self.model_runner),
        }

    def tal_read(self, request: ChecksumRequest) -> dict[str, int | None]:
        """Return the checksum of this worker's part of a tensor; see `read_checksum`."""
        return {"checksum": read_checksum(self.model_runner, request)}  # vLLM makes a text of a bare number


class RequireKey:
    """ASGI middleware: every route but /health needs the key. vLLM's own check omits those that change weights."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._expected = b"Bearer " + os.environb[b"VLLM_API_KEY"]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, or answer 401."""
        if scope["type"] in ("http", "websocket") and scope["path"] != "/health":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not secrets.compare_digest(given, self._expected):
                await send({"type": "http.response.start", "status": 401, "headers": []})
                await send({"type": "http.response.body", "body": b"unauthorised"})
                return
        await self._app(scope, receive, send)
