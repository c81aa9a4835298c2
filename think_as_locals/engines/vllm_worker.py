"""Extensions inside a vLLM server: launch/vllm_server.sh names these two classes on its command line."""

from __future__ import annotations

import os
import secrets
from typing import Any

from think_as_locals.engines.vllm_engine import adapter_limits, keep_weights_plain

keep_weights_plain()  # vLLM imports this module in every worker, before the model loads


class WorkerExtension:
    """Methods of a worker for `/collective_rpc`, beside vLLM's own `reload_weights`."""

    model_runner: Any

    def tal_state(self) -> dict[str, Any]:
        """Return the path its weights were last loaded from, how it computes, and its adapter limits."""
        config = self.model_runner.model_config
        return {
            "weights": config.model,
            "dtype": str(config.dtype).removeprefix("torch."),
            "logprobs_mode": config.logprobs_mode,
            "adapters": adapter_limits(self.model_runner),
        }


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
