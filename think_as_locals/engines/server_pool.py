"""Several vLLM servers as one: a batch is split over those with the current weights, and redistributed if one fails.

A server that does not answer, or was restarted and has other weights, gets no more requests until the next weight sync,
which includes it again. With a single server everything waits for it, as long as `VLLMServer` does.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from think_as_locals.engines.vllm_server import OtherWeightsError, SampledTokens, VLLMServer
from think_as_locals.types import ServerError

_PAUSE_S = 1.0  # before all servers are tried again

E = TypeVar("E")
T = TypeVar("T")


class VLLMServers:
    """Servers of one model; those in `ready` have the weights of the last sync."""

    def __init__(self, urls: Sequence[str], timeout_s: float) -> None:
        self.all = [VLLMServer(url, timeout_s, patient=len(urls) == 1) for url in urls]
        self.ready = list(self.all)
        self._timeout_s = timeout_s

    @contextmanager
    def one_limit(self) -> Iterator[None]:
        """Let all requests within this context share one `timeout_s`."""
        with ExitStack() as limits:
            for server in self.all:
                limits.enter_context(server.one_limit())
            yield

    def on_each(self, work: Callable[[VLLMServer], T]) -> list[T]:
        """Return the results of all servers that answer, which are `ready` from then on.

        If none does, all are tried again for `timeout_s`; then the ServerError of the first is raised.
        """
        until = time.monotonic() + self._timeout_s
        while True:
            found, errors = _in_parallel(self.all, work)
            self.ready = [server for server, _ in found]
            if found:
                return [result for _, result in found]
            others = [error for error in errors if isinstance(error, OtherWeightsError)]
            if len(self.all) == 1 or others or time.monotonic() + _PAUSE_S > until:
                raise (others or errors)[0]
            time.sleep(_PAUSE_S)

    def on_all(self, work: Callable[[VLLMServer], T]) -> list[T]:
        """Return the results of all servers; raise the ServerError of the first that fails."""
        found, errors = _in_parallel(self.all, work)
        if errors:
            raise errors[0]
        return [result for _, result in found]

    def complete(self, prompts: Sequence[list[int]], weights: str, **parameters: Any) -> list[SampledTokens]:
        """Return a completion for each prompt, by servers with these weights; see `VLLMServer.complete`.

        Raises OtherWeightsError if no server is left that has them.
        """
        found: dict[int, SampledTokens] = {}
        while left := [place for place in range(len(prompts)) if place not in found]:
            parts = share([prompts[place] for place in left], len(self.ready), parameters.get("max_tokens", 0))
            tasks = list(zip(self.ready, ([left[i] for i in part] for part in parts), strict=True))

            def sample(task: tuple[VLLMServer, list[int]]) -> list[SampledTokens]:
                server, places = task
                return server.complete([prompts[i] for i in places], weights, **parameters) if places else []

            sampled, errors = _in_parallel(tasks, sample)
            if errors and len(self.all) == 1:
                raise errors[0]
            self.ready = [server for (server, _), _ in sampled]
            for (_, places), result in sampled:
                found |= zip(places, result, strict=True)
            if not self.ready:
                raise OtherWeightsError(f"no vLLM server is left that holds {weights}: {errors[0]}")
        return [found[place] for place in range(len(prompts))]

    def prefix_cache(self) -> tuple[float, float]:
        """Return hits and queries of the prefix caches of all ready servers, in prompt tokens."""
        counts, errors = _in_parallel(self.ready, VLLMServer.prefix_cache)
        if errors and len(self.all) == 1:
            raise errors[0]
        return sum(hits for _, (hits, _) in counts), sum(queries for _, (_, queries) in counts)


def share(prompts: Sequence[list[int]], count: int, max_tokens: int) -> list[list[int]]:
    """Split prompts (by index) over `count` servers: equal prompts together, and about as many tokens for each server.

    Example:
        >>> share([[1], [2, 2, 2], [3, 3], [3, 3]], 2, max_tokens=1)
        [[1, 0], [2, 3]]
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for place, prompt in enumerate(prompts):
        groups.setdefault(tuple(prompt), []).append(place)
    tokens = {prompt: len(prompt) + max_tokens * len(places) for prompt, places in groups.items()}
    parts: list[list[int]] = [[] for _ in range(count)]
    loads = [(0, number) for number in range(count)]
    for group in sorted(groups, key=lambda each: -tokens[each]):
        load, number = heapq.heappop(loads)
        parts[number] += groups[group]
        heapq.heappush(loads, (load + tokens[group], number))
    return parts


def _in_parallel(each: Sequence[E], work: Callable[[E], T]) -> tuple[list[tuple[E, T]], list[ServerError]]:
    """Return each with the result of `work`, and the ServerErrors of those for which it raised one."""

    def attempt(one: E) -> T | ServerError:
        try:
            return work(one)
        except ServerError as error:
            return error

    with ThreadPoolExecutor(max(1, len(each))) as pool:
        outcomes = list(zip(each, pool.map(attempt, each), strict=True))
    errors = [outcome for _, outcome in outcomes if isinstance(outcome, ServerError)]
    return [(one, outcome) for one, outcome in outcomes if not isinstance(outcome, ServerError)], errors
