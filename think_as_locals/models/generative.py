"""A judge: items -> judgements, with the prompt, parser and settings it was trained with."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, overload

from think_as_locals.files import write_json
from think_as_locals.generation import Engine, Sampling, ScoringEngine
from think_as_locals.generation.chat_engine import ChatEngine, connect
from think_as_locals.generation.chat_server import ChatServer
from think_as_locals.generation.model_files import model_file, special_tokens
from think_as_locals.judging import CHAT_TOKENS, parse, present, render
from think_as_locals.models.prediction import Prediction
from think_as_locals.types import ConfigError, Item, Judgement, ModelError

SETTINGS_FILE = "tal_judge.json"

_log = logging.getLogger(__name__)

Backend = Literal["transformers", "vllm"]
"""What can hold a judge's weights in this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSettings:
    """What must be as in training for verdicts to be the same; saved beside the weights as `tal_judge.json`.

    Args:
        prompt: Name of the prompt template.
        seed: Seed of the order in which responses are shown.
        max_completion_length: In tokens.
        dtype: Type of the weights.
        chat_template_kwargs: Passed to the tokenizer's chat template.
    """

    prompt: str = "listwise"
    seed: int = 0
    max_completion_length: int = 2048
    dtype: str = "auto"
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write them beside the weights."""
        write_json(folder / SETTINGS_FILE, asdict(self))

    @classmethod
    def load(cls, path: str, revision: str | None = None) -> JudgeSettings:
        """Read them from a directory or the Hub; a model that has none gets the defaults.

        Raises:
            ConfigError: the file does not hold settings of a judge.
            ModelError: there is no such directory, and the Hub has no such model or cannot be asked.
        """
        file = model_file(path, SETTINGS_FILE, revision)
        if file is None:
            return cls()
        try:
            return cls(**json.loads(file.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{file}: not the settings of a judge: {error}") from error


def load_engine(
    path: str, settings: JudgeSettings, backend: Backend, batch_size: int, revision: str | None
) -> ScoringEngine:
    """Load a judge's weights from a directory or the Hub.

    Raises:
        ConfigError: the message lists the backends there are.
    """
    common: dict[str, Any] = {
        "dtype": settings.dtype,
        "template_kwargs": settings.chat_template_kwargs,
        "revision": revision,
    }
    if backend == "transformers":
        from think_as_locals.generation.transformers_engine import TransformersEngine

        return TransformersEngine.load(path, batch_size=batch_size, **common)
    if backend == "vllm":
        from think_as_locals.generation.vllm_engine import VLLMEngine

        return VLLMEngine.load(path, **common)
    raise ConfigError(f"no backend {backend!r}; available: transformers, vllm")


def served(
    path: str,
    base_url: str,
    served_name: str | None = None,
    key_variable: str | None = None,
    revision: str | None = None,
    **changes: Any,
) -> tuple[ChatServer, JudgeSettings]:
    """The server that has a judge's weights, and the judge's settings; the arguments are those of `Judge.load`.

    Settings and special tokens are read from a directory, or from the Hub where `path` is `owner/name`. If there is no
    such model and the prompt is given, `path` is nothing but the server's name for it: the settings are those given.
    Where the special tokens are not known, those of widely used chat formats are neutralised in responses.
    """
    settings, tokens = JudgeSettings(), CHAT_TOKENS
    if Path(path).is_dir() or "/" in path:
        try:
            settings, tokens = JudgeSettings.load(path, revision), special_tokens(path, revision) or CHAT_TOKENS
        except ModelError as error:
            if "prompt" not in changes:
                remedy = "where this is nothing but the server's name for a model, give the judge's prompt as well"
                raise ModelError(f"{error}; {remedy}") from error
            _log.warning("%s; its settings are those given, whatever it was trained with", error)
    settings = replace(settings, **changes)
    server = connect(
        base_url,
        served_name or path,
        key_variable=key_variable,
        special_tokens=tokens,
        chat_template_kwargs=settings.chat_template_kwargs,
    )
    return server, settings


@dataclass(frozen=True, slots=True)
class Judge:
    """A generative reward model.

    Example:
        judge = Judge.load("runs/quickstart/model")
        judge.judge(item).verdict
    """

    engine: Engine
    settings: JudgeSettings

    @classmethod
    def load(
        cls,
        path: str,
        backend: Backend = "transformers",
        *,
        batch_size: int = 64,
        revision: str | None = None,
        base_url: str | None = None,
        served_name: str | None = None,
        key_variable: str | None = None,
        **changes: Any,
    ) -> Judge:
        """Load a judge from a directory or the Hub, or ask one that a server has loaded; that needs no torch.

        Args:
            path: Directory or Hub id; with `base_url` it may be nothing but the server's name for a model.
            backend: `transformers` or `vllm`.
            batch_size: Prompts at a time (transformers only).
            revision: Commit, tag or branch on the Hub.
            base_url: Of an OpenAI-compatible server that has the model, e.g. `http://127.0.0.1:8000/v1`.
            served_name: What the server calls the model, where that is not `path`.
            key_variable: Name of the environment variable that holds the server's key; `None` sends none.
            **changes: Fields of `JudgeSettings` that differ from the saved ones.

        Raises:
            ConfigError: there is no such backend, or the saved settings are none.
            ModelError: the Hub has no such model or cannot be asked.
            ServerError: `base_url` is none, or the key is not there.
        """
        if base_url is not None:
            server, settings = served(path, base_url, served_name, key_variable, revision, **changes)
            return cls(ChatEngine(server), settings)
        settings = replace(JudgeSettings.load(path, revision), **changes)
        return cls(load_engine(path, settings, backend, batch_size, revision), settings)

    @overload
    def judge(self, items: Item) -> Judgement: ...

    @overload
    def judge(self, items: Sequence[Item]) -> list[Judgement]: ...

    def judge(self, items: Item | Sequence[Item]) -> Judgement | list[Judgement]:
        """Greedy judgements, in the order of the items, or one where there is one item.

        `verdict` indexes the responses as shown (`present`).

        Raises:
            ServerError: the judge's server is gone, silent, or answers what no other try would mend.
        """
        if isinstance(items, Item):
            return self.judge([items])[0]
        settings = self.settings
        special = self.engine.chat.special_tokens
        conversations = [render(item, settings.prompt, settings.seed, special) for item in items]
        rollouts = self.engine.generate(conversations, Sampling(max_completion_length=settings.max_completion_length))
        return [
            parse(rollout.text, len(item.responses), rollout.finish_reason)
            for item, rollout in zip(items, rollouts, strict=True)
        ]

    def predict(self, items: Sequence[Item]) -> list[Prediction]:
        """Judgements together with what was judged, for an evaluation."""
        return [
            Prediction(item=item, shown=present(item, self.settings.seed), judgement=judgement)
            for item, judgement in zip(items, self.judge(items), strict=True)
        ]
