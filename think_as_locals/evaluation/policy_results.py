"""The quality of a policy's answers before and after training: `policy.json`, `policy.md`, `answers.jsonl`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from think_as_locals.config.schema import PolicyConfig
from think_as_locals.evaluation.candidates import NO_ANSWER, qualities
from think_as_locals.evaluation.scored import with_cultures
from think_as_locals.evaluation.statistics import estimate_mean
from think_as_locals.evaluation.tables import Cell, Table, escape_markdown, figure
from think_as_locals.evaluation.tasks import Question
from think_as_locals.runtime.files import write_json, write_text
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.types import Item

CAPTION = (
    "Mean quality of an answer, with 95 % intervals by question group; gains are paired by question. multiple_choice: "
    "the share of right letters; short_answers: votes of the answer named, over those of the most frequent one; "
    "prompts: the scorer's score, or for a judge the share of comparisons won among the answers from both times."
)

Answers = Mapping[str, Sequence[Sequence[str]]]
"""By task, the answers to each of its questions."""


def write_answers(path: Path, answers: Answers, questions: Mapping[str, Sequence[Question]]) -> None:
    """Write a policy's answers, a line for each task and question."""
    rows = [
        {"task": task, "id": question.item.id, "answers": list(texts)}
        for task, of_task in answers.items()
        for question, texts in zip(questions[task], of_task, strict=True)
    ]
    path.parent.mkdir(exist_ok=True)
    write_text(path, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))


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
    lines = []
    for name, section in config.tasks.items():
        texts = [[*old, *new] for old, new in zip(before[name], after[name], strict=True)]
        worth = qualities(section, config.seed, questions[name], texts)
        rows = []
        for question, old, new, scores in zip(questions[name], before[name], after[name], worth, strict=True):
            item = {key: getattr(question.item, key) for key in ("id", "prompt", "culture", "language", "group")}
            old_side = {"answers": list(old), "qualities": list(scores[: len(old)])}
            new_side = {"answers": list(new), "qualities": list(scores[len(old) :])}
            rows.append({"task": name, **item, "before": old_side, "after": new_side})
        lines += [json.dumps(row, ensure_ascii=False) for row in rows]
        items = [question.item for question in questions[name]]
        found["tasks"][name] = {
            "task": section.task,
            "data": section.data.title,
            "num_candidates": section.num_candidates,
            **_summary(list(zip(items, rows, strict=True)), config, 1.0 if section.scorer is None else math.inf),
        }
    write_text(folder.path / "answers.jsonl", "".join(f"{line}\n" for line in lines))
    parts = [f"# {escape_markdown(config.run.name)}", f"{CAPTION} {max(steps)} steps of GRPO."]
    parts.append(table(found).markdown())
    parts += [f"## {name}\n\n{by_culture(of_task).markdown()}" for name, of_task in found["tasks"].items()]
    write_text(folder.path / "policy.md", "\n\n".join(parts) + "\n")
    write_json(folder.policy_results, found)


def _summary(rows: Sequence[tuple[Item, dict[str, Any]]], config: PolicyConfig, most: float) -> dict[str, Any]:
    """Return the means before and after and the gain, in all and by culture; a quality is at most `most`."""
    bounds = {"before": (0.0 if most == 1 else -most, most)}
    bounds |= {"after": bounds["before"], "gain": (-most, most)}

    def part(of: Sequence[tuple[Item, dict[str, Any]]]) -> dict[str, Any]:
        columns = {side: [_mean(row[side]["qualities"]) for _, row in of] for side in ("before", "after")}
        columns["gain"] = [new - old for old, new in zip(*columns.values(), strict=True)]
        how = [item.group for item, _ in of], config.eval.bootstrap_samples, config.seed
        return {
            name: estimate_mean(column, *how, bounds=bounds[name]).as_dict("quality")
            for name, column in columns.items()
        }

    return with_cultures(rows, part, lambda each: each[0])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


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
