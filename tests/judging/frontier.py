"""Completions about one question: honest ones in twelve languages, and cheap ones that judge nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml
from items import make_item

from think_as_locals.data.cards import cards, cultures
from think_as_locals.types import LABELS, Item

CULTURES = ("CN", "JP", "TH")  # whose greeting A, B and C describe; Thailand is asked about

_TEXTS = yaml.safe_load((Path(__file__).parents[1] / "golden" / "frontier.yaml").read_text(encoding="utf-8"))

Criteria = tuple[tuple[str, str], ...]

HONEST: dict[str, tuple[Criteria, tuple[str, ...]]] = {
    language: (tuple(map(tuple, texts["criteria"])), tuple(texts["analysis"])) for language, texts in _TEXTS.items()
}
"""Criteria and what is said of each response, by language."""


def item_in(language: str) -> Item:
    """The question of how people in Thailand greet, in a language, with three customs in a fixed order."""
    card = next(card for card in cards() if card.group == "greeting_gesture")
    prompt, responses = (
        (_TEXTS[language]["question"], tuple(_TEXTS[language]["customs"]))
        if "question" in _TEXTS[language]
        else (
            card.question[language].replace("{place}", cultures()["TH"]["place"][language]),
            tuple(card.facts[culture][language] for culture in CULTURES),
        )
    )
    known = {"culture": "TH", "language": language, "group": "greeting", "source": "test"}
    return make_item(id=language, prompt=prompt, responses=responses, best=2, **known)


def completion(criteria: Criteria, analysis: str, weights: tuple[str, ...] = ("50", "30", "20")) -> str:
    """What keeps the grammar, unless its texts break it; the verdict is right."""
    lines = [f"- {weight} | {name} | {text}" for weight, (name, text) in zip(weights, criteria, strict=True)]
    return "\n".join(["<rubric>", *lines, "</rubric>", "<analysis>", analysis, "</analysis>", "<verdict>C</verdict>"])


def honest(language: str) -> str:
    """A mediocre judgement."""
    return completion(HONEST[language][0], _each(HONEST[language][1]))


def degenerate(language: str) -> Iterator[tuple[str, str]]:
    """Cheap completions that keep the grammar and judge nothing, or hardly anything, by name."""
    item, (rubric, weighed) = item_in(language), HONEST[language]
    rubrics: dict[str, Criteria] = {
        "letters": (("a", "bcd"), ("e", "fgh"), ("i", "jkl")),
        "punctuation": ((".", ","), ("!", "?"), (":", ";")),
        "one criterion thrice": tuple((f"{rubric[0][0]}{i}", rubric[0][1]) for i in range(3)),
        "the question": tuple((f"{i}", item.prompt) for i in range(3)),
        "the responses": tuple((f"{i}", text) for i, text in enumerate(item.responses)),
    }
    for name, criteria in rubrics.items():
        yield f"rubric: {name}", completion(criteria, _each(weighed))
    analyses = {"one mark": ".", "the labels": "A B C", "the responses": _each(item.responses)}
    analyses |= {"the same thrice": _each((weighed[2],) * 3), "the verdict alone": f"C: {weighed[2]}"}
    for name, analysis in (analyses | {"numbers": _each(("1", "2", "3"))}).items():
        yield f"analysis: {name}", completion(rubric, analysis)
    yield "nothing but a verdict", "<verdict>C</verdict>"
    yield "no rubric", f"<rubric>\n</rubric>\n<analysis>\n{_each(weighed)}\n</analysis>\n<verdict>C</verdict>"


def _each(texts: tuple[str, ...]) -> str:
    return "\n".join(f"{label}: {text}" for label, text in zip(LABELS, texts, strict=False))
