"""Rollouts from vLLM servers on other GPUs or other nodes, by their OpenAI-compatible routes and token ids.

A batch is split over the servers with the current weights, and redistributed if one fails. A server that fails, or was
restarted and has other weights, gets no more requests until the next weight sync, which includes it again. With a
single server everything waits for it, as long as `VLLMServer` does.
"""

from __future__ import annotations

import heapq
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx

from think_as_locals.engines.engine import Chat, Sampling, TokenEngine
from think_as_locals.engines.weight_digests import Digest, DigestRequest
from think_as_locals.runtime.processes import in_background
from think_as_locals.types import ServerError

VLLM_KEY_VARIABLE = "VLLM_API_KEY"
START_COMMAND = "launch/vllm_server.sh MODEL --dtype DTYPE"
_CONNECT = 5.0  # seconds: a living server accepts a connection within this time
_PAUSE = 1.0  # seconds before the next try
_STATE_TIMEOUT_S = 5.0  # for questions that a server answers at once, if there are others
_IMPATIENT_TRIES = 2  # a connection that was kept open may just have been closed
_TRIES_WITH_ANSWER = 3  # if the server answers with errors, more tries do not help

_logger = logging.getLogger(__name__)

T = TypeVar("T")


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
    after an answer 4xx, after three answers 5xx or, without `patient`, after two tries without a connection.
    """

    def __init__(self, url: str, timeout_s: float, *, patient: bool = True) -> None:
        if not (key := os.environ.get(VLLM_KEY_VARIABLE)):
            raise ServerError(
                f"{VLLM_KEY_VARIABLE} is not set: put the key there that the server at {url} was started with"
            )
        self.url = url
        self._client = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, trust_env=False)
        self._timeout = timeout_s
        self._tries_without_answer = math.inf if patient else _IMPATIENT_TRIES
        self._until = math.inf  # when the innermost limit ends
        self._adapter: dict[str, str] = {}  # fields of a request that apply it

    @contextmanager
    def one_limit(self, seconds: float = math.inf) -> Iterator[None]:
        """Let all requests within this context share one `timeout_s`, or less."""
        outer = self._until
        self._until = time.monotonic() + min(seconds, self.left_s)
        try:
            yield
        finally:
            self._until = outer

    @property
    def left_s(self) -> float:
        """How long a request may take that begins now."""
        return max(0.0, min(self._timeout, self._until - time.monotonic()))

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

    def read(self, request: DigestRequest, weights: str) -> list[dict[str, Digest]]:
        """Return each worker's digests for a request; an OtherWeightsError as in `complete`."""
        question = {"method": "tal_read", "kwargs": {"request": request}}
        workers = self._send("POST", "/collective_rpc", json=question).json()["results"]
        self._check_weights(weights)
        return [{name: (count, total) for name, (count, total) in worker.items()} for worker in workers]

    def load_weights(self, files: Iterable[Path], name: str) -> None:
        """Load weights into every worker from safetensors files, each as soon as it is written, under a new name.

        An OtherWeightsError says that the server was restarted meanwhile.
        """
        self.start_weight_update()
        for file in files:
            self.update_weights({"file": str(file), "weights": name})
        self.finish_weight_update(name)

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
        content = {"json": {"update_info": update_info}}
        self._send("POST", "/update_weights", before=self._check_updating, tries_with_answer=1, **content)

    def finish_weight_update(self, name: str) -> None:
        """End an update, and reset the prefix cache."""
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
                f"{self.url} is no vLLM server that {START_COMMAND} started ({got}): correct rollout.urls"
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
        until = started + self.left_s
        while until > time.monotonic() and answers < tries_with_answer:
            before()
            tries += 1
            left = max(0.0, until - time.monotonic())
            try:
                limit = httpx.Timeout(left, connect=min(left, _CONNECT))
                response = self._client.request(method, path, timeout=limit, **content)
            except httpx.TransportError as error:
                what = f"{type(error).__name__}: {error}"
                if tries - answers >= self._tries_without_answer:
                    break
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
            f"Start it with {START_COMMAND} and its key in {VLLM_KEY_VARIABLE}; rollout.urls says where it listens, "
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


class VLLMServers:
    """Servers of one model; those that have not failed since the last call of `states` are `ready`."""

    def __init__(self, urls: Sequence[str], timeout_s: float) -> None:
        self.all = [VLLMServer(url, timeout_s, patient=len(urls) == 1) for url in urls]
        self.ready = self.all
        self._timeout_s = timeout_s
        self._state_timeout_s = _STATE_TIMEOUT_S if len(urls) > 1 else math.inf
        self._warned: set[tuple[VLLMServer, str]] = set()
        self._last_error: ServerError | None = None  # of the last server that left `ready`

    @contextmanager
    def one_limit(self) -> Iterator[None]:
        """Let all requests within this context share one `timeout_s`."""
        with ExitStack() as limits:
            for server in self.all:
                limits.enter_context(server.one_limit())
            yield

    def states(self) -> list[dict[str, Any]]:
        """Return the states of all servers that answer, which are `ready` from then on.

        If none does, all are tried again for `timeout_s`; then the ServerError of the first is raised.
        """
        until = time.monotonic() + self._timeout_s
        while True:
            self.ready = self.all
            found, errors = self._each(VLLMServer.state, self._state_timeout_s)
            if found:
                return list(found.values())
            if time.monotonic() + _PAUSE > until:
                raise errors[0]
            time.sleep(_PAUSE)

    def on_ready(self, work: Callable[[VLLMServer], T]) -> list[T]:
        """Return the results of the ready servers that succeed; if none does, try again with all that answer by then.

        This is the end of a weight sync: if a server in the results fails later, that is logged again.
        """
        until = time.monotonic() + self._timeout_s
        while True:
            found, errors = self._each(work)
            if found:
                self._warned = {each for each in self._warned if each[0] not in found}  # they are back
                return list(found.values())
            if others := [error for error in errors if isinstance(error, OtherWeightsError)]:
                raise others[0]
            if time.monotonic() > until:
                raise errors[0]
            self.states()

    def on_all_ready(self, work: Callable[[VLLMServer], T]) -> list[T]:
        """Return the results of the ready servers; raise the ServerError of the first that fails."""
        found, errors = self._each(work)
        if errors:
            raise errors[0]
        return list(found.values())

    def complete(self, prompts: Sequence[list[int]], weights: str, **parameters: Any) -> list[SampledTokens]:
        """Return a completion for each prompt, by servers with these weights; see `VLLMServer.complete`.

        While several are left, each gets half of the time: if one hangs, the others sample its part in the rest.
        Raises OtherWeightsError, with what the last one failed with, if no server is left that has them.
        """

        def sample(indices: dict[VLLMServer, list[int]], server: VLLMServer) -> list[SampledTokens]:
            own = [prompts[index] for index in indices[server]]
            return server.complete(own, weights, **parameters) if own else []

        if len(self.all) > 1:
            self._each(VLLMServer.state, self._state_timeout_s)  # one that hangs now does not cost half of the time
        found: dict[int, SampledTokens] = {}
        while left := [index for index in range(len(prompts)) if index not in found]:
            if not self.ready:
                raise OtherWeightsError(
                    f"no vLLM server is left that holds {weights} (of several, each may take half of "
                    f"rollout.timeout_s); the last failed with: {self._last_error}"
                ) from self._last_error
            parts = share([prompts[index] for index in left], len(self.ready), parameters.get("max_tokens", 0))
            indices = {server: [left[i] for i in part] for server, part in zip(self.ready, parts, strict=True)}
            limit = self.ready[0].left_s / 2 if len(self.ready) > 1 else math.inf
            sampled, _ = self._each(partial(sample, indices), limit)
            for server, completions in sampled.items():
                found |= zip(indices[server], completions, strict=True)
        return [found[index] for index in range(len(prompts))]

    def prefix_cache(self) -> dict[VLLMServer, tuple[float, float]]:
        """Return hits and queries of the prefix caches of the ready servers that tell, in prompt tokens.

        One that does not stays ready: statistics say nothing about its sampling.
        """
        return self._outcomes(VLLMServer.prefix_cache, self._state_timeout_s)[0]

    def _each(
        self, work: Callable[[VLLMServer], T], seconds: float = math.inf
    ) -> tuple[dict[VLLMServer, T], list[ServerError]]:
        """Return the results of the ready servers and the errors of others, which are not ready any more."""
        found, errors = self._outcomes(work, seconds)
        for server, error in errors.items():
            self._last_error = error
            if (fault := (server, str(error).partition("(")[0])) not in self._warned:
                self._warned.add(fault)
                _logger.warning("a vLLM server is left out until it answers at a weight sync: %s", error)
        self.ready = list(found)
        return found, list(errors.values())

    def _outcomes(
        self, work: Callable[[VLLMServer], T], seconds: float
    ) -> tuple[dict[VLLMServer, T], dict[VLLMServer, ServerError]]:
        """Return the results and the errors of the ready servers; the error of a single server is raised."""

        def limited(server: VLLMServer) -> T:
            with server.one_limit(seconds):
                return work(server)

        # Threads of a pool would keep the process from ending while a server samples.
        tasks = {server: in_background(partial(limited, server)) for server in self.ready}
        found, errors = dict[VLLMServer, T](), dict[VLLMServer, ServerError]()
        for server, task in tasks.items():
            try:
                found[server] = task.result()
            except ServerError as error:
                if len(self.all) == 1:
                    raise
                errors[server] = error
        return found, errors


def share(prompts: Sequence[list[int]], count: int, max_tokens: int) -> list[list[int]]:
    """Split prompts (by index) over `count` servers: equal prompts together, and about as many tokens for each server.

    Example:
        >>> share([[1], [2, 2, 2], [3, 3], [3, 3]], 2, max_tokens=1)
        [[1, 0], [2, 3]]
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, prompt in enumerate(prompts):
        groups.setdefault(tuple(prompt), []).append(index)
    tokens = {prompt: len(prompt) + max_tokens * len(indices) for prompt, indices in groups.items()}
    parts: list[list[int]] = [[] for _ in range(count)]
    loads = [(0, number) for number in range(count)]
    for group in sorted(groups, key=lambda each: -tokens[each]):
        load, number = heapq.heappop(loads)
        parts[number] += groups[group]
        heapq.heappush(loads, (load + tokens[group], number))
    return parts
