"""What can be wrong with a row of somebody's data: every defect has a name and a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

Severity = Literal["error", "unused", "warning"]
"""`error`: the row cannot be an item. `unused`: sound, but holds no item. `warning`: an item, but suspicious."""


class Defect(Enum):
    """The named defects.

    Example:
        >>> print(Defect.RUN_ON_TURN, "|", Defect.RUN_ON_TURN.severity)
        run_on_turn | warning
    """

    NOT_JSON = "error", "the line is not JSON in UTF-8"
    NOT_AN_OBJECT = "error", "the row is not an object with named fields"
    MISSING_FIELD = "error", "a field that the schema asks for is missing or null"
    UNKNOWN_FIELD = "error", "a field that the schema does not have"
    WRONG_TYPE = "error", "a field is of another type than the schema says"
    EMPTY_PROMPT = "error", "the prompt is blank"
    EMPTY_RESPONSE = "error", "a response is blank"
    EMPTY_FIELD = "error", "a field that must say something is blank"
    BROKEN_TEXT = "error", "half of a surrogate pair stands in a text: it cannot be written as UTF-8"
    WRONG_COUNT = "error", "too few or too many responses for an item"
    IDENTICAL_RESPONSES = "error", "two responses are the same text"
    BAD_BEST = "error", "the index of the best response points nowhere"
    BAD_RATING = "error", "a rating or preference is not on its scale"
    UNKNOWN_LANGUAGE = "error", "the language is neither a name nor a tag that CLDR knows"
    UNKNOWN_CULTURE = "error", "the country is neither a name nor a code that CLDR knows"
    REPEATED_ID = "error", "an earlier row has the same id"
    UNKNOWN_USER = "error", "the survey has no sound row of the person"
    TIE = "unused", "no response is preferred"
    UNPAIRED = "unused", "no other response to the question has a different rating"
    NO_MAJORITY = "unused", "no answer alone has the most votes, or it has fewer than three"
    NAMES_CULTURE = "unused", "the most frequent answer names a region, which would give it away"
    NO_RIVALS = "unused", "too few regions answered otherwise to make wrong answers of"
    NO_QUESTION = "unused", "the row asks nothing"
    NO_RESPONSE = "unused", "the model answered nothing"
    NO_COUNTRY = "unused", "whose opinion it is, is not said, or no country that CLDR knows"
    INVISIBLE_TEXT = "warning", "nothing in a text can be seen: zero-width, control and direction characters alone"
    WRONG_LANGUAGE = "warning", "a text is in another language than the row says"
    RUN_ON_TURN = "warning", "a response runs on into another turn (a chat template's role or token stands in it)"
    COUNTRY_MISMATCH = "warning", "the prompt names another country than the row"
    DUPLICATE = "warning", "an earlier row has the same prompt and responses"
    COUNT_MISMATCH = "warning", "the row counts its responses wrongly"
    BAD_METADATA = "warning", "additional_metadata is not JSON"
    LEFT_OUT_SAMPLE = "warning", "a survey's sample is of no country that CLDR knows, not national, or an older one"
    ASKED_BEFORE = "warning", "an earlier row has the question and two of its answers in a country: that row stands"
    BAD_SHARES = "warning", "a country's shares are not one for each option that sum to 1: the country is left out"
    UNKNOWN_DOMAIN = "warning", "the row is of none of the domains the data set has"

    def __init__(self, severity: Severity, meaning: str) -> None:
        self.severity = severity
        self.meaning = meaning

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Fault:
    """A defect of one row, and what exactly is wrong: a sentence with what was got."""

    defect: Defect
    detail: str

    @property
    def imports(self) -> bool:
        """Whether a row with this fault is an item all the same."""
        return self.defect.severity == "warning"
