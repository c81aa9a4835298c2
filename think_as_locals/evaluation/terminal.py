"""Untrusted text for a terminal, which acts on some of what it is given."""

from __future__ import annotations

import unicodedata

from rich.text import Text

_JOINERS_AND_MARKS = "\u200c\u200d\u200e\u200f\u061c"  # invisible, and needed to write some languages


def plain(text: str) -> Text:
    r"""A text with what a terminal would act on, or not show, as escapes: control characters, bidi overrides, tags.

    Example:
        >>> plain("[red]bow\x1b[2J").plain
        '[red]bow\\x1b[2J'
    """
    return Text("".join(map(_visible, text.replace("\r\n", "\n"))))


def _visible(character: str) -> str:
    shown = character in "\n\t" or character in _JOINERS_AND_MARKS
    if shown or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return character
    return character.encode("unicode_escape").decode()
