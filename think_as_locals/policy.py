"""Train a policy: prompts -> GRPO on a reward model -> the quality of its answers before, during and after.

The results are `policy.json`, `policy.md` and `answers.jsonl`.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils.memory import clear_device_cache
from datasets import Dataset
from rich.console import Console
from transformers import AutoModelForCausalLM, TrainerState

from think_as_locals.config.launch import read_launch
from think_as_locals.config.model_schema import PolicyConfig
from think_as_locals.data import load
from think_as_locals.data.load import describe_items
from think_as_locals.data.overlap import check_overlaps, find_overlaps
from think_as_locals.data.splits import select
from think_as_locals.engines import sample_all
from think_as_locals.evaluation.breakdowns import BREAKDOWNS
from think_as_locals.evaluation.judgements import with_cultures
from think_as_locals.evaluation.statistics import estimate_mean
from think_as_locals.evaluation.tables import Cell, Table, escape_markdown, figure
from think_as_locals.evaluation.tasks import (
    NO_ANSWER,
    Question,
    distinct_prompts,
    qualities,
    quality,
    questions_of,
    samplings,
    user_turn,
)
from think_as_locals.integrations.trl_reward import judge_reward
from think_as_locals.machine.hours import estimates, steps_of
from think_as_locals.reward_models import group
from think_as_locals.reward_models.load import load_reward_model
from think_as_locals.runtime.files import json_line, read_json, write_json, write_text
from think_as_locals.runtime.output import print_result, progress_console, quiet_transformers
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.training.checkpoints import Checkpoints, StopSignals, save_model, unsharded
from think_as_locals.training.grpo import (
    GroupTrainer,
    RewardFunction,
    gather_shares,
    load_chat,
    policy_engine,
    share_of_rank,
    train_grpo,
)
from think_as_locals.types import DataWarning, Item, TrainingError

_CAPTION = (
    "Mean quality of an answer, with 95 % intervals by question group; gains are paired by question. multiple_choice: "
    "the share of right letters; short_answers: votes of the answer named, over those of the most frequent one; "
    "prompts: the scorer's score, or for a judge the share of comparisons won among the answers from both times."
)

Answers = Mapping[str, Sequence[Sequence[str]]]
"""By task, the answers to each of its questions."""


@dataclass(frozen=True, slots=True)
class PolicyData:
    """The prompts that a policy is trained on, each once, and the questions of its tasks."""

    train: Sequence[Item]
    questions: Mapping[str, Sequence[Question]]

    @property
    def prompts(self) -> list[str]:
        """All prompts of the training and of the tasks."""
        task_items = [each.item for of_task in self.questions.values() for each in of_task]
        return [item.prompt for item in (*self.train, *task_items)]


def load_data(config: PolicyConfig) -> PolicyData:
    """Load the prompts and the tasks; a DataError names a fault, or questions that are training prompts too."""
    train = distinct_prompts(load(config.data, config.seed).train)
    questions = dict[str, Sequence[Question]]()
    for name, section in config.tasks.items():
        by_id = {each.item.id: each for each in questions_of(section, config.seed)}
        kept = select([each.item for each in by_id.values()], config.eval.max_items, BREAKDOWNS["cell"])
        questions[name] = [by_id[item.id] for item in kept]
    overlaps = find_overlaps(train, {name: [each.item for each in of_task] for name, of_task in questions.items()})
    if message := check_overlaps(overlaps, refuse=config.eval.leaks == "refuse"):
        warnings.warn(message, DataWarning, stacklevel=2)
    return PolicyData(train, questions)


def plan(config: PolicyConfig, data: PolicyData) -> list[tuple[str, str]]:
    """Return what a run would do."""
    grpo, every, launch = config.grpo, config.eval.every_steps, read_launch(config.run.launch)
    steps = steps_of(config, launch, len(data.train))
    tasks = ((name, [each.item for each in of_task]) for name, of_task in data.questions.items())
    return [
        ("training", f"{config.model.path}: GRPO, {steps:,} steps, {grpo.num_generations} completions per prompt"),
        ("prompts", f"those of {describe_items(data.train)} ({config.data.source})"),
        ("reward model", f"{config.rm.kind} {config.rm.name}".strip()),
        *((f"task {name}", f"{describe_items(items)} ({config.tasks[name].task})") for name, items in tasks),
        ("evaluations", f"{1 + math.ceil(steps / every):,}: before GRPO, every {every} steps and at the end"),
        *estimates(config, len(data.train)),
    ]


def run(config: PolicyConfig, data: PolicyData, folder: RunFolder) -> None:
    """Train a policy and score its answers before and after, as every process of a launch does."""
    quiet_transformers()
    is_main = PartialState().is_main_process
    console = progress_console(is_main=is_main)
    tasks = ", ".join(f"{name} {len(questions):,}" for name, questions in data.questions.items())
    console.print(f"{config.run.name}: {len(data.train):,} prompts; tasks: {tasks}", highlight=False)
    if not folder.model.is_dir():
        with StopSignals() as signals:
            train(config, data, folder, signals, console)
        clear_device_cache(garbage_collection=True)  # the policy, before a scorer is loaded
    if is_main:
        if not folder.policy_results.is_file():
            write_results(config, data.questions, folder)
        print_result(table(read_json(folder.policy_results)).terminal(config.run.name, _CAPTION))
        print(f"model       {folder.model}\nresults     {folder.policy_results.with_suffix('.md')}")


def train(config: PolicyConfig, data: PolicyData, folder: RunFolder, signals: StopSignals, console: Console) -> None:
    """Train a policy by GRPO and save it to `model`; it answers its tasks before, at steps and after."""
    model, rows = str(config.model.path), list[dict[str, Any]]()
    chat = load_chat(config, model)
    columns: dict[str, list[Any]] = {name: [getattr(i, name) for i in data.train] for name in ("culture", "language")}
    dataset = Dataset.from_dict({"prompt": [user_turn(item) for item in data.train], **columns})
    checkpoints = Checkpoints(folder.checkpoints, config.grpo.save_total_limit)
    with unsharded():  # each rank has a whole reward model
        rm = load_reward_model(config.rm, config.seed)
    with closing(rm):
        reward = recorded(judge_reward(rm), rows)
        trainer = GroupTrainer(config, model, chat, dataset, [reward], folder, checkpoints)
        train_grpo(
            *(trainer, config, folder, signals, console),
            evaluate=partial(answer, config, trainer, data, folder),
            file_of=folder.answers,
            take_rows=partial(_take, rows),
        )
    save_model(trainer, model, config.model, folder, AutoModelForCausalLM)
    trainer.accelerator.free_memory()


def recorded(reward: RewardFunction, rows: list[dict[str, Any]]) -> RewardFunction:
    """Return the reward function, which also adds a row for each completion to `rows`, and fails if none has any."""

    @wraps(reward)
    def rewards(
        prompts: Sequence[Any], completions: Sequence[Any], trainer_state: TrainerState, **columns: Any
    ) -> Sequence[float | None]:
        values = reward(prompts=prompts, completions=completions, **columns)
        step = trainer_state.global_step + 1
        if step == 1 and None in values and not any(values):  # blank answers lose unasked, to 0
            raise TrainingError(
                f"step {step}: none of {len(values)} answers has a reward, since no comparison by the judge can be "
                "parsed; expected a judge that knows pairs (trained with data.num_responses=2), or a chat model with "
                "rm.prompt=listwise; rm.max_completion_length may be too short for it"
            )
        rows.extend(
            {"step": step, "prompt": group.question(prompt), "completion": group.response(completion), "reward": value}
            for prompt, completion, value in zip(prompts, completions, values, strict=True)
        )
        return values

    return rewards


def _take(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    taken = rows.copy()
    rows.clear()
    return taken


def answer(
    config: PolicyConfig, trainer: GroupTrainer, data: PolicyData, folder: RunFolder, step: int
) -> dict[str, float]:
    """Write the policy's answers to its tasks to a file of the step; return mean qualities if no scorer is needed."""
    found: list[tuple[str, int, list[str]]] = []
    with torch.random.fork_rng(), policy_engine(trainer, config.eval.batch_size) as engine:
        for name, section in config.tasks.items():
            mine = share_of_rank(trainer, list(enumerate(data.questions[name])))
            prompts = [user_turn(each.item) for _, each in mine]
            sampled = (
                [sample_all(engine, prompts, sampling) for sampling in samplings(section, config.seed)] if mine else []
            )
            found += [
                (name, index, [rollout.text for rollout in of_question])
                for (index, _), *of_question in zip(mine, *sampled, strict=True)
            ]
    gathered = sorted(gather_shares(trainer, found), key=lambda each: each[1])
    if not PartialState().is_main_process:
        return {}
    answers = {name: [texts for of, _, texts in gathered if of == name] for name in config.tasks}
    write_answers(folder.answers(step), answers, data.questions)
    metrics = {}
    for name in (name for name, section in config.tasks.items() if section.scorer is None):
        pairs = zip(data.questions[name], answers[name], strict=True)
        values = [quality(question, text) for question, texts in pairs for text in texts]
        metrics[f"eval/{name}/quality"] = fmean(values)
    return metrics


def write_answers(path: Path, answers: Answers, questions: Mapping[str, Sequence[Question]]) -> None:
    """Write a policy's answers, a line for each task and question."""
    rows = [
        {"task": task, "id": question.item.id, "answers": list(texts)}
        for task, of_task in answers.items()
        for question, texts in zip(questions[task], of_task, strict=True)
    ]
    path.parent.mkdir(exist_ok=True)
    write_text(path, "".join(map(json_line, rows)))


def read_answers(path: Path) -> Answers:
    """Read what `write_answers` wrote, with blank answers replaced by `NO_ANSWER`."""
    found: dict[str, list[list[str]]] = {}
    for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        found.setdefault(row["task"], []).append([text.strip() or NO_ANSWER for text in row["answers"]])
    return found


def write_results(config: PolicyConfig, questions: Mapping[str, Sequence[Question]], folder: RunFolder) -> None:
    """Score the answers of the first and the last step, those to a question together, and write the results."""
    steps = folder.answered_steps()
    before, after = (read_answers(steps[step]) for step in (min(steps), max(steps)))
    found: dict[str, Any] = {"model": config.model.path, "steps": max(steps), "tasks": {}}
    lines = list[str]()
    for name, section in config.tasks.items():
        texts = [[*old, *new] for old, new in zip(before[name], after[name], strict=True)]
        all_scores = qualities(section, config.seed, questions[name], texts)
        rows = []
        for question, old, new, scores in zip(questions[name], before[name], after[name], all_scores, strict=True):
            item = {key: getattr(question.item, key) for key in ("id", "prompt", "culture", "language", "group")}
            old_side = {"answers": list(old), "qualities": list(scores[: len(old)])}
            new_side = {"answers": list(new), "qualities": list(scores[len(old) :])}
            rows.append({"task": name, **item, "before": old_side, "after": new_side})
        lines += map(json_line, rows)
        items = [question.item for question in questions[name]]
        found["tasks"][name] = {
            "task": section.task,
            "data": section.data.title,
            "num_candidates": section.num_candidates,
            **_summary(list(zip(items, rows, strict=True)), config, 1.0 if section.scorer is None else math.inf),
        }
    write_text(folder.policy_answers, "".join(lines))
    parts = [f"# {escape_markdown(config.run.name)}", f"{_CAPTION} {max(steps)} steps of GRPO."]
    parts.append(table(found).markdown())
    parts += [f"## {name}\n\n{by_culture(of_task).markdown()}" for name, of_task in found["tasks"].items()]
    write_text(folder.policy_results.with_suffix(".md"), "\n\n".join(parts) + "\n")
    write_json(folder.policy_results, found)


def _summary(rows: Sequence[tuple[Item, dict[str, Any]]], config: PolicyConfig, most: float) -> dict[str, Any]:
    """Return the means before and after and the gain, in all and by culture; a quality is at most `most`."""
    bounds = {"before": (0.0 if most == 1 else -most, most)}
    bounds |= {"after": bounds["before"], "gain": (-most, most)}

    def part(of: Sequence[tuple[Item, dict[str, Any]]]) -> dict[str, Any]:
        columns = {side: [fmean(row[side]["qualities"]) for _, row in of] for side in ("before", "after")}
        columns["gain"] = [new - old for old, new in zip(*columns.values(), strict=True)]
        how = [item.group for item, _ in of], config.eval.bootstrap_samples, config.seed
        return {
            name: estimate_mean(column, *how, bounds=bounds[name]).as_dict("quality")
            for name, column in columns.items()
        }

    return with_cultures(rows, part, lambda each: each[0])


def table(found: Mapping[str, Any]) -> Table:
    """Return the content of `policy.json` as a table, a row for each task."""
    rows = [[name, of_task["task"], of_task["data"], *_cells(of_task)] for name, of_task in found["tasks"].items()]
    return Table(["task", "kind", "data", "before", "after", "gain", "n"], rows)


def by_culture(of_task: Mapping[str, Any]) -> Table:
    """Return the cultures of a task as a table."""
    rows = [[culture, *_cells(part)] for culture, part in of_task["by_culture"].items()]
    return Table(["culture", "before", "after", "gain", "n"], rows)


def _cells(part: Mapping[str, Any]) -> list[Cell]:
    forms = {"before": ".3f", "after": ".3f", "gain": "+.3f"}
    cells: list[Cell] = [figure(part[name], "quality", form, 1) for name, form in forms.items()]
    return [*cells, str(part["gain"]["n"])]
