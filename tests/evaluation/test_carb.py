"""The CARB results file: golden numbers for hand-made predictions."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from evaluation.judged import judged, tied
from evaluation.published import CELLS as FORTY
from evaluation.published import published_items
from items import RUBRIC, make_item, row_of

from think_as_locals.evaluation.breakdowns import BREAKDOWNS
from think_as_locals.evaluation.carb import KEYS, lines, metrics, read, save, summarise, warnings
from think_as_locals.evaluation.judgements import Judgements, tabulate
from think_as_locals.judging import parse, reorder_responses, write
from think_as_locals.reward_models.reward_model import ScoredItem
from think_as_locals.types import DataError, Item

UNPARSED = "I would say that it depends."


def an_item(number: int, group: str, culture: str | None, best: int, **changes: Any) -> Item:
    asked = {"prompt": f"What do they do in {culture}?", "responses": (f"{group}: tea", f"{group}: coffee!")}
    known = {"id": f"{group}/{culture}/{number}", "best": best, "group": group, "culture": culture}
    return make_item(**asked | known | changes)


def predict(item: Item, right: bool | None, turned: bool = False) -> ScoredItem:
    """A prediction on an item presented as it is or turned round; `None` for a completion that cannot be parsed."""
    presented = reorder_responses(item, (1, 0)) if turned else item
    verdict = presented.best if right else 1 - presented.best
    text = UNPARSED if right is None else write(RUBRIC, "A: yes. B: no.", verdict)
    return ScoredItem(item=item, presented=presented, judgement=parse(text, 2))


#  Three flip sets of two and two single items, in five question groups; 5 of 8 right, one parse failure.
PREDICTIONS = (
    predict(an_item(0, "g1", "TH", 0), True),
    predict(an_item(1, "g1", "JP", 1), True, turned=True),
    predict(an_item(2, "g2", "TH", 0, domain="safety"), True, turned=True),
    predict(an_item(3, "g2", "JP", 1, domain="safety"), False),
    predict(an_item(4, "g3", "TH", 1), True),
    predict(an_item(5, "g3", "JP", 0), None),
    predict(an_item(6, "g4", "TH", 0, language="th", responses=("ชาในไทย", "กาแฟเย็น")), True),
    predict(an_item(7, "g5", None, 1), False, turned=True),
)


ABOUT: dict[str, Any] = {"dataset": "cards", "split": "group", "model": "judge", "seed": 3, "step": 50}
ABOUT |= {"bootstrap_samples": 500}


def summary(predictions: Sequence[ScoredItem] = PREDICTIONS) -> dict[str, Any]:
    return summarise(Judgements.of(tabulate(predictions)), **ABOUT)


FOUND = summary()


def part(measured: dict[str, Any]) -> tuple[int, float]:
    return measured["n"], measured["accuracy"]


def parts(by: dict[str, Any]) -> dict[str, tuple[int, float]]:
    return {name: part(measured) for name, measured in by.items()}


def test_accuracy_is_micro_over_items_and_macro_over_cells() -> None:
    assert {name: value for name, value in ABOUT.items() if name in KEYS}.items() <= FOUND.items()
    assert set(KEYS) == set(FOUND)
    assert part(FOUND) == (8, 5 / 8)
    assert FOUND["ci_method"] == "cluster_wilson"
    low, high = FOUND["parse_failure_ci95"]
    assert 0 <= low < FOUND["parse_failure"] == 1 / 8 < high <= 1
    assert part(FOUND["macro"]) == (8, pytest.approx((0 + 1 / 2 + 1 + 1 + 0) / 5))
    assert (FOUND["macro"]["cells"], FOUND["macro"]["of"], FOUND["macro"]["missing"]) == (5, 5, [])
    followed = metrics("mine", FOUND)
    expected = {"accuracy": 5 / 8, "macro": 1 / 2, "parse_failure": 1 / 8, "flips": 4 / 6}
    expected |= {"culture/TH": 1, "domain/safety": 1 / 2, "ci95_low": FOUND["ci95"][0], "ci95_high": FOUND["ci95"][1]}
    assert {name: followed[f"eval/mine/{name}"] for name in expected} == pytest.approx(expected)
    assert all(math.isfinite(value) for value in followed.values())
    faulty = summarise(Judgements.of(tabulate(PREDICTIONS)), **ABOUT, faulty=1)
    assert faulty["faulty_rows"] == {"n": 1}
    assert warnings("judge", faulty)[-1].startswith("1 rows with faults left out")


def test_file_without_a_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(json.dumps(FOUND), encoding="utf-8")
    assert read(tmp_path / "mine.json") == FOUND
    for key in KEYS:
        rest = {name: value for name, value in FOUND.items() if name != key}
        (tmp_path / "mine.json").write_text(json.dumps(rest), encoding="utf-8")
        with pytest.raises(DataError, match=rf"mine\.json: not a CARB file: it lacks {key}; measure again"):
            read(tmp_path / "mine.json")


CELLS = {"JP/safety": (1, 0.0), "JP/value": (2, 1 / 2), "TH/safety": (1, 1.0), "TH/value": (3, 1.0)}


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("culture", {"JP": (3, 1 / 3), "TH": (4, 1.0), "English": (1, 0.0)}),
        ("domain", {"safety": (2, 1 / 2), "value": (6, 4 / 6)}),
        ("language", {"en": (7, 4 / 7), "th": (1, 1.0)}),
        ("cell", CELLS | {"English/value": (1, 0.0)}),
        ("script", {"Latn": (7, 4 / 7), "Thai": (1, 1.0)}),
        # Best as presented, in order: A, A (turned), B (turned), B, B, A, A, A (turned).
        ("position", {"A": (5, 3 / 5), "B": (3, 2 / 3)}),
    ],
)
def test_breakdown_parts_have_their_own_n_and_accuracy(by: str, expected: dict[str, tuple[int, float]]) -> None:
    assert parts(FOUND[f"by_{by}"]) == expected


def test_every_cell_has_baselines_on_its_own_items() -> None:
    unknown = summary((predict(an_item(0, "g1", "GE", 0, language="tlh"), True),))
    assert parts(unknown["by_resource_class"]) == parts(unknown["by_family"]) == {"unknown": (1, 1.0)}
    assert FOUND["by_language"]["th"]["baselines"]["label_match"]["accuracy"] == 1.0
    assert FOUND["by_language"]["en"]["baselines"]["label_match"]["accuracy"] == 1 / 2
    for name in (name for name in FOUND if name.startswith("by_")):
        for cell in FOUND[name].values():
            assert {beside["n"] for beside in cell["baselines"].values()} == {cell["n"]}
        assert sum(cell["n"] for cell in FOUND[name].values()) == 8
        assert sum(cell["n"] * cell["accuracy"] for cell in FOUND[name].values()) == pytest.approx(5)


def test_in_format_counts_judgements_that_keep_every_rule() -> None:
    sloppy = dataclasses.replace(PREDICTIONS[0].judgement, issues=("criterion_weights",))
    found = summary((dataclasses.replace(PREDICTIONS[0], judgement=sloppy), *PREDICTIONS[1:]))
    assert (FOUND["in_format"]["share"], found["in_format"]["share"]) == (7 / 8, 6 / 8)
    assert part(found) == part(FOUND)  # the verdict stands
    assert metrics("test", found)["eval/test/in_format"] == 6 / 8
    assert "in format 75.0%, parse failures 12.5%" in lines("test", found)[0]


def published(*missing: str) -> dict[str, Any]:
    """CARB in its published shape: all right in every second cell, in the others the first of 1 to 3 items."""
    seen: set[str] = set()
    made = []
    for item in published_items(missing):
        cell = BREAKDOWNS["cell"](item)
        made.append(judged(item, FORTY.index(cell) % 2 == 0 or cell not in seen))
        seen.add(cell)
    return summary(made)


def test_macro_of_published_rows_averages_the_cells_there_are() -> None:
    found = published()
    assert part(found) == (79, pytest.approx(60 / 79))
    # Twenty cells are right; of the others seven have one item, seven have two and six have three.
    assert part(found["macro"]) == (79, pytest.approx((20 + 7 + 7 / 2 + 6 / 3) / 40))
    assert (found["macro"]["cells"], found["macro"]["of"], found["macro"]["missing"]) == (40, 40, [])
    assert list(cells := parts(found["by_cell"])) == sorted(FORTY)
    assert (cells["Arabic/value"], cells["German/safety"]) == ((2, 1 / 2), (3, 1.0))
    assert parts(found["by_culture"])["Korean"] == (3 + 1 + 2 + 3, pytest.approx((3 + 1 + 2 + 1) / 9))
    assert len(found["by_culture"]) == 10
    low, high = found["macro"]["ci95"]
    assert low < 0.8125 < high
    found = published("Arabic/value", "German/safety")
    assert part(found["macro"]) == (74, pytest.approx((32.5 - 1.5) / 38))
    assert (found["macro"]["cells"], found["macro"]["of"]) == (38, 40)
    assert found["macro"]["missing"] == ["Arabic/value", "German/safety"]
    assert lines("mine", found)[-1] == "warning: macro over 38 of 40 cells; missing: Arabic/value, German/safety"


def test_item_judged_in_both_orders_counts_once_with_the_mean() -> None:
    both = [predict(p.item, right, turned) for p in PREDICTIONS[:4] for right, turned in ((True, False), (False, True))]
    found = summary((*both, predict(PREDICTIONS[4].item, True), predict(PREDICTIONS[4].item, True, turned=True)))
    assert part(found) == (5, pytest.approx((4 * 0.5 + 1) / 5))
    assert found["order_consistency"]["n"] == 5
    assert found["order_consistency"]["consistent"] == pytest.approx(1 / 5)
    assert sum(slot["n"] for slot in found["by_position"].values()) == 10
    assert found["flips"]["all_right"] == 0
    assert FOUND["order_consistency"] == {"n": 0}


def test_verdict_that_never_changes_is_named_beside_the_accuracy() -> None:
    """A judge that says the same label of each item in both orders is right in half of them, and knows nothing."""
    constant = [predict(p.item, p.item.best == turned, turned=turned) for p in PREDICTIONS for turned in (False, True)]
    found = summary(constant)
    assert (found["accuracy"], found["order_consistency"]["all_right"]["accuracy"]) == (0.5, 0)
    line, warning, *_ = lines("mine", found)
    assert line.endswith("right in every order 0.0% (n 8), verdicts A 100%, B 0%")
    constant_verdict = "100% of its verdicts are A, whatever the responses are"
    assert warning == f"warning: mine: {constant_verdict}: that alone would be right in 50% of them"
    logged = metrics("mine", found)
    assert (logged["eval/mine/verdict/A"], logged["eval/mine/right_in_every_order"]) == (1, 0)
    assert (logged["eval/mine/position/A"], logged["eval/mine/position/B"]) == (1, 0)
    assert not [each for each in lines("mine", FOUND) if "whatever" in each]


def test_flips_measure_complete_flip_sets() -> None:
    flips = FOUND["flips"]
    assert (*part(flips), flips["sets"]) == (6, 4 / 6, 3)
    assert flips["all_right"] == pytest.approx(1 / 3)
    assert part(flips["by_set"]) == (3, pytest.approx(1 / 3))
    without = summary(PREDICTIONS[6:])
    assert without["flips"] == {"n": 0, "sets": 0}
    assert "eval/mine/flips" not in metrics("mine", without)
    blind = tuple(predict(p.item, right=p.item.responses[p.item.best].endswith("tea")) for p in PREDICTIONS[:6])
    flips = summary(blind)["flips"]
    assert (flips["accuracy"], flips["all_right"]) == (1 / 2, 0)


def test_every_accuracy_and_baseline_has_n_and_an_interval() -> None:
    baselines = FOUND["baselines"]
    assert {measured["n"] for measured in baselines.values()} == {8}
    # "coffee!" is longer than "tea" and right four times; of the Thai responses the longer one is wrong.
    assert baselines["longest"]["accuracy"] == 4 / 8
    assert baselines["shortest"]["accuracy"] == 4 / 8
    # One response names Thailand in Thai, and is right; of the seven others nothing is named.
    assert baselines["label_match"]["accuracy"] == (1 + 7 / 2) / 8
    cells = [FOUND, FOUND["flips"], FOUND["flips"]["by_set"]]
    cells += [cell for name in FOUND if name.startswith("by_") for cell in FOUND[name].values()]
    cells += [beside for cell in cells for beside in cell.get("baselines", {}).values()] + [FOUND["macro"]]
    assert len(cells) > 100
    for cell in cells:
        low, high = cell["ci95"]
        assert cell["n"] > 0
        assert 0 <= low <= cell["accuracy"] <= high <= 1
        assert cell["ci_method"] in {"wilson", "cluster_wilson", "cluster_bootstrap"}


def test_summary_is_bitwise_independent_of_item_order() -> None:
    assert summary(PREDICTIONS[::-1]) == FOUND
    made = []
    for i in range(60):
        texts = tuple(f"{'x' * (i % 3)}answer {i}.{j}" for j in range(3 + i % 3))
        item = an_item(i, f"g{i // 4}", "TH", i % 3, responses=texts)
        scores = tuple(float((i + j) % 2) for j in range(len(texts)))
        made.append(tied(item, scores))
    there = summary(made)
    for seed in range(3):
        random.Random(seed).shuffle(made)
        assert summary(made) == there


def test_save_round_trips_and_keeps_the_old_file_on_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "carb" / "step-50.json"
    save(PREDICTIONS[:2], path, **ABOUT)  # is replaced
    assert save(PREDICTIONS, path, **ABOUT) == FOUND
    with pytest.raises(ValueError, match="JSON compliant"):
        save(PREDICTIONS, path, **ABOUT | {"step": math.nan})
    assert json.loads(path.read_text(encoding="utf-8")) == FOUND
    assert sorted(file.name for file in path.parent.iterdir()) == ["step-50.json", "step-50.parquet"]
    rows = parquet.read_table(path.with_suffix(".parquet")).to_pylist()
    assert rows == sorted((row_of(prediction) for prediction in PREDICTIONS), key=lambda row: row["id"])
