"""What a judge writes and how it is read: our grammar, and the verdict formats of other people's judges.

    <rubric>
    - 40 | Right custom | The response states what people there actually do.
    - 35 | ...
    - 25 | ...
    </rubric>
    <analysis>
    ... each response weighed against the criteria ...
    </analysis>
    <verdict>B</verdict>

The prompt describes the grammar (`prompts/grammar.txt`) and `parse` reads it. `FORMATS` says in which format the answer
to each prompt is read. Every reader is total and takes time linear in the text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType

from think_as_locals.types import GRAMMAR_PROMPTS, LABELS, Convention, Criterion, Judgement, Rubric, ThinkAsLocalsError

SECTIONS = ("rubric", "analysis", "verdict")
MIN_CRITERIA, MAX_CRITERIA = 3, 7
WEIGHT_TOTAL = 100

RULES = MappingProxyType(
    {
        "finished": "the completion has to end by itself, not at the token limit",
        "rubric_once": "there has to be one <rubric>...</rubric>",
        "analysis_once": "there has to be one <analysis>...</analysis>",
        "verdict_once": "there has to be one <verdict>...</verdict>",
        "order": "rubric, analysis, verdict, with nothing but white space around them",
        "criterion_lines": "every line of the rubric has to be `- weight | name | description`",
        "criterion_count": f"a rubric has {MIN_CRITERIA} to {MAX_CRITERIA} criteria",
        "criterion_weights": f"weights are positive integers that sum to {WEIGHT_TOTAL}",
        "criterion_names": "names of criteria are distinct",
        "analysis_text": "the analysis must not be blank",
        "verdict_label": "the verdict has to be one of the labels on offer",
    }
)
"""The rules of the grammar by name; `Judgement.issues` lists those that a completion breaks."""


class UnknownPromptError(ThinkAsLocalsError, LookupError):
    """No prompt template of that name."""


def write(rubric: Rubric, analysis: str, verdict: int) -> str:
    """Render a completion that the parser accepts.

    Raises:
        ValueError: a criterion's name or description contains "|" or a line end.

    Example:
        >>> from think_as_locals.types import Criterion
        >>> rubric = Rubric((Criterion(50, "Custom", "Done there."), Criterion(30, "Place", "Belongs there."),
        ...                  Criterion(20, "Clarity", "Answers the question.")))
        >>> print(write(rubric, "A: done there.", 0))
        <rubric>
        - 50 | Custom | Done there.
        - 30 | Place | Belongs there.
        - 20 | Clarity | Answers the question.
        </rubric>
        <analysis>
        A: done there.
        </analysis>
        <verdict>A</verdict>
    """
    for cell in (cell for c in rubric.criteria for cell in (c.name, c.description)):
        if "|" in cell or "\n" in cell:
            raise ValueError(f"got {cell!r}, expected a criterion's name and description without '|' and line ends")
    lines = "\n".join(f"- {c.weight} | {c.name} | {c.description}" for c in rubric.criteria)
    return f"<rubric>\n{lines}\n</rubric>\n<analysis>\n{analysis}\n</analysis>{forced_verdict(verdict)}"


def forced_verdict(verdict: int, rubric: str = "") -> str:
    r"""Return the verdict that directly follows a rubric when `criteria_gain` scores it.

    Args:
        verdict: Index of the response as presented.
        rubric: The text before it, from `rubric_span`: a rubric that was cut off is closed first. Empty to score the
            verdict without a rubric, at the beginning of the completion.
    """
    closing = "" if not rubric or rubric.endswith("</rubric>") else "</rubric>"
    return f"{closing}\n<verdict>{LABELS[verdict]}</verdict>"


# The parser of our grammar: strict, total and linear. Only `str.find`, `str.split` and `str.count` touch model text: a
# backtracking expression takes seconds on a completion of repeated tags.


def parse(text: str, num_responses: int, finish_reason: str | None = "stop") -> Judgement:
    """Parse a judge's completion in our grammar.

    Args:
        text: The completion, without the tokenizer's special tokens.
        num_responses: N, the number of labels on offer (2 to 8).
        finish_reason: How the completion ended. Anything but `"stop"` is an issue: a text cut off inside a quotation
            could end in somebody else's verdict.

    Returns:
        A Judgement whose `verdict` is the index of the chosen response as presented, or `None` if there are `issues`.

    Raises:
        ValueError: `num_responses` is not from 2 to 8 (the caller's mistake; model text never raises).

    Example:
        >>> parse("The answer is B.", num_responses=2).verdict is None
        True
    """
    offered = _labels(num_responses)
    broken: set[str] = set()
    if finish_reason != "stop":
        broken.add("finished")
    bodies = _sections(text, broken)
    rubric = _rubric(bodies["rubric"], broken)
    if not (bodies["analysis"] or "").strip():
        broken.add("analysis_text")
    label = bodies["verdict"]
    if label is None or len(label) != 1 or label not in offered:
        broken.add("verdict_label")
    return Judgement(
        verdict=None if broken or label is None else LABELS.index(label),
        rubric=rubric,
        analysis=bodies["analysis"],
        issues=tuple(rule for rule in RULES if rule in broken),
        text=text,
    )


def _labels(num_responses: int) -> str:
    if not 2 <= num_responses <= len(LABELS):
        raise ValueError(f"num_responses must be from 2 to {len(LABELS)}, got {num_responses}")
    return LABELS[:num_responses]


def _sections(text: str, broken: set[str]) -> dict[str, str | None]:
    """Return the body of each section that occurs exactly once; note repeated, missing and misplaced sections."""
    bodies: dict[str, str | None] = {}
    outside, end = [], 0
    for name in SECTIONS:
        opening, closing = f"<{name}>", f"</{name}>"
        start, stop = text.find(opening), text.find(closing)
        bodies[name] = None
        if text.count(opening) != 1 or text.count(closing) != 1 or stop < start:
            broken |= {f"{name}_once", "order"}
            continue
        bodies[name] = text[start + len(opening) : stop]
        if start < end:
            broken.add("order")
        else:
            outside.append(text[end:start])
        end = max(end, stop + len(closing))
    outside.append(text[end:])
    if any(part.strip() for part in outside):
        broken.add("order")
    return bodies


def _rubric(body: str | None, broken: set[str]) -> Rubric | None:
    """Return the criteria of a rubric, or `None` if a line cannot be parsed."""
    lines = [line for line in (body or "").split("\n") if line.strip()]
    criteria = tuple(criterion for line in lines if (criterion := _criterion(line)))
    if not lines or len(criteria) != len(lines):
        broken.add("criterion_lines")
    if not MIN_CRITERIA <= len(criteria) <= MAX_CRITERIA:
        broken.add("criterion_count")
    if not criteria or sum(c.weight for c in criteria) != WEIGHT_TOTAL or any(c.weight < 1 for c in criteria):
        broken.add("criterion_weights")
    if not criteria or len({c.name.casefold() for c in criteria}) != len(criteria):
        broken.add("criterion_names")
    return Rubric(criteria) if criteria and len(criteria) == len(lines) else None


def _criterion(line: str) -> Criterion | None:
    """Parse `- weight | name | description`; `None` if it is not."""
    parts = [part.strip() for part in line.strip().removeprefix("- ").split("|")]
    if not line.strip().startswith("- ") or len(parts) != 3 or not all(parts):
        return None
    weight, name, description = parts
    # Three ASCII digits at most: `int` would take other scripts' digits, and time quadratic in a long string of them.
    if not (weight.isascii() and weight.isdecimal() and len(weight) <= 3):
        return None
    return Criterion(int(weight), name, description)


# Formats: what is read from the answer to a prompt. Those of other people's judges are `[[A]]` and a closing rating of
# RewardBench 2 (arXiv 2506.01937, its generative judges) and `<answer>[[A]]</answer>` of RM-R1 (arXiv 2505.02387); the
# words of all prompts are ours. They are read by one of two conventions:
#
# `strict`, ours: the verdict is the last thing written, there is no other one, and the completion ended by itself.
#
# `rewardbench2`, as its published code reads (RM-R1's evaluation code does the same with two labels): the first label
# in alphabetical order whose brackets occur anywhere in the text, however it ended. A judge that mentions [[A]] has
# chosen A. It exists to compare numbers with. Our own grammar is always read strictly.

RATINGS = tuple(range(1, 11))
"""The ratings of a response."""


class Format(ABC):
    """How the answer to a prompt is read.

    Attributes:
        label_opening: The text right before the verdict's label; empty for a format without labels.
        reserved_marks: Texts that a verdict is read by, beyond the tags that are always neutralised: none may come from
            a response.
        asks_for_rating: Whether a single response is presented, to be rated.
    """

    label_opening: str = ""
    reserved_marks: tuple[str, ...] = ()
    asks_for_rating: bool = False

    @abstractmethod
    def read(
        self, text: str, num_responses: int, finish_reason: str | None, convention: Convention = "strict"
    ) -> Judgement:
        """Parse a completion; arguments as for `parse`, and the convention for formats other than our grammar."""


class Grammar(Format):
    """Our grammar."""

    label_opening = "<verdict>"

    def read(
        self, text: str, num_responses: int, finish_reason: str | None, convention: Convention = "strict"
    ) -> Judgement:
        return parse(text, num_responses, finish_reason)


class Brackets(Format):
    """RewardBench 2's verdict: `[[B]]` at the end."""

    label_opening = "[["
    reserved_marks = tuple(f"[[{label}]]" for label in LABELS)

    def read(
        self, text: str, num_responses: int, finish_reason: str | None, convention: Convention = "strict"
    ) -> Judgement:
        offered = _labels(num_responses)
        if convention == "rewardbench2":
            label, issues = next((label for label in offered if f"[[{label}]]" in text), None), []
        else:
            label, issues = self._label(text), [] if finish_reason == "stop" else ["finished"]
        if label is None or label not in offered:
            issues.append("verdict_label")
        verdict = None if issues or label is None else LABELS.index(label)
        return Judgement(verdict=verdict, rubric=None, analysis=None, issues=tuple(issues), text=text)

    def _label(self, text: str) -> str | None:
        """Return the only label in brackets, if nothing but punctuation follows its last occurrence."""
        found = [label for label in LABELS if f"[[{label}]]" in text]
        if len(found) != 1:
            return None
        after = text[text.rfind(f"[[{found[0]}]]") + len("[[A]]") :]
        return None if any(character.isalnum() for character in after) else found[0]


class AnswerTag(Brackets):
    """RM-R1's verdict: `<answer>[[B]]</answer>` at the end."""

    reserved_marks = ("<answer>", "</answer>", *Brackets.reserved_marks)

    def _label(self, text: str) -> str | None:
        """Return the label in the only answer, if nothing follows it."""
        before, _, rest = text.partition("<answer>")
        body, closing, after = rest.partition("</answer>")
        if not closing or "<answer>" in rest or "</answer>" in before + after or after.strip():
            return None
        return next((label for label in LABELS if body.strip() == f"[[{label}]]"), None)


class Rating(Format):
    """RewardBench 2's rating of a single response, from 1 to 10, at the end.

    Strictly, the last word of a completion that ended by itself is the rating. RewardBench 2 takes the digits that the
    text ends with, whatever comes before them and however it ended: of "9/10" it reads 10.
    """

    asks_for_rating = True

    def read(
        self, text: str, num_responses: int, finish_reason: str | None, convention: Convention = "strict"
    ) -> Judgement:
        rating = self._rating(text.strip(), finish_reason, convention)
        issues = ("rating",) if rating is None else ()
        return Judgement(verdict=None, rubric=None, analysis=None, issues=issues, text=text, rating=rating)

    def _rating(self, text: str, finish_reason: str | None, convention: Convention) -> float | None:
        digits = next((digits for digits in map(str, reversed(RATINGS)) if text.endswith(digits)), None)
        if digits is None:
            return None
        before = text[: -len(digits)][-1:]
        if convention == "rewardbench2":
            return None if before.isalnum() or before == "_" else float(digits)
        return float(digits) if finish_reason == "stop" and not before.strip() else None


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        **dict.fromkeys(GRAMMAR_PROMPTS, Grammar()),
        "rewardbench2": Brackets(),
        "rewardbench2_responses_first": Brackets(),
        "rewardbench2_ratings": Rating(),
        "rm_r1": AnswerTag(),
    }
)
"""Prompt -> the format of the answer that it asks for."""


def prompt_format(prompt: str) -> Format:
    """Return the format of the answer that a prompt asks for.

    Raises:
        UnknownPromptError: there is no such prompt; the message lists those there are.

    Example:
        >>> prompt_format("rewardbench2").read("B is kinder. [[B]]", 4, "stop").verdict
        1
        >>> prompt_format("rewardbench2").read("Not [[A]], but [[B]]", 4, "stop").issues
        ('verdict_label',)
        >>> prompt_format("rewardbench2").read("Not [[A]], but [[B]]", 4, "stop", "rewardbench2").verdict
        0
        >>> prompt_format("rewardbench2_ratings").read("So 9/10", 1, "stop", "rewardbench2").rating
        10.0
    """
    if prompt not in FORMATS:
        raise UnknownPromptError(f"no format for prompt {prompt!r}; available: {', '.join(FORMATS)}")
    return FORMATS[prompt]


def label_place(text: str) -> int | None:
    """Return the position of the last verdict's label in a completion, in our grammar or in brackets.

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
