"""Generative judges as reward models: a prompt, a protocol and what completes, an engine here or a server elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from think_as_locals.generation import Sampling
from think_as_locals.generation.completer import Completer, EngineCompleter, Reply
from think_as_locals.generation.engine import Messages
from think_as_locals.judging import (
    asks_for_rating,
    label_place,
    prompt_digest,
    read_rating,
    read_verdict,
    render_shown,
    reserved_marks,
)
from think_as_locals.models.generative import Backend, JudgeSettings, load_engine, served
from think_as_locals.models.prediction import Prediction
from think_as_locals.models.protocols import JudgingProtocol, Reading
from think_as_locals.models.reward_model import Answer, Keep, Request, weights
from think_as_locals.types import LABELS, ConfigError, Item, Judgement


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerativeRM:
    """A judge behind `RewardModel`: any that writes a verdict or a rating. It is asked greedily.

    Args:
        completer: What completes.
        prompt: Name of the prompt template; `judging.readers` knows what is read of its completions.
        seed: Of the order in which responses are shown.
        protocol: How items are put to it.
        max_completion_length: In tokens.
        margins: Whether the completer tells log-probabilities of labels.
        model: Plain JSON that says which weights answer (`reward_model.weights`, or a server's name for them), their
            dtype, and whatever else changes what they write.

    Raises:
        ConfigError: a pointwise protocol needs a prompt that asks for a rating, every other one a prompt that asks for
            a verdict.
    """

    completer: Completer
    prompt: str
    seed: int
    protocol: JudgingProtocol
    max_completion_length: int
    margins: bool
    model: Mapping[str, Any]

    def __post_init__(self) -> None:
        if asks_for_rating(self.prompt) != (self.protocol.kind == "pointwise"):
            raise ConfigError(
                f"got prompt {self.prompt!r} in a {self.protocol.kind} protocol; pointwise needs a prompt that asks "
                "for a rating (rewardbench2_ratings), every other protocol one that asks for a verdict"
            )

    @classmethod
    def load(
        cls,
        path: str,
        backend: Backend,
        protocol: JudgingProtocol,
        *,
        chunk_size: int,
        batch_size: int,
        margins: bool,
        revision: str | None = None,
        **changes: Any,
    ) -> GenerativeRM:
        """Load a judge or any chat model, from a directory or the Hub, into this process.

        Args:
            path: Directory or Hub id.
            backend: `transformers` or `vllm`.
            protocol: How items are put to it.
            chunk_size: How many requests go together into one call of the engine.
            batch_size: Prompts at a time (transformers only).
            margins: Whether to ask for log-probabilities of labels as well.
            revision: Commit, tag or branch on the Hub.
            **changes: Fields of `JudgeSettings` that differ from those saved beside the weights.
        """
        settings = replace(JudgeSettings.load(path, revision), **changes)
        engine = load_engine(path, settings, backend, batch_size, revision)
        return cls(
            completer=EngineCompleter(engine, chunk_size, margins),
            prompt=settings.prompt,
            seed=settings.seed,
            protocol=protocol,
            max_completion_length=settings.max_completion_length,
            margins=margins,
            model={
                **weights(path, revision),
                "dtype": settings.dtype,
                "backend": backend,
                "chat_template_kwargs": dict(settings.chat_template_kwargs),
            },
        )

    @classmethod
    def served(
        cls,
        path: str,
        base_url: str,
        protocol: JudgingProtocol,
        *,
        served_name: str | None = None,
        key_variable: str | None = None,
        revision: str | None = None,
        **changes: Any,
    ) -> GenerativeRM:
        """A judge that a server has loaded; the arguments are those of `load` and of `Judge.load`. No torch is needed.

        Raises:
            ConfigError: the saved settings are none.
            ModelError: the Hub has no such model or cannot be asked.
            ServerError: `base_url` is none, or the key is not there.
        """
        server, settings = served(path, base_url, served_name, key_variable, revision, **changes)
        return cls(
            completer=server,
            prompt=settings.prompt,
            seed=settings.seed,
            protocol=protocol,
            max_completion_length=settings.max_completion_length,
            margins=False,
            model={"url": server.url, "name": server.model, "fields": dict(server.fields)},
        )

    @property
    def identity(self) -> dict[str, Any]:
        """As `RewardModel.identity`; the prompt by its name and by a digest of its texts."""
        return {
            "kind": "generative",
            "model": dict(self.model),
            "prompt": self.prompt,
            "prompt_sha256": prompt_digest(self.prompt),
            "seed": self.seed,
            "protocol": asdict(self.protocol),
            "max_completion_length": self.max_completion_length,
            "margins": self.margins,
        }

    @property
    def chunk_size(self) -> int | None:
        """That of the completer."""
        return self.completer.chunk_size

    def requests(self, item: Item) -> list[Request]:
        """What the protocol asks about an item."""
        return self.protocol.requests(item, self.seed)

    def sort_key(self, request: Request) -> str:
        """Requests sorted by this have those with a long beginning in common side by side, so within one chunk."""
        return "\n".join(message["content"] for message in self._conversation(request))

    def ask(self, requests: Sequence[Request], keep: Keep) -> None:
        """As `RewardModel.ask`: answers hold `text`, `finish_reason` and `label_log_probs`."""

        def take(place: int, reply: Reply) -> None:
            log_probs = dict(reply.label_log_probs)
            keep(place, {"text": reply.text, "finish_reason": reply.finish_reason, "label_log_probs": log_probs})

        sampling = Sampling(max_completion_length=self.max_completion_length)
        self.completer.complete([self._conversation(request) for request in requests], sampling, take)

    def predictions(self, item: Item, answers: Sequence[Answer]) -> list[Prediction]:
        """As `RewardModel.predictions`."""
        requests = self.requests(item)
        readings = [self.read(request, answer) for request, answer in zip(requests, answers, strict=True)]
        return self.protocol.predictions(item, self.seed, readings)

    def score_requests(self, item: Item) -> list[Request]:
        """As `RewardModel.score_requests`: of the item's own order the rotations, or each response to be rated."""
        order = tuple(range(len(item.responses)))
        if self.protocol.kind == "pointwise":
            return [Request(item, (i,)) for i in order]
        rotations = range(min(self.protocol.orders, len(order)) if self.protocol.kind == "listwise" else 0)
        return [Request(item, order[i:] + order[:i]) for i in rotations]

    def scores(self, item: Item, answers: Sequence[Answer]) -> tuple[float, ...]:
        """As `RewardModel.scores`: ratings, or means over rotations of what `_worth` says of each label.

        A rotation without a verdict counts for nothing.
        """
        found: list[list[float]] = [[] for _ in item.responses]
        for request, answer in zip(self.score_requests(item), answers, strict=True):
            for i, value in zip(request.order, self._worth(request, answer), strict=False):
                found[i].append(value)
        return tuple(sum(values) / len(values) if values else math.nan for values in found)

    def read(self, request: Request, answer: Answer) -> Reading:
        """What was said to one request."""
        text, finish_reason, convention = answer["text"], answer["finish_reason"], self.protocol.convention
        if self.protocol.kind == "pointwise":
            rating = read_rating(text, finish_reason, convention)
            issues = ("rating",) if rating is None else ()
            return Reading(
                judgement=Judgement(verdict=None, rubric=None, analysis=None, issues=issues, text=text), rating=rating
            )
        judgement = read_verdict(self.prompt, text, len(request.order), finish_reason, convention)
        return Reading(judgement=judgement, margin=_margin(judgement, answer, len(request.order)))

    def _worth(self, request: Request, answer: Answer) -> Sequence[float]:
        """Of each label its log-probability in the verdict's place, in nats; without margins 1 if chosen, else 0."""
        reading = self.read(request, answer)
        if self.protocol.kind == "pointwise":
            return [] if reading.rating is None else [reading.rating]
        if self.margins:
            return _offered(answer, len(request.order)) or []
        verdict = reading.judgement.verdict
        return [] if verdict is None else [float(i == verdict) for i in range(len(request.order))]

    def _conversation(self, request: Request) -> Messages:
        untrusted = (*self.completer.special_tokens, *reserved_marks(self.prompt))
        return render_shown(request.item, request.responses, self.prompt, untrusted)


def _offered(answer: Answer, num_responses: int) -> list[float] | None:
    """Log-probabilities of the labels on offer; `None` unless all are known."""
    known = answer["label_log_probs"]
    labels = LABELS[:num_responses]
    return [known[label] for label in labels] if all(label in known for label in labels) else None


def _margin(judgement: Judgement, answer: Answer, num_responses: int) -> float | None:
    """Log-odds of the verdict's label against the others on offer, where they were measured in its place."""
    log_probs, place = _offered(answer, num_responses), label_place(judgement.text)
    if log_probs is None or judgement.verdict is None or place is None:
        return None
    if judgement.text[place] != LABELS[judgement.verdict]:
        return None  # RewardBench 2's convention may read another bracket than the last
    from scipy.special import logsumexp

    chosen = log_probs.pop(judgement.verdict)
    return float(chosen - logsumexp(log_probs))
