"""inspect-ai: CARB as a task, with inspect's models, logs and statistics.

Items, prompt, order of responses and parser are ours, without torch. Standard errors are inspect's, by question group;
`tal` has baselines, and intervals that hold with few groups.
"""

from __future__ import annotations

from typing import Literal

from inspect_ai import Task, task
from inspect_ai import model as models
from inspect_ai import scorer as scoring
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ModelOutput
from inspect_ai.scorer import Metric, Score, Scorer, Target, accuracy, grouped, stderr
from inspect_ai.solver import TaskState, generate

from think_as_locals.config.checks import load_data_config
from think_as_locals.config.compose import quoted
from think_as_locals.data import load, read
from think_as_locals.data.splits import select
from think_as_locals.evaluation.breakdowns import BREAKDOWNS
from think_as_locals.judging import CHAT_TOKENS, prompt_format, render_presented, shuffle_responses
from think_as_locals.reward_models.judge import JudgeSettings
from think_as_locals.reward_models.protocols import LISTWISE
from think_as_locals.types import LABELS, ConfigError, Judgement, ServerError

__all__ = ["carb"]  # what inspect finds under `think_as_locals/`

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
    roles = {"system": models.ChatMessageSystem, "user": models.ChatMessageUser}
    samples = []
    for item in select(found, max_items, BREAKDOWNS["cell"]):
        presented = shuffle_responses(item, config.seed)
        metadata = {"group": item.group, "prompt": prompt, "num_responses": len(item.responses)}
        metadata |= {name: BREAKDOWNS[name](item) for name in ("culture", "domain", "language", "cell")}
        rendered = render_presented(item, presented.responses, prompt, CHAT_TOKENS)
        messages = [roles[message["role"]](content=message["content"]) for message in rendered]
        samples.append(Sample(id=item.id, input=messages, target=LABELS[presented.best], metadata=metadata))
    scorers = [correct(), in_format(), parse_failure()]
    greedy = models.GenerateConfig(temperature=0.0)
    return Task(dataset=MemoryDataset(samples, name=data), solver=generate(), scorer=scorers, config=greedy)


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


def _finish_reason(output: ModelOutput) -> str:
    """Return `stop` if a completion ended by itself, else `length`; a `ServerError` if the provider does not say."""
    if output.stop_reason == "unknown":
        raise ServerError(
            f"{output.model}: its provider does not say how a completion ended, and one that was cut off may end in a "
            "quoted verdict: use a provider that does (vllm/, openai-api/), not hf/"
        )
    return "stop" if output.stop_reason == "stop" else "length"
