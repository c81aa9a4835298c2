"""inspect-ai: CARB as a task, and a judge as a scorer of any task; with inspect's models, logs and statistics.

Items, prompt, order of responses and parser are ours; the judge is an inspect model with the role `judge`, without
torch. Standard errors are inspect's, by question group; `tal` has baselines, and intervals that hold with few groups.
"""

from __future__ import annotations

import math
from typing import Literal

from inspect_ai import Task, task
from inspect_ai import model as models
from inspect_ai import scorer as scoring
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ModelOutput
from inspect_ai.scorer import Metric, Score, Scorer, Target, accuracy, grouped, stderr
from inspect_ai.solver import TaskState, generate
from inspect_ai.util import collect

from think_as_locals.config.checks import load_data_config
from think_as_locals.config.compose import quoted
from think_as_locals.data import load, read
from think_as_locals.data.splits import select
from think_as_locals.evaluation.breakdowns import BREAKDOWNS
from think_as_locals.judging import CHAT_TOKENS, prompt_format, render_presented, shuffle_responses
from think_as_locals.reward_models.group import NEUTRAL, item_of, policy_rows, question, won_shares
from think_as_locals.reward_models.judge import JudgeSettings
from think_as_locals.reward_models.protocols import LISTWISE, ROUND_ROBIN
from think_as_locals.types import LABELS, ConfigError, Judgement, ServerError

__all__ = ["carb", "judge_duel"]  # what inspect finds under `think_as_locals/`

_DEFAULTS = JudgeSettings()


@task
def carb(
    data: str = "culture_cards",
    path: str | None = None,
    items: Literal["all", "test"] = "all",
    max_items: int | None = None,
    prompt: str = _DEFAULTS.prompt,
) -> Task:
    """Measure Best-of-N accuracy over cultures and domains; `conf/` has all other settings.

    Args:
        data: A source: an option of `conf/data`.
        path: Where its rows are, for a source that reads files.
        items: `test` leaves out the training items of our judges.
        max_items: Takes complete flip sets first, evenly from all cells; inspect's own `--limit` takes the first items.
        prompt: Name of the template.
    """
    overrides = [f"data={data}"]
    overrides += [f"data.path={quoted(path)}"] if path else []
    if items not in ("all", "test"):
        raise ConfigError(f"items={items!r}: expected all or test")
    config = load_data_config(overrides)
    found = load(config.data, config.seed).test if items == "test" else tuple(read(config.data, config.seed))
    LISTWISE.format(prompt)
    samples = []
    for item in select(found, max_items, BREAKDOWNS["cell"]):
        presented = shuffle_responses(item, config.seed)
        metadata = {"group": item.group, "prompt": prompt, "num_responses": len(item.responses)}
        metadata |= {name: BREAKDOWNS[name](item) for name in ("culture", "domain", "language", "cell")}
        messages = _chat(render_presented(item, presented.responses, prompt, CHAT_TOKENS))
        samples.append(Sample(id=item.id, input=messages, target=LABELS[presented.best], metadata=metadata))
    scorers = [correct(), in_format(), parse_failure()]
    return Task(dataset=MemoryDataset(samples, name=data), solver=generate(), scorer=scorers)


@scoring.metric
def count() -> Metric:
    """Return a metric that counts samples."""
    return lambda scores: len(scores)


def _by(key: str) -> list[Metric]:
    """Return metrics for accuracy, standard error and n by a key of the metadata."""
    metrics = {"": accuracy(), " stderr": stderr(cluster="group"), " n": count()}
    template = f"{key} {{group_name}}"
    return [grouped(each, key, all=False, name_template=f"{template}{name}") for name, each in metrics.items()]


_BY_CELL = [
    accuracy(),
    stderr(cluster="group"),
    grouped(accuracy(), "cell", all="groups", all_label="macro", name_template="cell {group_name}"),
    *_by("culture"),
    *_by("domain"),
]


@scoring.scorer(metrics=_BY_CELL)
def correct() -> Scorer:
    """Score 1 if the verdict is the best response, else 0; `macro` is the mean over cells of culture and domain."""

    async def score(state: TaskState, target: Target) -> Score:
        judgement = _judgement(state)
        return Score(
            value=float(judgement.label == target.text), answer=judgement.label, explanation=judgement.completion
        )

    return score


@scoring.scorer(metrics=[accuracy(), stderr(cluster="group")])
def in_format() -> Scorer:
    """Score 1 if the completion keeps all rules of the format; `answer` names those that it breaks."""

    async def score(state: TaskState, target: Target) -> Score:
        issues = _judgement(state).issues
        return Score(value=float(not issues), answer=", ".join(issues))

    return score


@scoring.scorer(metrics=[accuracy(), stderr(cluster="group")])
def parse_failure() -> Scorer:
    """Score 1 if the completion has no verdict that counts."""

    async def score(state: TaskState, target: Target) -> Score:
        return Score(value=float(_judgement(state).verdict is None))

    return score


def _judgement(state: TaskState) -> Judgement:
    answer_format = prompt_format(state.metadata["prompt"])
    return answer_format.read(state.output.completion, state.metadata["num_responses"], _finish_reason(state.output))


@scoring.scorer(metrics=[scoring.mean(), stderr()])
def judge_duel(
    model: str | models.Model | None = None,
    prompt: str = _DEFAULTS.prompt,
    max_completion_length: int = _DEFAULTS.max_completion_length,
) -> Scorer:
    """Compare a completion with the target response: 1 if it wins, 0 if it loses, 1/2 if it wins in one order only.

    Equal texts get 1/2, and a blank completion 0. If neither order can be parsed, the sample is unscored. `culture`
    (ISO 3166) and `language` are from the sample's metadata. The default `model` is the one with the role `judge`;
    `prompt` must be the one that it was trained with.
    """

    async def score(state: TaskState, target: Target) -> Score:
        judge = models.get_model(model) if model is not None else models.get_model(role="judge", required=True)
        messages = [models.ChatMessageUser(content=state.input)] if isinstance(state.input, str) else state.input
        text = question([{"role": message.role, "content": message.text} for message in messages])
        culture, language = ([state.metadata.get(name)] for name in ("culture", "language"))
        (row,) = policy_rows([text], [state.output.completion], culture, language, [target.text])
        if not row.text or row.text == row.reference:
            return Score(value=NEUTRAL if row.text else 0.0, answer=row.text)
        requests = ROUND_ROBIN.requests(item_of(row.prompt, (row.text, row.reference)), _DEFAULTS.seed)
        config = models.GenerateConfig(temperature=0, max_tokens=max_completion_length)
        rendered = [render_presented(each.item, each.responses, prompt, CHAT_TOKENS) for each in requests]
        outputs: list[ModelOutput] = await collect(*(judge.generate(_chat(one), config=config) for one in rendered))
        answer_format = ROUND_ROBIN.format(prompt)
        verdicts = [answer_format.read(each.completion, 2, _finish_reason(each)).verdict for each in outputs]
        share, _ = won_shares(requests, verdicts)
        explanation = "\n\n".join(output.completion for output in outputs)
        if math.isnan(share):
            return Score.unscored(reason="parse failure", answer=row.text, explanation=explanation)
        return Score(value=share, answer=row.text, explanation=explanation)

    return score


def _chat(messages: list[dict[str, str]]) -> list[models.ChatMessage]:
    """Return inspect's chat messages."""
    roles = {"system": models.ChatMessageSystem, "user": models.ChatMessageUser}
    return [roles[message["role"]](content=message["content"]) for message in messages]


def _finish_reason(output: ModelOutput) -> str:
    """Return `stop` if a completion ended by itself, else `length`; a `ServerError` if the provider does not say."""
    if output.stop_reason == "unknown":
        raise ServerError(
            f"{output.model}: its provider does not say how a completion ended, and one that was cut off may end in a "
            "quoted verdict: use a provider that does (vllm/, openai-api/), not hf/"
        )
    return "stop" if output.stop_reason == "stop" else "length"
