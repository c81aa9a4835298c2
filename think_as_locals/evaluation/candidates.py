"""Candidates: several answers of a policy to each question of a task, and their qualities."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from rich.progress import Progress

from think_as_locals.config.schema import PolicySection, PolicyServerSection, SampleSection, TaskSection
from think_as_locals.engines import Engine, Messages, Sampling
from think_as_locals.engines.chat_server import ChatServer
from think_as_locals.engines.engine import load_engine
from think_as_locals.evaluation.journal import ask_by_journal
from think_as_locals.evaluation.scored import with_cultures
from think_as_locals.evaluation.statistics import estimate_mean
from think_as_locals.evaluation.tables import Cell, Table, figure
from think_as_locals.evaluation.tasks import Question, quality
from think_as_locals.evaluation.tries import Sampler, advance
from think_as_locals.reward_models.group import GroupReward, PolicyPrompt, PolicyRow, clean
from think_as_locals.reward_models.load import load_reward_model
from think_as_locals.reward_models.reward_model import Answer, Request, identify_weights
from think_as_locals.runtime.files import new_file, write_json
from think_as_locals.runtime.ranks import ALONE, Peers
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.types import Item

NO_ANSWER = "(no answer)"
"""Replaces a blank candidate, which cannot be shown to a reward model."""


def draw(
    section: SampleSection,
    seed: int,
    questions: Sequence[Question],
    folder: RunFolder,
    bar: Progress,
    peers: Peers = ALONE,
) -> None:
    """Sample candidates, score them, and write the folder's `candidates.jsonl` and, last, `candidates.json`.

    Answers are kept in a journal for each candidate number, so that a run that was killed does not sample again.
    Several processes of a launch share the sampling.
    """
    if peers.exchange(folder.candidates_summary.is_file())[0]:
        return
    items = [question.item for question in questions]
    requests, answers = [Request(item, ()) for item in items], list[list[Answer]]()
    engine, identity, chunk_size = load_policy(section.policy)
    with closing(engine):
        for number, sampling in enumerate(samplings(section, seed), start=1):
            sampler = Sampler(engine, sampling, chunk_size, _conversation, lambda request: request.item.prompt)
            drawn = {name: getattr(sampling, name) for name in ("max_completion_length", "temperature", "seed")}
            path = folder.journal(f"candidate-{number}")
            shown = advance(bar, f"candidate {number} of {section.num_candidates}")
            of_number = ask_by_journal(sampler, path, {**identity, **drawn}, requests, shown, peers=peers)
            answers.append([{**answer, "seed": sampling.seed} for answer in of_number])
    if not peers.is_main:
        return
    of_questions = list(zip(*answers, strict=True))
    texts = [[answer["text"].strip() or NO_ANSWER for answer in found] for found in of_questions]
    scores = qualities(section, seed, questions, texts)
    provenance = {"policy": identity, "temperature": section.temperature, "task": section.task}
    folder.candidates.unlink(missing_ok=True)  # of a run that was killed before the summary
    with new_file(folder.candidates) as file:
        for item, of_item, found, worth in zip(items, texts, of_questions, scores, strict=True):
            row = {
                **{name: getattr(item, name) for name in ("id", "prompt", "culture", "language", "group")},
                "candidates": of_item,
                "qualities": worth,
                "sampled": {
                    **provenance,
                    "seeds": [answer["seed"] for answer in found],
                    "finish_reasons": [answer["finish_reason"] for answer in found],
                },
            }
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    write_json(folder.candidates_summary, summary(section, items, scores, seed))


def samplings(section: TaskSection, seed: int) -> Iterator[Sampling]:
    """Yield the sampling parameters of each candidate of a task."""
    for number in range(section.num_candidates):
        yield Sampling(
            max_completion_length=section.max_completion_length,
            temperature=section.temperature,
            seed=random.Random(f"{seed}-candidate-{number}").randrange(2**31),
        )


def load_policy(policy: PolicySection | PolicyServerSection) -> tuple[Engine, dict[str, Any], int | None]:
    """Load a chat model; return the engine, what identifies the model, and the number of requests in a chunk."""
    if isinstance(policy, PolicyServerSection):
        engine = ChatServer(**policy.model_dump(exclude={"kind"}))
        return engine, {"url": policy.url, "name": policy.model, "fields": policy.fields}, None
    loaded: dict[str, Any] = {"dtype": policy.dtype or "auto", "backend": policy.backend}
    loaded |= {"quantization": policy.quantization} if policy.quantization else {}
    kwargs = dict(policy.chat_template_kwargs)
    local = load_engine(
        *(policy.path, policy.backend),
        dtype=loaded["dtype"],
        template_kwargs=kwargs,
        batch_size=policy.batch_size,
        revision=policy.revision,
        vllm=policy.vllm,
    )
    weights = identify_weights(policy.path, policy.revision)
    return local, {"name": policy.path, **weights, **loaded, "chat_template_kwargs": kwargs}, policy.chunk_size


def _conversation(request: Request) -> Messages:
    return [{"role": "user", "content": request.item.prompt}]


def qualities(
    section: TaskSection, seed: int, questions: Sequence[Question], texts: Sequence[Sequence[str]]
) -> list[list[float]]:
    """Return the quality of each candidate of each question; a judge compares those of one question."""
    if section.scorer is None:
        return [[quality(q, text) for text in of_q] for q, of_q in zip(questions, texts, strict=True)]
    every = [(q.item, text) for q, of_q in zip(questions, texts, strict=True) for text in of_q]
    rows = [PolicyRow(PolicyPrompt(i.prompt, i.culture, i.language), clean(text)) for i, text in every]
    with closing(load_reward_model(section.scorer, seed)) as rm:
        reward = GroupReward(rm)
        found = iter([reward.neutral if value is None else value for value, _ in reward.rewards(rows)])
    return [[next(found) for _ in of_q] for of_q in texts]


def summary(
    section: TaskSection, items: Sequence[Item], scores: Sequence[Sequence[float]], seed: int
) -> dict[str, Any]:
    """Return the mean quality of candidates and of the best of each question, in all and by culture, as JSON."""
    bounds = (0, 1) if section.scorer is None else (-math.inf, math.inf)

    def part(of: Sequence[tuple[Item, Sequence[float]]]) -> dict[str, Any]:
        groups, every = [item.group for item, _ in of], [found for _, found in of]
        columns = {"mean": [sum(found) / len(found) for found in every], "best": list(map(max, every))}
        return {
            name: estimate_mean(column, groups, 2000, seed, bounds=bounds).as_dict("quality")
            for name, column in columns.items()
        }

    found = with_cultures(list(zip(items, scores, strict=True)), part, lambda each: each[0])
    return {"task": section.task, "num_candidates": section.num_candidates, **found}


def table(found: Mapping[str, Any]) -> Table:
    """Return a summary as a table."""
    rows: list[list[Cell]] = []
    for name, part in [*found["by_culture"].items(), ("all", found)]:
        rows.append([name, *(figure(part[key], "quality", ".3f", 1, show_n=True) for key in ("mean", "best"))])
    best = f"best of {found['num_candidates']}"
    return Table(["culture", "mean quality", best], rows, sections=[len(rows) - 1])
