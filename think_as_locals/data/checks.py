"""What makes an item suspicious: a response that runs on, a text in another language than said, one nobody can see."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from think_as_locals.data.defects import Defect, Fault
from think_as_locals.data.fields import shown
from think_as_locals.data.language import other_language
from think_as_locals.data.outcomes import Outcome
from think_as_locals.types import Item

_MARKS = ("assistant\n\n", "user\n\n", "<|", "_of_turn>", "INST]")  # one of them stands in whatever the pattern finds
_NEXT_TURN = re.compile(
    # A role's name as a chat template leaves it where its special tokens were dropped: glued to what was said before,
    # or at the beginning of a line. "I am an AI assistant" before an empty line is none.
    r"(?<![ \t\-*_\"'`(#:/„“«])(?:assistant|user)\n\n"
    r"|<\|(?:im_start|im_end|eot_id|start_header_id|end_header_id|endoftext|end_of_text)\|>"
    r"|<(?:start|end)_of_turn>|\[/?INST\]"
)
_VISIBLE = re.compile(  # any but blanks, control characters, marks of direction, joiners, fillers, variation selectors
    r"[^\s\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    r"\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)


def examine(outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
    """Name what is suspicious about rows that are items."""
    for outcome in outcomes:
        items = outcome.items
        yield outcome.with_faults(*_run_on(items), *_foreign_or_invisible(items))


def _foreign_or_invisible(items: tuple[Item, ...]) -> Iterator[Fault]:
    for name, text, language in _texts(items):
        if not _VISIBLE.search(text):
            yield Fault(Defect.INVISIBLE_TEXT, f"the {name} is {shown(text)}")
        if (other := other_language(text, language)) is not None:
            found = "another script" if other == "und" else repr(other)
            yield Fault(Defect.WRONG_LANGUAGE, f"the {name} is in {found}, the row says {language!r}")


def _texts(items: tuple[Item, ...]) -> Iterator[tuple[str, str, str]]:
    """Name, text and language of the prompt and every response, each once however many items a row is."""
    seen = set()
    for item in items:
        for name, text in [("prompt", item.prompt), *_responses(item)]:
            if text not in seen:
                seen.add(text)
                yield name, text, item.language


def _responses(item: Item) -> Iterator[tuple[str, str]]:
    for number, response in enumerate(item.responses):
        yield ("best response" if number == item.best else f"response {number}"), response


def _run_on(items: tuple[Item, ...]) -> Iterator[Fault]:
    for name, text in dict.fromkeys(pair for item in items for pair in _responses(item)):
        if any(mark in text for mark in _MARKS) and (found := _NEXT_TURN.search(text)):
            said = f"the {name} goes on behind {text[max(0, found.start() - 20) : found.end()]!r}"
            yield Fault(Defect.RUN_ON_TURN, said)
