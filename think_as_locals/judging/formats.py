"""Formats of a judge's completion, to write and to parse: our grammar, and those of other people's judges.

`prompts/grammar.txt` describes our grammar to the judge, `parse` parses it; `FORMATS` has the format of each prompt.
Every parser is total and runs in linear time.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

from think_as_locals.types import (
    GRAMMAR_PROMPTS,
    LABELS,
    Convention,
    Criterion,
    Judgement,
    Rubric,
    ThinkAsLocalsError,
    is_stop,
)

SECTIONS = ("rubric", "analysis", "verdict")
MIN_CRITERIA, MAX_CRITERIA = 3, 7
WEIGHT_TOTAL = 100
_BLANK = "\u115f\u1160\u2800\u3164\uffa0"  # letters and symbols that look blank

RULES: Mapping[str, str] = {
    "finished": "the completion has to end by itself, not at the token limit",
    "rubric_once": "there has to be one <rubric>...</rubric>",
    "analysis_once": "there has to be one <analysis>...</analysis>",
    "verdict_once": "there has to be one <verdict>...</verdict>",
    "order": "rubric, analysis, verdict, and nothing behind the verdict",
    "criterion": "a rubric has at least one line `- weight | name | description`",
    "verdict_label": "the verdict has to be one of the labels on offer",
    "outside": "nothing but white space stands before and between the sections",
    "criterion_lines": "every line of the rubric has to be `- weight | name | description`",
    "criterion_count": f"a rubric has {MIN_CRITERIA} to {MAX_CRITERIA} criteria",
    "criterion_weights": f"weights are positive integers that sum to {WEIGHT_TOTAL}",
    "criterion_names": "names of criteria are distinct",
    "analysis_text": "the analysis must not be blank",
}
"""The rules of the grammar by name; `Judgement.issues` lists those that a completion breaks."""

VOIDING = frozenset(
    ("finished", "rubric_once", "analysis_once", "verdict_once", "order", "criterion", "verdict_label", "rating")
)
"""The rules without which a verdict could be forged or is missing; the others are about quality, and it stands."""


class UnknownPromptError(ThinkAsLocalsError, LookupError):
    """There is no prompt template of that name."""


def write(rubric: Rubric, analysis: str, verdict: int) -> str:
    """Return a completion that `parse` accepts; raise a ValueError for "|" or a line end in a name or description."""
    for criterion in rubric.criteria:
        for cell in (criterion.name, criterion.description):
            if "|" in cell or "\n" in cell:
                raise ValueError(f"got {cell!r}, expected a criterion's name and description without '|' and line ends")
    lines = "\n".join(f"- {c.weight} | {c.name} | {c.description}" for c in rubric.criteria)
    return f"<rubric>\n{lines}\n</rubric>\n<analysis>\n{analysis}\n</analysis>{forced_verdict(verdict)}"


def forced_verdict(verdict: int, rubric: str = "") -> str:
    """Return the verdict as a continuation of a rubric (from `rubric_span`, which may be cut off) or of no rubric."""
    closing = "" if not rubric or rubric.endswith("</rubric>") else "</rubric>"
    return f"{closing}\n<verdict>{LABELS[verdict]}</verdict>"


def parse(text: str, num_responses: int, finish_reason: str | None = "stop") -> Judgement:
    """Parse a judge's completion in our grammar; a leading `<think>...</think>` is not part of it.

    Args:
        text: The completion, without the tokenizer's special tokens.
        num_responses: N, the number of labels on offer (2 to 8).
        finish_reason: How the completion ended. Anything but a stop (`is_stop`) is an issue: a text cut off inside a
            quotation could end with the verdict of a response.

    Returns:
        A Judgement whose `verdict` is the index of the chosen response as presented, or `None` if one of its `issues`
        is in `VOIDING`.

    Raises:
        ValueError: `num_responses` is not from 2 to 8. The text itself never raises.

    Example:
        >>> parse("The answer is B.", num_responses=2).verdict is None
        True
    """
    # Only `find`, `split` and `count` read the text: a backtracking expression takes seconds on repeated tags.
    offered = _labels(num_responses)
    broken: set[str] = set()
    if not is_stop(finish_reason):
        broken.add("finished")
    bodies = _sections(without_thinking(text), broken)
    rubric = _rubric(bodies["rubric"], broken)
    if not _visible(bodies["analysis"] or ""):
        broken.add("analysis_text")
    label = (bodies["verdict"] or "").strip()
    if len(label) != 1 or label not in offered:
        broken.add("verdict_label")
    return Judgement(
        verdict=None if broken & VOIDING else LABELS.index(label),
        rubric=rubric,
        analysis=bodies["analysis"],
        issues=tuple(rule for rule in RULES if rule in broken),
        completion=text,
    )


_THOUGHT = re.compile(r"\s*(?:<((?:seed:)?think(?:ing)?)>.*?</\1>|\[THINK].*?\[/THINK])", re.I | re.S)


def without_thinking(text: str) -> str:
    """Return a completion without the blocks such as `<think>...</think>` at its beginning, in which models reason.

    Some chat templates write the `<think>` at the end of the prompt.
    """
    end = 0
    while block := _THOUGHT.match(text, end):
        end = block.end()
    thought, closing, after = text[end:].partition("</think>")
    quoted = end or "<think>" in thought or ("<rubric>" in thought and "<rubric>" not in after)
    return text[end:] if not closing or quoted else after


def _labels(num_responses: int) -> str:
    if not 2 <= num_responses <= len(LABELS):
        raise ValueError(f"num_responses must be from 2 to {len(LABELS)}, got {num_responses}")
    return LABELS[:num_responses]


def _sections(text: str, broken: set[str]) -> dict[str, str | None]:
    """Return the body of each section that occurs exactly once; add rules for all others to `broken`."""
    bodies: dict[str, str | None] = {}
    end = 0
    for name in SECTIONS:
        opening, closing = f"<{name}>", f"</{name}>"
        start, stop = text.find(opening), text.find(closing)
        bodies[name] = None
        if text.count(opening) != 1 or text.count(closing) != 1 or stop < start:
            broken |= {f"{name}_once", "order", "outside"}
            continue
        bodies[name] = text[start + len(opening) : stop]
        if start < end:
            broken.add("order")
        elif text[end:start].strip():
            broken.add("outside")
        end = max(end, stop + len(closing))
    if text[end:].strip():
        broken.add("order")
    return bodies


def _rubric(body: str | None, broken: set[str]) -> Rubric | None:
    """Return the criteria of a rubric that can be parsed, or `None` without any."""
    lines = [line for line in (body or "").split("\n") if line.strip()]
    criteria = tuple(criterion for line in lines if (criterion := _criterion(line)))
    if not criteria:
        broken.add("criterion")
    if not lines or len(criteria) != len(lines):
        broken.add("criterion_lines")
    if not MIN_CRITERIA <= len(criteria) <= MAX_CRITERIA:
        broken.add("criterion_count")
    if not criteria or sum(c.weight for c in criteria) != WEIGHT_TOTAL or any(c.weight < 1 for c in criteria):
        broken.add("criterion_weights")
    if not criteria or len({_visible(c.name).casefold() for c in criteria}) != len(criteria):
        broken.add("criterion_names")
    return Rubric(criteria) if criteria else None


def _criterion(line: str) -> Criterion | None:
    """Parse `- weight | name | description`, or return `None`; the weight is 0 if it is no positive integer (`40%`)."""
    parts = [part.strip() for part in line.strip().removeprefix("- ").split("|")]
    if not line.strip().startswith("- ") or len(parts) != 3 or not all(map(_visible, parts)):
        return None
    weight, name, description = parts
    # Three ASCII digits at most: `int` would take other scripts' digits, and time quadratic in a long string of them.
    valid = weight.isascii() and weight.isdecimal() and len(weight) <= 3 and weight[0] != "0"  # `098` is not
    return Criterion(int(weight) if valid else 0, name, description)


def _visible(text: str) -> str:
    """Return a text without invisible characters; empty if only white space and marks are left."""
    visible = "".join(c for c in text if unicodedata.category(c)[0] != "C" and c not in _BLANK).strip()
    return visible if any(unicodedata.category(c)[0] not in "ZM" for c in visible) else ""


# Other people's formats: `[[A]]`, or a rating at the end, of RewardBench 2's generative judges (arXiv 2506.01937), and
# `<answer>[[A]]</answer>` of RM-R1 (arXiv 2505.02387). They are parsed by one of two conventions:
#
# `strict`, ours: the verdict comes last, there is only one, and the completion ended by itself.
#
# `rewardbench2`, as in the published code: for RewardBench 2 the first label in alphabetical order whose brackets
# occur anywhere in the text, however it ended, and for RM-R1 the only such label. What RewardBench 2 cannot parse earns
# 1/N, in RM-R1 nothing. It makes our numbers comparable with published ones.

RATINGS = tuple(range(1, 11))
"""The possible ratings of a response."""


class Format:
    """How to parse and write the answer to a prompt; the base class is our grammar, which is always parsed strictly."""

    label_opening = "<verdict>"  # the text just before the verdict's label; empty without labels
    reserved_marks: tuple[str, ...] = ()  # marks of a verdict, besides the tags that are always neutralised
    asks_for_rating = False  # whether a single response is presented, to be rated
    guesses_failures = True  # whether a parse failure earns 1/N by the convention `rewardbench2`
    rules: tuple[str, ...] = tuple(RULES)  # the possible issues

    def read(
        self, text: str, num_responses: int, finish_reason: str | None, convention: Convention = "strict"
    ) -> Judgement:
        """Parse a completion, as `parse` does; the convention is for other people's formats."""
        return parse(text, num_responses, finish_reason)

    def write(self, rubric: Rubric, analysis: str, verdict: int) -> str:
        """Return a completion that `read` accepts, with rubric and analysis as far as the format has them."""
        return write(rubric, analysis, verdict)


class Brackets(Format):
    """RewardBench 2's verdict: `[[B]]` at the end."""

    label_opening = "[["
    reserved_marks = tuple(f"[[{label}]]" for label in LABELS)
    rules = ("finished", "verdict_label")

    def read(
        self, text: str, num_responses: int, finish_reason: str | None, convention: Convention = "strict"
    ) -> Judgement:
        offered = _labels(num_responses)
        if convention == "rewardbench2":
            label, issues = self._published_label([label for label in offered if f"[[{label}]]" in text]), []
        else:
            label, issues = self._label(without_thinking(text)), [] if is_stop(finish_reason) else ["finished"]
        if label is None or label not in offered:
            issues.append("verdict_label")
        return Judgement(
            verdict=None if issues or label is None else LABELS.index(label),
            rubric=None,
            analysis=None,
            issues=tuple(issues),
            completion=text,
        )

    def write(self, rubric: Rubric, analysis: str, verdict: int) -> str:
        return f"{analysis}\n[[{LABELS[verdict]}]]"

    def _published_label(self, found: list[str]) -> str | None:
        return found[0] if found else None

    def _label(self, text: str) -> str | None:
        """Return the label in brackets, if there is only one and at most punctuation follows it."""
        found = [label for label in LABELS if f"[[{label}]]" in text]
        if len(found) != 1:
            return None
        after = text.rpartition(f"[[{found[0]}]]")[2]
        return None if any(character.isalnum() for character in after) else found[0]


class BracketsAlone(Brackets):
    """A verdict like RewardBench 2's with nothing before it in what a cold start teaches."""

    def write(self, rubric: Rubric, analysis: str, verdict: int) -> str:
        return f"[[{LABELS[verdict]}]]"


class AnswerTag(Brackets):
    """RM-R1's verdict: `<answer>[[B]]</answer>` at the end."""

    reserved_marks = ("<answer>", "</answer>", *Brackets.reserved_marks)
    guesses_failures = False

    def write(self, rubric: Rubric, analysis: str, verdict: int) -> str:
        lines = [f"- {c.weight}% {c.name}: {c.description}" for c in rubric.criteria]
        why = f"<justify>{rubric.criteria[0].name} counts most.</justify>"
        written = "\n".join(("<type>Chat</type>", "<rubric>", *lines, why, "</rubric>", "<eval>", analysis, "</eval>"))
        return f"{written}\n<answer>[[{LABELS[verdict]}]]</answer>"

    def _published_label(self, found: list[str]) -> str | None:
        return found[0] if len(found) == 1 else None

    def _label(self, text: str) -> str | None:
        """Return the label of the answer, if there is only one and nothing follows it."""
        before, _, answer = text.rstrip().partition("<answer>")
        if "</answer>" in before or not answer.endswith("</answer>"):
            return None
        body = answer.removesuffix("</answer>").strip()
        return next((label for label in LABELS if body == f"[[{label}]]"), None)


class Rating(Format):
    """RewardBench 2's rating of one response: the last word; in its convention the last number ("9/10" is 10)."""

    label_opening = ""
    asks_for_rating = True
    rules = ("rating",)

    def read(
        self, text: str, num_responses: int, finish_reason: str | None, convention: Convention = "strict"
    ) -> Judgement:
        published = convention == "rewardbench2"
        start, written = (r"(?<!\w)", text) if published else (r"(?<!\S)", without_thinking(text))
        found = re.search(rf"{start}({'|'.join(map(str, RATINGS))})\Z", written.rstrip())
        rating = float(found[1]) if found and (published or is_stop(finish_reason)) else None
        issues = ("rating",) if rating is None else ()
        return Judgement(verdict=None, rubric=None, analysis=None, issues=issues, completion=text, rating=rating)


FORMATS: Mapping[str, Format] = {
    **dict.fromkeys(GRAMMAR_PROMPTS, Format()),
    "compact_analysis": Brackets(),
    "verdict_only": BracketsAlone(),
    "rewardbench2": Brackets(),
    "rewardbench2_responses_first": Brackets(),
    "rewardbench2_ratings": Rating(),
    "rm_r1": AnswerTag(),
}
"""The format of the answer that each prompt asks for."""


def prompt_format(prompt: str) -> Format:
    """Return the format of the answer that a prompt asks for; an UnknownPromptError lists the known prompts."""
    if prompt not in FORMATS:
        raise UnknownPromptError(f"no prompt {prompt!r}; available: {', '.join(FORMATS)}")
    return FORMATS[prompt]


def label_index(text: str) -> int | None:
    """Return the position of the label of the last verdict in a completion, in our grammar or in brackets."""
    for opening, closing in (("<verdict>", "</verdict>"), ("[[", "]]")):
        start = text.rfind(opening)
        index = start + len(opening)
        if start >= 0 and text[index : index + 1] in LABELS and text.startswith(closing, index + 1):
            return index
    return None
