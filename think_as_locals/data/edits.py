"""Edits of items that a reward model should, or should not, react to: the spurious-feature probes of CARB.

The paper (arXiv 2509.21798) measures how far the chosen response's score moves when one thing changes: CC, its core
cultural concept, should move it; RC, the explicit label of the culture, CL, the language, and RP, the phrasing, should
not. Its edits are made by people and models; those here are deterministic string edits, and so are narrower. Whatever a
docstring does not name stays the same; the id is marked (`...#CC`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Literal

from think_as_locals.data import cards as culture_cards
from think_as_locals.data.splits import hash_fraction
from think_as_locals.runtime.files import read_json
from think_as_locals.types import Item, reorder_responses

_FOLDER = Path(__file__).parent  # of `frames.json`, and of `labels.json`: phrases, names and traces of places
_read_once = cache(read_json)

Edit = Literal["CC", "RC", "CL", "RP"]
Pair = tuple[Item, Item]  # before and after an edit
Edits = Mapping[Edit, Sequence[Pair]]
# (source, group, language, culture) -> another culture -> its answer, known to be wrong for this one
Concepts = Mapping[tuple[str, ...], Mapping[str, str]]


def edited_pairs(items: Sequence[Item]) -> dict[Edit, list[Pair]]:
    """Return, by edit, the items that it applies to before and after, in the order of the items."""
    concepts = other_concepts(items)
    return {
        "CC": [(item, after) for item in items if (after := change_concept(item, concepts))],
        "RC": [(item, after) for item in items if (after := remove_label(item))],
        "CL": language_pairs(items),
        "RP": [(item, after) for item in items if (after := rephrase(item))],
    }


def other_concepts(items: Sequence[Item]) -> Concepts:
    """Return other cultures' answers that some item with the same question has as wrong; others may be true too."""
    found: dict[tuple[str, ...], dict[str, str]] = defaultdict(dict)
    for item in items:
        for origin, response in zip(item.origins, item.responses, strict=False):  # none where there are no origins
            if origin != item.origins[item.best]:
                found[_asked(item)].setdefault(origin, response)
    return found


def change_concept(item: Item, concepts: Concepts) -> Item | None:
    """CC: put another culture's answer, known to be wrong, in the place of the best response, at the same index."""
    others = {
        culture: text
        for culture, text in concepts.get(_asked(item), {}).items()
        if culture not in item.origins and text not in item.responses
    }
    if not others or not item.origins:
        return None
    # Drawn by a hash: the most similar one would be longer than short answers and shorter than long ones.
    culture = min(others, key=lambda culture: hash_fraction(f"{item.id}:{culture}"))
    return replace(
        item,
        id=f"{item.id}#CC",
        responses=(*item.responses[: item.best], others[culture], *item.responses[item.best + 1 :]),
        origins=(*item.origins[: item.best], culture, *item.origins[item.best + 1 :]),
    )


def remove_label(item: Item) -> Item | None:
    """RC: remove the words that name the place from the prompt ("in Indonesia"), and set `culture` to `None`.

    It applies to phrases of BLEnD's prompts and of the cards, unless a trace of the name would stay ("Algeria's"). In
    the culture's own language a score that moves depended on the label; in English nothing else tells the culture.
    """
    cut, labels = item.prompt, _read_once(_FOLDER / "labels.json").get(item.language, {"places": {}})
    # With what names the place goes the blank or particle that would be left over.
    if item.culture in labels["places"]:
        cut = re.sub(labels["phrase"].replace("{place}", labels["places"][item.culture]), "", cut)
    if place := culture_cards.cultures().get(item.culture or "", {}).get("place", {}).get(item.language):
        cut = re.sub(rf"\s+{re.escape(place)}(?!\w)|{re.escape(place)}[\s，、]*的?", "", cut)
    capitals = {"i": "İ"} if item.language == "az" else {}
    prompt = re.sub(r"\w", lambda found: capitals.get(found[0], found[0].upper()), cut.lstrip(" ,，、"), count=1)
    trace = labels.get("traces", {}).get(item.culture)
    if cut == item.prompt or not prompt or (trace and re.search(trace, prompt)):
        return None
    return replace(item, id=f"{item.id}#RC", prompt=prompt, culture=None)


def rephrase(item: Item) -> Item | None:
    """RP: put a frame around the prompt and every response: no paraphrase, so a lower bound of what rephrasing does."""
    frames = _read_once(_FOLDER / "frames.json")
    # BLEnD's responses are in English, see sources/blend.py.
    prompts, responses = frames.get(item.language), frames.get("en" if item.source == "blend" else item.language)
    if prompts is None or responses is None:
        return None
    draw = hash_fraction(item.group)  # of the group alone, so flip sets stay flip sets
    prompt, response = (kind[int(draw * len(kind))] for kind in (prompts["prompt"], responses["response"]))
    return replace(
        item,
        id=f"{item.id}#RP",
        prompt=prompt.replace("{text}", item.prompt),
        responses=tuple(response.replace("{text}", text) for text in item.responses),
    )


def language_pairs(items: Sequence[Item]) -> list[Pair]:
    """CL: pair each item in English with the same item in another language, responses in the same order.

    A culture card's other side, in the language of the culture, is read from the card where it is not among the items.
    """
    english = {_same_question(item): item for item in items if item.language == "en"}
    others = {item.id: item for item in items if item.language != "en"}
    for item in english.values():
        if (own := culture_cards.in_language(item, None)) and own.language != "en":
            others.setdefault(own.id, own)
    pairs = []
    for other in others.values():
        if base := english.get(_same_question(other)) or culture_cards.in_language(other, "en"):
            mine, theirs = (item.origins or item.responses for item in (base, other))
            paired = reorder_responses(other, [theirs.index(name) for name in mine])
            pairs.append((base, replace(paired, id=f"{other.id}#CL")))
    return pairs


def why_not(edit: Edit, item: Item) -> str:
    """Return why an edit does not apply to an item that it was not applied to."""
    if edit == "CC":
        return "no other culture's answer is known to be wrong" if item.origins else "its responses name no cultures"
    if edit == "RC":
        return "no phrase of its prompt that can be cut names the culture" if item.culture else "it has no culture"
    return "no item asks the same in another language" if edit == "CL" else "no frames in its languages"


def _asked(item: Item) -> tuple[str, ...]:
    return item.source, item.group, item.language, item.culture or ""


def _same_question(item: Item) -> tuple[str, ...]:
    return item.source, item.domain, item.group, item.culture or "", *sorted(item.origins or item.responses)
