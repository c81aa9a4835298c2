"""Completions from any server with an OpenAI-compatible /chat/completions route."""

from __future__ import annotations

import asyncio
import math
import os
import random
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
from anyio.from_thread import start_blocking_portal

from think_as_locals.engines.engine import Deliver, Messages, Sampling
from think_as_locals.judging import CHAT_TOKENS
from think_as_locals.types import LABELS, Item, Rollout, ServerError, TooLongError

_TOP_LOGPROBS = 20  # the most that the route gives
_FIRST_PAUSE, _MAX_PAUSE = 0.5, 30.0  # seconds before the second try, and before any
_MAX_ANSWER = 64 * 1024**2  # bytes of an answer: 8,192 tokens with their log-probabilities are 16 MB
_COMPRESSIONS = ("identity", "gzip", "deflate")  # others expand a single packet to gigabytes
_READ_HEADERS = ("retry-after", "location")
_TOO_LONG = re.compile(
    r"context.(length|window|size)|maximum model length|prompt is too long|exceeds the maximum number of tokens"
    r"|a prompt of \d+ tokens: the model takes|got \d+ (characters|bytes), expected at most",
    re.I,
)
"""Error texts of vLLM, SGLang, llama.cpp, hosted models and `tal serve` for a prompt that is too long."""
_UNREACHABLE_REMEDY = "nothing answers there: start the server, or correct the url"
_NO_TLS = (
    "it speaks no TLS (then the url begins with http://), or its certificate is not known here: "
    "SSL_CERT_FILE may name a file that holds it"
)
_REMEDIES = {
    401: "put a valid key into the environment variable that key_variable names",
    403: "put a key that may use this model into the environment variable that key_variable names",
    404: "check url and model; most urls end with /v1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatServer:
    """An engine behind a server with an OpenAI-compatible /chat/completions route.

    Transport errors and answers 429 and 5xx are retried with growing pauses, and no sooner than the server asks.
    Prompts that are too long for the server raise a TooLongError once all others are answered; any other error cancels
    all requests. A ServerError is raised if `url` is not a URL, or the key is not set or invalid.
    """

    url: str  # the part before /chat/completions, e.g. http://127.0.0.1:8000/v1
    model: str  # its name there
    key_variable: str | None  # the environment variable that holds the key; None sends none
    concurrency: int  # of requests in flight at most
    deadline_s: float  # for each conversation, from its first try to its completion
    timeout_s: float  # without any answer from the server, after which it is given up
    fields: Mapping[str, Any]  # of each request beside ours, or in their place; None removes one
    special_tokens: tuple[str, ...] = CHAT_TOKENS
    # Empty until it has answered: a server that answered before may be restarting, any other is an error at once.
    reached: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            url = httpx.URL(self.url)
        except httpx.InvalidURL:
            url = httpx.URL()
        if url.scheme not in ("http", "https") or not url.host or url.userinfo or url.query:
            visible_url = self.url.rpartition("@")[2].partition("?")[0]  # either side may hold a key
            raise ServerError(
                f"not the url of a server: {visible_url!r}; expected one such as http://127.0.0.1:8000/v1, "
                "without /chat/completions, and without a key, which belongs in an environment variable"
            )
        self.key()

    def check_texts(self, items: Iterable[Item]) -> None:
        """Do nothing: the server's tokenizer is not known."""

    def close(self) -> None:
        """Do nothing: there is no connection between calls."""

    def key(self) -> str | None:
        """Return the key from the environment."""
        if self.key_variable is None:
            return None
        key = os.environ.get(self.key_variable, "").strip()
        if not key:
            raise ServerError(f"{self.key_variable} is not set: put the key for {self.url} there")
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise ServerError(f"{self.key_variable} holds no key: expected printable ASCII without spaces")
        return key

    def sample(self, conversations: Sequence[Messages], sampling: Sampling, deliver: Deliver) -> None:
        """Sample as `Engine.sample` does; a ServerError or Ctrl-C cancels all requests in flight."""
        requests = _Requests(self, sampling, deliver)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(requests.send_all(conversations))
        else:  # a notebook or a framework runs this thread's event loop
            with start_blocking_portal() as portal:  # cancels everything on Ctrl-C, which only this thread receives
                portal.call(requests.send_all, conversations)

    def body(self, messages: Messages, sampling: Sampling) -> dict[str, Any]:
        """Return the JSON of a request."""
        body = {
            "model": self.model,
            "messages": messages,
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_completion_length,
            "seed": sampling.seed,
            **({"logprobs": True, "top_logprobs": _TOP_LOGPROBS} if sampling.label_opening else {}),
            **self.fields,
        }
        return {name: value for name, value in body.items() if value is not None}


class _Requests:
    """The requests of one call of `ChatServer.sample`.

    The `openai` client could send them, but it retries a refused connection, waits two minutes at the most for
    `Retry-After`, gives up after so many tries instead of so many seconds, and does not say what the last one got.
    """

    def __init__(self, server: ChatServer, sampling: Sampling, deliver: Deliver) -> None:
        self._server = server
        self._sampling = sampling
        self._deliver = deliver
        self._key = server.key()
        self._route = f"{server.url.rstrip('/')}/chat/completions"
        self._silence: asyncio.Timeout  # ends all, unless an answer comes
        self._too_long: dict[int, httpx.Response] = {}  # by index of the conversation

    async def send_all(self, conversations: Sequence[Messages]) -> None:
        """Send all requests; the first error cancels the rest."""
        left, concurrency = iter(enumerate(conversations)), self._server.concurrency
        certificates = httpx.create_ssl_context(trust_env=False)
        certificates.load_default_certs()  # beside the public ones those of this machine and of SSL_CERT_FILE
        client = httpx.AsyncClient(
            headers={"Accept-Encoding": "gzip"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {}),
            limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
            verify=certificates,
            timeout=httpx.Timeout(None, connect=10),  # the deadline bounds everything else
            trust_env=False,
            follow_redirects=False,
        )
        try:
            async with client, asyncio.timeout(self._server.timeout_s) as self._silence, asyncio.TaskGroup() as workers:
                for _ in range(min(concurrency, len(conversations))):
                    workers.create_task(self._work(client, left))
        except TimeoutError:
            got = f"no answer for {self._server.timeout_s:g} s"
            raise self._error(got, "is it up? timeout_s says how long to wait for it") from None
        except BaseExceptionGroup as group:
            first: BaseException = group
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            raise first from None  # the others are from the same server at the same time
        if self._too_long:
            indices = sorted(self._too_long)
            got = self._quote(self._too_long[indices[0]])
            raise TooLongError(f"the server at {self._route} takes no prompt of this length: {got}", indices)

    async def _work(self, client: httpx.AsyncClient, left: Iterator[tuple[int, Messages]]) -> None:
        for index, messages in left:
            response = await self._post(client, index, self._server.body(messages, self._sampling))
            if not response.is_success:
                self._too_long[index] = response
                continue
            try:
                rollout = _rollout(response.json(), self._sampling.label_opening)
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                got = f"{self._quote(response)} ({type(error).__name__}: {error})"
                raise self._error(got, "is the url that of an OpenAI-compatible server?") from None
            self._deliver(index, rollout)

    def _allow_silence(self, seconds: float) -> None:
        ends = asyncio.get_running_loop().time() + seconds + self._server.timeout_s
        if not self._silence.expired():
            self._silence.reschedule(max(ends, self._silence.when() or 0.0))

    async def _post(self, client: httpx.AsyncClient, index: int, body: Mapping[str, Any]) -> httpx.Response:
        """Return the server's answer: a success, or that the prompt is too long."""
        ends = time.monotonic() + self._server.deadline_s
        jitter = random.Random(f"{self._sampling.seed}-{index}")
        got, tries, pause = "no answer", 0, _FIRST_PAUSE
        while True:
            wait = pause * jitter.uniform(0.5, 1)  # so that not all come back at once
            tries, pause = tries + 1, min(2 * pause, _MAX_PAUSE)
            try:
                response = await asyncio.wait_for(self._answer(client, body), ends - time.monotonic())
            except TimeoutError:
                break
            except httpx.RequestError as error:
                got = f"{type(error).__name__}: {error}"
                if isinstance(error, httpx.ConnectError) and not self._server.reached:
                    raise self._error(got, _NO_TLS if "SSL" in got else _UNREACHABLE_REMEDY) from None
            else:
                self._server.reached.add(self._route)
                if response.is_success or (response.is_client_error and _TOO_LONG.search(response.text)):
                    self._allow_silence(0.0)
                    return response
                got = self._quote(response)
                if response.is_redirect:
                    got = f"{response.status_code}, a redirect to {response.headers.get('location', 'nowhere')}"
                    raise self._error(got, "redirects are not followed; put the right address into url")
                if response.status_code != httpx.codes.TOO_MANY_REQUESTS and not response.is_server_error:
                    other = "check model, fields and max_completion_length, and whether the prompt is too long"
                    raise self._error(got, _REMEDIES.get(response.status_code, other))
                wait = max(wait, _retry_after(response))
                self._allow_silence(wait)
            if time.monotonic() + wait > ends:
                break
            await asyncio.sleep(wait)
        raise self._error(
            f"{got}; {tries} tries for conversation {index}, which has {self._server.deadline_s:g} s",
            "raise deadline_s, or lower concurrency where the server has too much to do",
        )

    async def _answer(self, client: httpx.AsyncClient, body: Mapping[str, Any]) -> httpx.Response:
        """Send a request and return its answer, as UTF-8 whatever its header says; a ServerError if it is too large."""
        async with client.stream("POST", self._route, json=body) as response:
            if (compression := response.headers.get("content-encoding", "identity").lower()) not in _COMPRESSIONS:
                raise self._error(f"an answer compressed with {compression[:40]!r}", "have it sent plain, or with gzip")
            content = bytearray()
            async for part in response.aiter_bytes():
                content += part
                if len(content) > _MAX_ANSWER:
                    got = f"an answer of more than {_MAX_ANSWER:,} bytes"
                    raise self._error(got, "is the url that of an OpenAI-compatible server?")
        headers = {name: response.headers[name] for name in _READ_HEADERS if name in response.headers}
        return httpx.Response(response.status_code, headers=headers, content=bytes(content))

    def _quote(self, response: httpx.Response) -> str:
        return f"{response.status_code} with {self._without_key(response.text)[:300]!r}"

    def _error(self, got: str, remedy: str) -> ServerError:
        message = f"the server at {self._route} failed: got {got}; expected a chat completion. To fix it: {remedy}"
        return ServerError(self._without_key(message))

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


def _retry_after(response: httpx.Response) -> float:
    """Return how many seconds a server asks to wait, as a number or a date (RFC 9110, section 10.2.3); else 0."""
    header = response.headers.get("retry-after", "")
    with suppress(ValueError):
        return max(0.0, float(header))
    with suppress(ValueError):
        when = parsedate_to_datetime(header)
        return max(0.0, (when.replace(tzinfo=when.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
    return 0.0


def _rollout(answer: Any, label_opening: str) -> Rollout:
    """Parse a server's JSON; JSON of another shape raises LookupError, TypeError or AttributeError."""
    choice = answer["choices"][0]
    text = choice["message"].get("content") or ""
    if not isinstance(text, str):
        raise TypeError("the content is no text")
    tokens = (choice.get("logprobs") or {}).get("content") or []
    return Rollout(
        text=text.encode(errors="replace").decode(),  # no file could hold half of a surrogate pair
        finish_reason=str(choice.get("finish_reason")),
        label_log_probs=_label_log_probs(tokens, label_opening) if label_opening else {},
    )


def _label_log_probs(tokens: Sequence[Mapping[str, Any]], opening: str) -> dict[str, float]:
    """Return label -> log-probability at the last token that is a label and follows `opening`; empty without one."""
    before, found = "", {}
    for token in tokens:
        if token["token"] in tuple(LABELS) and before.endswith(opening):
            near = {each["token"]: float(each["logprob"]) for each in (*(token.get("top_logprobs") or ()), token)}
            found = {label: near[label] for label in LABELS if math.isfinite(near.get(label, math.nan))}
        before = (before + token["token"])[-len(opening) :]
    return found
