"""The quality of a policy's answers before and after training: `policy.json`, `policy.md`, `answers.jsonl`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from think_as_locals.config.schema import PolicyConfig
from think_as_locals.evaluation.candidates import NO_ANSWER, qualities
from think_as_locals.evaluation.scored import with_cultures
from think_as_locals.evaluation.statistics import estimate_mean
from think_as_locals.evaluation.tables import Cell, Table, escape_markdown, figure
from think_as_locals.evaluation.tasks import Question
from think_as_locals.runtime.files import read_json, write_json, write_text
from think_as_locals.runtime.run_folder import RunFolder

CAPTION = (
    "Mean quality of an answer, with 95 % intervals by question group; gains are paired by question. multiple_choice: "
    "the share of right letters; short_answers: votes of the answer named, over those of the most frequent one; "
    "prompts: the scorer's score, of a judge the share of comparisons won among the answers of both to a question."
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


@dataclass(frozen=True, slots=True)
class _Worth:
    """A question, the answers to it before and after training, and their qualities."""

    question: Question
    before: Sequence[str]
    after: Sequence[str]
    worth: Sequence[float]  # of those before, then of those after

    @property
    def means(self) -> tuple[float, float]:
        parts = self.worth[: len(self.before)], self.worth[len(self.before) :]
        before, after = (sum(part) / len(part) for part in parts)
        return before, after

    def row(self, task: str) -> dict[str, Any]:
        item, count = self.question.item, len(self.before)
        named = {name: getattr(item, name) for name in ("id", "prompt", "culture", "language", "group")}
        before = {"answers": list(self.before), "qualities": list(self.worth[:count])}
        after = {"answers": list(self.after), "qualities": list(self.worth[count:])}
        return {"task": task, **named, "before": before, "after": after}


def write_results(config: PolicyConfig, questions: Mapping[str, Sequence[Question]], folder: RunFolder) -> None:
    """Score the answers of the first and the last step, those to a question together, and write the results."""
    steps = folder.answered_steps()
    before, after = (read_answers(steps[step]) for step in (min(steps), max(steps)))
    found: dict[str, Any] = {"model": config.model.path, "steps": max(steps), "tasks": {}}
    lines = []
    for name, section in config.tasks.items():
        texts = [[*old, *new] for old, new in zip(before[name], after[name], strict=True)]
        worth = qualities(section, config.seed, questions[name], texts)
        rows = [_Worth(*each) for each in zip(questions[name], before[name], after[name], worth, strict=True)]
        lines += [json.dumps(row.row(name), ensure_ascii=False) for row in rows]
        found["tasks"][name] = {
            "task": section.task,
            "data": section.data.title,
            "num_candidates": section.num_candidates,
            **_summary(rows, config, 1.0 if section.scorer is None else math.inf),
        }
    write_text(folder.path / "answers.jsonl", "".join(f"{line}\n" for line in lines))
    parts = [f"# {escape_markdown(config.run.name)}", f"{CAPTION} {max(steps)} steps of GRPO."]
    parts.append(table(found).markdown())
    parts += [f"## {name}\n\n{by_culture(of_task).markdown()}" for name, of_task in found["tasks"].items()]
    write_text(folder.path / "policy.md", "\n\n".join(parts) + "\n")
    write_json(folder.policy_results, found)


def _summary(rows: Sequence[_Worth], config: PolicyConfig, most: float) -> dict[str, Any]:
    """Return the means before and after and the gain, in all and by culture; a quality is at most `most`."""
    bounds = {"before": (0.0 if most == 1 else -most, most)}
    bounds |= {"after": bounds["before"], "gain": (-most, most)}

    def part(of: Sequence[_Worth]) -> dict[str, Any]:
        groups = [row.question.item.group for row in of]
        before, after = zip(*(row.means for row in of), strict=True)
        columns = {
            "before": before,
            "after": after,
            "gain": [new - old for old, new in zip(before, after, strict=True)],
        }
        how = groups, config.eval.bootstrap_samples, config.seed
        return {
            name: estimate_mean(column, *how, bounds=bounds[name]).as_dict("quality")
            for name, column in columns.items()
        }

    return with_cultures(rows, part, lambda row: row.question.item)


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


def read_results(folder: RunFolder) -> dict[str, Any]:
    """Return the content of `policy.json`."""
    return read_json(folder.policy_results)
