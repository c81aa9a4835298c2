"""Scalar reward models: classifiers with one label (AutoModelForSequenceClassification), and a constant baseline."""

from __future__ import annotations

import hashlib
import inspect
import logging
import math
import warnings
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import transformers
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, PreTrainedConfig

from think_as_locals.engines import Chat, Messages, packed_passes, packing
from think_as_locals.engines.transformers_engine import on_device, require_all_read, require_embeddings
from think_as_locals.judging import reorder_responses
from think_as_locals.judging.prompt import break_tokens, shuffled_order
from think_as_locals.reward_models import published
from think_as_locals.reward_models.reward_model import (
    Answer,
    Answered,
    Request,
    RewardModel,
    ScoredItem,
    favourite,
    identify_weights,
    query_all,
)
from think_as_locals.runtime.model_files import model_file, reading_model
from think_as_locals.types import LABELS, DataWarning, Item, Judgement, ModelError, TooLongError, first_of

_logger = logging.getLogger(__name__)

_ALONE = tuple((i,) for i in range(len(LABELS)))  # the order of one response, the same for all requests

TokenRow = dict[str, list[int]]  # the inputs of a model for a prompt and a response, per token, by parameter name
IGNORED = -100  # the label of tokens that no loss counts
HEADS = {r"^value_head\.": "score."}  # names of OpenRLHF's head, and of transformers' own


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseScorer(RewardModel):
    """A reward model that scores one response at a time; `seed` decides only the order within predictions."""

    seed: int = 0
    chunk_size: int | None = 1024

    def close(self) -> None:
        """Do nothing: the model is freed with its last reference."""

    def requests(self, item: Item) -> list[Request]:
        return [Request(item, _ALONE[i]) for i in range(len(item.responses))]

    def predictions(self, item: Item, answers: Sequence[Answer]) -> list[ScoredItem]:
        """Return one prediction: the scores, and the unique highest as the verdict."""
        order = shuffled_order(item.responses, self.seed)
        in_item_order = self.scores(item, answers)
        scores = tuple(in_item_order[i] for i in order)
        text = ", ".join(f"{label} {score:.6g}" for label, score in zip(LABELS, scores, strict=False))
        judgement = Judgement(verdict=favourite(scores), rubric=None, analysis=None, issues=(), completion=text)
        presented = reorder_responses(item, order)
        return [ScoredItem(item=item, presented=presented, judgement=judgement, scores=scores)]

    def sort_key(self, request: Request) -> tuple[int, str]:
        return len(request.item.prompt), request.item.prompt  # responses to one prompt are cheaper together

    score_requests = requests

    def scores(self, item: Item, answers: Sequence[Answer]) -> tuple[float, ...]:
        return tuple(answer.get("score", math.nan) for answer in answers)  # none of what is too long

    def score(self, items: Sequence[Item]) -> list[tuple[float, ...]]:
        """Return the scores of each item's responses, in the item's own order."""
        answers = query_all(self, [self.requests(item) for item in items])
        return [self.scores(item, of_item) for item, of_item in zip(items, answers, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchScorer(ResponseScorer):
    """A response scorer with a transformers model: batches of similar length, padded on the right, never truncated."""

    path: str
    model: Any
    chat: Chat
    max_length: int
    batch_size: int = 16

    @abstractmethod
    def rows(self, requests: Sequence[Request]) -> list[TokenRow]:
        """Return the model's inputs for each request."""

    @abstractmethod
    def _scores(self, rows: Sequence[TokenRow]) -> torch.Tensor:
        """Return the scores of a batch (B,)."""

    def _turns(self, requests: Sequence[Request]) -> list[Messages]:
        """Return the turns of the prompt and an assistant's for each request, with special tokens neutralised."""
        special = self.chat.special_tokens
        self.chat.check_texts(dict.fromkeys(request.item for request in requests))
        return [
            [
                {**turn, "content": break_tokens(turn["content"], special)}
                for turn in (*self._prompt(request.item), {"role": "assistant", "content": request.responses[0]})
            ]
            for request in requests
        ]

    def _prompt(self, item: Item) -> Messages:
        """Return the prompt in its turns, or if the template refuses their order or drops one, as one of the user."""
        if item.turns and self.chat.tokenizer.chat_template:
            try:
                answered = [*item.messages, {"role": "assistant", "content": ""}]
                text = self.chat.text(answered, add_generation_prompt=False)
                kept = all(told.strip() in text for role, told in item.turns if role == "system")
                refused = "" if kept else f"{self.path} leaves out a system turn"
            except ModelError as error:
                refused = str(error)
            if refused:
                message = f"conversations whose turns a chat template does not take are one turn there: {refused}"
                warnings.warn(message, DataWarning, stacklevel=2)
                return [{"role": "user", "content": item.prompt}]
        return item.messages

    @property
    def _identity(self) -> dict[str, Any]:
        """The part of `RewardModel.identity` that is about weights and chat template."""
        template = str(self.chat.tokenizer.chat_template)
        return {
            "weights": identify_weights(self.path, self.model.config._commit_hash),
            "dtype": str(self.model.dtype),
            "template": hashlib.sha256(template.encode()).hexdigest(),
            "template_kwargs": dict(self.chat.template_kwargs),
        }

    def query(self, requests: Sequence[Request]) -> Answered:
        """Score requests, the longest first, so that running out of memory shows at once."""
        rows = self.rows(requests)
        lengths = [len(row["input_ids"]) for row in rows]
        if indices := [index for index, length in enumerate(lengths) if length > self.max_length]:
            request, length = requests[indices[0]], lengths[indices[0]]
            raise TooLongError(
                f"item {request.item.id!r}: response {LABELS[request.order[0]]} has {length} tokens together with "
                f"its prompt, {self.path} takes {self.max_length}: nothing is cut off; raise max_length where the "
                "model can read more, or leave the item out",
                indices,
            )
        for indices, scores in self._scored_batches(requests, rows):
            for index, score in zip(indices, scores, strict=True):
                if not math.isfinite(score):
                    raise ModelError(
                        f"item {requests[index].item.id!r}: {self.path} scores response "
                        f"{LABELS[requests[index].order[0]]} {score}, expected a finite number: are its weights sound, "
                        f"and is {self.model.dtype} wide enough for it?"
                    )
            yield from ((index, {"score": score}) for index, score in zip(indices, scores, strict=True))

    def _scored_batches(
        self, _: Sequence[Request], rows: Sequence[TokenRow]
    ) -> Iterator[tuple[list[int], list[float]]]:
        """Yield batches of rows of similar length, as the indices of rows and their scores."""
        by_length = sorted(range(len(rows)), key=lambda i: -len(rows[i]["input_ids"]))
        for start in range(0, len(rows), self.batch_size):
            indices = by_length[start : start + self.batch_size]
            with torch.inference_mode():
                scores = self._scores([rows[i] for i in indices])
            yield indices, scores.tolist()


def padded_batch(rows: Sequence[TokenRow], pad_id: int, device: Any) -> dict[str, torch.Tensor]:
    """Return a batch (B, L) for a model, padded on the right."""
    batch, fill = {}, {"input_ids": pad_id, "labels": IGNORED}
    for name in rows[0]:
        values = [torch.tensor(row[name]) for row in rows]
        batch[name] = pad_sequence(values, batch_first=True, padding_value=fill.get(name, 0)).to(device)
    return batch


def unused_end(rows: Sequence[TokenRow]) -> int:
    """Return a token id with which no row ends: with it as padding, a classification head finds each last token."""
    ends = {row["input_ids"][-1] for row in rows}
    return next(i for i in range(len(rows) + 1) if i not in ends)


def resolve_max_length(path: str, model: Any, tokenizer: Any, max_length: int | None) -> int:
    """Return the requested maximum length, if the model has that many positions, or else the declared one."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if max_length is None:
        declared = min(tokenizer.model_max_length, math.inf if positions is None else positions)
        if declared > 1e20:  # tokenizers without a limit declare 1e30
            raise ModelError(f"{path} does not say how many tokens it takes: give max_length")
        return int(declared)
    if positions is not None and max_length > positions:
        raise ModelError(f"{path} has {positions} positions, fewer than the max_length {max_length}: give at most that")
    return max_length


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarRM(BatchScorer):
    """A classifier with one label, which scores a prompt and a response, by its chat template or else as a text pair.

    Published models with other heads (INF-ORM, ArmoRM, QRM, InternLM2-reward) are supported too, see `published`.

    A decoder's head reads the last token that is not the padding token of its configuration, even if a text ends with
    that token, as in training; without a padding token it reads the last token.

    Responses to one prompt are packed behind it, so that a decoder reads it once; `unshared_reason` says why not.

    Example:
        rm = ScalarRM.load("path-or-hub-id")
        rm.score([item])  # [(0.3, -1.2)]
    """

    pad_id: int | None  # the padding token that the model declares
    unshared_reason: str | None

    @classmethod
    def load(
        cls,
        path: str,
        *,
        dtype: str = "auto",
        max_length: int | None = None,
        device_map: str | None = None,
        revision: str | None = None,
        template_kwargs: Mapping[str, Any] = MappingProxyType({}),
        **settings: Any,
    ) -> ScalarRM:
        """Load a classifier from a directory or the Hub; a ModelError names what is wrong with its head or weights.

        Args:
            path: Directory or Hub id.
            dtype: Type of the weights.
            max_length: Maximum number of tokens of prompt and response together; `None` for the model's.
            device_map: `auto` spreads the layers over all GPUs that the process sees; `None` takes one device.
            revision: Commit, tag or branch on the Hub; a commit for those of `published`.
            template_kwargs: Passed to the chat template.
            **settings: `batch_size` (responses at a time), `chunk_size` (of `RewardModel`), `seed` (`ResponseScorer`).
        """
        model_file(path, "config.json", revision)  # without such a model, or a network, an error at once
        with reading_model(path):
            model = on_device(_load_model(path, dtype, device_map, revision))
            tokenizer = AutoTokenizer.from_pretrained(path, revision=revision, trust_remote_code=False)
        require_embeddings(path, model, tokenizer)
        config = model.config.get_text_config()
        config.use_cache = False  # keys and values that no later token would read
        declared = config.pad_token_id  # one outside the vocabulary (-1 is common) is in no text
        pad_id = declared if declared is not None and 0 <= declared < config.vocab_size else None
        full = model.dtype == torch.float32
        reason = packed_passes.prepare_classifier(model, tokenizer)
        if reason := reason or packed_passes.scores_differ(model, pad_id, model.device, full_precision=full):
            _logger.warning("%s: prompts are not shared, each response is scored with its own: %s", path, reason)
        return cls(
            path=path,
            model=model,
            chat=Chat(tokenizer, template_kwargs),
            pad_id=pad_id,
            max_length=resolve_max_length(path, model, tokenizer, max_length),
            unshared_reason=reason,
            **settings,
        )

    @property
    def identity(self) -> dict[str, Any]:
        return {"kind": "classifier", **self._identity}

    def rows(self, requests: Sequence[Request]) -> list[TokenRow]:
        tokenizer = self.chat.tokenizer
        turns = self._turns(requests)
        if tokenizer.chat_template:
            texts = [self.chat.text(messages, add_generation_prompt=False) for messages in turns]
            encoded = tokenizer(texts, add_special_tokens=False)
        else:
            prompts = [break_tokens(request.item.prompt, self.chat.special_tokens) for request in requests]
            encoded = tokenizer(prompts, [messages[-1]["content"] for messages in turns])
        names = encoded.keys() & inspect.signature(self.model.forward).parameters.keys()
        rows = [{name: encoded[name][i] for name in sorted(names)} for i in range(len(requests))]
        if (reward_token := getattr(self.model.config, "reward_token_id", None)) is not None:
            for row in rows:
                row["input_ids"].append(reward_token)
                row["attention_mask"].append(1)
        return rows

    def _scored_batches(
        self, requests: Sequence[Request], rows: Sequence[TokenRow]
    ) -> Iterator[tuple[list[int], list[float]]]:
        """Yield batches of rows, packed by their prompts, as the indices of rows and their scores."""
        if self.unshared_reason or self.model.training:  # dropout would be the same for all responses
            yield from BatchScorer._scored_batches(self, requests, rows)
            return
        read = [until_scored(row["input_ids"], self.pad_id) for row in rows]
        by_prompt = defaultdict(list)
        for index, request in enumerate(requests):
            by_prompt[request.item.prompt].append(index)
        size = self.batch_size
        groups = [indices[i : i + size] for indices in by_prompt.values() for i in range(0, len(indices), size)]
        groups.sort(key=lambda indices: -sum(len(read[i]) for i in indices))
        while groups:
            batch = [groups.pop(0)]
            while groups and sum(map(len, batch)) + len(groups[0]) <= size:
                batch.append(groups.pop(0))
            packed = packing.pack_rows([[read[i] for i in indices] for indices in batch], self.model.device)
            with torch.inference_mode():
                scores = packed_passes.scores(self.model, packed).float()
            yield [index for indices in batch for index in indices], scores.tolist()

    def _scores(self, rows: Sequence[TokenRow]) -> torch.Tensor:
        pad_id = self.pad_id
        if pad_id is None:
            self.model.config.get_text_config().pad_token_id = pad_id = unused_end(rows)
        scores: torch.Tensor = self.model(**padded_batch(rows, pad_id, self.model.device)).logits[:, 0].float()
        return scores


def until_scored(ids: list[int], pad_id: int | None) -> list[int]:
    """Return a row's tokens up to the one that a decoder's head scores: the last that is not `pad_id`."""
    return ids[: max((i for i, token in enumerate(ids) if token != pad_id), default=0) + 1]


def _load_model(path: str, dtype: str, device_map: str | None, revision: str | None) -> Any:
    options: dict[str, Any] = {"dtype": dtype, "device_map": device_map}
    if published.architecture(PreTrainedConfig.get_config_dict(path, revision=revision)[0]):
        return published.load_published(path, revision, **options)
    config = AutoConfig.from_pretrained(path, revision=revision, trust_remote_code=False)
    named = (config.architectures or [""])[0]
    if getattr(config, "auto_map", None) and not hasattr(transformers, named):
        raise ModelError(f"{path}: {named} is code of its own, which is not run: nothing else gives its scores")
    config.num_labels = 1  # OpenRLHF saves a head of one output as `value_head`, and leaves the default of two labels
    model, info = AutoModelForSequenceClassification.from_pretrained(
        path,
        config=config,
        revision=revision,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # it says which
        trust_remote_code=False,
        key_mapping=HEADS,
        **options,
    )
    if odd := sorted(info["mismatched_keys"]):
        name, stored, expected = odd[0]
        raise ModelError(
            f"{path} ({named}): its weights have other shapes than config.json describes with one label, the score "
            f"({name} is {list(stored)}, expected {list(expected)}): give a reward model, or save or download it again"
        )
    if lost := sorted(info["missing_keys"]):
        lacking = first_of(lost, 5)
        raise ModelError(f"{path} ({named}) lacks weights of a classifier, which would be random: {lacking}")
    require_all_read(path, info, "its scores would not be its own: is its architecture one that transformers has?")
    return model


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantRM(ResponseScorer):
    """The same score for every response, so a credit of 1/N for every item: exactly 25 % on Best-of-4."""

    @property
    def identity(self) -> dict[str, Any]:
        return {"kind": "constant"}

    def query(self, requests: Sequence[Request]) -> Answered:
        yield from ((index, {"score": 0.0}) for index in range(len(requests)))
