"""Train a policy: prompts -> GRPO on a reward model -> the quality of its answers before, during and after."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils.memory import clear_device_cache
from datasets import Dataset
from rich.console import Console
from transformers import AutoModelForCausalLM, TrainerState

from think_as_locals.config.schema import PolicyConfig
from think_as_locals.data import load
from think_as_locals.data.overlap import check_overlaps, find_overlaps
from think_as_locals.data.splits import select
from think_as_locals.engines import Messages, sample_all
from think_as_locals.evaluation.breakdowns import BREAKDOWNS
from think_as_locals.evaluation.candidates import samplings
from think_as_locals.evaluation.policy_results import CAPTION, table, write_answers, write_results
from think_as_locals.evaluation.tasks import Question, distinct_prompts, quality, questions_of
from think_as_locals.integrations.trl_reward import judge_reward
from think_as_locals.reward_models.group import question, response
from think_as_locals.reward_models.load import load_reward_model
from think_as_locals.runtime.files import read_json
from think_as_locals.runtime.output import print_result, progress_console, quiet_transformers
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.training.checkpoints import Checkpoints, StopSignals, save_model, unsharded
from think_as_locals.training.grpo import GroupTrainer, RewardFunction, load_chat, train_grpo
from think_as_locals.training.trainer_engine import gather_shares, policy_engine, share_of_rank
from think_as_locals.types import DataWarning, Item, TrainingError


@dataclass(frozen=True, slots=True)
class PolicyData:
    """The prompts that a policy is trained on, each once, and the questions of its tasks."""

    train: Sequence[Item]
    questions: Mapping[str, Sequence[Question]]

    @property
    def prompts(self) -> list[str]:
        """All prompts of the training and of the tasks."""
        asked = [each.item for of_task in self.questions.values() for each in of_task]
        return [item.prompt for item in (*self.train, *asked)]


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


def run(config: PolicyConfig, data: PolicyData, folder: RunFolder) -> None:
    """Train a policy and score its answers before and after, as every process of a launch does."""
    quiet_transformers()
    is_main = PartialState().is_main_process
    console = progress_console(is_main=is_main)
    asked = ", ".join(f"{name} {len(questions):,}" for name, questions in data.questions.items())
    console.print(f"{config.run.name}: {len(data.train):,} prompts; tasks: {asked}", highlight=False)
    if not folder.model.is_dir():
        with StopSignals() as signals:
            train(config, data, folder, signals, console)
        clear_device_cache(garbage_collection=True)  # the policy, before a scorer is loaded
    if is_main:
        if not folder.policy_results.is_file():
            write_results(config, data.questions, folder)
        print_result(table(read_json(folder.policy_results)).terminal(config.run.name, CAPTION))
        print(f"model       {folder.model}\nresults     {folder.path / 'policy.md'}")


def train(config: PolicyConfig, data: PolicyData, folder: RunFolder, signals: StopSignals, console: Console) -> None:
    """Train a policy by GRPO and save it to `model`; it answers its tasks before, at steps and after."""
    model, rows = str(config.model.path), list[dict[str, Any]]()
    chat = load_chat(config, model)
    columns: dict[str, list[Any]] = {name: [getattr(i, name) for i in data.train] for name in ("culture", "language")}
    dataset = Dataset.from_dict({"prompt": [_asked(item.prompt) for item in data.train], **columns})
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
            {"step": step, "prompt": question(prompt), "completion": response(completion), "reward": value}
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
            prompts = [_asked(each.item.prompt) for _, each in mine]
            sampled = (
                [sample_all(engine, prompts, sampling) for sampling in samplings(section, config.seed)] if mine else []
            )
            found += [
                (name, place, [rollout.text for rollout in of_question])
                for (place, _), *of_question in zip(mine, *sampled, strict=True)
            ]
    everyones = sorted(gather_shares(trainer, found), key=lambda each: each[1])
    if not PartialState().is_main_process:
        return {}
    answers = {name: [texts for of, _, texts in everyones if of == name] for name in config.tasks}
    write_answers(folder.answers(step), answers, data.questions)
    metrics = {}
    for name in (name for name, section in config.tasks.items() if section.scorer is None):
        pairs = zip(data.questions[name], answers[name], strict=True)
        worth = [quality(question, text) for question, texts in pairs for text in texts]
        metrics[f"eval/{name}/quality"] = sum(worth) / len(worth)
    return metrics


def _asked(prompt: str) -> Messages:
    return [{"role": "user", "content": prompt}]
