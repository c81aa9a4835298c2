"""Several vLLM servers as one: a batch is split over those with the current weights, and redistributed if one fails.

A server that fails, or was restarted and has other weights, gets no more requests until the next weight sync, which
includes it again. With a single server everything waits for it, as long as `VLLMServer` does.
"""

from __future__ import annotations

import heapq
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar

from think_as_locals.engines.vllm_server import OtherWeightsError, SampledTokens, VLLMServer
from think_as_locals.runtime.processes import in_background
from think_as_locals.types import ServerError

_logger = logging.getLogger(__name__)

_PAUSE_S = 1.0  # before all servers are tried again
_STATE_TIMEOUT_S = 5.0  # for questions that a server answers at once, if there are others

T = TypeVar("T")


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
            if time.monotonic() + _PAUSE_S > until:
                raise errors[0]
            time.sleep(_PAUSE_S)

    def on_ready(self, work: Callable[[VLLMServer], T]) -> list[T]:
        """Return the results of the ready servers, without those that fail; if all do, work is done anew by any.

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
