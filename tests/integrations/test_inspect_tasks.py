"""The inspect-ai task `carb`, run with inspect's mock models."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from inspect_ai import Task
from inspect_ai import eval as evaluate
from inspect_ai.log import EvalLog
from inspect_ai.model import Model, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import Score
from reward_models.scripted import RUBRIC

from think_as_locals.config.checks import load_recipe
from think_as_locals.data import read
from think_as_locals.data.splits import select
from think_as_locals.evaluation import carb as ours
from think_as_locals.evaluation.breakdowns import BREAKDOWNS
from think_as_locals.evaluation.judgements import Judgements, tabulate
from think_as_locals.integrations.inspect_tasks import carb
from think_as_locals.judging import parse, render, shuffle_responses, write
from think_as_locals.judging.formats import UnknownPromptError
from think_as_locals.reward_models.reward_model import ScoredItem
from think_as_locals.types import ConfigError, Item

N = 80
CARDS = ["data=culture_cards", "data.sets_per_group=2"]

Answer = tuple[str, str]
"""Completion and stop reason."""


def mock_model(answer: Callable[[list[dict[str, str]]], Answer]) -> Model:
    def output(messages: list[Any], *_: Any) -> ModelOutput:
        text, reason = answer([{"role": message.role, "content": message.text} for message in messages])
        made = ModelOutput.from_content("mockllm", text, stop_reason=reason)
        made.usage = ModelUsage()  # else inspect counts tokens, with a vocabulary from the network
        return made

    return get_model("mockllm/model", custom_outputs=output, memoize=False)


@cache
def some_items() -> tuple[Item, ...]:
    config = load_recipe("recipes/tal_grpo.yaml", CARDS)
    return select(list(read(config.data, config.seed)), N, BREAKDOWNS["cell"])


def right_or_wrong(i: int, presented: Item) -> Answer:
    """Two in three right, one in eight a parse failure, and one cut off after what would be the right verdict."""
    chosen = presented.best if i % 3 else (presented.best + 1) % len(presented.responses)
    if i % 8 == 7:
        return "It is B.", "stop"
    return write(RUBRIC, "weighed", chosen), "max_tokens" if i == 1 else "stop"


def run_carb(task: Task, items: Sequence[Item], answer: Callable[[int, Item], Answer], logs: Path) -> EvalLog:
    by_prompt = {render(item)[-1]["content"]: (i, shuffle_responses(item)) for i, item in enumerate(items)}
    model = mock_model(lambda messages: answer(*by_prompt[messages[-1]["content"]]))
    (log,) = evaluate(task, model=model, log_dir=str(logs), display="plain")
    return log


def scores(log: EvalLog, of: str) -> dict[str, Score]:
    assert log.status == "success", log.error
    return {str(sample.id): (sample.scores or {})[of] for sample in log.samples or []}


def metrics(log: EvalLog, of: str) -> dict[str, float]:
    assert log.results is not None
    (found,) = [score for score in log.results.scores if score.name == of]
    return {name: metric.value for name, metric in found.metrics.items()}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of the items."""
    file = tmp_path_factory.mktemp("items") / "my items, né.jsonl"
    file.write_text("".join(json.dumps(asdict(item)) + "\n" for item in some_items()))
    return str(file)


@pytest.fixture(scope="module")
def log(path: str, tmp_path_factory: pytest.TempPathFactory) -> EvalLog:
    return run_carb(carb("jsonl", path), some_items(), right_or_wrong, tmp_path_factory.mktemp("logs"))


def test_inspect_metrics_match_our_summary(log: EvalLog) -> None:
    predictions = []
    for i, item in enumerate(some_items()):
        text, reason = right_or_wrong(i, presented := shuffle_responses(item))
        judgement = parse(text, len(item.responses), "stop" if reason == "stop" else "length")
        predictions.append(ScoredItem(item=item, presented=presented, judgement=judgement))
    judgements = Judgements.of(tabulate(predictions))
    summary = ours.summarise(judgements, dataset="d", split="group", model="m", seed=0, step=0, bootstrap_samples=50)
    correct = metrics(log, "correct")
    assert correct["accuracy"] == pytest.approx(summary["accuracy"])
    assert correct["macro"] == pytest.approx(summary["macro"]["accuracy"])
    assert metrics(log, "parse_failure")["accuracy"] == pytest.approx(summary["parse_failure"]) == 11 / 80
    assert metrics(log, "in_format")["accuracy"] == pytest.approx(summary["in_format"]["share"])
    for kind in ("culture", "domain"):
        for name, part in summary[f"by_{kind}"].items():
            assert correct[f"{kind} {name}"] == pytest.approx(part["accuracy"])
            assert correct[f"{kind} {name} n"] == part["n"]
            assert correct[f"{kind} {name} stderr"] >= 0
    for name, part in summary["by_cell"].items():
        assert correct[f"cell {name}"] == pytest.approx(part["accuracy"])


def test_standard_error_is_clustered_by_group(log: EvalLog) -> None:
    items, right = some_items(), {name: score.as_float() for name, score in scores(log, "correct").items()}
    mean = sum(right.values()) / N
    groups = {item.group for item in items}
    squares = sum(sum(right[i.id] - mean for i in items if i.group == group) ** 2 for group in groups)
    expected = math.sqrt(squares * len(groups) / (len(groups) - 1)) / N
    assert metrics(log, "correct")["stderr"] == pytest.approx(expected)


def test_samples_hold_messages_and_verdicts_of_our_judges(log: EvalLog) -> None:
    by_id = {item.id: item for item in some_items()}
    for sample in log.samples or []:
        item = by_id[str(sample.id)]
        assert not isinstance(sample.input, str)
        assert [{"role": m.role, "content": m.text} for m in sample.input] == render(item)
        assert sample.target == "ABCD"[shuffle_responses(item).best]
    correct, failure = (scores(log, name)[some_items()[1].id] for name in ("correct", "parse_failure"))
    assert (correct.value, correct.answer) == (0.0, None)
    assert failure.value == 1.0
    kept = scores(log, "in_format")[some_items()[1].id]
    assert (kept.value, kept.answer) == (0.0, "finished")


def test_carb_task_reads_all_or_test_items_of_a_file(path: str) -> None:
    everything, test = (carb(data="jsonl", path=path, items=which) for which in ("all", "test"))
    assert len(everything.dataset) == N
    assert everything.config.temperature == 0
    assert 0 < len(test.dataset) < N


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"items": "train"}, ConfigError, "expected all or test"),
        ({"prompt": "listwize"}, UnknownPromptError, "listwise"),
        ({"prompt": "rewardbench2_ratings"}, ConfigError, "in a listwise protocol"),
        ({"data": "blend"}, ConfigError, r"data\.path|path"),
    ],
)
def test_invalid_option_is_rejected(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        carb(**options)


def test_entry_point_registers_the_tasks() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    registered = vars(import_module(project["entry-points"]["inspect_ai"]["think_as_locals"]))
    assert registered["carb"] is carb


def test_unknown_stop_reason_is_an_error(path: str, tmp_path: Path) -> None:
    items = select(some_items(), 4, BREAKDOWNS["cell"])
    silent = run_carb(carb("jsonl", path, max_items=4), items, lambda i, presented: ("...", "unknown"), tmp_path)
    assert silent.status == "error"
    assert silent.error
    assert "does not say how a completion ended" in silent.error.message
