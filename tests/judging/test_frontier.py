"""Reward hacking: good completions must earn more than mediocre ones, and these than gamed and cheap ones.

Of honest completions in twelve languages and cheap ones that judge nothing, `tests/golden/frontier.json` is what each
earns. `tests/golden/completions.yaml` has texts written by hand in six languages, `completions.json` what each of them
earns. `PYTHONPATH=tests python tests/judging/test_frontier.py` writes both anew.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from items import make_item

from think_as_locals.data.cards import cards, cultures
from think_as_locals.judging import COMPONENTS, RULES, Evidence, is_degenerate, parse
from think_as_locals.types import LABELS, Item, RewardBreakdown

GOLDEN = Path(__file__).parents[1] / "golden"
CULTURES = ("CN", "JP", "TH")  # whose greeting A, B and C describe; Thailand is asked about
# The same for all, so that only the completion decides: right in both orders, with a rubric that helps.
EVIDENCE = Evidence(
    log_probabilities=(-0.1, -9.0),
    gain_clip=(-1.0, 1.0),
    rubric_language="item",
    partner_right=True,
    num_tokens=100,
    length_share=0.2,
    max_completion_length=2048,
)

_TEXTS = yaml.safe_load((GOLDEN / "frontier.yaml").read_text(encoding="utf-8"))

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


def completion(criteria: Criteria, analysis: str) -> str:
    """What keeps the grammar, unless its texts break it; the verdict is right."""
    lines = [f"- {weight} | {name} | {text}" for weight, (name, text) in zip((50, 30, 20), criteria, strict=True)]
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


def paid(
    text: str, language: str, finish_reason: str | None = "stop", evidence: Evidence = EVIDENCE
) -> RewardBreakdown:
    judgement, item = parse(text, 3, finish_reason), item_in(language)
    return RewardBreakdown({name: component(judgement, item, evidence) for name, component in COMPONENTS.items()})


# --- twelve languages ---


def frontier() -> str:
    """What honest and degenerate completions earn of the components that differ, by language."""
    names = ("criteria_gain", "structure", "rubric_quality")

    def figures(text: str, language: str) -> list[float]:
        return [round(paid(text, language).parts[name], 3) for name in names]

    cheap = {language: {name: figures(text, language) for name, text in degenerate(language)} for language in HONEST}
    rows = [f" {json.dumps(name)}: {json.dumps({each: cheap[each][name] for each in cheap})}" for name in cheap["en"]]
    fair = json.dumps({language: figures(honest(language), language) for language in HONEST})
    every = ",\n".join(rows)
    return f'{{"components": {json.dumps(names)},\n"honest": {fair},\n"degenerate": {{\n{every}\n}}}}\n'


def test_frontier_rewards_match_the_golden_file() -> None:
    """A record of what a pure function sees and what it does not."""
    assert (GOLDEN / "frontier.json").read_text(encoding="utf-8") == frontier()


@pytest.mark.parametrize("language", HONEST)
def test_degenerate_completion_earns_no_more_than_an_honest_one(language: str) -> None:
    fair = paid(honest(language), language).parts
    assert fair == dict.fromkeys(COMPONENTS, 1.0) | {"length": 0.0}
    assert not is_degenerate(parse(honest(language), 3), item_in(language).responses)
    for name, text in degenerate(language):
        assert all(value <= fair[each] for each, value in paid(text, language).parts.items()), name


# --- written by hand, in six languages ---

KINDS = ("good", "mediocre", "empty", "gamed")
MEASURED = ("correctness", "structure", "rubric_quality")
ORDERED = ("structure", "rubric_quality")


@cache
def completions() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = yaml.safe_load((GOLDEN / "completions.yaml").read_text(encoding="utf-8"))
    for row in rows:
        parts = paid(row["text"], row["language"], evidence=replace(EVIDENCE, rubric_language=row["rubric_language"]))
        row["paid"] = {name: round(parts.parts[name], 3) for name in MEASURED}
    return rows


def paid_for(component: str, *kinds: str) -> list[float]:
    """What the completions of some kinds earn of a component that concerns them."""
    return [r["paid"][component] for r in completions() if r["kind"] in kinds and component in r["concerns"]]


def recorded() -> str:
    spread = []
    for name in ORDERED:
        figures = {kind: paid_for(name, kind) for kind in KINDS}
        by_kind = {
            kind: {"n": len(found), "min": min(found), "median": median(found), "max": max(found)}
            for kind, found in figures.items()
        }
        spread.append(f' "{name}": {json.dumps(by_kind)}')
    columns = json.dumps(["language", "kind", "rubric_language", *MEASURED])
    rows = [json.dumps([r["language"], r["kind"], r["rubric_language"], *r["paid"].values()]) for r in completions()]
    distribution, every = ",\n".join(spread), ",\n ".join(rows)
    return f'{{"distribution": {{\n{distribution}\n}},\n"columns": {columns},\n"paid": [\n {every}\n]}}\n'


def test_rewards_of_hand_written_completions_match_the_golden_file() -> None:
    assert (GOLDEN / "completions.json").read_text(encoding="utf-8") == recorded()
    count = Counter((row["language"], row["kind"]) for row in completions())
    assert len(completions()) >= 60
    assert {language for language, _ in count} == {"en", "es", "th", "ja", "ar", "zh"}
    assert min(count.values()) >= 2
    assert len(count) == 6 * len(KINDS)


def test_good_completions_earn_more_than_mediocre_and_gamed_ones() -> None:
    # In the median, as `rubric_quality` cannot see what a text means; in `structure` each gamed one earns less.
    for component in ORDERED:
        good, mediocre = paid_for(component, "good"), paid_for(component, "mediocre")
        assert min(good) == 1.0 > median(mediocre) > median(paid_for(component, "empty", "gamed"))
    assert min(paid_for("structure", "mediocre")) > max(paid_for("structure", "empty", "gamed"))
    english = [row for row in completions() if row["rubric_language"] != "item"]
    assert {(row["language"], row["rubric_language"]) for row in english} >= {
        (language, choice) for language in ("th", "ja") for choice in ("any", "en")
    }
    assert {row["paid"]["rubric_quality"] for row in english} == {1.0}


# --- no component pays for what is absent ---

SECTIONS = ("rubric", "analysis", "verdict")


@st.composite
def broken(draw: st.DrawFn) -> tuple[str, set[str], str]:
    """An honest completion of which sections are missing, empty or without a closing tag."""
    language, absent = draw(st.sampled_from([*HONEST])), set[str]()
    text = honest(language)
    for section in draw(st.lists(st.sampled_from(SECTIONS), min_size=1, unique=True)):
        opening, closing = f"<{section}>", f"</{section}>"
        before, _, rest = text.partition(opening)
        body, _, after = rest.partition(closing)
        nothing = draw(st.sampled_from(["", " ", "\n", "\u200b", "\u3164\n", "\u0301"]))
        left = draw(st.sampled_from(["", opening + nothing + closing, opening + body, body + closing, nothing]))
        text = before + left + after
        absent.add(section)
    return language, text, absent


log_probabilities = st.floats(-30, 0)
evidences = st.builds(
    partial(replace, EVIDENCE),
    log_probabilities=st.tuples(log_probabilities, log_probabilities),
    partner_right=st.booleans(),
)


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(broken(), st.sampled_from(["stop", "length", None]), evidences)
def test_broken_completion_earns_nothing_for_missing_sections(
    case: tuple[str, str, set[str]], reason: str | None, evidence: Evidence
) -> None:
    language, text, absent = case
    fair, parts = paid(honest(language), language, "stop", evidence).parts, paid(text, language, reason, evidence).parts
    judgement = parse(text, 3, reason)
    assert is_degenerate(judgement, item_in(language).responses)
    if judgement.verdict is None:
        assert (parts["correctness"], parts["consistency"]) == (-1.0, 0.0)
    assert parts["structure"] == pytest.approx(1 - len(judgement.issues) / len(RULES))
    assert parts["structure"] < 1.0
    if "rubric" in absent:
        assert (parts["criteria_gain"], parts["rubric_quality"]) == (-1.0, 0.0)
    if "analysis" in absent:
        assert parts["rubric_quality"] == 0.0
    assert parts["length"] == (0.0 if reason == "stop" else -1.0)
    assert all(parts[name] <= fair[name] for name in COMPONENTS)


if __name__ == "__main__":
    for name, text in {"frontier": frontier(), "completions": recorded()}.items():
        (GOLDEN / f"{name}.json").write_text(text, encoding="utf-8")
