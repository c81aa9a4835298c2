"""Completions from any server with an OpenAI-compatible /chat/completions route."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

from think_as_locals.generation.calls import Calls
from think_as_locals.generation.completer import Reply
from think_as_locals.generation.engine import Messages, Sampling
from think_as_locals.judging import CHAT_TOKENS
from think_as_locals.types import ServerError

_ALTERNATIVES = 20  # tokens for each place: the most that the route gives


@dataclass(frozen=True, slots=True)
class LabelPlace:
    """Where a verdict's label stands, and which labels there are.

    Args:
        after: The text right before it, e.g. `<verdict>`; the last such place counts.
        labels: E.g. `("A", "B")`.
    """

    after: str
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatServer:
    """A `Completer` whose model is behind a server.

    Transport errors and answers 429 and 5xx are tried again, ever later, and no sooner than the server asks; all other
    faults end everything at once. What was kept until then stays kept.

    Args:
        url: What stands before /chat/completions, e.g. `http://127.0.0.1:8000/v1`.
        model: Its name there.
        key_variable: Name of the environment variable that holds the key; `None` sends none.
        concurrency: Conversations under way at a time.
        deadline_s: Seconds for each conversation, from its first try to its reply.
        timeout_s: Seconds without any answer from the server, after which it is given up.
        fields: Fields of each request beside ours, or in their place; `None` removes one.
        label_log_probs: The labels whose log-probabilities are asked for; `None` asks for none, since many servers
            refuse that.
        special_tokens: Texts that its tokenizer reads as control tokens; where that is not known, those that many do.

    Raises:
        ServerError: the url is none, or the key is not there or cannot be one.

    Example:
        server = ChatServer(url="http://127.0.0.1:8000/v1", model="judge", key_variable=None, concurrency=64,
                            deadline_s=600, timeout_s=120, fields={}, label_log_probs=None)
        server.complete([[{"role": "user", "content": "Hello"}]], Sampling(max_completion_length=64), keep)
    """

    url: str
    model: str
    key_variable: str | None
    concurrency: int
    deadline_s: float
    timeout_s: float
    fields: Mapping[str, Any]
    label_log_probs: LabelPlace | None
    special_tokens: tuple[str, ...] = CHAT_TOKENS

    def __post_init__(self) -> None:
        if not _is_address(self.url):
            shown = self.url.rpartition("@")[2].partition("?")[0]  # either side may hold a key
            raise ServerError(
                f"no url of a server: {shown!r}; expected one such as http://127.0.0.1:8000/v1, "
                "without /chat/completions, and without a key, which belongs into an environment variable"
            )
        self._key()

    @property
    def chunk_size(self) -> int | None:
        """Each conversation stands alone."""
        return None

    def complete(
        self, conversations: Sequence[Messages], sampling: Sampling, keep: Callable[[int, Reply], None]
    ) -> None:
        """Complete each conversation once; `keep` is called with its place as soon as its reply is there.

        Raises:
            ServerError: a deadline passed, the server was silent, or it answered what no other try would mend. All
                else that was under way is cancelled then, as it is by Ctrl-C.
        """
        calls = Calls(
            route=f"{self.url.rstrip('/')}/chat/completions",
            key=self._key(),
            concurrency=self.concurrency,
            deadline_s=self.deadline_s,
            timeout_s=self.timeout_s,
            seed=sampling.seed,
            read=self._reply,
            keep=keep,
        )
        _run(calls.answer([self._body(messages, sampling) for messages in conversations]))

    def _body(self, messages: Messages, sampling: Sampling) -> dict[str, Any]:
        body = {
            "model": self.model,
            "messages": messages,
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_completion_length,
            "seed": sampling.seed,
            **({"logprobs": True, "top_logprobs": _ALTERNATIVES} if self.label_log_probs else {}),
            **self.fields,
        }
        return {name: value for name, value in body.items() if value is not None}

    def _reply(self, answer: Any) -> Reply:
        """What a server's JSON says; an error of the kinds that wrong shapes raise where that is no completion."""
        choice = answer["choices"][0]
        text = choice["message"].get("content") or ""
        if not isinstance(text, str):
            raise TypeError("the content is no text")
        tokens = (choice.get("logprobs") or {}).get("content") or []
        place = self.label_log_probs
        return Reply(
            text=text.encode(errors="replace").decode(),  # no file could hold half of a surrogate pair
            finish_reason=str(choice.get("finish_reason")),
            label_log_probs={} if place is None else _label_log_probs(tokens, place),
        )

    def _key(self) -> str | None:
        if self.key_variable is None:
            return None
        key = os.environ.get(self.key_variable, "").strip()
        if not key:
            raise ServerError(f"{self.key_variable} is not set: put the key for {self.url} there")
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise ServerError(f"{self.key_variable} holds no key: expected printable ASCII without spaces")
        return key


def _run(answering: Coroutine[Any, Any, None]) -> None:
    """Run it to its end, in a thread where a notebook or a framework runs a loop in this one already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(answering)
        return
    loop = asyncio.new_event_loop()
    with ThreadPoolExecutor(1) as thread:
        answered = thread.submit(_run_in, loop, answering)
        try:
            answered.result()
        finally:
            if not answered.done():  # Ctrl-C, which only this thread hears of
                loop.call_soon_threadsafe(_cancel_all, loop)


def _run_in(loop: asyncio.AbstractEventLoop, answering: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(answering)


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()


def _is_address(text: str) -> bool:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        return False
    return url.scheme in ("http", "https") and bool(url.host) and not (url.userinfo or url.query)


def _label_log_probs(tokens: Sequence[Mapping[str, Any]], place: LabelPlace) -> dict[str, float]:
    """Those of the last token that is just a label and stands right behind the text in front of labels, if any is."""
    before, found = "", {}
    for token in tokens:
        if token["token"] in place.labels and before.endswith(place.after):
            near = {each["token"]: float(each["logprob"]) for each in (*(token.get("top_logprobs") or ()), token)}
            found = {label: near[label] for label in place.labels if math.isfinite(near.get(label, math.nan))}
        before = (before + token["token"])[-len(place.after) :]
    return found
