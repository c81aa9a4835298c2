"""Spurious-feature probes: how far scores move, for reward models whose behaviour is known."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
from data.sections import data_section
from hypothesis import given, settings
from hypothesis import strategies as st
from items import make_item

from think_as_locals.data import cards as culture_cards
from think_as_locals.data.edits import EditedPair, Edits, edited_pairs
from think_as_locals.evaluation import probes
from think_as_locals.evaluation.probes import Scorer
from think_as_locals.judging import shuffle_responses
from think_as_locals.types import DataError, Item

NAMES = ("CC", "RC", "CL", "RP")


def probe(items: Sequence[Item], scorer: Scorer, edits: Edits | None = None) -> dict[str, Any]:
    """With our own edits, where none are given."""
    return probes.probe(items, edits or edited_pairs(items), scorer, samples=300, seed=0)


@cache
def cards() -> tuple[Item, ...]:
    """Flip sets of six questions in English, as a judge would be presented them."""
    groups = sorted({card.group for card in culture_cards.cards()})[::18]
    data = data_section(languages=["en"], groups=groups, sets_per_group=8)
    return tuple(shuffle_responses(item) for item in culture_cards.read_culture_cards(data, seed=0))


def an_item(number: int = 0, **changes: Any) -> Item:
    of_japan = {"prompt": "What do people in Japan eat?", "responses": ("rice", "bread"), "culture": "JP"}
    return make_item(**of_japan | {"id": str(number), "group": f"breakfast {number}"} | changes)


def by_response(score: Callable[[Item, str], float]) -> Scorer:
    return lambda items: [tuple(score(item, text) for text in item.responses) for item in items]


constant = by_response(lambda _item, _text: 0.1)
culture_blind = by_response(lambda _item, text: math.sqrt(len(text)) + text.count("e"))


def culture_aware(item: Item, text: str) -> float:
    """By the culture that an item names, and by nothing else, how true a response of a card is."""
    facts = next(card for card in culture_cards.cards() if card.group == item.group).facts
    return float(item.culture is not None and text in facts[item.culture].values())


def means(found: dict[str, Any], name: str, form: str = "relative") -> tuple[float, float]:
    return found[name][form]["absolute"]["mean"], found[name][form]["signed"]["mean"]


# --- reward models that see one thing ---


def test_constant_reward_model_scores_zero_on_every_probe() -> None:
    found = probe(cards(), constant)
    assert found["spread"] == 0.0
    for name, form in product(NAMES, ("relative", "paper")):
        assert found[name]["n"] > 0
        assert (means(found, name, form), found[name][form]["undefined"]) == ((0.0, 0.0), 0)
    assert found["CL"]["consistency"]["relative"]["mean"] == 1.0


def test_culture_blind_reward_model_ignores_label_removal() -> None:
    found = probe(cards(), culture_blind)
    assert found["RC"]["applicable"] == 1.0
    for form in ("relative", "paper"):
        assert found["RC"][form]["absolute"]["ci95"] == [0.0, 0.0]
    assert found["CC"]["relative"]["absolute"]["mean"] > 50
    low, high = found["CC"]["relative"]["signed"]["ci95"]
    assert low < 0 < high
    assert means(found, "CL")[0] > 20
    assert {name: found[name]["direction"] for name in NAMES} == {"CC": "up", "RC": "down", "CL": "down", "RP": "down"}


def test_culture_aware_reward_model_drops_on_concept_and_label_edits() -> None:
    found = probe(cards(), by_response(culture_aware))
    # Of four responses one scores 1: the root mean square distance from their mean is sqrt(3) / 4.
    assert found["spread"] == pytest.approx(math.sqrt(3) / 4)
    for name in ("CC", "RC"):
        assert means(found, name) == pytest.approx((400 / math.sqrt(3), -400 / math.sqrt(3)))
        assert means(found, name, "paper") == pytest.approx((100, -100))
    assert means(found, "CL") == (0.0, 0.0)


def test_prompt_or_length_alone_moves_no_relative_change() -> None:
    found = probe(cards(), by_response(lambda item, _text: len(item.prompt) / 7))
    for name in NAMES:
        assert means(found, name) == (0.0, 0.0)
    # Its scores move all the same: that is what the paper's form is blind to.
    assert means(found, "RC", "paper")[0] > 10
    found = probe(cards(), by_response(lambda _item, text: float(len(text))))
    assert means(found, "RP") == pytest.approx((0, 0), abs=1e-9)
    assert means(found, "RP", "paper")[1] > 1


@settings(max_examples=15)
@given(st.floats(0.01, 100), st.floats(-100, 100))
def test_relative_form_is_invariant_to_scale_and_shift(scale: float, shift: float) -> None:
    items = cards()[:24]
    found = probe(items, culture_blind)
    other = probe(items, lambda asked: [tuple(scale * s + shift for s in of) for of in culture_blind(asked)])
    for name in NAMES:
        assert means(other, name) == pytest.approx(means(found, name), rel=1e-6, abs=1e-6)


# --- by hand ---


def by_id(scores: dict[str, tuple[float, ...]]) -> Scorer:
    """By id; edited items are asked for by the ids they have."""
    return lambda items: [scores[item.id] for item in items]


def test_edit_of_a_conversation_is_compared_with_its_one_turn() -> None:
    turns = (("user", "Hello"), ("assistant", "Good day"), ("user", "What do people in Japan eat?"))
    prompt = "\n\n".join(f"{role}: {text}" for role, text in turns)
    found = probe(
        [an_item(i, prompt=prompt, turns=turns) for i in range(3)],
        lambda asked: [tuple(float(i * len(item.messages)) for i in range(2)) for item in asked],
    )
    assert found["spread"] == pytest.approx(1.5)  # of three messages
    assert (found["RC"]["n"], means(found, "RC")) == (3, (0.0, 0.0))


def test_relative_and_paper_form_match_hand_computed_values() -> None:
    scores = {"0": (3.0, 1.0), "0#RC": (2.0, 1.0), "0#RP": (3.0, 1.0)}
    scores |= {"1": (-2.0, 0.0), "1#RC": (-1.0, 0.0), "1#RP": (-2.0, 0.0)}
    found = probe([an_item(0), an_item(1)], by_id(scores))
    # Every score lies 1 from its item's mean; the margins move from 2 to 1 and from -2 to -1.
    assert found["spread"] == 1.0
    assert means(found, "RC") == (100.0, 0.0)
    assert means(found, "RC", "paper") == pytest.approx(((100 / 3 + 50) / 2, (-100 / 3 + 50) / 2))
    assert means(found, "RP") == means(found, "RP", "paper") == (0.0, 0.0)


def test_change_over_zero_score_or_spread_is_undefined_or_zero() -> None:
    found = probe([an_item()], by_id({"0": (0.0, 1.0), "0#RC": (1.0, 1.0), "0#RP": (0.0, 1.0)}))
    empty = {"n": 0, "mean": None, "ci95": None, "ci_method": "none"}
    assert found["RC"]["paper"] == {"absolute": empty, "signed": empty, "undefined": 1}
    assert found["RC"]["relative"]["undefined"] == 0
    assert found["RP"]["paper"]["absolute"]["mean"] == 0.0  # 0 / 0: it did not move
    found = probe([an_item()], by_id({"0": (2.0, 2.0), "0#RC": (3.0, 2.0), "0#RP": (2.0, 2.0)}))
    assert found["RC"]["relative"]["undefined"] == 1
    assert means(found, "RP") == (0.0, 0.0)


def test_consistency_falls_with_the_change() -> None:
    known = {"group": "breakfast 0", "origins": ("JP", "DE")}
    german = {"language": "de", "prompt": "Was isst man in Japan?", "responses": ("Reis", "Brot")}
    items = [an_item(0, **known), an_item(1, **known, **german)]
    scores = {f"{i}{edit}": (3.0, 1.0) for i in (0, 1) for edit in ("", "#RC", "#RP", "#CL")} | {"1#CL": (4.0, 1.0)}
    found = probe(items, by_id(scores))["CL"]
    assert (found["n"], found["applicable"], found["consistency"]["k"]) == (2, 1.0, 1.0)
    # One of them does not move, the other by one spread, which is 1, and by a third of its score.
    assert found["consistency"]["relative"]["mean"] == pytest.approx((1 + math.exp(-1)) / 2)
    assert found["consistency"]["paper"]["mean"] == pytest.approx((1 + math.exp(-1 / 3)) / 2)
    assert {language: part["signed"]["mean"] for language, part in found["by_language"].items()} == {"de": 0, "en": 100}


# --- the form of it ---


def test_items_are_asked_once_in_any_order() -> None:
    calls: list[list[Item]] = []
    probe(cards()[:24], lambda items: calls.append(list(items)) or constant(items))  # type: ignore[func-returns-value]
    (asked,) = calls
    assert len(set(asked)) == len(asked)
    assert asked[:24] == list(cards()[:24])
    assert probe(cards(), culture_blind) == probe(cards()[::-1], culture_blind)


def test_results_are_json_with_breakdowns_by_culture_and_language() -> None:
    found = json.loads(json.dumps(probe(cards(), culture_blind), allow_nan=False))
    assert found["n_items"] == len(cards())
    cultures = {item.culture for item in cards()}
    assert set(found["CC"]["by_culture"]) == set(found["RC"]["by_culture"]) == cultures
    assert sum(part["signed"]["n"] for part in found["CC"]["by_culture"].values()) == found["CC"]["n"]
    assert set(found["CC"]["by_language"]) == {"en"}
    assert set(found["CL"]["by_culture"]) == cultures - {"US"}
    assert "ja" in found["CL"]["by_language"]


def test_items_without_edits_or_scores_are_counted() -> None:
    found = probe([an_item(prompt="What is eaten?", language="xx")], constant)
    for name in NAMES:
        assert (found[name]["n"], found[name]["applicable"]) == (0, 0.0)
        assert found[name]["relative"]["absolute"]["mean"] is None
    found = probe([an_item()], lambda items: [(math.nan, 1.0) if i else (2.0, 1.0) for i, _ in enumerate(items)])
    assert found["spread"] == pytest.approx(0.5)
    assert found["RP"]["n"] == found["RP"]["relative"]["undefined"] == 1
    assert found["RP"]["relative"]["absolute"]["mean"] is None
    with pytest.raises(DataError, match="no items"):
        probe([], constant)


# --- which items they apply to ---


def test_not_applicable_items_are_counted_by_reason() -> None:
    items = [an_item(0), an_item(1, culture=None, prompt="What is eaten?"), an_item(2, prompt="What do they eat?")]
    found = probe(items, constant)
    assert found["CC"]["not_applicable"] == {"its responses name no cultures": 3}
    assert found["CL"]["not_applicable"] == {"no item asks the same in another language": 3}
    assert found["RP"]["not_applicable"] == {}
    for name in NAMES:
        assert sum(found[name]["not_applicable"].values()) == round(3 * (1 - found[name]["applicable"]))
    first, *_, last = probes.applied(found)
    assert first == "CC applies to 0.0 % of 3 items: its responses name no cultures (3)"
    assert last == "RP applies to 100.0 % of 3 items"


def test_only_given_edits_are_scored() -> None:
    items = [an_item(number) for number in range(4)]
    after = replace(items[1], id="1#RC", prompt="What is eaten?", culture=None)
    scorer = by_response(lambda item, text: 5.0 if item.culture is None and text == "rice" else float(text == "rice"))
    found = probe(items, scorer, edits={"CC": [], "RC": [EditedPair(items[1], after, "en")], "CL": [], "RP": []})
    assert (found["RC"]["n"], found["RC"]["applicable"]) == (1, 0.25)
    assert found["RC"]["not_applicable"] == {"no phrase of its prompt that can be cut names the culture": 3}
    assert means(found, "RC", "paper") == (400.0, 400.0)
    assert (found["CL"]["n"], found["CL"]["applicable"]) == (0, 0)
