"""The engine protocol, and what engines with a tokenizer in this process share."""

from __future__ import annotations

import json
import re
import warnings
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from types import MappingProxyType
from typing import Any, Literal, Protocol

from jinja2 import TemplateError

from think_as_locals.judging import label_index, neutralise
from think_as_locals.judging.prompt import RESERVED_OPENING, culture_name
from think_as_locals.runtime.files import read_json
from think_as_locals.runtime.model_files import model_file, reading_model
from think_as_locals.runtime.processes import time_limit
from think_as_locals.types import LABELS, ConfigError, DataError, DataWarning, Item, ModelError, Rollout, TooLongError

_TEMPLATE_S, _LONGEST_FRAME = 20.0, 1_000_000  # for a conversation; characters beside its contents
_NOT_OF_A_TEMPLATE = {"conversation", "messages", "chat_template", "tokenize", "tokenizer_kwargs", "return_dict"}
_NOT_OF_A_TEMPLATE |= {"add_generation_prompt", "continue_final_message"}
_CHECK_CHUNK = 2000  # texts that are tokenised at once to be checked: an encoding has a hundred bytes for each token

Messages = list[dict[str, str]]
EVERY_TEMPLATE = re.compile("(system )?(user assistant )*user")
"""The orders of roles that every chat template can write."""
Sampled = Iterator[tuple[int, Rollout]]  # the index of a conversation and its rollout, in any order
Backend = Literal["transformers", "vllm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to sample: greedily at temperature 0.

    `label_opening` is the text right before the verdict's label (`Format.label_opening`). If it is given, rollouts have
    the log-probabilities of all labels at that position.
    """

    max_completion_length: int
    temperature: float = 0.0
    seed: int = 0
    label_opening: str = ""


class Engine(Protocol):
    """Samples completions for conversations: a model in this process, or a server."""

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Texts that the tokenizer reads as control tokens: none may come from untrusted text."""

    def check_texts(self, items: Iterable[Item]) -> None:
        """Raise a DataError if the tokenizer, if known, reads control tokens or reserved tags in neutralised texts."""

    def sort_key(self, messages: Messages) -> str | tuple[int, str]:
        """Return a key by which conversations are sorted: neighbours are cheaper together."""

    def sample(self, conversations: Sequence[Messages], sampling: Sampling) -> Sampled:
        """Sample one rollout for each conversation, and yield each as soon as it is complete, in any order."""

    def close(self) -> None:
        """End the engine's own processes and connections and free their memory; it cannot be used afterwards."""


def sample_all(engine: Engine, conversations: Sequence[Messages], sampling: Sampling) -> list[Rollout]:
    """Return one rollout for each conversation, in their order."""
    rollouts = dict(engine.sample(conversations, sampling))
    return [rollouts[index] for index in range(len(conversations))]


def load_engine(
    path: str,
    backend: Backend,
    *,
    dtype: str,
    template_kwargs: Mapping[str, Any],
    batch_size: int,
    revision: str | None = None,
    vllm: Mapping[str, Any] = MappingProxyType({}),
) -> Engine:
    """Load a chat model into this process; `vllm` options with another backend are a ConfigError."""
    common: dict[str, Any] = {"dtype": dtype, "template_kwargs": template_kwargs, "revision": revision}
    if vllm and backend != "vllm":
        raise ConfigError(f"{', '.join(vllm)}: got with backend={backend}, but only vllm reads them")
    if backend == "transformers":
        from think_as_locals.engines.transformers_engine import TransformersEngine

        return TransformersEngine.load(path, batch_size=batch_size, **common)
    if backend == "vllm":
        from think_as_locals.engines.vllm_engine import VLLMEngine

        return VLLMEngine.load(path, **common, **vllm)
    raise ConfigError(f"no backend {backend!r}; available: transformers, vllm")


def by_prefix(messages: Messages) -> str:
    """Return the text of a conversation: sorted by it, those with a common prefix are neighbours."""
    return "\n".join(message["content"] for message in messages)


class TokenEngine(ABC):
    """An engine that takes token ids: its tokenizer is in this process."""

    chat: Chat

    @abstractmethod
    def sample_tokens(self, prompts: Sequence[list[int]], sampling: Sampling) -> Sequence[Sequence[int]]:
        """Return the sampled token ids for each prompt, in their order."""

    def next_log_probs(
        self, contexts: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Return the log-probabilities, in nats at temperature 1, of each context's candidates for the next token."""
        raise ModelError(f"{type(self).__name__} gives no log-probabilities of labels: set label_log_probs to false")

    def close(self) -> None:  # noqa: B027  # most have nothing to end
        """Do nothing: a model is freed with its last reference."""

    @property
    def special_tokens(self) -> tuple[str, ...]:
        return self.chat.special_tokens

    def check_texts(self, items: Iterable[Item]) -> None:
        self.chat.check_texts(items)

    def sort_key(self, messages: Messages) -> str | tuple[int, str]:
        return by_prefix(messages)

    def sample(self, conversations: Sequence[Messages], sampling: Sampling) -> Sampled:
        """Sample a rollout for each conversation in one batch, sorted so that common prefixes are neighbours."""
        encoded = self.chat.encode(conversations)
        order = sorted(range(len(conversations)), key=lambda i: [message["content"] for message in conversations[i]])
        prompts = [encoded[i] for i in order]
        sampled = zip(prompts, self.sample_tokens(prompts, sampling), strict=True)
        rollouts = [replace(self.chat.rollout(ids), prompt_tokens=len(prompt)) for prompt, ids in sampled]
        if sampling.label_opening:
            found = label_log_probs(self, prompts, rollouts)
            rollouts = [replace(one, label_log_probs=labels) for one, labels in zip(rollouts, found, strict=True)]
        yield from zip(order, rollouts, strict=True)


def check_template_kwargs(template_kwargs: Mapping[str, Any]) -> None:
    """Raise a ConfigError for an argument that is not the template's, such as another template."""
    if taken := template_kwargs.keys() & _NOT_OF_A_TEMPLATE:
        raise ConfigError(f"chat_template_kwargs: {', '.join(sorted(taken))} is no argument of a chat template")


@dataclass(frozen=True)
class Chat:
    """A tokenizer and how its chat template is called."""

    tokenizer: Any
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    eos_token_ids: frozenset[int] = frozenset()
    positions: int | None = None  # the model's context length, prompt and completion together; None if not declared

    def __post_init__(self) -> None:
        check_template_kwargs(self.template_kwargs)

    @classmethod
    def load(cls, path: str, revision: str | None, template_kwargs: Mapping[str, Any]) -> Chat:
        """Load a model's tokenizer and the tokens that end its turns; a ModelError if it has no chat template."""
        from transformers import AutoConfig, AutoTokenizer, GenerationConfig

        where = {"revision": revision, "trust_remote_code": False}
        with reading_model(path):
            tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left", **where)
        require_chat_template(path, tokenizer)
        if "strftime_now" in str(tokenizer.chat_template) and "date_string" not in template_kwargs:
            remedy = "chat_template_kwargs.date_string='26 Jul 2024' is read instead by most"
            warnings.warn(f"{path}: its chat template writes today's date: {remedy}", DataWarning, stacklevel=2)
        if adapter := model_file(path, "adapter_config.json", revision):  # alone: its base says what ends a turn
            settings = read_json(adapter)
            path, revision = str(settings.get("base_model_name_or_path")), settings.get("revision")
            where["revision"] = revision
        with reading_model(path):
            if model_file(path, "generation_config.json", revision):
                declared = GenerationConfig.from_pretrained(path, revision=revision).eos_token_id
            else:  # as transformers does
                declared = GenerationConfig.from_model_config(AutoConfig.from_pretrained(path, **where)).eos_token_id
        ids = [declared] if isinstance(declared, int) else declared or []
        ends = frozenset(token for token in (*ids, tokenizer.eos_token_id) if token is not None)
        if not ends:
            raise ModelError(
                f"{path} names no token that ends its turns, so that no completion would end: set eos_token in "
                "tokenizer_config.json, or eos_token_id in generation_config.json"
            )
        chat = cls(tokenizer, template_kwargs, ends)
        chat.text([{"role": "user", "content": "?"}], add_generation_prompt=True)  # a template may be broken
        return chat

    @cached_property
    def special_tokens(self) -> tuple[str, ...]:
        """Texts that tokenizer or chat template read as control tokens."""
        added = [(token.content, token.special) for token in self.tokenizer.added_tokens_decoder.values()]
        marks = control_marks(added, str(self.tokenizer.chat_template))
        return tuple(sorted(marks | set(self.tokenizer.all_special_tokens)))

    def check_texts(self, items: Iterable[Item]) -> None:
        """Raise a DataError that names an item whose neutralised texts the tokenizer reads as control tokens or tags.

        `neutralise` allows for what normalisers usually do; this asks the tokenizer itself, whatever its own one does.
        """
        names = {text: item.id for item in items for text in (item.prompt, culture_name(item.culture), *item.responses)}
        rest = iter(names.items())
        normalizer = self.tokenizer.backend_tokenizer.normalizer if self.tokenizer.is_fast else None
        while some := list(islice(rest, _CHECK_CHUNK)):
            texts = [neutralise(text, self.special_tokens) for text, _ in some]
            encoded = self.tokenizer(texts, add_special_tokens=False)
            for (text, name), safe, ids in zip(some, texts, encoded["input_ids"], strict=True):
                if control := self._control_ids.intersection(ids):
                    found = f"its control token {self.tokenizer.convert_ids_to_tokens(min(control))!r}"
                elif normalizer and (tag := RESERVED_OPENING.search(normalizer.normalize_str(safe))):
                    found = f"the reserved tag {tag.string[tag.start() : tag.start() + 20]!r}"
                else:
                    continue
                raise DataError(
                    f"item {name!r}: this model's tokenizer reads {found} in {text[:80]!r}, even when it is broken up: "
                    "leave the item out"
                )

    @cached_property
    def _control_ids(self) -> frozenset[int]:
        """The ids of control tokens, without the unknown token and tokens of a single character."""
        marks = [token for token in self.special_tokens if len(token.strip()) > 1]
        return frozenset(self.tokenizer.convert_tokens_to_ids(marks)) - {None, self.tokenizer.unk_token_id}

    def turns(self, messages: Messages) -> Messages:
        """Merge a system turn that the template refuses or drops into the user turn."""
        if messages[0]["role"] != "system":
            return messages
        system, user, *rest = messages
        with suppress(TemplateError):  # if it is not about the system turn, the template raises again
            if system["content"].strip() in self._written(messages):
                return messages
        return [{**user, "content": f"{system['content']}\n\n{user['content']}"}, *rest]

    def text(self, messages: Messages, *, add_generation_prompt: bool) -> str:
        """Return a conversation as the chat template renders it; a ModelError if the template fails."""
        try:
            return self._written(self.turns(messages), add_generation_prompt)
        except (TemplateError, TimeoutError, MemoryError) as error:
            raise ModelError(
                f"{self.tokenizer.name_or_path}: its chat template cannot render a conversation ({error}): fix "
                "chat_template.jinja, or download the tokenizer again"
            ) from error

    def _written(self, messages: Messages, add_generation_prompt: bool = False) -> str:
        with time_limit(_TEMPLATE_S):
            text: str = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=add_generation_prompt, **dict(self.template_kwargs)
            )
        if len(text) > (most := _LONGEST_FRAME + 2 * sum(len(message["content"]) for message in messages)):
            raise TemplateError(f"it writes {len(text):,} characters, expected at most {most:,}")
        return text

    def encode(self, conversations: Sequence[Messages]) -> list[list[int]]:
        """Return the token ids of each conversation with the generation prompt; a TooLongError names long ones."""
        if not conversations:
            return []
        texts = [self.text(messages, add_generation_prompt=True) for messages in conversations]
        ids: list[list[int]] = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        indices = [i for i, prompt in enumerate(ids) if self.positions is not None and len(prompt) >= self.positions]
        if indices:
            raise TooLongError(
                f"a prompt of {max(map(len, ids))} tokens: the model takes {self.positions} together with what it "
                "writes; nothing is cut off: leave such items out, or take a model that reads more",
                indices,
            )
        return ids

    def rollout(self, token_ids: Sequence[int]) -> Rollout:
        """Return sampled ids as a rollout, cut after the first end token, which stays in `token_ids` alone."""
        end = next((i for i, token in enumerate(token_ids) if token in self.eos_token_ids), None)
        kept = tuple(token_ids if end is None else token_ids[: end + 1])
        return Rollout(
            text=self.tokenizer.decode(kept, skip_special_tokens=True),
            token_ids=kept,
            finish_reason="length" if end is None else "stop",
        )


def require_chat_template(path: str, tokenizer: Any) -> None:
    """Raise a ModelError if a model has no chat template."""
    if not tokenizer.chat_template:
        raise ModelError(
            f"{path} has no chat template, so how it is asked and where its answer begins is not known: give a chat "
            "model, or add its template as chat_template.jinja"
        )


def control_marks(added: Iterable[tuple[str, bool]], template: str) -> set[str]:
    """Return which of a tokenizer's added tokens, given as (text, is special), structure a conversation.

    Besides the special tokens these are the ones that the chat template uses: Qwen3's `</think>` is not special, but
    its template cuts an assistant's turn there. Others, such as runs of spaces or HTML tags, are ordinary text.
    """
    bracketed = [text for text, _ in added if text.startswith(("<", "[")) and text.endswith((">", "]"))]
    thoughts = "<think>", "</think>"  # templates cut thoughts off there even if they are not tokens of their own
    special = {text for text, is_special in added if is_special}
    return special | {text for text in (*bracketed, *thoughts) if text in template}


def label_log_probs(
    engine: TokenEngine, prompts: Sequence[list[int]], rollouts: Sequence[Rollout]
) -> list[dict[str, float]]:
    """Return label -> log-probability at the position of the verdict's label, given the tokens before it.

    Empty without a verdict, or if its label is not a token of its own.
    """
    found: list[dict[str, float]] = [{} for _ in rollouts]
    labels = {i: label for i, rollout in enumerate(rollouts) if (label := label_tokens(engine.chat.tokenizer, rollout))}
    if labels:
        contexts = [[*prompts[i], *rollouts[i].token_ids[:index]] for i, (index, _) in labels.items()]
        log_probs = engine.next_log_probs(contexts, [list(tokens.values()) for _, tokens in labels.values()])
        for (i, (_, tokens)), values in zip(labels.items(), log_probs, strict=True):
            found[i] = dict(zip(tokens, values, strict=True))
    return found


def label_tokens(tokenizer: Any, rollout: Rollout) -> tuple[int, dict[str, int]] | None:
    """Return the index of the verdict's label among a rollout's tokens, and label -> token id for all labels.

    `None` without a verdict, or if the tokenizer joins the label to its neighbours.
    """
    ids, start = list(rollout.token_ids), label_index(rollout.text)
    if start is None:
        return None

    def written(through: int) -> str:
        return str(tokenizer.decode(ids[: through + 1], skip_special_tokens=True))

    index = bisect_right(range(len(ids)), start, key=lambda i: len(written(i)))
    if index == len(ids) or written(index - 1) != rollout.text[:start] or written(index) != rollout.text[: start + 1]:
        return None
    label, form = rollout.text[start], tokenizer.convert_ids_to_tokens(ids[index])
    if form.count(label) != 1:  # spelt in bytes
        return None
    others = {other: form.replace(label, other) for other in LABELS}
    tokens = {other: tokenizer.convert_tokens_to_ids(token) for other, token in others.items()}
    return index, {
        other: token
        for other, token in tokens.items()
        if token is not None and tokenizer.convert_ids_to_tokens(token) == others[other]
    }


def special_tokens(path: str, revision: str | None = None) -> tuple[str, ...]:
    """Return `Chat.special_tokens` without loading the tokenizer; empty if there is no tokenizer.json."""
    file = model_file(path, "tokenizer.json", revision)
    if file is None:
        return ()
    try:
        added: list[Any] = json.loads(file.read_text(encoding="utf-8")).get("added_tokens", [])
        tokens = [(token["content"], token["special"]) for token in added]
        template = ""
        if written := model_file(path, "chat_template.jinja", revision):
            template = written.read_text(encoding="utf-8")
        elif config := model_file(path, "tokenizer_config.json", revision):
            template = str(json.loads(config.read_text(encoding="utf-8")).get("chat_template"))
        return tuple(sorted(control_marks(tokens, template)))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ModelError(f"{file}: not the file of a tokenizer: {error!r}") from error
