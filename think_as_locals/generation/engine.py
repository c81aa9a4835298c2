"""One protocol for what samples completions from a judge, and the tokenisation that all backends share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from jinja2 import TemplateError

from think_as_locals.types import DataError, ModelError, Rollout

Messages = list[dict[str, str]]

_THOUGHTS = ("<think>", "</think>")  # templates cut thoughts off there also where they are no tokens of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to sample: temperature 0 is greedy."""

    max_completion_length: int
    temperature: float = 0.0
    seed: int = 0


class Engine(Protocol):
    """A judge's weights behind a sampler."""

    @property
    def chat(self) -> Chat: ...

    def generate(self, conversations: Sequence[Messages], sampling: Sampling) -> list[Rollout]:
        """One rollout for each conversation, in their order."""
        ...


class ScoringEngine(Engine, Protocol):
    """An engine that also says how likely a token would have been."""

    def next_log_probs(
        self, contexts: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Log-probabilities, in nats at temperature 1, that a context is continued by each of its candidates.

        Args:
            contexts: Token ids, at least one each.
            candidates: For each context the ids of tokens that might come next.
        """
        ...


@dataclass(frozen=True)
class Chat:
    """A tokenizer and how its chat template is called.

    Args:
        tokenizer: A transformers tokenizer with a chat template.
        template_kwargs: Passed to the template, e.g. `{"enable_thinking": False}`.
        eos_token_ids: Every id that ends a completion.
        positions: Tokens that the model takes, prompt and completion together; `None` where nobody says.
    """

    tokenizer: Any
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    eos_token_ids: frozenset[int] = frozenset()
    positions: int | None = None

    @cached_property
    def special_tokens(self) -> tuple[str, ...]:
        """Texts that tokenizer or template read as control tokens: none may come from untrusted text."""
        added = [(token.content, token.special) for token in self.tokenizer.added_tokens_decoder.values()]
        marks = control_marks(added, str(self.tokenizer.chat_template))
        return tuple(sorted(marks | set(self.tokenizer.all_special_tokens)))

    def turns(self, messages: Messages) -> Messages:
        """A conversation as its template takes it: a system turn that it refuses or drops opens the user's instead."""
        if messages[0]["role"] != "system":
            return messages
        system, user, *rest = messages
        try:
            if system["content"].strip() in self._written(messages):
                return messages
        except TemplateError:
            pass  # where it is not about the system turn, the template raises again
        return [{**user, "content": f"{system['content']}\n\n{user['content']}"}, *rest]

    def text(self, messages: Messages, *, add_generation_prompt: bool) -> str:
        """A conversation as its template writes it, as it stands or up to where an assistant begins to write."""
        return self._written(self.turns(messages), add_generation_prompt)

    def _written(self, messages: Messages, add_generation_prompt: bool = False) -> str:
        text: str = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=add_generation_prompt, **dict(self.template_kwargs)
        )
        return text

    def encode(self, conversations: Sequence[Messages]) -> list[list[int]]:
        """Token ids of each conversation, up to where the judge begins to write.

        Raises:
            DataError: one leaves the model no room to write.
        """
        if not conversations:
            return []
        texts = [self.text(messages, add_generation_prompt=True) for messages in conversations]
        ids: list[list[int]] = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        longest = max(map(len, ids), default=0)
        if self.positions is not None and longest >= self.positions:
            raise DataError(
                f"a prompt of {longest} tokens: the model takes {self.positions} together with what it writes; nothing "
                "is cut off: leave such items out, or take a model that reads more"
            )
        return ids

    def rollout(self, token_ids: Sequence[int]) -> Rollout:
        """A rollout from sampled ids, cut at the first one that ends it (kept in `token_ids`, not in the text)."""
        end = next((i for i, token in enumerate(token_ids) if token in self.eos_token_ids), None)
        kept = tuple(token_ids if end is None else token_ids[: end + 1])
        return Rollout(
            text=self.tokenizer.decode(kept, skip_special_tokens=True),
            token_ids=kept,
            finish_reason="length" if end is None else "stop",
        )


def eos_token_ids(tokenizer: Any, generation_config: Any) -> frozenset[int]:
    """The tokenizer's end token and those that the model declares."""
    declared = generation_config.eos_token_id
    ids = [declared] if isinstance(declared, int) else list(declared or [])
    return frozenset(token for token in (*ids, tokenizer.eos_token_id) if token is not None)


def expect_template(path: str, tokenizer: Any) -> None:
    """See that a model can be asked at all.

    Raises:
        ModelError: it has no chat template.
    """
    if not tokenizer.chat_template:
        raise ModelError(
            f"{path} has no chat template, so how it is asked and where its answer begins is not known: give a chat "
            "model, or add its template as chat_template.jinja"
        )


def expect_weights(path: str, missing: Iterable[str]) -> None:
    """See that a language model's files hold all of it.

    Args:
        path: Where it is from, for the message.
        missing: Names of weights that are not there.

    Raises:
        ModelError: some are missing.
    """
    if names := sorted(missing):
        raise ModelError(
            f"{path} lacks weights of a language model, which would be random: {', '.join(names[:5])}. Is it a "
            "classifier (tal.ScalarRM, rms.NAME=classifier), or not saved as a whole?"
        )


def control_marks(added: Iterable[tuple[str, bool]], template: str) -> set[str]:
    """Of the tokens that were added to a tokenizer those that structure a conversation.

    These are the special ones, and of the others those that the chat template knows: Qwen3's `</think>` is not special,
    but its template cuts an assistant's turn there. Others, runs of spaces or tags of HTML, are words like any.

    Args:
        added: The text of each, and whether it is special.
        template: The chat template.

    Example:
        >>> sorted(control_marks([("<|end|>", True), ("</think>", False), ("<b>", False)], "... '</think>' in content"))
        ['</think>', '<|end|>']
    """
    marks = {text for text, special in added if special or (_in_brackets(text) and text in template)}
    return marks | {mark for mark in _THOUGHTS if mark in template}


def _in_brackets(text: str) -> bool:
    return text[:1] in ("<", "[") and text[-1:] in (">", "]")
