"""Comparison of two runs on the same items: hand-made tables, statsmodels, and runs that cannot be compared."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from conftest import Tal
from evaluation.judged import CULTURES, Right, flip_items, judge_all, judged, measure
from evaluation.published import published_items
from rich.console import Console
from statsmodels.stats.multitest import multipletests

from think_as_locals.evaluation.breakdowns import BREAKDOWNS
from think_as_locals.evaluation.compare import Comparison, compare, read, table
from think_as_locals.evaluation.judgements import Judgements, tabulate
from think_as_locals.evaluation.statistics import accuracy, difference
from think_as_locals.evaluation.tables import on_terminal
from think_as_locals.judging import reorder_responses
from think_as_locals.reward_models.reward_model import ScoredItem
from think_as_locals.types import ConfigError, DataError, Item

ITEMS = flip_items(groups=8)


def credited(right: Callable[[int, Item], float], items: Sequence[Item] = ITEMS) -> Judgements:
    return Judgements.of(tabulate(judged(item, float(right(i, item))) for i, item in enumerate(items)))


def predictions(right: Right, seed: int = 0, items: Sequence[Item] = ITEMS) -> list[ScoredItem]:
    return judge_all(right, items, seed=seed)


def by_name(comparisons: Sequence[Comparison]) -> dict[str, Comparison]:
    return {c["name"]: c for c in comparisons}


# --- what is compared ---


def test_comparison_lists_overall_rows_before_cells() -> None:
    a, b = credited(lambda i, _: i % 2), credited(lambda i, _: i % 3 > 0)
    found = compare(a, b, "cell")
    assert [c["name"] for c in found[:3]] == ["all items", "flip sets", "macro, 8 cells"]
    assert [c["name"] for c in found[3:]] == [f"{c}/{d}" for c in CULTURES for d in ("safety", "value")]
    assert [c["difference"]["n"] for c in found] == [96, 96, 96] + [12] * 8
    whole = found[0]
    assert (whole["a"]["accuracy"], whole["b"]["accuracy"]) == (0.5, pytest.approx(2 / 3))
    assert whole["difference"]["difference"] == pytest.approx(1 / 6)
    assert (whole["min_detectable_effect"] or 1) < (found[3]["min_detectable_effect"] or 1)
    assert set(whole["baselines"]) >= {"chance", "longest", "tfidf"}
    assert found[1]["baselines"]["tfidf"]["accuracy"] == found[1]["baselines"]["chance"]["accuracy"] == 0.5
    assert [c["name"] for c in compare(a, b, "script")[3:]] == ["Latn", "Thai"]
    with pytest.raises(ConfigError, match=r"'colour'; available: culture, domain"):
        compare(a, b, "colour")


def test_macro_weights_cells_equally_and_reports_missing_ones(tmp_path: Path, tal: Tal) -> None:
    items = published_items(missing=["Thai/safety"])
    for name, right in (("one", lambda i: i % 2), ("two", lambda i: i % 3 > 0)):
        measure(tmp_path / name, 5, predictions(right, items=items))
    a, b = (read(tmp_path / name, {}) for name in ("one", "two"))
    macro = by_name(compare(a, b, "domain"))["macro, 39 of 40 cells"]
    cells = list(map(BREAKDOWNS["cell"], a.items))
    means = [accuracy(run.by_item("credit"), run.group, cells=cells).value for run in (a, b)]
    assert [macro[side]["accuracy"] for side in "ab"] == means
    assert macro["difference"]["difference"] == pytest.approx(means[1] - means[0])
    assert macro["min_detectable_effect"] is None
    assert len(macro["baselines"]) > 3
    done = tal("compare", str(tmp_path / "one"), str(tmp_path / "two"), "--by", "domain")
    assert "Warning: macro over 39 of 40 cells; missing: Thai/safety" in done.out
    alike = [dataclasses.replace(item, source="mine", culture="TH", domain="value") for item in a.items]
    same = credited(lambda i, _: i % 2, alike)
    assert [c["name"] for c in compare(same, same, "cell")] == ["all items", "TH/value"]


def test_comparison_is_of_the_same_items_in_any_order_and_direction() -> None:
    a, b = credited(lambda i, _: i % 2), credited(lambda i, _: i % 3 > 0)
    assert compare(a, b, "culture") == compare(credited(lambda i, _: (95 - i) % 2, ITEMS[::-1]), b, "culture")
    for one, other in zip(compare(a, b, "cell"), compare(b, a, "cell"), strict=True):
        assert one["difference"]["ci95"] == pytest.approx([-end for end in reversed(other["difference"]["ci95"])])
        assert (one["a"], one["b"]) == (other["b"], other["a"])
    for c in compare(a, a, "cell"):
        low, high = c["difference"]["ci95"]
        assert (c["difference"]["difference"], c["p"]) == (0, 1)
        assert low < 0 < high


def test_holm_correction_applies_to_cells_only() -> None:
    rng = np.random.default_rng(5)
    draws = rng.random((2, 96))
    a, b = credited(lambda i, _: draws[0, i] < 0.4), credited(lambda i, _: draws[1, i] < 0.75)
    cells = compare(a, b, "culture")[3:]
    places = [[i for i, item in enumerate(a.items) if item.culture == culture] for culture in CULTURES]
    columns = [run.by_item("credit") for run in (a, b)]
    raw = [difference(*(column[part] for column in columns), a.group[part]).p for part in places]
    assert [c["p"] for c in cells] == pytest.approx(multipletests(raw, method="holm")[1])
    assert compare(a, b, "culture")[0]["p"] == compare(a, b, "domain")[0]["p"]


# --- the same items, or none ---


def test_runs_on_different_items_are_rejected() -> None:
    a, fewer = credited(lambda *_: 1), credited(lambda *_: 1, ITEMS[1:])
    with pytest.raises(DataError, match=r"1 only in the first \(such as 'g?0-DE-DE-EG'\); of 96 and 95"):
        compare(a, fewer, "cell")
    with pytest.raises(DataError, match=r"1 only in the second"):
        compare(fewer, a, "cell")
    other = dataclasses.replace(ITEMS[0], best=1 - ITEMS[0].best)
    with pytest.raises(DataError, match=r"1 with one id and different content.*eval.max_items"):
        compare(a, credited(lambda *_: 1, [other, *ITEMS[1:]]), "cell")


# --- files ---


def test_run_is_read_from_its_folder_or_table(tmp_path: Path) -> None:
    made = predictions(lambda i: None if i % 5 == 0 else i % 2 == 0)
    measure(tmp_path, 0, predictions(lambda _: True), model="judge")
    path = measure(tmp_path, 10, made)
    (tmp_path / "carb" / "step-99.parquet").write_bytes(b"torn: its JSON was never written")
    for run in (tmp_path, path):
        found = read(run, {})
        by_id = dict(zip([item.id for item in found.items], found.by_item("credit"), strict=True))
        assert by_id == {p.item.id: float(p.correct) for p in made}


def test_item_counts_once_in_whatever_orders_it_was_judged(tmp_path: Path) -> None:
    made = [predictions(lambda i: i % 2 == 0, seed) for seed in (0, 1)]
    assert [p.presented for p in made[0]] != [p.presented for p in made[1]]
    first, second = (read(measure(tmp_path, step, each), {}) for step, each in enumerate(made))
    assert first.items == second.items
    assert first.by_item("credit").tolist() == second.by_item("credit").tolist()
    once = predictions(lambda _: True)
    turned = [dataclasses.replace(p, presented=reorder_responses(p.presented, (1, 0))) for p in once]
    assert read(measure(tmp_path, 5, [*once, *turned]), {}).by_item("credit").tolist() == [0.5] * 96


def test_run_without_a_table_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no carb/step-N.json; expected the folder of a run"):
        read(tmp_path, {})
    with pytest.raises(DataError, match=r"gone\.parquet: not a table"):
        read(tmp_path / "gone.parquet", {})
    evaluation = tmp_path / "evaluation"
    table = measure(evaluation, "mine", predictions(lambda _: True))
    with pytest.raises(DataError, match=rf"expected the folder of a run that trained a judge, or {table}"):
        read(evaluation, {})
    named = read(evaluation / "carb/mine.json", {})  # what `tal leaderboard` and people name it by
    assert named.items == read(table, {}).items


# --- the table ---


def printed(comparisons: Sequence[Comparison], title: str, width: int = 220) -> str:
    console = Console(markup=False, highlight=False, record=True, width=width)
    console.print(on_terminal(table(comparisons), title))
    return console.export_text()


def test_printed_table_holds_all_figures_in_any_width() -> None:
    a, b = credited(lambda i, _: i % 4 == 0), credited(lambda i, _: i % 4 > 0)
    text = printed(compare(a, b, "culture"), "A: runs/one\nB: runs/two")
    row = next(line for line in text.splitlines() if "all items" in line)
    for cell in ("96", "25.0 [", "75.0 [", "+50.0 [+", "< 0.001"):
        assert cell in row
    assert sum(f" {culture} " in text for culture in CULTURES) == 4
    assert "…" not in printed(compare(a, b, "domain"), "one", width=80)  # a narrow terminal cuts no figure


def test_compare_command_prints_a_table_json_or_an_error(tmp_path: Path, tal: Tal) -> None:
    words = ["compare", *(str(tmp_path / name) for name in ("one", "two")), "--by", "domain"]
    measure(tmp_path / "one", 5, predictions(lambda i: i % 2 == 0))
    measure(tmp_path / "two", 5, predictions(lambda _: None))
    assert "safety" in tal(*words).out
    found = json.loads(tal(*words, "--json").out)
    assert [found["a"], found["b"]] == words[1:3]
    assert found["warnings"] == ["Warning: B: 100% of its judgements have no verdict, and count as wrong"]
    assert [each["name"] for each in found["comparisons"]][-2:] == ["safety", "value"]
    assert found["comparisons"][0]["difference"]["difference"] == -0.5
    measure(tmp_path / "two", 5, predictions(lambda _: True, items=ITEMS[:90]))
    done = tal(*words)
    assert done.status == 2
    assert "tal: the runs are over different items: 6 only in the first" in done.err
