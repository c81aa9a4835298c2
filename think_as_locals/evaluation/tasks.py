"""Tasks for a policy and the quality of its answers: multiple choice, short answers with people's votes, prompts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from string import Template

from think_as_locals.config.schema import TaskSection
from think_as_locals.data.load import load_side
from think_as_locals.data.sources.blend import short_answers
from think_as_locals.data.splits import choose
from think_as_locals.judging import shuffle_responses
from think_as_locals.types import LABELS, Item

_ANSWER = re.compile(rf"(?<!\w)answer[ \t:*(\[]{{1,8}}([{LABELS}])(?!\w)", re.IGNORECASE)
_LETTER = re.compile(rf"[\s*(\[]{{0,8}}([{LABELS}])[\s*)\].]{{0,8}}")

Votes = Sequence[tuple[Sequence[str], int]]
"""Answers, each with all its spellings, and how many people gave it."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question to a policy: the prompt of `item`, and how answers are scored."""

    item: Item  # its responses are the options of multiple choice, and unused for short answers
    votes: Votes = ()


def questions_of(section: TaskSection, seed: int) -> list[Question]:
    """Load the questions of a task (each distinct prompt once for `prompts`); a DataError names a fault in the data."""
    if section.task == "short_answers":
        votes = dict[str, Votes]()
        items = []
        for item, of_item in short_answers(section.data):
            votes[item.id] = of_item
            items.append(replace(item, prompt=_template("short_answers").substitute(question=item.prompt)))
        selection = section.data.model_copy(update={"num_responses": None, "as_pairs": False})
        chosen = choose(items, selection, frozenset({"languages"}), seed)
        return [Question(item, votes[item.id]) for item in chosen]
    items = list(load_side(section.data, seed, section.items))
    if section.task == "prompts":
        return [Question(item) for item in distinct_prompts(items)]
    questions = []
    for item in (shuffle_responses(item, seed) for item in items):
        labels = LABELS[: len(item.responses)]
        options = "\n".join(f"{label}. {text}" for label, text in zip(labels, item.responses, strict=True))
        values = {"question": item.prompt, "options": options, "label": f"one of {', '.join(labels)}"}
        questions.append(Question(replace(item, prompt=_template("multiple_choice").substitute(values))))
    return questions


def distinct_prompts(items: Iterable[Item]) -> list[Item]:
    """Return the first item of each combination of prompt, culture and language."""
    return list({(item.prompt, item.culture, item.language): item for item in reversed(list(items))}.values())[::-1]


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


def vote_share(text: str, votes: Votes) -> float:
    """Return the most votes for an answer that a text gives, relative to the most frequent answer.

    This is BLEnD's SEM-W (arXiv 2406.09948) without its lemmatisers: an answer is given if its words are in the first
    line, in their order, whatever case, punctuation and Unicode form. Further lines are ignored.
    """
    from think_as_locals.data.overlap import normalise

    lines = [line for line in text.splitlines() if line.strip()]
    said = f" {' '.join(normalise(lines[0]).split())} " if lines else ""
    named = [
        count
        for spellings, count in votes
        # An annotator may have given two answers, on two lines.
        if any(
            (words := " ".join(normalise(s).split())) and f" {words} " in said
            for s in "\n".join(spellings).splitlines()
        )
    ]
    return max(named, default=0) / max(count for _, count in votes)


@cache
def _template(name: str) -> Template:
    text = files(__package__).joinpath("prompts", f"{name}.txt").read_text(encoding="utf-8")
    return Template(text.strip("\n"))
