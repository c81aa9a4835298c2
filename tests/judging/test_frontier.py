"""Reward hacking: what honest completions earn, and what cheap ones that judge nothing earn.

`tests/golden/frontier.json` is what each earns; `python tests/judging/test_frontier.py` writes it anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from judging.frontier import HONEST, degenerate, honest, item_in

from think_as_locals.judging import COMPONENTS, RULES, Evidence, is_degenerate, parse
from think_as_locals.types import RewardBreakdown

GOLDEN = Path(__file__).parents[1] / "golden" / "frontier.json"
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


def paid(
    text: str, language: str, finish_reason: str | None = "stop", evidence: Evidence = EVIDENCE
) -> RewardBreakdown:
    judgement, item = parse(text, 3, finish_reason), item_in(language)
    return RewardBreakdown({name: component(judgement, item, evidence) for name, component in COMPONENTS.items()})


def frontier() -> dict[str, Any]:
    """What honest and degenerate completions earn of the components that differ, by language."""
    names = ("criteria_gain", "structure", "rubric_quality")

    def figures(text: str, language: str) -> list[float]:
        return [round(paid(text, language).parts[name], 3) for name in names]

    cheap = {language: {name: figures(text, language) for name, text in degenerate(language)} for language in HONEST}
    return {
        "components": names,
        "honest": {language: figures(honest(language), language) for language in HONEST},
        "degenerate": {name: {each: rows[name] for each, rows in cheap.items()} for name in cheap["en"]},
    }


def written(found: Mapping[str, Any]) -> str:
    rows = ",\n".join(f" {json.dumps(name)}: {json.dumps(row)}" for name, row in found["degenerate"].items())
    honest_row = json.dumps(found["honest"])
    return (
        f'{{"components": {json.dumps(found["components"])},\n"honest": {honest_row},\n"degenerate": {{\n{rows}\n}}}}\n'
    )


def test_frontier_rewards_match_the_golden_file() -> None:
    """A record of what a pure function sees and what it does not."""
    assert GOLDEN.read_text(encoding="utf-8") == written(frontier())


@pytest.mark.parametrize("language", HONEST)
def test_mediocre_honest_judgement_earns_every_component(language: str) -> None:
    judgement, item = parse(honest(language), 3), item_in(language)
    assert not is_degenerate(judgement, item.responses)
    assert paid(honest(language), language).parts == dict.fromkeys(COMPONENTS, 1.0) | {"length": 0.0}


@pytest.mark.parametrize("language", HONEST)
def test_degenerate_completion_earns_no_more_than_an_honest_one(language: str) -> None:
    fair = paid(honest(language), language).parts
    for name, text in degenerate(language):
        assert all(value <= fair[each] for each, value in paid(text, language).parts.items()), name


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
    GOLDEN.write_text(written(frontier()), encoding="utf-8")
