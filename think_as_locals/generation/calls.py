"""Many requests to one server at a time: bounded, tried again where that can help, each with a deadline."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from think_as_locals.generation.completer import Reply
from think_as_locals.types import ServerError

_CONNECT = 10.0  # seconds in which a living server takes a connection
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds before the second try, and before any
_QUOTED = 300  # characters of what a server says that a message repeats
_REMEDIES = {
    401: "put a valid key into the environment variable that key_variable names",
    403: "put a key that may use this model into the environment variable that key_variable names",
    404: "check url and model",
}


@dataclass(slots=True, kw_only=True)
class Calls:
    """The conversations of one call of `ChatServer.complete`.

    Args:
        route: Where requests are posted.
        key: Goes with each, and into no message.
        concurrency: Requests under way at a time.
        deadline_s: Seconds for each conversation, from its first try to its reply.
        timeout_s: Seconds without any answer, after which the server is given up.
        seed: Of the pauses between tries.
        read: Answer -> reply; raises where it is none.
        keep: Called with the place of each conversation and its reply.
    """

    route: str
    key: str | None
    concurrency: int
    deadline_s: float
    timeout_s: float
    seed: int
    read: Callable[[Any], Reply]
    keep: Callable[[int, Reply], None]
    _heard: float = 0.0  # when the server last said something, or until when it asked to be left alone

    async def answer(self, bodies: Sequence[Mapping[str, Any]]) -> None:
        """Post all of them; the first fault cancels the rest.

        Raises:
            ServerError: a deadline passed, the server was silent, or it answered what no other try would mend.
        """
        self._heard = time.monotonic()
        left = iter(enumerate(bodies))
        client = httpx.AsyncClient(
            headers={} if self.key is None else {"Authorization": f"Bearer {self.key}"},
            limits=httpx.Limits(max_connections=self.concurrency, max_keepalive_connections=self.concurrency),
            timeout=httpx.Timeout(None, connect=_CONNECT),  # all else is up to the deadline
            trust_env=False,
            follow_redirects=False,
        )
        try:
            async with client, asyncio.TaskGroup() as watched:
                watch = watched.create_task(self._watch())
                async with asyncio.TaskGroup() as workers:
                    for _ in range(min(self.concurrency, len(bodies))):
                        workers.create_task(self._work(client, left))
                watch.cancel()
        except BaseExceptionGroup as group:
            raise _first(group) from None  # the others came of the same server at the same time

    async def _work(self, client: httpx.AsyncClient, left: Iterator[tuple[int, Mapping[str, Any]]]) -> None:
        for place, body in left:
            response = await self._post(client, place, body)
            try:
                reply = self.read(response.json())
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                raise self._fault(
                    f"{self._said(response)} ({type(error).__name__}: {error})",
                    "is the url that of an OpenAI-compatible server?",
                ) from None
            self.keep(place, reply)

    async def _watch(self) -> None:
        while (silence := time.monotonic() - self._heard) < self.timeout_s:
            await asyncio.sleep(self.timeout_s - silence)
        raise self._fault(f"no answer for {self.timeout_s:g} s", "is it up? timeout_s says how long to wait for it")

    async def _post(self, client: httpx.AsyncClient, place: int, body: Mapping[str, Any]) -> httpx.Response:
        ends = time.monotonic() + self.deadline_s
        what, tries = "no answer", 0
        for pause in _pauses(random.Random(f"{self.seed}-{place}")):
            tries += 1
            try:
                response = await asyncio.wait_for(client.post(self.route, json=body), ends - time.monotonic())
            except TimeoutError:
                break
            except httpx.RequestError as error:
                what = f"{type(error).__name__}: {error}"
            else:
                if response.is_success:
                    self._heard = time.monotonic()
                    return response
                what = self._said(response)
                if response.status_code != httpx.codes.TOO_MANY_REQUESTS and not response.is_server_error:
                    raise self._refused(response)
                pause = max(pause, _retry_after(response))
                self._heard = max(self._heard, time.monotonic() + pause)
            if time.monotonic() + pause > ends:
                break
            await asyncio.sleep(pause)
        raise self._fault(
            f"{what}; {tries} tries for conversation {place}, which has {self.deadline_s:g} s",
            "raise deadline_s, or lower concurrency where the server has too much to do",
        )

    def _refused(self, response: httpx.Response) -> ServerError:
        if response.is_redirect:
            asked = f"{response.status_code}, a redirect to {response.headers.get('location', 'nowhere')}"
            return self._fault(asked, "redirects are not followed; put the right address into url")
        remedy = _REMEDIES.get(response.status_code, "check model and fields, and whether the prompt is too long")
        return self._fault(self._said(response), remedy)

    def _said(self, response: httpx.Response) -> str:
        return f"{response.status_code} with {self._without_key(response.text)[:_QUOTED]!r}"

    def _fault(self, got: str, remedy: str) -> ServerError:
        said = f"the server at {self.route} failed: got {got}; expected a chat completion. To mend it: {remedy}"
        return ServerError(self._without_key(said))

    def _without_key(self, text: str) -> str:
        return text.replace(self.key, "***") if self.key else text


def _pauses(generator: random.Random) -> Iterator[float]:
    """Seconds before each next try: twice as long each time, less up to a half, so that not all come back at once."""
    pause = _FIRST_PAUSE
    while True:
        yield pause * generator.uniform(0.5, 1)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _retry_after(response: httpx.Response) -> float:
    """Seconds that a server asks to wait, as a number or a date (RFC 9110, section 10.2.3); else 0."""
    asked = response.headers.get("retry-after", "")
    try:
        return max(0.0, float(asked))
    except ValueError:
        pass
    try:
        when = parsedate_to_datetime(asked)
    except ValueError:
        return 0.0
    return max(0.0, (when.replace(tzinfo=when.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
