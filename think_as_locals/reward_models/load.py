"""Reward models of an evaluation, loaded from the sections that describe them."""

from __future__ import annotations

from typing import Any

from think_as_locals.config.schema import (
    AskedSection,
    ClassifierSection,
    ConstantSection,
    ImplicitSection,
    JudgeSection,
    RewardModelSection,
    ServerSection,
)
from think_as_locals.engines.chat_server import ChatServer
from think_as_locals.reward_models.judge import Judge, JudgeSettings
from think_as_locals.reward_models.protocols import JudgingProtocol
from think_as_locals.reward_models.reward_model import RewardModel


def load_reward_model(section: RewardModelSection, seed: int) -> RewardModel:
    """Load a reward model of any kind; what other kinds need is not imported.

    Args:
        section: The section `rms.NAME`.
        seed: Of the order in which responses are presented.

    Raises:
        ModelError: the weights are not those of such a reward model.
        ConfigError: prompt and protocol do not go together.
        ServerError: `url` is not a URL, or the key is not set.
    """
    match section:
        case JudgeSection():
            return load_judge(section, seed)
        case ServerSection():
            return _server(section, seed)
        case ClassifierSection():
            from think_as_locals.reward_models.scalar import ScalarRM

            options = _given(section, "path", "chat_template_kwargs")
            return ScalarRM.load(section.path, seed=seed, template_kwargs=section.chat_template_kwargs, **options)
        case ImplicitSection():
            from think_as_locals.reward_models.implicit import ImplicitRM

            options = _given(section, "path", "reference", "chat_template_kwargs")
            options |= {"seed": seed, "template_kwargs": section.chat_template_kwargs}
            return ImplicitRM.load(section.path, section.reference, **options)
        case ConstantSection():
            from think_as_locals.reward_models.scalar import ConstantRM

            return ConstantRM(seed=seed)


def load_judge(section: JudgeSection, seed: int) -> Judge:
    """As `load_reward_model`, for a judge in this process."""
    asked = _given(section, "path", "backend", "protocol", "orders", "convention")
    return Judge.load(section.path, section.backend, protocol=_protocol(section), seed=seed, **asked)


def _given(section: RewardModelSection, *others: str) -> dict[str, Any]:
    """Return a section's values that are not null, without its kind and some others."""
    values = section.model_dump(exclude={"kind", *others})
    return {name: value for name, value in values.items() if value is not None}


def _protocol(section: AskedSection) -> JudgingProtocol:
    return JudgingProtocol(kind=section.protocol, orders=section.orders, convention=section.convention)


def _server(section: ServerSection, seed: int) -> Judge:
    server = ChatServer(
        url=section.url,
        model=section.model,
        key_variable=section.key_variable,
        concurrency=section.concurrency,
        deadline_s=section.deadline_s,
        timeout_s=section.timeout_s,
        fields=section.fields,
    )
    return Judge(
        engine=server,
        settings=JudgeSettings(prompt=section.prompt, seed=seed, max_completion_length=section.max_completion_length),
        protocol=_protocol(section),
        margins=section.margins,
        model={"url": section.url, "name": section.model, "fields": section.fields},
    )
