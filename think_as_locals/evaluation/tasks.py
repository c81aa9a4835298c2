"""Tasks for a policy and the quality of its answers: multiple choice, short answers with people's votes, prompts."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any

from pandas import DataFrame
from rich.progress import Progress

from think_as_locals.config.model_schema import SampleSection
from think_as_locals.data.load import choose, load_side
from think_as_locals.data.sources.blend import short_answers
from think_as_locals.engines import Messages, Sampling
from think_as_locals.engines.engine import EVERY_TEMPLATE
from think_as_locals.evaluation.journal import query_with_journal
from think_as_locals.evaluation.judgements import with_cultures
from think_as_locals.evaluation.sampling import Sampler, advance, load_policy
from think_as_locals.evaluation.statistics import RESAMPLES, estimate_mean
from think_as_locals.evaluation.tables import figure
from think_as_locals.judging import shuffle_responses
from think_as_locals.reward_models.group import GroupReward, PolicyPrompt, PolicyRow, clean
from think_as_locals.reward_models.load import load_reward_model
from think_as_locals.reward_models.reward_model import Answer, Request
from think_as_locals.runtime.files import write_json, write_rows
from think_as_locals.runtime.ranks import ALONE, Peers
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.types import LABELS, Item

_ANSWER = re.compile(  # not "the answer a local gives", nor "Answer: a bow"; "A bow" counts
    rf"(?<!\w)answer[ \t*]{{0,8}}:[ \t:*(\[]{{0,8}}([{LABELS}])(?!\w|(?<=(?-i:a))[ \t]+\w)", re.IGNORECASE
)
_LETTER = re.compile(rf"[\s*(\[]{{0,8}}([{LABELS}])[\s*)\].]{{0,8}}", re.IGNORECASE)

AnswerVotes = Sequence[tuple[Sequence[str], int]]
"""Answers, each with all its spellings, and how many people gave it."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question to a policy: the prompt of `item`, and how answers are scored."""

    item: Item  # its responses are the options of multiple choice, and unused for short answers
    votes: AnswerVotes = ()


def questions_of(section: SampleSection, seed: int) -> list[Question]:
    """Load the questions of a task (each distinct prompt once for `prompts`); a DataError names a fault in the data."""
    if section.task == "short_answers":
        votes = dict[str, AnswerVotes]()
        items = []
        for item, of_item in short_answers(section.data):
            votes[item.id] = of_item
            items.append(replace(item, prompt=_template("short_answers").substitute(question=item.prompt)))
        selection = section.data.model_copy(update={"num_responses": None, "as_pairs": False})
        chosen = choose(items, selection, frozenset({"languages"}), seed)
        return [Question(item, votes[item.id]) for item in chosen]
    items = list(load_side(section.data, seed, section.items))
    if section.task == "prompts":
        first = {(item.prompt, item.culture, item.language): item for item in reversed(items)}
        return [Question(item) for item in reversed(first.values())]
    questions = []
    for item in (shuffle_responses(item, seed) for item in items):
        labels = LABELS[: len(item.responses)]
        options = "\n".join(f"{label}. {text}" for label, text in zip(labels, item.responses, strict=True))
        values = {"question": item.prompt, "options": options, "label": f"one of {', '.join(labels)}"}
        questions.append(Question(replace(item, prompt=_template("multiple_choice").substitute(values))))
    return questions


def quality(question: Question, answer: str) -> float:
    """Return the quality of an answer in [0, 1]: whether the option is right, or the votes of the answer given."""
    if not question.votes:
        return float(chosen_option(answer, len(question.item.responses)) == question.item.best)
    return vote_share(answer, question.votes)


def chosen_option(text: str, count: int) -> int | None:
    """Return the index of the option that an answer chooses, or `None`; it is never guessed.

    It is the letter behind the last "Answer:", or the answer itself if that is a single letter.
    """
    found = _ANSWER.findall(text) or ([whole[1]] if (whole := _LETTER.fullmatch(text.strip())) else [])
    label = found[-1].upper() if found else ""
    return LABELS.index(label) if label and label in LABELS[:count] else None


def vote_share(text: str, votes: AnswerVotes) -> float:
    """Return the most votes for an answer that a text gives, relative to the most frequent answer.

    This is BLEnD's SEM-W (arXiv 2406.09948) without its lemmatisers: an answer is given if its words are in the first
    line, in their order, whatever case, punctuation and Unicode form. Further lines are ignored.
    """
    from think_as_locals.data.overlap import normalise

    lines = [line for line in text.splitlines() if line.strip()]
    first_line = f" {' '.join(normalise(lines[0]).split())} " if lines else ""
    matched = [
        count
        for spellings, count in votes
        # An annotator may have given two answers, on two lines.
        if any(
            (words := " ".join(normalise(s).split())) and f" {words} " in first_line
            for s in "\n".join(spellings).splitlines()
        )
    ]
    return max(matched, default=0) / max(count for _, count in votes)


@cache
def _template(name: str) -> Template:
    text = files(__package__).joinpath("prompts", f"{name}.txt").read_text(encoding="utf-8")
    return Template(text.strip("\n"))


# --- Candidates: several answers to each question, and their qualities ---

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
    """Sample candidates, score them, and write the folder's `candidates.jsonl` and, last, `candidates.json`."""
    if peers.exchange(folder.candidates_summary.is_file())[0]:
        return
    items = [question.item for question in questions]
    requests, answers = [Request(item, ()) for item in items], list[list[Answer]]()
    engine, identity, chunk_size = load_policy(section.policy)
    with closing(engine):
        for number in range(1, section.num_candidates + 1):
            sampling = Sampling(
                max_completion_length=section.max_completion_length,
                temperature=section.temperature,
                seed=random.Random(f"{seed}-candidate-{number - 1}").randrange(2**31),
            )
            sampler = Sampler(engine, sampling, chunk_size, lambda r: _asked(r.item), lambda r: r.item.prompt)
            drawn = {name: getattr(sampling, name) for name in ("max_completion_length", "temperature", "seed")}
            path = folder.journal(f"candidate-{number}")
            advance_bar = advance(bar, f"candidate {number} of {section.num_candidates}")
            of_number = query_with_journal(sampler, path, {**identity, **drawn}, requests, advance_bar, peers=peers)
            answers.append([{**answer, "seed": sampling.seed} for answer in of_number])
    if not peers.is_main:
        return
    of_questions = list(zip(*answers, strict=True))
    texts = [[answer["text"].strip() or NO_ANSWER for answer in found] for found in of_questions]
    scores = qualities(section, seed, questions, texts)
    provenance = {"policy": identity, "temperature": section.temperature, "task": section.task}
    folder.candidates.unlink(missing_ok=True)  # of a run that was killed before the summary
    rows = (
        {
            **{name: getattr(item, name) for name in ("id", "prompt", "culture", "language", "group", "turns")},
            "candidates": of_item,
            "qualities": item_scores,
            "sampled": {
                **provenance,
                "seeds": [answer["seed"] for answer in found],
                "finish_reasons": [answer["finish_reason"] for answer in found],
            },
        }
        for item, of_item, found, item_scores in zip(items, texts, of_questions, scores, strict=True)
    )
    write_rows(folder.candidates, rows)
    write_json(folder.candidates_summary, summary(section, items, scores, seed))


def _asked(item: Item) -> Messages:
    """Return the messages that a policy answers."""
    in_turns = EVERY_TEMPLATE.fullmatch(" ".join(message["role"] for message in item.messages))
    return item.messages if in_turns else [{"role": "user", "content": item.prompt}]


def qualities(
    section: SampleSection, seed: int, questions: Sequence[Question], texts: Sequence[Sequence[str]]
) -> list[list[float]]:
    """Return the quality of each candidate of each question; a judge compares those of one question."""
    if section.scorer is None:
        return [[quality(q, text) for text in of_q] for q, of_q in zip(questions, texts, strict=True)]
    every = [(q.item, text) for q, of_q in zip(questions, texts, strict=True) for text in of_q]
    rows = [PolicyRow(PolicyPrompt(i.prompt, i.culture, i.language, i.turns), clean(text)) for i, text in every]
    with closing(load_reward_model(section.scorer, seed)) as rm:
        reward = GroupReward(rm)
        found = iter([reward.neutral if value is None else value for value, _ in reward.rewards(rows)])
    return [[next(found) for _ in of_q] for of_q in texts]


def summary(
    section: SampleSection, items: Sequence[Item], scores: Sequence[Sequence[float]], seed: int
) -> dict[str, Any]:
    """Return the mean quality of candidates and of the best of each question, in all and by culture, as JSON."""
    bounds = (0, 1) if section.scorer is None else (-math.inf, math.inf)

    def part(of: Sequence[tuple[Item, Sequence[float]]]) -> dict[str, Any]:
        groups, every = [item.group for item, _ in of], [found for _, found in of]
        columns = {"mean": [sum(found) / len(found) for found in every], "best": list(map(max, every))}
        return {
            name: estimate_mean(column, groups, RESAMPLES, seed, bounds=bounds).as_dict("quality")
            for name, column in columns.items()
        }

    found = with_cultures(list(zip(items, scores, strict=True)), part, lambda each: each[0])
    return {"task": section.task, "num_candidates": section.num_candidates, **found}


def candidates_table(found: Mapping[str, Any]) -> DataFrame:
    """Return a summary as a table."""
    headings = {"mean": "mean quality", "best": f"best of {found['num_candidates']}"}
    rows = [
        {"culture": name}
        | {text: figure(part[key], "quality", ".3f", 1, show_n=True) for key, text in headings.items()}
        for name, part in [*found["by_culture"].items(), ("all", found)]
    ]
    return DataFrame(rows)
