"""Load the reward models that a configuration describes."""

from __future__ import annotations

from typing import Any

from think_as_locals.config.model_schema import (
    VLLM_OPTIONS,
    ClassifierSection,
    ConstantSection,
    ImplicitSection,
    JudgeSection,
    QuerySection,
    RewardModelSection,
    ServerSection,
)
from think_as_locals.engines.chat_server import ChatServer
from think_as_locals.reward_models.judge import Judge, JudgeSettings
from think_as_locals.reward_models.protocols import JudgingProtocol
from think_as_locals.reward_models.reward_model import RewardModel
from think_as_locals.reward_models.training_items import read_training_items


def load_reward_model(section: RewardModelSection, seed: int) -> RewardModel:
    """Load the reward model of a section `rms.NAME`, importing only what its kind needs."""
    match section:
        case JudgeSection() | ServerSection():
            return load_judge(section, seed)
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


def load_judge(section: JudgeSection | ServerSection, seed: int) -> Judge:
    """Load a judge into this process, or connect to the server that has it."""
    if isinstance(section, JudgeSection):
        options = _given(section, "path", "backend", "protocol", "orders", "convention", *VLLM_OPTIONS)
        options |= {"vllm": section.vllm, "seed": seed, "chunk_size": section.requests_at_once}
        return Judge.load(section.path, section.backend, protocol=_protocol(section), **options)
    of_server = {"url", "model", "key_variable", "concurrency", "deadline_s", "max_retries", "fields"}
    of_settings = {"prompt", "culture", "rubric_language", "max_completion_length"}
    return Judge(
        engine=ChatServer(**section.model_dump(include=of_server)),
        settings=JudgeSettings(seed=seed, **section.model_dump(include=of_settings)),
        protocol=_protocol(section),
        label_log_probs=section.label_log_probs,
        model={"url": section.url, "name": section.model, "fields": section.fields},
    )


def trained_hashes(section: RewardModelSection) -> frozenset[str] | None:
    """Return the hashes of the items that a reward model was trained on; `None` if they are unknown."""
    if isinstance(section, JudgeSection | ClassifierSection | ImplicitSection):
        return read_training_items(section.path, section.revision)
    return None


def _given(section: RewardModelSection, *others: str) -> dict[str, Any]:
    """Return the values of a section that are not null, without its kind and the given keys."""
    return section.model_dump(exclude={"kind", *others}, exclude_none=True)


def _protocol(section: QuerySection) -> JudgingProtocol:
    return JudgingProtocol(kind=section.protocol, orders=section.orders, convention=section.convention)
