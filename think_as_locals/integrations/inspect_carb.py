"""CARB as a task of inspect-ai: our items, prompt, order and parser, its models, logs and viewer.

pip install "think-as-locals[inspect]"
inspect eval think_as_locals/carb --model openai/gpt-4.1 --temperature 0
inspect eval think_as_locals/carb -T data=blend -T path=DIR -T max_items=500 --model vllm/MODEL

Statistics are inspect's own, clustered by question group; `tal` has baselines and intervals that hold with few groups.
"""

from __future__ import annotations

from typing import Literal

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import Metric, SampleScore, Score, Scorer, Target, accuracy, grouped, metric, scorer, stderr
from inspect_ai.solver import TaskState, generate

from think_as_locals.config import load_recipe
from think_as_locals.data import load, read
from think_as_locals.data.select import select
from think_as_locals.evaluation.judged import BREAKDOWNS
from think_as_locals.integrations.inspect_judge import ended, messages
from think_as_locals.judging import CHAT_TOKENS, parse, present, render
from think_as_locals.types import LABELS, ConfigError, Item, Judgement

RECIPE = "recipes/tal_grpo.yaml"


@task
def carb(
    data: str = "culture_cards",
    path: str | None = None,
    items: Literal["all", "test"] = "all",
    max_items: int | None = None,
    prompt: str | None = None,
) -> Task:
    """Best-of-N accuracy over cultures and domains; what is not given here is as `conf/` has it.

    Args:
        data: A source: an option of `conf/data`.
        path: Where its rows are, for a source that reads files.
        items: `test` leaves out what a judge of ours was trained on.
        max_items: Whole flip sets first; inspect's own `--limit` takes whatever comes first.
        prompt: Name of the template.

    Raises:
        ConfigError: a value that is not known; the message says what is.
        DataError: a fault in the data.
    """
    overrides = [f"data={data}"]
    overrides += [f"data.path={path}"] if path else []
    overrides += [f"prompt.template={prompt}"] if prompt else []
    if items not in ("all", "test"):
        raise ConfigError(f"items={items!r}: expected all or test")
    config = load_recipe(RECIPE, overrides)
    every = load(config.data, config.seed).test if items == "test" else tuple(read(config.data, config.seed))
    samples = [sample(item, config.prompt.template, config.seed) for item in select(every, max_items)]
    return Task(dataset=MemoryDataset(samples, name=data), solver=generate(), scorer=[correct(), unparsable()])


def sample(item: Item, prompt: str, seed: int) -> Sample:
    """An item as inspect takes it: the messages a judge of ours gets, and the label of the best response as shown."""
    shown = present(item, seed)
    return Sample(
        id=item.id,
        input=messages(render(item, prompt, seed, CHAT_TOKENS)),
        target=LABELS[shown.best],
        metadata={
            "group": item.group,
            "num_responses": len(item.responses),
            "language": item.language,
            **{name: BREAKDOWNS[name](item) for name in ("culture", "domain", "cell")},
        },
    )


@metric
def count() -> Metric:
    """How many samples there are: no accuracy without its n."""

    def counted(scores: list[SampleScore]) -> int:
        return len(scores)

    return counted


def _by(key: str) -> list[Metric]:
    """Accuracy, standard error and n by a key of the metadata."""
    measured = {"": accuracy(), " stderr": stderr(cluster="group"), " n": count()}
    return [
        grouped(of_part, key, all=False, name_template=f"{key} {{group_name}}{name}")
        for name, of_part in measured.items()
    ]


@scorer(
    metrics=[
        accuracy(),
        stderr(cluster="group"),
        grouped(accuracy(), "cell", all="groups", all_label="macro", name_template="cell {group_name}"),
        *_by("culture"),
        *_by("domain"),
    ]
)
def correct() -> Scorer:
    """1 where the verdict is the best response, else 0, also where it cannot be read.

    Standard errors are clustered by question group. `macro` is the mean over cells of culture and domain.
    """

    async def score(state: TaskState, target: Target) -> Score:
        judgement = _judgement(state)
        label = None if judgement.verdict is None else LABELS[judgement.verdict]
        return Score(value=float(label == target.text), answer=label, explanation=judgement.text)

    return score


@scorer(metrics=[accuracy(), stderr(cluster="group")])
def unparsable() -> Scorer:
    """1 where the completion holds no verdict that can be read; `answer` names the rules of the grammar it breaks."""

    async def score(state: TaskState, target: Target) -> Score:
        issues = _judgement(state).issues
        return Score(value=float(bool(issues)), answer=", ".join(issues))

    return score


def _judgement(state: TaskState) -> Judgement:
    return parse(state.output.completion, state.metadata["num_responses"], ended(state.output))
