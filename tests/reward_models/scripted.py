"""A judge that judges by a rule: in this process, or behind a server with an OpenAI-compatible route."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from items import RUBRIC
from loopback import Answer, Received, answering, completion

from think_as_locals.engines import Messages, Sampling
from think_as_locals.engines.engine import Sampled, by_prefix
from think_as_locals.judging import write
from think_as_locals.types import LABELS, Item, Rollout

Picks = Callable[[list[str]], int | None]
"""Of the responses as presented, the place of the one that is chosen; `None` for a parse failure."""


def longest(presented: list[str]) -> int | None:
    return max(range(len(presented)), key=lambda i: (len(presented[i]), presented[i]))


def first(presented: list[str]) -> int | None:
    return 0


def shown_in(messages: Messages) -> list[str]:
    """Responses as a prompt shows them."""
    parts = messages[-1]["content"].split("<response")[1:]
    return [part.partition(">")[2].partition("</response>")[0].strip("\n") for part in parts]


def judged(messages: Messages, picks: Picks = longest) -> str:
    """What is written to messages: a verdict, or of a single response as the rating its length, as the prompt asks."""
    presented = shown_in(messages)
    found = picks(presented)
    if found is None:
        return "I cannot say."
    if len(presented) == 1:
        return f"Rated.\n{min(10, len(presented[0]))}"
    asks_for_brackets = "[[A]]" in messages[0]["content"]
    return f"Compared. [[{LABELS[found]}]]" if asks_for_brackets else write(RUBRIC, "Weighed.", found)


@dataclass
class Scripted:
    """An engine whose completions a function writes; keeps its calls."""

    write: Callable[[Messages], str] = judged
    special_tokens: tuple[str, ...] = ()
    calls: list[list[Messages]] = field(default_factory=list)
    closed: bool = False

    @property
    def asked(self) -> list[Messages]:
        """All conversations, in the order of the calls."""
        return [messages for call in self.calls for messages in call]

    def sort_key(self, messages: Messages) -> str:
        return by_prefix(messages)

    def check_texts(self, items: Iterable[Item]) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def sample(self, conversations: Sequence[Messages], sampling: Sampling) -> Sampled:
        assert sampling.temperature == 0
        self.calls.append(list(conversations))
        for place, messages in reversed(list(enumerate(conversations))):
            yield place, Rollout(text=self.write(messages), finish_reason="stop")


@contextmanager
def serving(picks: Picks = longest) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The base URL of a server on loopback, and the bodies of the requests that it gets."""
    asked: list[dict[str, Any]] = []

    def respond(request: Received) -> Answer:
        asked.append(request.body)
        return completion(judged(request.body["messages"], picks))

    with answering(respond) as url:
        yield f"{url}/v1", asked
