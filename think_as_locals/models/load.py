"""A reward model of an evaluation, from the section that describes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from think_as_locals.judging import label_opening
from think_as_locals.models.protocols import JudgingProtocol
from think_as_locals.models.reward_model import RewardModel
from think_as_locals.rm_schema import (
    AskedSection,
    ClassifierSection,
    ConstantSection,
    ImplicitSection,
    JudgeSection,
    RewardModelSection,
    ServerSection,
)
from think_as_locals.types import LABELS

if TYPE_CHECKING:
    from think_as_locals.models.generative_rm import GenerativeRM


def load_reward_model(section: RewardModelSection, seed: int) -> RewardModel:
    """Load a reward model of any kind; what other kinds need is not imported.

    Args:
        section: What `rms.NAME` says.
        seed: Of the order in which responses are shown.

    Raises:
        ModelError: the weights are not those of such a reward model.
        ConfigError: prompt and protocol do not go together.
        ServerError: the server cannot be asked.
    """
    match section:
        case JudgeSection():
            return load_judge(section, seed)
        case ServerSection():
            return _server(section, seed)
        case ClassifierSection():
            from think_as_locals.models.scalar import ScalarRM

            return ScalarRM.load(section.path, seed=seed, **_of_scorer(section))
        case ImplicitSection():
            from think_as_locals.models.implicit import ImplicitRM

            return ImplicitRM.load(section.path, section.reference, seed=seed, **_of_scorer(section, "reference"))
        case ConstantSection():
            from think_as_locals.models.constant import ConstantRM

            return ConstantRM(seed=seed)


def load_judge(section: JudgeSection, seed: int) -> GenerativeRM:
    """As `load_reward_model`, of a judge in this process."""
    from think_as_locals.models.generative_rm import GenerativeRM

    asked = _given(section, "path", "backend", "revision", "chunk_size", "batch_size", *AskedSection.model_fields)
    return GenerativeRM.load(
        section.path,
        section.backend,
        _protocol(section),
        chunk_size=section.chunk_size,
        batch_size=section.batch_size,
        margins=section.margins,
        revision=section.revision,
        seed=seed,
        **asked,
    )


def _given(section: RewardModelSection, *others: str) -> dict[str, Any]:
    """What a section says beside its kind and what is passed by itself; null is left to the model."""
    values = section.model_dump(exclude={"kind", *others})
    return {name: value for name, value in values.items() if value is not None}


def _of_scorer(section: ClassifierSection | ImplicitSection, *others: str) -> dict[str, Any]:
    given = _given(section, "path", "chat_template_kwargs", *others)
    return {**given, "template_kwargs": section.chat_template_kwargs}


def _protocol(section: AskedSection) -> JudgingProtocol:
    return JudgingProtocol(kind=section.protocol, orders=section.orders, convention=section.convention)


def _server(section: ServerSection, seed: int) -> RewardModel:
    from think_as_locals.generation.chat_server import ChatServer, LabelPlace
    from think_as_locals.models.generative_rm import GenerativeRM

    place = LabelPlace(after=label_opening(section.prompt), labels=tuple(LABELS)) if section.margins else None
    server = ChatServer(
        url=section.url,
        model=section.model,
        key_variable=section.key_variable,
        concurrency=section.concurrency,
        deadline_s=section.deadline_s,
        timeout_s=section.timeout_s,
        fields=section.fields,
        label_log_probs=place,
    )
    return GenerativeRM(
        completer=server,
        prompt=section.prompt,
        seed=seed,
        protocol=_protocol(section),
        max_completion_length=section.max_completion_length,
        margins=section.margins,
        model={"url": section.url, "name": section.model, "fields": section.fields},
    )
