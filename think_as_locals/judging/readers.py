"""What is read of a completion, by the prompt that asked for it: our grammar, or the formats of other people's judges.

Theirs is the format: `[[A]]` and a closing rating of RewardBench 2 (arXiv 2506.01937, its generative judges), and the
`<answer>[[A]]</answer>` of RM-R1 (arXiv 2505.02387). The words of all prompts are ours. Two conventions:

`strict`, ours: the verdict is the last thing written, no other one is in sight, and the completion ended by itself.

`rewardbench2`, theirs, as its published code reads (RM-R1's evaluation code does the same with two labels): the first
label in alphabetical order whose brackets stand anywhere in the text, however it ended. So a judge that mentions [[A]]
has chosen A. It is there to compare numbers with, and concerns those formats only: our grammar is always read strictly.

Like `parse`, all readers are total and take time linear in the text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from think_as_locals.judging.parse import parse
from think_as_locals.judging.render import UnknownPromptError
from think_as_locals.types import LABELS, Convention, Judgement

RATINGS = tuple(range(1, 11))
"""What a response can be rated."""


def read_verdict(
    prompt: str, text: str, num_responses: int, finish_reason: str | None, convention: Convention
) -> Judgement:
    """Read which response a judge chose.

    Args:
        prompt: Name of the template that it was asked with.
        text: The completion, without the tokenizer's special tokens.
        num_responses: N, how many labels were on offer (2 to 8).
        finish_reason: How the completion ended; strictly, anything but `"stop"` is an issue.
        convention: How formats other than our grammar are read.

    Returns:
        A Judgement; of other formats its issues are `finished` and `verdict_label`, and rubric and analysis stay empty.

    Raises:
        UnknownPromptError: no verdict is read of what this prompt asks for.
        ValueError: `num_responses` is not from 2 to 8.

    Example:
        >>> read_verdict("rewardbench2", "B is kinder. [[B]]", 4, "stop", "strict").verdict
        1
        >>> read_verdict("rewardbench2", "Not [[A]], but [[B]]", 4, "stop", "strict").issues
        ('verdict_label',)
        >>> read_verdict("rewardbench2", "Not [[A]], but [[B]]", 4, "stop", "rewardbench2").verdict
        0
    """
    reader = _verdict_reader(prompt)
    if reader is None:
        return parse(text, num_responses, finish_reason)
    if not 2 <= num_responses <= len(LABELS):
        raise ValueError(f"num_responses must be from 2 to {len(LABELS)}, got {num_responses}")
    offered = LABELS[:num_responses]
    if convention == "rewardbench2":
        label, issues = _anywhere(text, offered), []
    else:
        label, issues = reader(text, offered), ["finished"] if finish_reason != "stop" else []
    issues += [] if label else ["verdict_label"]
    verdict = None if issues or label is None else LABELS.index(label)
    return Judgement(verdict=verdict, rubric=None, analysis=None, issues=tuple(issues), text=text)


def read_rating(text: str, finish_reason: str | None, convention: Convention) -> float | None:
    r"""Read how a judge rated a response, from 1 to 10; `None` where that cannot be read.

    Strictly, the last word of a completion that ended by itself is the rating. RewardBench 2 takes the digits that the
    text ends with, whatever stands before them and however it ended: of "9/10" it reads 10.

    Example:
        >>> read_rating("Kind and correct.\n8", "stop", "strict"), read_rating("So 9/10", "stop", "strict")
        (8.0, None)
        >>> read_rating("So 9/10", "stop", "rewardbench2")
        10.0
    """
    stripped = text.strip()
    for rating in map(str, reversed(RATINGS)):
        if not stripped.endswith(rating):
            continue
        before = stripped[: -len(rating)][-1:]
        if convention == "rewardbench2":
            return None if before.isalnum() or before == "_" else float(rating)
        return float(rating) if finish_reason == "stop" and not before.strip() else None
    return None


def asks_for_rating(prompt: str) -> bool:
    """Whether a prompt shows one response and asks for a rating.

    Raises:
        UnknownPromptError: nothing reads what this prompt asks for.
    """
    return _known(prompt) == "rating"


def reserved_marks(prompt: str) -> tuple[str, ...]:
    """What a verdict is read by under a prompt, beyond the tags that are always neutralised: no response may hold it.

    Example:
        >>> reserved_marks("rewardbench2")[:2], reserved_marks("listwise")
        (('[[A]]', '[[B]]'), ())
    """
    brackets = tuple(f"[[{label}]]" for label in LABELS)
    return {"bracket": brackets, "answer": (_OPENING, _CLOSING, *brackets)}.get(_known(prompt), ())


def label_opening(prompt: str) -> str:
    """What stands right before the label of a verdict under a prompt.

    Example:
        >>> label_opening("listwise"), label_opening("rm_r1")
        ('<verdict>', '[[')
    """
    return "<verdict>" if _known(prompt) == "grammar" else "[["


def label_place(text: str) -> int | None:
    """Where in a completion the label of its last verdict stands, in our grammar or in brackets; `None` without one.

    Example:
        >>> label_place("<verdict>B</verdict>"), label_place("[[A]] or [[B]]"), label_place("B")
        (9, 11, None)
    """
    for opening, closing in (("<verdict>", "</verdict>"), ("[[", "]]")):
        start = text.rfind(opening)
        place = start + len(opening)
        if start >= 0 and text[place : place + 1] in LABELS and text.startswith(closing, place + 1):
            return place
    return None


_OPENING, _CLOSING = "<answer>", "</answer>"

FORMATS: Mapping[str, str] = MappingProxyType(
    {
        "listwise": "grammar",
        "compact": "grammar",
        "rewardbench2": "bracket",
        "rewardbench2_ratings": "rating",
        "rm_r1": "answer",
        "listwise_responses_first": "grammar",
        "compact_responses_first": "grammar",
        "rewardbench2_responses_first": "bracket",
    }
)
"""Prompt -> the format of what it asks for."""


def _known(prompt: str) -> str:
    if prompt not in FORMATS:
        raise UnknownPromptError(f"no reader for prompt {prompt!r}; available: {', '.join(FORMATS)}")
    return FORMATS[prompt]


def _verdict_reader(prompt: str) -> Callable[[str, str], str | None] | None:
    """What finds the label strictly; `None` for our grammar, which has a parser."""
    if asks_for_rating(prompt):
        verdicts = [name for name, form in FORMATS.items() if form != "rating"]
        raise UnknownPromptError(f"prompt {prompt!r} asks for a rating; for a verdict ask with {', '.join(verdicts)}")
    return {"grammar": None, "bracket": _closing_bracket, "answer": _answer}[_known(prompt)]


def _anywhere(text: str, offered: str) -> str | None:
    return next((label for label in offered if f"[[{label}]]" in text), None)


def _closing_bracket(text: str, offered: str) -> str | None:
    """The one label in brackets, where only punctuation follows the last of them."""
    found = [label for label in LABELS if f"[[{label}]]" in text]
    if len(found) != 1 or found[0] not in offered:
        return None
    bracket = f"[[{found[0]}]]"
    after = text[text.rfind(bracket) + len(bracket) :]
    return None if any(character.isalnum() for character in after) else found[0]


def _answer(text: str, offered: str) -> str | None:
    """The label in the only answer, where nothing follows it."""
    start, stop = text.find(_OPENING), text.find(_CLOSING)
    if text.count(_OPENING) != 1 or text.count(_CLOSING) != 1 or text[stop + len(_CLOSING) :].strip():
        return None
    body = text[start + len(_OPENING) : stop].strip() if start < stop else ""
    return next((label for label in offered if body == f"[[{label}]]"), None)
