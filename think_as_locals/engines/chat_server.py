"""Completions from any server with an OpenAI-compatible /chat/completions route."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from anyio.from_thread import start_blocking_portal
from pydantic import TypeAdapter, ValidationError

from think_as_locals.config.schema import Url
from think_as_locals.engines.engine import Messages, Sampled, Sampling, by_prefix
from think_as_locals.judging import CHAT_TOKENS
from think_as_locals.types import LABELS, Item, Rollout, ServerError, TooLongError, is_stop, shown

_logger = logging.getLogger(__name__)

_TOP_LOGPROBS = 20  # the most that the route gives
_CONNECT_S = 10
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 8.0  # before another try, as the client has them
_TOO_LONG = re.compile(
    r"context.(length|window|size)|maximum model length|prompt is too long|exceeds the maximum number of tokens"
    r"|a prompt of \d+ tokens: the model takes",
    re.I,
)
"""Error texts of vLLM, SGLang, llama.cpp, hosted models and `tal serve` for a prompt that is too long."""
_REFUSED = re.compile(
    r"content.?(filter|management|policy)|(flagged|violat\w+).{0,80}(usage|content) (polic|guidelines)|ResponsibleAI"
    r"|PROHIBITED_CONTENT|data.?inspection.?failed|inappropriate content|content exists risk|\b1301\b"
    r"|blocked due to safety|requires moderation|moderation_blocked|(input|prompt|content) (was|is) flagged"
    r"|sensitive.?content|considered high risk|blocked by (a |the )?guardrail",
    re.I,
)
"""Error texts of hosted models whose content filter refuses a prompt (OpenAI, Azure, Gemini, Qwen, DeepSeek, GLM)."""
_NO_SUCH_FIELD = re.compile(
    r"(unknown|unrecognized|unsupported|invalid|unexpected) (request )?(parameter|argument|field|name|value)"
    r"|parameter.{0,60} not supported|inputs are not permitted",
    re.I,
)
_CUT = ("length", "max_tokens", "content_filter", "tool_calls", "none", "")  # known names of other ends
_ABOUT_PROMPTS = (400, 403, 422)  # statuses of errors that are about a prompt
_REMEDIES = {
    401: "put a valid key into the environment variable that key_variable names",
    403: "put a key that may use this model into the environment variable that key_variable names",
    404: "check url and model; most urls end with /v1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatServer:
    """An engine behind a server with an OpenAI-compatible /chat/completions route.

    The `openai` client retries refused connections, timeouts and answers 429 and 5xx, no sooner than the server asks;
    an answer 200 without a choice, as gateways give for an error behind them, is retried as well. Prompts that are too
    long for the server, or that its content filter refuses, raise a TooLongError once all others are answered; any
    other error cancels all requests. A ServerError is raised if `url` is not a URL, or the key is not set or invalid.
    """

    url: str  # the part before /chat/completions, e.g. http://127.0.0.1:8000/v1
    model: str  # its name there
    key_variable: str | None  # the environment variable that holds the key, if it needs one
    concurrency: int  # of requests in flight at most
    deadline_s: float  # for each conversation, from its first try to its completion
    max_retries: int  # of each request
    fields: Mapping[str, Any]  # of each request beside ours, or in their place; None removes one
    special_tokens: tuple[str, ...] = CHAT_TOKENS

    def __post_init__(self) -> None:
        try:
            TypeAdapter(Url).validate_python(self.url)
        except ValidationError:  # it may hold a key
            raise ServerError("url: expected http[s]://HOST[:PORT][/PATH] without user or key") from None
        self._key()

    def sort_key(self, messages: Messages) -> str:
        return by_prefix(messages)

    def check_texts(self, items: Iterable[Item]) -> None:
        """Do nothing: the server's tokenizer is not known."""

    def close(self) -> None:
        """Do nothing: there is no connection between calls."""

    def _key(self) -> str:
        if self.key_variable is None:
            return ""
        key = os.environ.get(self.key_variable, "").strip()
        if not key:
            raise ServerError(f"{self.key_variable} is not set: put the key for {self.url} there")
        if not (key.isascii() and key.isprintable()):  # no header could hold it, and an error would show it
            raise ServerError(f"{self.key_variable} holds no key: expected printable ASCII")
        return key

    def sample(self, conversations: Sequence[Messages], sampling: Sampling) -> Sampled:
        """Sample as `Engine.sample` does; a ServerError or Ctrl-C cancels all requests in flight."""
        found = SimpleQueue[tuple[int, Rollout] | None]()
        with start_blocking_portal() as portal:  # a thread: a notebook runs an event loop in this one
            sending = portal.start_task_soon(self._send_all, conversations, sampling, found.put)
            sending.add_done_callback(lambda _: found.put(None))
            try:
                while (each := found.get()) is not None:
                    yield each
            finally:
                sending.cancel()
            sending.result()

    async def _send_all(
        self, conversations: Sequence[Messages], sampling: Sampling, put: Callable[[tuple[int, Rollout]], None]
    ) -> None:
        from openai import AsyncOpenAI, Timeout  # takes a second

        client = AsyncOpenAI(
            base_url=self.url,
            api_key=self._key() or "none",  # a client without one refuses to begin
            max_retries=self.max_retries,
            timeout=Timeout(self.deadline_s, connect=_CONNECT_S),
        )
        left, not_taken = iter(enumerate(conversations)), dict[int, TooLongError]()

        async def work() -> None:
            for index, messages in left:
                try:
                    put((index, await self._complete(client, index, messages, sampling)))
                except TooLongError as error:
                    not_taken[index] = error

        try:
            async with client, asyncio.TaskGroup() as workers:
                for _ in range(min(self.concurrency, len(conversations))):
                    workers.create_task(work())
        except BaseExceptionGroup as group:
            first: BaseException = group
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            raise first from None  # the others are from the same server at the same time
        if not_taken:
            refused = [index for index, error in not_taken.items() if error.refused]
            raise TooLongError(str(not_taken[min(not_taken)]), sorted(not_taken), refused)

    def _body(self, messages: Messages, sampling: Sampling) -> dict[str, Any]:
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

    async def _complete(self, client: Any, index: int, messages: Messages, sampling: Sampling) -> Rollout:
        """Return the rollout of one conversation; a TooLongError or a ServerError if there is none."""
        from openai import APIConnectionError, APIStatusError

        answer: Any = None
        try:
            async with asyncio.timeout(self.deadline_s):
                body = self._body(messages, sampling)
                for tries in range(self.max_retries + 1):
                    answer = await _post(client, body)
                    if (fault := _fault(answer)) is None:
                        break
                    self._check_taken(json.dumps(fault), index)
                    if tries == self.max_retries:
                        break
                    await asyncio.sleep(min(_FIRST_PAUSE_S * 2**tries, _LONGEST_PAUSE_S))
            return _rollout(answer, sampling.label_opening)
        except TooLongError:
            raise
        except TimeoutError:
            got = f"no completion for {self.deadline_s:g} s"
            got += self._quote("; the last answer was", str(answer)) if answer is not None else ""
            remedy = "raise deadline_s, or lower concurrency where the server has too much to do"
        except APIConnectionError as error:
            got = f"{type(error.__cause__).__name__}: {error.__cause__}"
            remedy = "start the server, or correct the url"
        except APIStatusError as error:
            got = self._quote(f"{error.status_code} with", error.response.text)
            if error.status_code in _ABOUT_PROMPTS:
                self._check_taken(error.response.text, index)
            remedy = _REMEDIES.get(error.status_code, "check model, fields and max_completion_length")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            got = self._quote(f"{type(error).__name__} in", str(answer))
            remedy = "is the url that of an OpenAI-compatible server?"
        message = f"the server at {self.url} failed: got {got}; expected a chat completion. To fix it: {remedy}"
        raise ServerError(message)

    def _check_taken(self, text: str, index: int) -> None:
        """Raise a TooLongError if a server's error is about this prompt, which no retry would change."""
        whys = {_TOO_LONG: "takes no prompt of this length", _REFUSED: "refuses a prompt by its content filter"}
        said = _said(text)
        if _NO_SUCH_FIELD.search(said):
            del whys[_REFUSED]
        for pattern in filter(lambda each: each.search(said), whys):
            message = f"the server at {self.url} {whys[pattern]}: {self._quote('got', text)}"
            raise TooLongError(message, [index], [index] if pattern is _REFUSED else []) from None

    def _quote(self, what: str, text: str) -> str:
        """Return the begin of a server's text, without the key that it may repeat."""
        key = self._key()
        return f"{what} {(text.replace(key, '***') if key else text)[:300]!r}"


async def _post(client: Any, body: dict[str, Any]) -> Any:
    """Return the answer to a request, as a text if it is no JSON."""
    try:
        return await client.post("/chat/completions", cast_to=object, body=body)
    except json.JSONDecodeError as error:
        return error.doc


def _said(text: str) -> str:
    """Return what a server says of an error, without a prompt that it may repeat."""
    try:
        found = json.loads(text)
        found = found.get("error") or found
        return " ".join(str(found[key]) for key in ("code", "type", "status", "message") if found.get(key)) or text
    except (ValueError, AttributeError, RecursionError):
        return text


def _fault(answer: Any) -> Any:
    """Return what is wrong with an answer of status 200, which another try may mend; `None` if it has a completion."""
    if not isinstance(answer, Mapping):
        return answer or "no answer"
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else {}
    if fault := answer.get("error") or first.get("error"):
        return fault
    if isinstance(first.get("message"), Mapping) and first.get("finish_reason") != "error":
        return None
    said = ("no message", first.get("finish_reason"), answer.get("promptFeedback"))
    return " ".join(map(str, filter(None, said)))


def _rollout(answer: Any, label_opening: str) -> Rollout:
    """Parse a server's JSON; JSON of another shape raises LookupError, TypeError or AttributeError."""
    if (fault := _fault(answer)) is not None:
        raise ValueError(shown(fault))
    choice = answer["choices"][0]
    text = choice["message"].get("content") or ""
    if not text and (choice["message"].get("reasoning_content") or choice["message"].get("reasoning")):
        _logger.warning("a completion is reasoning alone (reasoning_content): raise max_completion_length")
    if not isinstance(text, str):
        raise TypeError("the content is no text")
    tokens = (choice.get("logprobs") or {}).get("content") or []
    return Rollout(
        text=text.encode(errors="replace").decode(),  # no file could hold half of a surrogate pair
        finish_reason=_finish_reason(choice.get("finish_reason"), text),
        label_log_probs=_label_log_probs(tokens, label_opening) if label_opening else {},
    )


def _finish_reason(given: object, text: str) -> str:
    if given in (None, "", "null") and text:
        _logger.warning("the server does not say how completions end (finish_reason is null): taken as whole")
        return "stop"
    if is_stop(str(given)):
        return "stop"
    if str(given).lower() not in _CUT:
        _logger.warning("the server's finish_reason is %s, which is not known: taken as cut off", shown(given))
    return str(given)


def _label_log_probs(tokens: Sequence[Mapping[str, Any]], opening: str) -> dict[str, float]:
    """Return label -> log-probability at the last token that is a label and follows `opening`; empty without one."""
    before, found = "", {}
    for token in tokens:
        if token["token"] in tuple(LABELS) and before.endswith(opening):
            near = {each["token"]: float(each["logprob"]) for each in (*(token.get("top_logprobs") or ()), token)}
            found = {label: near[label] for label in LABELS if math.isfinite(near.get(label, math.nan))}
        before = (before + token["token"])[-len(opening) :]
    return found
