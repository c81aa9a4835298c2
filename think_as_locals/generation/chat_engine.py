"""A model behind an OpenAI-compatible server as an engine: prompt and parser are here, the weights elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import yaml

from think_as_locals.composition import ASSETS
from think_as_locals.generation.chat_server import ChatServer
from think_as_locals.generation.completer import Reply
from think_as_locals.generation.engine import Chat, Messages, Sampling
from think_as_locals.types import Rollout


@dataclass(frozen=True, slots=True)
class _TokenizerElsewhere:
    """What is known of the server's tokenizer."""

    all_special_tokens: tuple[str, ...]
    added_tokens_decoder: Mapping[int, Any] = field(default_factory=lambda: MappingProxyType({}))
    chat_template: None = None


@dataclass(frozen=True, slots=True)
class ChatEngine:
    """An `Engine` whose rollouts have no token ids."""

    server: ChatServer

    @property
    def chat(self) -> Chat:
        """It knows special tokens, and encodes nothing."""
        return Chat(_TokenizerElsewhere(self.server.special_tokens))

    def generate(self, conversations: Sequence[Messages], sampling: Sampling) -> list[Rollout]:
        """As `Engine.generate`.

        Raises:
            ServerError: as `ChatServer.complete`.
        """
        replies: dict[int, Reply] = {}
        self.server.complete(conversations, sampling, replies.__setitem__)
        return [_rollout(replies[place]) for place in range(len(conversations))]


def connect(
    url: str,
    model: str,
    *,
    key_variable: str | None,
    special_tokens: tuple[str, ...],
    chat_template_kwargs: Mapping[str, Any],
) -> ChatServer:
    """A server, with the patience that `conf/rm/server.yaml` has for one.

    Args:
        url: As `ChatServer.url`.
        model: As `ChatServer.model`.
        key_variable: As `ChatServer.key_variable`.
        special_tokens: As `ChatServer.special_tokens`.
        chat_template_kwargs: Sent along where there are any; vLLM and SGLang pass them to the chat template.

    Raises:
        ServerError: as `ChatServer`.
    """
    conf = yaml.safe_load((ASSETS / "conf" / "rm" / "server.yaml").read_text(encoding="utf-8"))
    return ChatServer(
        url=url,
        model=model,
        key_variable=key_variable,
        fields={"chat_template_kwargs": dict(chat_template_kwargs)} if chat_template_kwargs else {},
        label_log_probs=None,
        special_tokens=special_tokens,
        **{name: conf[name] for name in ("concurrency", "deadline_s", "timeout_s")},
    )


def _rollout(reply: Reply) -> Rollout:
    # A server may have words of its own for how a completion ended; none but "stop" makes a verdict.
    return Rollout(text=reply.text, token_ids=(), finish_reason="stop" if reply.finish_reason == "stop" else "length")
