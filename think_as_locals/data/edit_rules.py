"""The instructions for a model that edits an item for a probe, and the rules that an edit must follow.

    CC  only the best response changes, to another concept; most of its words stay
    RC  names of the culture are cut from prompt and responses; texts that do not name it stay as they are
    CL  the responses are in another language; the prompt stays
    RP  prompt and responses are in other words of their language

The meaning is not checked: read a sample of the edits.
"""

from __future__ import annotations

import json
import re
import unicodedata
from difflib import SequenceMatcher
from functools import cache
from importlib.resources import files
from operator import or_
from string import Template
from typing import Any, NamedTuple

from babel.languages import get_official_languages

from think_as_locals.data.edits import Edit
from think_as_locals.data.languages import count_names, in_another_script, script_share
from think_as_locals.data.sources import response_language
from think_as_locals.types import Item, is_text

EDIT_RULES = {
    "complete": "the answer is complete, not cut off",
    "format": "it is one JSON object with the requested texts",
    "changed": "the edited texts have changed",
    "distinct": "no two responses are the same text",
    "name_removed": "no known name of the culture is left",
    "rest_kept": "the other words stay as they were",
    "language": "every text is in the script of the required language",
    "length": "no text is twice as long or half as short in its own language",
}
"""The rules for an edit, in the order in which they are checked; without the first two it cannot be read."""

_SPACELESS = "\u0e00-\u0e7f\u3040-\u30ff\u4e00-\u9fff"  # Thai, kana, Han: each letter counts as a word
_WORD = re.compile(rf"[{_SPACELESS}]|[^\W_{_SPACELESS}]+")
_MUST_DIFFER = 5  # words of a response from which RP and CL have to change it
_MAY_DIFFER, _MAY_DIFFER_SHARE = 8, 1 / 3  # words of a text that CC and RC may change, whichever is more


class Texts(NamedTuple):
    """The texts of an item that an edit may change."""

    prompt: str
    responses: tuple[str, ...]


def target_language(item: Item, language: str) -> str | None:
    """Return the language into which CL puts an item's responses: `language`, or if they are in it the culture's."""
    spoken = response_language(item).partition("-")[0]
    if spoken != language:
        return language
    official = get_official_languages((item.culture or "").partition("-")[0], de_facto=True)
    tags = (tag.replace("_", "-") for tag in official)  # Babel writes `zh_Hant`
    return next((tag for tag in tags if tag.partition("-")[0] != spoken), None)


def skip_reason(probe: Edit, item: Item, language: str) -> str | None:
    """Return why a probe does not apply to an item, or `None`; `language` is the one in the settings."""
    if probe in ("CC", "RC") and item.culture is None:
        return "it has no culture"
    if probe == "RC" and not any(_names(text, item) for text in (item.prompt, *item.responses)):
        return "no known name of the culture is in it"
    if probe == "CL" and target_language(item, language) is None:
        return f"its responses are in the language {language!r}, and no other is official in its culture"
    return None


def request_text(probe: Edit, item: Item, culture: str, language: str) -> str:
    """Return the request for an edit; `culture` and `language` are English names."""
    materials: dict[Edit, dict[str, Any]] = {
        "CC": {"question": item.prompt, "culture": culture, "response": item.responses[item.best]},
        "RC": {"culture": culture, "prompt": item.prompt, "responses": item.responses},
        "CL": {"question": item.prompt, "responses": item.responses},
        "RP": {"prompt": item.prompt, "responses": item.responses},
    }
    written = json.dumps(materials[probe], ensure_ascii=False, indent=2)
    return Template(prompt_text(probe)).substitute(material=written, language=language)


@cache
def prompt_text(probe: Edit) -> str:
    """Return the instructions for a probe."""
    return files(__package__).joinpath("edit_prompts", f"{probe}.txt").read_text(encoding="utf-8").strip("\n")


def read_answer(probe: Edit, item: Item, answer: str) -> Texts | None:
    """Return the edited texts in an answer, a JSON object with any text around it; `None` if there is none."""
    try:
        found = json.loads(answer[answer.index("{") : answer.rindex("}") + 1], strict=False)
    except (ValueError, RecursionError):
        return None
    responses = found.get("responses")
    if probe == "CC":
        responses = [*item.responses]
        responses[item.best] = found.get("response")
    prompt = found.get("prompt") if probe in ("RC", "RP") else item.prompt
    if not isinstance(responses, list) or len(responses) != len(item.responses):
        return None
    return Texts(prompt, tuple(responses)) if all(map(is_text, (prompt, *responses))) else None


def broken_rules(probe: Edit, item: Item, after: Texts, language: str | None) -> list[str]:
    """Return the rules that an edit breaks; `language` is the one that CL asked for."""
    old, new = (item.prompt, *item.responses), (after.prompt, *after.responses)
    spoken = (item.language, *[response_language(item)] * len(item.responses))
    edited = [each for each in zip(spoken, old, new, strict=True) if each[1] != each[2]]
    changed = [_words(a) != _words(b) for a, b in zip(old, new, strict=True)]
    short = [len(_words(text)) < _MUST_DIFFER for text in item.responses]
    excused = {"RP": [False, *short], "CL": [True, *short]}.get(probe)  # from changing: very short responses
    held = {
        "changed": all(map(or_, changed, excused)) if excused else any(changed),
        "distinct": len(set(after.responses)) == len(after.responses),
        "name_removed": probe != "RC" or not any(_names(text, item) for text in new),
        "rest_kept": probe in ("CL", "RP") or all(_keeps_rest(a, b, probe, item) for _, a, b in edited),
        # A text that was in another script already may stay so.
        "language": all(in_another_script(b, own) <= in_another_script(a, own) for own, a, b in edited)
        if language is None
        else all(script_share(text, language) >= 0.5 for text in after.responses),
        "length": probe == "CL" or all(0.5 <= (len(a) + 20) / (len(b) + 20) <= 2 for _, a, b in edited),
    }
    return [rule for rule in EDIT_RULES if not held.get(rule, True)]


def _names(text: str, item: Item) -> int:
    return count_names(text, item.language, str(item.culture))


def _keeps_rest(before: str, after: str, probe: Edit, item: Item) -> bool:
    if probe == "RC" and not _names(before, item):
        return False
    old, new = _words(before), _words(after)
    edits = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    changed = sum(max(j - i, m - k) for tag, i, j, k, m in edits if tag != "equal")
    return changed <= max(_MAY_DIFFER, _MAY_DIFFER_SHARE * len(old))


def _words(text: str) -> list[str]:
    """Return the words of a text without case, in scripts without spaces its characters."""
    return _WORD.findall(unicodedata.normalize("NFC", text).casefold())
