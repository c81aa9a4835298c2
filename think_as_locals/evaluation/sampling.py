"""Ask a chat model about items, keep its completions in a journal, count which are kept, and draw candidates.

Tasks for a policy are multiple choice, short answers with people's votes, and prompts, whose answers a model scores.
"""

from __future__ import annotations

import random
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any

from pandas import DataFrame
from rich.progress import Progress

from think_as_locals.config.model_schema import PolicySection, PolicyServerSection, SampleSection
from think_as_locals.data.load import choose, load_side
from think_as_locals.data.sources.blend import short_answers
from think_as_locals.engines import Engine, Messages, Sampling
from think_as_locals.engines.chat_server import ChatServer
from think_as_locals.engines.engine import EVERY_TEMPLATE, load_engine
from think_as_locals.evaluation.breakdowns import BREAKDOWNS
from think_as_locals.evaluation.journal import Advance, query_with_journal
from think_as_locals.evaluation.judgements import grouped
from think_as_locals.evaluation.statistics import accuracy
from think_as_locals.evaluation.tables import figure
from think_as_locals.judging import shuffle_responses
from think_as_locals.judging.formats import without_thinking
from think_as_locals.reward_models.group import GroupReward, PolicyPrompt, PolicyRow, clean
from think_as_locals.reward_models.load import load_reward_model
from think_as_locals.reward_models.reward_model import Answer, Answered, Request, identify_weights, is_unanswered
from think_as_locals.runtime.files import write_rows
from think_as_locals.runtime.model_files import commit_of
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.types import LABELS, DataError, DataWarning, Item, TooLongError, first_of


@dataclass(frozen=True, slots=True)
class Sampler:
    """Answers requests by sampling a completion for each: answers have `text` and `finish_reason`."""

    engine: Engine
    sampling: Sampling
    chunk_size: int | None
    conversation: Callable[[Request], Messages]
    sort_key: Callable[[Request], str | tuple[int, str]]

    def query(self, requests: Sequence[Request]) -> Answered:
        """Sample a completion for each request, and yield its answer."""
        for index, rollout in self.engine.sample([self.conversation(each) for each in requests], self.sampling):
            yield index, {"text": rollout.text, "finish_reason": rollout.finish_reason}


def load_policy(policy: PolicySection | PolicyServerSection) -> tuple[Engine, dict[str, Any], int | None]:
    """Load a chat model; return the engine, what identifies the model, and the number of requests in a chunk."""
    if isinstance(policy, PolicyServerSection):
        engine = ChatServer(**policy.model_dump(exclude={"kind"}))
        return engine, {"url": policy.url, "name": policy.model, "fields": policy.fields}, None
    loaded: dict[str, Any] = {"dtype": policy.dtype or "auto", "backend": policy.backend}
    loaded |= {"quantization": policy.quantization} if policy.quantization else {}
    kwargs, commit = dict(policy.chat_template_kwargs), commit_of(policy.path, policy.revision)
    local = load_engine(
        *(policy.path, policy.backend),
        dtype=loaded["dtype"],
        template_kwargs=kwargs,
        batch_size=policy.batch_size,
        revision=commit,
        vllm=policy.vllm,
    )
    weights = identify_weights(policy.path, commit)
    return local, {"name": policy.path, **weights, **loaded, "chat_template_kwargs": kwargs}, policy.requests_at_once


def advance(bar: Progress, title: str) -> Advance:
    """Add a task to a progress bar, and return the function that advances it, in one round of requests or several."""
    task, earlier = bar.add_task(title, total=None), 0.0

    def update(more: int, total: int) -> None:
        nonlocal earlier
        if bar.tasks[task].finished:
            earlier = bar.tasks[task].completed
        bar.update(task, advance=more, total=earlier + total)

    return update


Completion = tuple[str, str, Sequence[str]]
"""The id of the item that a completion is about, its outcome, and the rules that it breaks."""


def yield_summary(
    items: Sequence[Item],
    completions: Sequence[Completion],
    outcomes: Sequence[str],
    kept: Collection[str],
    **counted: Collection[str],
) -> dict[str, Any]:
    """Return counts, and the share of items about which a completion was kept, in all and by culture, as JSON.

    `kept` are the ids of these items; others, which are `counted` under a name, are some of them.
    """
    counts = defaultdict[str, Counter[str]](Counter)
    for name, outcome, _ in completions:
        counts[name][outcome] += 1

    def part(of: Sequence[Item]) -> dict[str, Any]:
        found = [float(item.id in kept) for item in of]
        share = accuracy(found, [item.group for item in of]).as_dict("yield") if of else {"n": 0, "yield": None}
        total = sum((counts[item.id] for item in of), Counter[str]())
        return {
            **share,
            "completions": total.total(),
            **{outcome: total[outcome] for outcome in outcomes},
            **{name: sum(item.id in some for item in of) for name, some in counted.items()},
        }

    by_culture = {name: part(of) for name, of in sorted(grouped(items, BREAKDOWNS["culture"]).items())}
    broken = Counter(rule for *_, rules in completions for rule in rules)
    return {**part(items), "by_culture": by_culture, "broken": dict(broken.most_common())}


def yield_table(first: str, kept: str, parts: Mapping[str, Mapping[str, Any]], counted: Mapping[str, str]) -> DataFrame:
    """Return a table of yields, a row for each named summary; `counted` maps its counts to column headings."""
    rows = [
        {first: name, kept: figure(part, "yield", show_n=True)}
        | {heading: f"{part[key]:,}" for key, heading in counted.items()}
        for name, part in parts.items()
    ]
    return DataFrame(rows)


# --- Tasks: questions to a policy, and the quality of its answers ---

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
    """Return the index of the option that an answer chooses, or `None`; it is never guessed."""
    # It is the letter behind the last "Answer:", or the answer itself if that is a single letter.
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


def draw(section: SampleSection, seed: int, questions: Sequence[Question], folder: RunFolder, bar: Progress) -> None:
    """Sample candidates, score them, and write them to the folder's `candidates.jsonl`."""
    if folder.candidates.is_file():
        return
    items = [question.item for question in questions]
    requests, answers = [Request(item, ()) for item in items], list[list[Answer]]()
    seeds = [random.Random(f"{seed}-candidate-{number}").randrange(2**31) for number in range(section.num_candidates)]
    engine, identity, chunk_size = load_policy(section.policy)
    with closing(engine):
        for number, candidate_seed in enumerate(seeds, 1):
            drawn: dict[str, Any] = {
                "max_completion_length": section.max_completion_length,
                "temperature": section.temperature,
                "seed": candidate_seed,
            }
            sampler = Sampler(engine, Sampling(**drawn), chunk_size, lambda r: _asked(r.item), lambda r: r.item.prompt)
            advance_bar = advance(bar, f"candidate {number} of {section.num_candidates}")
            path = folder.journal(f"candidate-{number}")
            answers.append(query_with_journal(sampler, path, {**identity, **drawn}, requests, advance_bar))
    of_questions = list(zip(*answers, strict=True))
    texts = [[without_thinking(a.get("text", "")).strip() or NO_ANSWER for a in found] for found in of_questions]
    if lost := [item.id for item, found in zip(items, of_questions, strict=True) if all(map(is_unanswered, found))]:
        message = f"{len(lost)} of {len(items)} questions were refused by the policy, or too long: {first_of(lost, 3)}"
        if len(lost) == len(items):
            raise DataError(message)
        warnings.warn(message, DataWarning, stacklevel=2)
    scores = qualities(section, seed, questions, texts)
    provenance = {"policy": identity, "temperature": section.temperature, "task": section.task, "seeds": seeds}
    rows = (
        {
            **{name: getattr(item, name) for name in ("id", "prompt", "culture", "language", "group", "turns")},
            "candidates": of_item,
            "qualities": item_scores,
            "sampled": {
                **provenance,
                "finish_reasons": [answer.get("finish_reason", next(iter(answer))) for answer in found],  # or `refused`
            },
        }
        for item, of_item, found, item_scores in zip(items, texts, of_questions, scores, strict=True)
    )
    write_rows(folder.candidates, rows)


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
        try:
            values = [value for value, _ in reward.rewards(rows)]
        except TooLongError as error:
            remedy = "raise sample.scorer.max_length, or in a new run sample.max_completion_length has to be smaller"
            raise DataError(f"candidates are longer than sample.scorer takes: {error}; {remedy}") from error
        if unread := values.count(None):
            message = f"{unread:,} of {len(values):,} candidates: the scorer's answers cannot be parsed"
            warnings.warn(f"{message}; their quality is taken as {reward.neutral:g}", DataWarning, stacklevel=2)
        found = iter([reward.neutral if value is None else value for value in values])
    return [[next(found) for _ in of_q] for of_q in texts]
