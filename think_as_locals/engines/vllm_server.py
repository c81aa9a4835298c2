"""Rollouts from a vLLM server on other GPUs or other nodes, by its OpenAI-compatible routes and token ids."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from think_as_locals.engines.engine import Chat, Sampling, TokenEngine
from think_as_locals.engines.vllm_engine import ChecksumRequest
from think_as_locals.types import ServerError

VLLM_KEY_VARIABLE = "VLLM_API_KEY"
START_COMMAND = "launch/vllm_server.sh MODEL --dtype DTYPE"
_CONNECT = 5.0  # seconds: a living server accepts a connection within this time
_PAUSE = 1.0  # seconds before the next try
_TRIES_WITH_ANSWER = 3  # if the server answers with errors, more tries do not help


class OtherWeightsError(ServerError):
    """The server holds other weights than expected: it was restarted, or given others."""


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """A completion as tokens, with their log-probabilities and, by token id, those of the likeliest tokens."""

    token_ids: list[int]
    log_probs: list[float | None]
    likeliest: list[dict[int, float]]


class VLLMServer:
    """A vLLM server started by launch/vllm_server.sh; its key comes from the environment.

    Every method tries again for `timeout_s`, in which the server may be restarted, then raises a ServerError: sooner
    after an answer 4xx, or three answers 5xx.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        if not (key := os.environ.get(VLLM_KEY_VARIABLE)):
            raise ServerError(
                f"{VLLM_KEY_VARIABLE} is not set: put the key there that the server at {url} was started with"
            )
        self.url = url
        self._client = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, trust_env=False)
        self._timeout = timeout_s
        self._until = math.inf  # when the time of `one_limit` ends
        self._adapter: dict[str, str] = {}  # fields of a request that apply it
        self.next_weights = ""  # the name of the weights that an update sends

    @contextmanager
    def one_limit(self) -> Iterator[None]:
        """Let all requests within this context share one `timeout_s`."""
        self._until = time.monotonic() + self._timeout
        try:
            yield
        finally:
            self._until = math.inf

    def complete(self, prompts: Sequence[Sequence[int]], weights: str, **parameters: Any) -> list[SampledTokens]:
        """Sample a completion for each prompt in one request, with the given weights and the adapter loaded since.

        Before every try and at the end the server must hold `weights`, else an OtherWeightsError is raised: one that
        was restarted is not asked for completions that would be discarded.
        """
        fields = {"prompt": prompts, "logprobs": 0, "return_token_ids": True, "return_tokens_as_token_ids": True}
        route, content = "/v1/completions", {**fields, **self._adapter, **parameters}

        choices = self._send("POST", route, before=lambda: self._check_weights(weights), json=content).json()["choices"]
        self._check_weights(weights)
        return [_completion(choice) for choice in sorted(choices, key=lambda choice: choice["index"])]

    def read(self, request: ChecksumRequest, weights: str) -> list[int | None]:
        """Return each worker's checksum of a tensor; an OtherWeightsError as in `complete`."""
        question = {"method": "tal_read", "kwargs": {"request": request}}
        workers = self._send("POST", "/collective_rpc", json=question).json()["results"]
        self._check_weights(weights)
        return [worker["checksum"] for worker in workers]

    def load_weights(self, files: Iterable[Path], name: str) -> None:
        """Load weights into every worker from safetensors files, each as soon as it is written, under a new name.

        An OtherWeightsError says that the server was restarted meanwhile.
        """
        self.next_weights = name
        self.start_weight_update()
        for file in files:
            self.update_weights({"file": str(file)})
        self.finish_weight_update()

    # By these four names vLLM's transfer engine calls its client (`VLLMWeightSyncClient`).

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Have its workers join a group from which they receive weights; see `training/weight_transfer.py`."""
        self._send("POST", "/init_weight_transfer_engine", json={"init_info": init_info})

    def start_weight_update(self) -> None:
        """Begin an update of weights, after ending one that a trainer left half done."""
        if self.state()["updating"]:
            self._send("POST", "/finish_weight_update")
        self._send("POST", "/start_weight_update")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Have every worker load some of the weights, from a `file` or as vLLM's NCCL transfer describes them."""
        content = {"json": {"update_info": {**update_info, "weights": self.next_weights}}}
        self._send("POST", "/update_weights", before=self._check_updating, tries_with_answer=1, **content)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """End an update, and reset the prefix cache; the version is the name of the weights."""
        name = self.next_weights
        self._send("POST", "/finish_weight_update", before=self._check_updating, json={"weight_version": name})
        if not self._send("POST", "/reset_prefix_cache").json()["success"]:
            raise ServerError(f"the vLLM server at {self.url} did not empty its prefix cache: is it shared?")
        self._adapter = {}

    def world_size(self) -> int:
        """Return how many workers it has."""
        return int(self._send("GET", "/get_world_size").json()["world_size"])

    def _check_weights(self, name: str) -> None:
        if (holds := self.state()["weights"]) != name:
            raise OtherWeightsError(f"the vLLM server at {self.url} holds {holds}, expected {name}")

    def _check_updating(self) -> None:
        if not self.state()["updating"]:
            raise OtherWeightsError(f"the vLLM server at {self.url} was restarted while it took weights")

    def load_adapter(self, folder: str) -> None:
        """Apply a LoRA adapter in place of the last one; the folder is its name, and must be new.

        The prefix cache is keyed by that name, so that nothing computed with another adapter is found.
        """
        self._send("POST", "/v1/load_lora_adapter", json={"lora_name": folder, "lora_path": folder})
        self._adapter = {"model": folder}

    def state(self) -> dict[str, Any]:
        """Return the state of all workers, which must agree; see `vllm_worker.WorkerExtension.tal_state`."""
        answer = self._send("POST", "/collective_rpc", json={"method": "tal_state"})
        try:
            workers = answer.json()["results"]
            state: dict[str, Any] = dict(workers[0])
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            got = f"it answers {answer.content[:100]!r}"
            raise ServerError(
                f"{self.url} is no vLLM server that {START_COMMAND} started ({got}): correct rollout.url"
            ) from error
        if any(worker != state for worker in workers):
            raise ServerError(f"the workers of the vLLM server at {self.url} differ: {workers}; restart it")
        return state

    def prefix_cache(self) -> tuple[float, float]:
        """Return the hits and queries of its prefix cache since it started, in prompt tokens."""
        lines = [line.split() for line in self._send("GET", "/metrics").text.splitlines()]

        def total(name: str) -> float:
            return sum(float(line[-1]) for line in lines if line and line[0].startswith(f"vllm:prefix_cache_{name}"))

        return total("hits_total"), total("queries_total")

    def _send(
        self,
        method: str,
        path: str,
        before: Callable[[], None] = lambda: None,
        tries_with_answer: int = _TRIES_WITH_ANSWER,
        **content: Any,
    ) -> httpx.Response:
        """Return the first successful answer; `before` is called before each try, and may raise."""
        started, tries, answers, what = time.monotonic(), 0, 0, "no time was left"
        until = min(started + self._timeout, self._until)
        while until > time.monotonic() and answers < tries_with_answer:
            before()
            tries += 1
            left = max(0.0, until - time.monotonic())
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
            time.sleep(min(_PAUSE, max(0.0, until - time.monotonic())))
        raise ServerError(
            f"the vLLM server at {self.url} failed at {path} ({what}); {tries} tries in "
            f"{time.monotonic() - started:.0f} s; rollout.timeout_s is {self._timeout:g}. "
            f"Start it with {START_COMMAND} and its key in {VLLM_KEY_VARIABLE}; rollout.url says where it listens, "
            "rollout.weights_dir through which folder, seen by both, it gets weights"
        )


@dataclass(frozen=True, slots=True)
class ServerEngine(TokenEngine):
    """An engine that samples by a function such as `VLLMServer.complete`."""

    complete: Callable[..., list[SampledTokens]]
    chat: Chat

    def sample_tokens(self, prompts: Sequence[list[int]], sampling: Sampling) -> list[list[int]]:
        sampled = self.complete(
            prompts,
            temperature=sampling.temperature,
            max_tokens=sampling.max_completion_length,
            seed=sampling.seed,
            stop_token_ids=sorted(self.chat.eos_token_ids),
        )
        return [one.token_ids for one in sampled]


def _completion(choice: dict[str, Any]) -> SampledTokens:
    found = choice["logprobs"]
    likeliest = [
        {int(token.removeprefix("token_id:")): value for token, value in position.items()}
        for position in found["top_logprobs"]
    ]
    return SampledTokens(choice["token_ids"], found["token_logprobs"], likeliest)
