"""A judge: a generative reward model with a protocol, a prompt, and the reader of the prompt's format."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Self, overload

import yaml
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from think_as_locals.config.compose import ASSETS
from think_as_locals.data.sources import jsonl
from think_as_locals.engines import Engine, Messages, Sampling
from think_as_locals.engines.chat_server import ChatServer
from think_as_locals.engines.engine import Backend, check_template_kwargs, load_engine, special_tokens
from think_as_locals.judging import CHAT_TOKENS, prompt_digest, render_presented
from think_as_locals.judging.formats import Format
from think_as_locals.reward_models.protocols import LISTWISE, JudgingProtocol
from think_as_locals.reward_models.reward_model import (
    Answer,
    Answered,
    Request,
    ScoredItem,
    combine,
    identify_weights,
    is_unanswered,
    query_all,
)
from think_as_locals.runtime.files import write_json
from think_as_locals.runtime.model_files import commit_of, model_file
from think_as_locals.types import LABELS, ConfigError, CultureShown, Item, Judgement, ModelError, RubricLanguage

SETTINGS_FILE = "tal_judge.json"

_logger = logging.getLogger(__name__)

Query = Item | Mapping[str, Any]
"""An item, or a row with a prompt, responses and a culture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSettings:
    """The settings that verdicts depend on, as they were in training; saved beside the weights as `tal_judge.json`."""

    prompt: str = "listwise"  # name of the prompt template
    __pydantic_config__ = ConfigDict(extra="forbid")
    culture: CultureShown = "stated"  # whether the prompt names the culture
    rubric_language: RubricLanguage = "item"  # the language in which the prompt asks for the rubric
    seed: int = 0  # of the order in which responses are presented
    max_completion_length: Annotated[int, Field(gt=0)] = 2048  # in tokens
    dtype: str = "auto"  # of the weights
    chat_template_kwargs: Mapping[str, bool | int | float | str] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write the settings beside the weights."""
        write_json(folder / SETTINGS_FILE, asdict(self))

    @classmethod
    def load(cls, path: str, revision: str | None = None) -> JudgeSettings:
        """Read the settings of a model in a directory or on the Hub; the defaults if it has none."""
        file = model_file(path, SETTINGS_FILE, revision)
        if file is None:
            return cls()
        try:
            return TypeAdapter(cls).validate_json(file.read_bytes(), strict=True)
        except ValidationError as error:
            reason = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
            raise ConfigError(f"{file}: not the settings of a judge: {reason}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """A generative reward model: any model that writes a verdict or a rating, sampled greedily.

    Args:
        engine: Samples its completions.
        settings: The prompt, and the limits of a completion.
        protocol: How items are presented to it.
        label_log_probs: Whether to compute those of the labels, for `scores`: one more pass over each completion.
        chunk_size: As `RewardModel.chunk_size`.
        model: Plain JSON that identifies weights (or a server's name for them) and what else changes completions.

    Raises:
        ConfigError: the prompt does not ask for what the protocol reads, a rating (pointwise) or a verdict.

    Example:
        with Judge.load("runs/quickstart/model") as judge:  # closed at the end, as by `close`
            judge.judge(prompt="How do people greet?", responses=["With a bow.", "With a wai."], culture="TH").verdict
    """

    engine: Engine
    settings: JudgeSettings
    protocol: JudgingProtocol = LISTWISE
    label_log_probs: bool = False
    chunk_size: int | None = None
    model: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.protocol.format(self.settings.prompt)

    @classmethod
    def load(
        cls,
        path: str,
        backend: Backend = "transformers",
        *,
        protocol: JudgingProtocol = LISTWISE,
        label_log_probs: bool = False,
        batch_size: int = 64,
        chunk_size: int = 1024,
        revision: str | None = None,
        base_url: str | None = None,
        served_name: str | None = None,
        key_variable: str | None = None,
        vllm: Mapping[str, Any] = MappingProxyType({}),
        **changes: Any,
    ) -> Judge:
        """Load a judge from a directory or the Hub, or connect to a server that has loaded one, without torch.

        With `base_url`, settings and special tokens are read from a directory, or from the Hub if `path` is
        `owner/name`. If there is no such model and the prompt is given, `path` is only the server's name for the model.

        Args:
            path: Directory or Hub id; with `base_url` it may be only the server's name for a model.
            backend: `transformers` or `vllm`.
            protocol: How items are presented to it.
            label_log_probs: Whether to compute those of the labels as well, for `scores`.
            batch_size: Prompts at a time (transformers only).
            chunk_size: How many requests an evaluation passes to the engine at a time (not to a server).
            revision: Commit, tag or branch on the Hub.
            base_url: Of an OpenAI-compatible server that has the model, e.g. `http://127.0.0.1:8000/v1`.
            served_name: What the server calls the model, if not `path`.
            key_variable: Name of the environment variable that holds the server's key; `None` sends none.
            vllm: With that backend: `tensor_parallel_size`, `max_model_length` (tokens), `gpu_memory_utilization` (a
                share), `quantization`.
            **changes: Fields of `JudgeSettings` that differ from the saved ones.

        Raises:
            ConfigError: there is no such backend, saved settings are invalid, or prompt and protocol do not match.
            ModelError: the Hub has no such model or cannot be reached.
            ServerError: `base_url` is not a URL, or the key is not set.
        """
        options: dict[str, Any] = {"protocol": protocol, "label_log_probs": label_log_probs}
        if base_url is not None:
            server, settings = _connect(path, base_url, served_name or path, key_variable, revision, changes)
            model = {"url": server.url, "name": server.model, "fields": dict(server.fields)}
            return cls(engine=server, settings=settings, model=model, **options)
        revision = commit_of(path, revision)
        settings = replace(JudgeSettings.load(path, revision), **changes)
        dtype, template_kwargs = settings.dtype, dict(settings.chat_template_kwargs)
        loading: dict[str, Any] = {"dtype": dtype, "template_kwargs": template_kwargs, "revision": revision}
        try:
            engine = load_engine(path, backend, batch_size=batch_size, vllm=vllm, **loading)
        except ModuleNotFoundError as error:
            extras = "train,vllm" if backend == "vllm" else "train"
            error.add_note(f"pip install 'think-as-locals[{extras}]', or give base_url for a judge behind a server")
            raise
        loaded = {"dtype": dtype, "backend": backend, "chat_template_kwargs": template_kwargs}
        loaded |= {"quantization": vllm["quantization"]} if "quantization" in vllm else {}
        model = identify_weights(path, revision) | loaded
        return cls(engine=engine, settings=settings, chunk_size=chunk_size, model=model, **options)

    @overload
    def judge(self, items: Query) -> Judgement: ...

    @overload
    def judge(self, items: Sequence[Query]) -> list[Judgement]: ...

    @overload
    def judge(
        self, *, prompt: str, responses: Sequence[str], culture: str | None, language: str = "und"
    ) -> Judgement: ...

    def judge(self, items: Query | Sequence[Query] | None = None, **query: Any) -> Judgement | list[Judgement]:
        """Return greedy judgements; their `verdict` is an index into the responses as given here.

        A listwise protocol of several orders gives a judgement for each order of an item; the single judgement is then
        that of the first.

        Args:
            items: An item or several: an `Item`, or a mapping with `prompt`, `responses`, `culture` and, optionally,
                other fields of `Item`. The judge is never told the best response.
            **query: In place of `items`, `prompt`, `responses`, `culture` (ISO 3166 code, or None for nowhere in
                particular) and, if known, `language` (BCP-47 tag).

        Raises:
            DataError: the message names the row, e.g. `items:3`, and what is wrong with it.
            ServerError: the judge's server cannot be reached, or its answer is an error that no retry would fix.

        Example:
            judgement = judge.judge(prompt="How do they greet?", responses=["With a bow.", "With a wai."], culture="TH")
            judgement.verdict  # 1: "With a wai."
            judgement.order  # e.g. (1, 0): the judge saw it first, as A
        """
        if items is None:
            return self.judge(query)
        if query:
            raise TypeError(f"judge() got items and {', '.join(query)} as well: give one or the other")
        if isinstance(items, Item | Mapping):
            return self.judge([items])[0]
        rows = [
            item
            if isinstance(item, Item)
            else jsonl.query_item({k: [*v] if isinstance(v, tuple) else v for k, v in item.items()}, number=number)
            for number, item in enumerate(items, 1)
        ]
        return [scored.answer for scored in self.predict(rows)]

    def predict(self, items: Sequence[Item], allow_long: bool = False) -> list[ScoredItem]:
        """Return judgements together with their items, for an evaluation.

        With `allow_long`, an item that is too long raises no error: its judgement has no verdict and says so.
        """
        answers = query_all(self, [self.requests(item) for item in items], allow_long)
        return list(combine(self, zip(items, answers, strict=True)))

    @property
    def identity(self) -> dict[str, Any]:
        """As `RewardModel.identity`; the prompt is identified by its name and a digest of its texts."""
        return {
            "kind": "generative",
            "model": dict(self.model),
            "prompt": self.settings.prompt,
            "prompt_sha256": prompt_digest(self.settings.prompt),
            "culture": self.settings.culture,
            "rubric_language": self.settings.rubric_language,
            "seed": self.settings.seed,
            "protocol": asdict(self.protocol),
            "max_completion_length": self.settings.max_completion_length,
            "label_log_probs": self.label_log_probs,
        }

    @property
    def format(self) -> Format:
        """The format in which the answers to its prompt are read."""
        return self.protocol.format(self.settings.prompt)

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def requests(self, item: Item) -> list[Request]:
        return self.protocol.requests(item, self.settings.seed)

    def sort_key(self, request: Request) -> str | tuple[int, str]:
        return self.engine.sort_key(self.conversation(request))

    def conversation(self, request: Request) -> Messages:
        settings, tokens = self.settings, self.engine.special_tokens
        prompt_arguments = settings.culture, settings.rubric_language
        return render_presented(request.item, request.responses, settings.prompt, tokens, *prompt_arguments)

    def query(self, requests: Sequence[Request]) -> Answered:
        """Answer requests by completions: answers have `text`, `finish_reason` and `label_log_probs`."""
        sampling = Sampling(
            max_completion_length=self.settings.max_completion_length,
            label_opening=self.format.label_opening if self.label_log_probs else "",
        )
        self.engine.check_texts(dict.fromkeys(request.item for request in requests))
        for index, rollout in self.engine.sample([self.conversation(request) for request in requests], sampling):
            labels = {label: value for label, value in rollout.label_log_probs.items() if math.isfinite(value)}
            yield index, {"text": rollout.text, "finish_reason": rollout.finish_reason, "label_log_probs": labels}

    def predictions(self, item: Item, answers: Sequence[Answer]) -> list[ScoredItem]:
        requests = self.requests(item)
        judgements = [self.read(request, answer) for request, answer in zip(requests, answers, strict=True)]
        return self.protocol.predictions(requests, judgements, self.settings.seed, self.format.guesses_failures)

    def read(self, request: Request, answer: Answer) -> Judgement:
        """Parse the answer to one request."""
        return self.format.read(answer["text"], len(request.order), answer["finish_reason"], self.protocol.convention)

    def score_requests(self, item: Item) -> list[Request]:
        """Return requests for rotations of the item's own order, or to rate each response."""
        order = tuple(range(len(item.responses)))
        if self.protocol.kind == "pointwise":
            return [Request(item, (i,)) for i in order]
        rotations = range(min(self.protocol.orders, len(order)) if self.protocol.kind == "listwise" else 0)
        return [Request(item, order[i:] + order[:i]) for i in rotations]

    def scores(self, item: Item, answers: Sequence[Answer]) -> tuple[float, ...]:
        """Return ratings, or means over rotations of the labels' log-probabilities (not computed: of 1 or 0)."""
        found: list[list[float]] = [[] for _ in item.responses]
        for request, answer in zip(self.score_requests(item), answers, strict=True):
            if is_unanswered(answer):
                continue
            judgement, values = self.read(request, answer), list[float]()
            if self.protocol.kind == "pointwise":
                values = [] if judgement.rating is None else [judgement.rating]
            elif judgement.verdict is None:  # whatever label stands where
                continue
            elif self.label_log_probs:
                known, labels = answer.get("label_log_probs", {}), LABELS[: len(request.order)]
                values = [known[label] for label in labels] if known.keys() >= {*labels} else []
            else:
                values = [float(i == judgement.verdict) for i in range(len(request.order))]
            for i, value in zip(request.order, values, strict=False):
                found[i].append(value)
        return tuple(sum(values) / len(values) if values else math.nan for values in found)


def _connect(
    path: str, base_url: str, served_name: str, key_variable: str | None, revision: str | None, changes: dict[str, Any]
) -> tuple[ChatServer, JudgeSettings]:
    """Connect to a server; the judge's settings and special tokens come from a directory or the Hub."""
    settings, tokens = JudgeSettings(), CHAT_TOKENS
    if Path(path).is_dir() or "/" in path:
        try:
            settings, tokens = JudgeSettings.load(path, revision), special_tokens(path, revision) or CHAT_TOKENS
        except ModelError as error:
            if "prompt" not in changes:
                remedy = "if this is only the server's name for a model, give the judge's prompt as well"
                raise ModelError(f"{error}; {remedy}") from error
            _logger.warning("%s; using the given settings, whatever the judge was trained with", error)
    settings = replace(settings, **changes)
    limits = yaml.safe_load((ASSETS / "conf" / "rm" / "server.yaml").read_text(encoding="utf-8"))
    kwargs = dict(settings.chat_template_kwargs)  # which vLLM and SGLang pass to the chat template
    check_template_kwargs(kwargs)
    server = ChatServer(
        url=base_url,
        model=served_name,
        key_variable=key_variable,
        fields={"chat_template_kwargs": kwargs} if kwargs else {},
        special_tokens=tokens,
        **{name: limits[name] for name in ("concurrency", "deadline_s", "max_retries")},
    )
    return server, settings
