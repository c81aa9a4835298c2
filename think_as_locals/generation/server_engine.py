"""Rollouts from a vLLM server on other GPUs or another node, by its OpenAI-compatible routes and token ids."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from think_as_locals.generation.engine import Chat, Messages, Sampling
from think_as_locals.types import Rollout, ServerError

KEY_VARIABLE = "VLLM_API_KEY"
START = "launch/vllm_server.sh MODEL --dtype DTYPE"
_CONNECT = 5.0  # seconds in which a living server takes a connection
_PAUSE = 1.0  # seconds before the next try
_TRIES_WITH_ANSWER = 3  # where the server answers that it failed, more of the same do not help


@dataclass(frozen=True, slots=True)
class Completion:
    """Sampled tokens; for each, its log-probability and those of the likeliest ones at its place, by token id."""

    token_ids: list[int]
    log_probs: list[float | None]
    likeliest: list[dict[int, float]]


class VLLMServer:
    """A vLLM server started by launch/vllm_server.sh; its key comes from the environment.

    Args:
        url: Where it listens.
        timeout_s: Seconds in which it must have answered, tries and a restart included.

    Raises:
        ServerError: by every method, where it does not answer in time, or answers that it cannot.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        if not (key := os.environ.get(KEY_VARIABLE)):
            raise ServerError(f"{KEY_VARIABLE} is not set: put the key there that the server at {url} was started with")
        self._client = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, trust_env=False)
        self._timeout = timeout_s

    def complete(self, prompts: Sequence[Sequence[int]], **parameters: Any) -> list[Completion]:
        """One completion for each prompt, in one request; `parameters` are those of /v1/completions."""
        asked = {"prompt": prompts, "logprobs": 0, "return_token_ids": True, "return_tokens_as_token_ids": True}
        choices = self._ask("POST", "/v1/completions", json={**asked, **parameters}).json()["choices"]
        return [_completion(choice) for choice in sorted(choices, key=lambda choice: choice["index"])]

    def load_weights(self, folder: str) -> None:
        """Have every worker read the safetensors of a folder, and forget what was computed with other weights."""
        self._ask("POST", "/collective_rpc", json={"method": "reload_weights", "kwargs": {"weights_path": folder}})
        if not self._ask("POST", "/reset_prefix_cache").json()["success"]:
            raise ServerError(
                f"the vLLM server at {self._client.base_url} did not empty its prefix cache: is it shared?"
            )

    def state(self) -> dict[str, str]:
        """What its workers agree on: `weights` (where they were loaded from), `dtype`, `logprobs_mode`."""
        workers = self._ask("POST", "/collective_rpc", json={"method": "tal_state"}).json()["results"]
        if any(worker != workers[0] for worker in workers):
            raise ServerError(f"the workers of the vLLM server at {self._client.base_url} differ: {workers}")
        state: dict[str, str] = workers[0]
        return state

    def prefix_cache(self) -> tuple[float, float]:
        """Prompt tokens that were found in its prefix cache, and that were looked for, since it started."""
        lines = [line.split() for line in self._ask("GET", "/metrics").text.splitlines()]
        hits, looked_for = (
            sum(float(line[-1]) for line in lines if line and line[0].startswith(f"vllm:prefix_cache_{name}_total"))
            for name in ("hits", "queries")
        )
        return hits, looked_for

    def _ask(self, method: str, path: str, **content: Any) -> httpx.Response:
        started, tries, answers, what = time.monotonic(), 0, 0, ""
        while (left := started + self._timeout - time.monotonic()) > 0 and answers < _TRIES_WITH_ANSWER:
            tries += 1
            try:
                limit = httpx.Timeout(left, connect=min(left, _CONNECT))
                response = self._client.request(method, path, timeout=limit, **content)
            except httpx.TransportError as error:
                what = f"{type(error).__name__}: {error}"
            else:
                if response.is_success:
                    return response
                answers += 1
                what = f"{response.status_code}: {response.text[:300]}"
                if response.is_client_error:
                    break
            time.sleep(min(_PAUSE, max(0.0, started + self._timeout - time.monotonic())))
        raise ServerError(
            f"the vLLM server at {self._client.base_url} failed at {path} ({what}); {tries} tries in "
            f"{time.monotonic() - started:.0f} s of {self._timeout:.0f} s (rollout.timeout_s). "
            f"Start it with {START} and its key in {KEY_VARIABLE}; rollout.url says where it listens"
        )


@dataclass(frozen=True, slots=True)
class ServerEngine:
    """What completes prompts, a `VLLMServer` or what stands before one, and the chat it speaks."""

    complete: Callable[..., list[Completion]]
    chat: Chat

    def generate(self, conversations: Sequence[Messages], sampling: Sampling) -> list[Rollout]:
        """One rollout for each conversation, in their order."""
        sampled = self.complete(
            self.chat.encode(conversations),
            temperature=sampling.temperature,
            max_tokens=sampling.max_completion_length,
            seed=sampling.seed,
            stop_token_ids=sorted(self.chat.eos_token_ids),
        )
        return [self.chat.rollout(completion.token_ids) for completion in sampled]


def _completion(choice: dict[str, Any]) -> Completion:
    found = choice["logprobs"]
    return Completion(
        token_ids=choice["token_ids"],
        log_probs=found["token_logprobs"],
        likeliest=[
            {int(token.removeprefix("token_id:")): value for token, value in place.items()}
            for place in found["top_logprobs"]
        ],
    )
