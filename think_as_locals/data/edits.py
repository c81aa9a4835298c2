"""Edits for CARB's spurious-feature probes, ours and those of a file: changes that should, or should not, move a score.

The paper (arXiv 2509.21798) measures how far the score of the chosen response moves when one thing changes. Changing
CC, its core cultural concept, should move it; changing RC, the explicit label of the culture, CL, the language of the
responses, or RP, the phrasing, should not. The paper's edits are made by people and models (those of a chat model are
below); our deterministic string edits are narrower. An edit changes only what its docstring says; the id is marked
(`...#CC`).
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import SequenceMatcher
from functools import cache
from importlib.resources import files
from operator import or_
from pathlib import Path
from string import Template
from typing import Any, Literal, NamedTuple, get_args

from babel.languages import get_official_languages
from pydantic import ConfigDict

from think_as_locals.config.compose import nearest
from think_as_locals.data import cards as culture_cards
from think_as_locals.data.fields import Language, RowModel, Text, Texts
from think_as_locals.data.languages import count_names, in_another_script, language_tag
from think_as_locals.data.rows import Fault, Outcome, Row, check_rows, read_rows
from think_as_locals.data.sources import SOURCES, jsonl, response_language
from think_as_locals.data.splits import hash_fraction
from think_as_locals.runtime.files import read_json
from think_as_locals.runtime.scripts import script, script_share
from think_as_locals.types import DataError, Item, are_texts, shown

_FOLDER = Path(__file__).parent  # has `frames.json`, and `labels.json` with phrases and names of places
_read_once = cache(read_json)

Edit = Literal["CC", "RC", "CL", "RP"]


class EditedPair(NamedTuple):
    """An item before and after an edit, and the language of its responses afterwards."""

    before: Item
    after: Item
    language: str


Edits = Mapping[Edit, Sequence[EditedPair]]
# (source, group, language, culture) -> another culture -> its answer, which is wrong for this one
Concepts = Mapping[tuple[str, ...], Mapping[str, str]]


def edited_pairs(items: Sequence[Item], known: Sequence[Item] = ()) -> dict[Edit, list[EditedPair]]:
    """Return by edit the items that it applies to, before and after, in the order of the items.

    Other cultures' answers (CC) are also taken from `known` items of the same data.
    """
    concepts = other_concepts([*items, *known])

    def pairs(edit: Callable[[Item], Item | None]) -> list[EditedPair]:
        return [EditedPair(_like(item, after), after, item.language) for item in items if (after := edit(item))]

    changed = pairs(lambda item: change_concept(item, concepts))
    return {"CC": changed, "RC": pairs(remove_label), "CL": language_pairs(items), "RP": pairs(rephrase)}


def _like(before: Item, after: Item) -> Item:
    """Return an item as one turn if its edited prompt is one: else the form of a conversation would change as well."""
    return before if before.prompt == after.prompt else replace(before, turns=())


def other_concepts(items: Sequence[Item]) -> Concepts:
    """Return the answers of other cultures that are wrong responses of an item with the same question."""
    found: dict[tuple[str, ...], dict[str, str]] = defaultdict(dict)
    for item in items:
        for origin, response in zip(item.origins, item.responses, strict=False):  # none where there are no origins
            if origin != item.origins[item.best]:
                found[_question_key(item)].setdefault(origin, response)
    return found


def change_concept(item: Item, concepts: Concepts) -> Item | None:
    """CC: replace the best response by the answer of another culture that is known to be wrong."""
    others = {
        culture: text
        for culture, text in concepts.get(_question_key(item), {}).items()
        if culture not in item.origins and text not in item.responses
    }
    if not others or not item.origins:
        return None
    # Drawn by a hash: the most similar one would tend towards the mean length.
    culture = min(others, key=lambda culture: hash_fraction(f"{item.id}:{culture}"))
    return replace(
        item,
        id=f"{item.id}#CC",
        responses=(*item.responses[: item.best], others[culture], *item.responses[item.best + 1 :]),
        origins=(*item.origins[: item.best], culture, *item.origins[item.best + 1 :]),
    )


def remove_label(item: Item) -> Item | None:
    """RC: remove the words that name the place from the prompt ("in Indonesia"), and set `culture` to `None`.

    It knows the phrases of BLEnD's prompts and of the cards, and does not apply if a trace of the name would stay
    ("Algeria's"). In English nothing else may tell the culture; in the culture's own language the language does.
    """
    cut, language = item.prompt, _without_region(item.language)
    labels = _read_once(_FOLDER / "labels.json").get(language, {"places": {}})
    # The blank or particle around the name goes with it.
    if item.culture in labels["places"]:
        cut = re.sub(labels["phrase"].replace("{place}", labels["places"][item.culture]), "", cut)
    if place := culture_cards.cultures().get(item.culture or "", {}).get("place", {}).get(language):
        cut = re.sub(rf"\s+{re.escape(place)}(?!\w)|{re.escape(place)}[\s，、]*的?", "", cut)
    capitals = {"i": "İ"} if language == "az" else {}
    prompt = cut.lstrip(" ,，、")
    if not item.turns:  # which begin with a role
        prompt = re.sub(r"\w", lambda found: capitals.get(found[0], found[0].upper()), prompt, count=1)
    trace = labels.get("traces", {}).get(item.culture)
    if cut == item.prompt or not prompt or (trace and re.search(trace, prompt)):
        return None
    return replace(item, id=f"{item.id}#RC", prompt=prompt, culture=None)


def _without_region(language: str) -> str:
    """Return `en` for `en-US`, but `zh-TW` as it is: it is in another script than `zh`."""
    primary = language.partition("-")[0]
    with suppress(DataError):
        return primary if script(primary) == script(language) else language
    return language


def rephrase(item: Item) -> Item | None:
    """RP: put a frame around the prompt and every response; no paraphrase, so its effect is a lower bound."""
    frames = _read_once(_FOLDER / "frames.json")
    prompts, responses = (frames.get(_without_region(tag)) for tag in (item.language, response_language(item)))
    if prompts is None or responses is None:
        return None
    draw = hash_fraction(item.group)  # the same for a whole flip set
    prompt, response = (kind[int(draw * len(kind))] for kind in (prompts["prompt"], responses["response"]))
    return replace(
        item,
        id=f"{item.id}#RP",
        prompt=prompt.replace("{text}", item.prompt),
        responses=tuple(response.replace("{text}", text) for text in item.responses),
    )


def language_pairs(items: Sequence[Item]) -> list[EditedPair]:
    """CL: give each item the responses of an item that asks the same in another language; the prompt stays.

    For a culture card that is the card in English, or in the language of the culture. Repeated origins match nothing.
    """
    asking: dict[tuple[str, ...], list[Item]] = defaultdict(list)
    for item in items:
        asking[_same_question(item)].append(item)
    pairs = []
    for item in items:
        side = culture_cards.in_language(item, None if item.language == "en" else "en")
        others = [*asking[_same_question(item)], *filter(None, [side])]
        others = [o for o in others if o.language != item.language and {*o.responses} != {*item.responses}]
        others = others if len({*item.origins}) == len(item.origins) else []
        if other := min(others, key=lambda other: (other.language != "en", other.language), default=None):
            mine, theirs = (each.origins or each.responses for each in (item, other))
            responses = tuple(other.responses[theirs.index(name)] for name in mine)
            pairs.append(EditedPair(item, replace(item, id=f"{item.id}#CL", responses=responses), other.language))
    return pairs


def no_edit_reason(edit: Edit, item: Item) -> str:
    """Return why an edit does not apply to an item."""
    if edit == "CC":
        return "no other culture's answer is known to be wrong" if item.origins else "its responses name no cultures"
    if edit == "RC":
        return "no phrase of its prompt that can be cut names the culture" if item.culture else "it has no culture"
    if edit == "RP":
        return "no frames in its languages"
    if (source := SOURCES.get(item.source)) and source.response_language:
        return "its responses are in English, whatever the language of the prompt"
    return "no item asks the same in another language"


def _question_key(item: Item) -> tuple[str, ...]:
    return item.source, item.group, item.language, item.culture or ""


def _same_question(item: Item) -> tuple[str, ...]:
    return item.source, item.domain, item.group, item.culture or "", *sorted(item.origins or item.responses)


# --- Edits from a file (`eval.probes=FILE`), by people or by a model ---
#
# A row names the item (`item`: the id of one that is evaluated, or an item of its own with the fields of `Item`), the
# `probe` (CC, RC, CL or RP) and what the edit changed: the `prompt`, the `responses` in the item's own order, or both.
# Fields that a row leaves out are the item's; an RC edit also removes the item's culture.


class EditRow(RowModel):
    """A row as it is in the file."""

    model_config = ConfigDict(extra="forbid")

    item: Text | dict[str, Any]
    probe: Edit
    prompt: Text | None = None
    responses: Texts | None = None
    language: Language | None = None  # of the responses after CL; the item's is that of the prompt
    provenance: Any = None  # who made the edit; not used


def read_edits(path: Path, items: Sequence[Item]) -> Edits:
    """Return the edited pairs of a file by probe, whose ids refer to `items`; a DataError names faulty rows."""
    found: dict[Edit, list[EditedPair]] = {edit: [] for edit in get_args(Edit)}
    for outcome in check_rows(edit_outcomes(str(path), {item.id: item for item in items})):
        row, (before, after) = outcome.row.value, outcome.items
        language = language_tag(row.get("language") or "") or before.language
        found[row["probe"]].append(EditedPair(before, after, language))
    return found


def are_edits(path: str) -> bool:
    """Return whether the first row of a file is an edit."""
    first = next(read_rows(path)).value if Path(path).expanduser().is_file() else None
    return isinstance(first, Mapping) and {"item", "probe"} <= first.keys()


def edit_outcomes(path: str, by_id: Mapping[str, Item] | None) -> Iterator[Outcome]:
    """Yield the outcome of every row: its item before and after the edit, or faults.

    `by_id` are the items that are evaluated; if it is `None`, rows that name an item by id have no items.
    """
    places: dict[tuple[str, str], str] = {}

    def read(row: Row) -> Iterator[Item | Fault]:
        fields = EditRow.model_validate(row.value)
        name, before = str(fields.item), None
        if isinstance(fields.item, dict):
            for each in jsonl.items(row._replace(value=fields.item)):
                if isinstance(each, Item):
                    before, name = each, each.id
                else:
                    yield each
        elif by_id is not None and (before := by_id.get(name)) is None:
            near = nearest(name, list(by_id))
            yield Fault("unknown_item", f"item {shown(name)} is not among the {len(by_id):,} items{near}")
        if (earlier := places.setdefault((name, fields.probe), row.place)) != row.place:
            yield Fault("repeated_id", f"item {name!r} has a {fields.probe} edit already, in {earlier}")
        if before is not None:
            yield from _edited(fields, before)

    yield from (Outcome.of(row, read) for row in read_rows(path))


def _edited(fields: EditRow, before: Item) -> Iterator[Item | Fault]:
    """Yield an item before and after an edit, or why the edit is none of it."""
    prompt, responses = fields.prompt or before.prompt, fields.responses or before.responses
    if len(responses) != len(before.responses):
        count = f"expected the item's {len(before.responses)} responses in its order, got {len(responses)}"
        yield Fault("wrong_count", count)
        return
    if fields.probe == "CL" and fields.responses is None:
        yield Fault("missing", "a CL edit changes the language of the responses: it needs responses")
    if (prompt, responses) == (before.prompt, before.responses):
        yield Fault("unchanged", "prompt and responses are the item's: expected at least one that differs")
    after = replace(
        before,
        id=f"{before.id}#{fields.probe}",
        prompt=prompt,
        responses=responses,
        culture=None if fields.probe == "RC" else before.culture,
        origins=() if fields.probe == "CC" else before.origins,
    )
    yield from (_like(before, after), after)


# --- Edits by a chat model (`tal data edit`): its instructions, and the rules that an edit must follow (README.md) ---

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


def target_language(item: Item, language: str) -> str | None:
    """Return the language into which CL puts an item's responses: `language`, or if they are in it the culture's."""
    spoken = response_language(item).partition("-")[0]
    if spoken != language.partition("-")[0]:
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


def read_answer(probe: Edit, item: Item, answer: str) -> tuple[str, ...] | None:
    """Return the edited prompt and responses in an answer, a JSON object with any text around it; `None` without."""
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
    return texts if are_texts(texts := (prompt, *responses)) else None


def broken_rules(probe: Edit, item: Item, new: Sequence[str], language: str | None) -> list[str]:
    """Return the rules that an edited prompt and responses break; `language` is the one that CL asked for."""
    old = (item.prompt, *item.responses)
    spoken = (item.language, *[response_language(item)] * len(item.responses))
    edited = [each for each in zip(spoken, old, new, strict=True) if each[1] != each[2]]
    changed = [_words(a) != _words(b) for a, b in zip(old, new, strict=True)]
    short = [len(_words(text)) < _MUST_DIFFER for text in item.responses]
    excused = {"RP": [False, *short], "CL": [True, *short]}.get(probe)  # from changing: very short responses
    held = {
        "changed": all(map(or_, changed, excused)) if excused else any(changed),
        "distinct": len(set(new[1:])) == len(new) - 1,
        "name_removed": probe != "RC" or not any(_names(text, item) for text in new),
        "rest_kept": probe in ("CL", "RP") or all(_keeps_rest(a, b, probe, item) for _, a, b in edited),
        # A text that was in another script already may stay so.
        "language": all(in_another_script(b, own) <= in_another_script(a, own) for own, a, b in edited)
        if language is None
        else all(script_share(text, language) >= 0.5 for text in new[1:]),
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
