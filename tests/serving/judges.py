"""A judge behind the app that chooses the longest response, and settings of the server."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from reward_models.scripted import Picks, Scripted, judged, longest, shown_in

from think_as_locals.config.model_schema import ServeConfig
from think_as_locals.engines import Messages, Sampling
from think_as_locals.engines.engine import Sampled
from think_as_locals.reward_models.judge import Judge, JudgeSettings
from think_as_locals.serving.app import load_server
from think_as_locals.types import Rollout

BASE = "http://127.0.0.1"


@dataclass
class Longest(Scripted):
    """An engine that chooses the longest response, or rates by length; while it is held, it waits for `go_on`.

    A response with "parse failure" in it gives a parse failure, one with "broken" an error.
    """

    held: bool = False
    batches: list[int] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)
    samplings: list[Sampling] = field(default_factory=list)
    entered: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    finish_reason: str = "stop"
    special_tokens: tuple[str, ...] = ("<|end|>",)
    picks: Picks = longest

    def __post_init__(self) -> None:
        if not self.held:
            self.go_on.set()

    def sample(self, conversations: Sequence[Messages], sampling: Sampling) -> Sampled:
        self.batches.append(len(conversations))
        self.samplings.append(sampling)
        self.prompts += [messages[-1]["content"] for messages in conversations]
        self.entered.set()
        assert self.go_on.wait(20)
        for place, messages in reversed(list(enumerate(conversations))):
            if any("broken" in text for text in shown_in(messages)):
                raise RuntimeError("out of memory at /a/path/of/the/server")
            text = judged(messages, self._picked)
            yield place, Rollout(text=text, finish_reason=self.finish_reason)

    def _picked(self, presented: list[str]) -> int | None:
        return None if any("parse failure" in text for text in presented) else self.picks(presented)


def judge_of(engine: Longest) -> Judge:
    """Return a listwise judge."""
    return Judge(engine=engine, settings=JudgeSettings(max_completion_length=64))


@cache
def settings(*overrides: str) -> ServeConfig:
    """Return conf/serve.yaml with overrides."""
    return load_server("runs/none/model", overrides)
