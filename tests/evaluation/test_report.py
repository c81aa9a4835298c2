"""The report of a run: its numbers, its escaping, and how it reports missing files."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evaluation.judged import flip_items, judge_all, judged, measure, tied
from evaluation.published import published_items
from html_page import Page
from items import make_item

from think_as_locals.evaluation.judgements import annotate, tabulate
from think_as_locals.evaluation.report import FROM_SCRATCH, BeforeAfter, choose_judgements, write_report
from think_as_locals.judging import shuffle_responses
from think_as_locals.reward_models.reward_model import ScoredItem
from think_as_locals.reward_models.training_items import training_hashes
from think_as_locals.types import DataError, Item

ITEMS = flip_items()


def rows(scored: list[ScoredItem]) -> list[Any]:
    return list(annotate(tabulate(scored)).itertuples(index=False))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """144 items: 36 right before; after, 84 right, of which 24 were, and 12 parse failures."""
    folder = tmp_path_factory.mktemp("runs") / "quick-run"
    measure(folder, 0, judge_all(lambda i: i % 4 == 0, ITEMS))
    measure(folder, 10, judge_all(lambda i: i % 2 == 0, ITEMS))
    made = judge_all(lambda i: None if i % 12 == 11 else i % 6 > 1, ITEMS)
    measure(folder, 20, made, dataset="culture_cards")
    degenerate = {"degenerate_reward_share": 0.25}
    lines: list[dict[str, Any]] = [{"stage": "sft", "step": 3, "loss": 1.0}]
    for step in range(1, 21):
        rewards = {"reward": step / 20 - 0.5, "rewards/mine/mean": step / 40}
        lines.append({"stage": "grpo", "step": step, **rewards, **degenerate})
    log = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(log + '{"stage": "grpo", "st')
    (folder / "config.yaml").write_text("seed: 3\nnote: <b>bold</b>\n")
    (folder / "environment.json").write_text(json.dumps({"python": "3.12.3", "git_dirty": False}))
    return folder


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    """A copy of that run, to be changed."""
    return Path(shutil.copytree(original, tmp_path / original.name))


def test_headline_states_both_accuracies_with_n_and_interval(run: Path) -> None:
    page = Page(write_report(run))
    for summary in (json.loads((run / "carb" / f"step-{s}.json").read_text()) for s in (0, 20)):
        low, high = (f"{100 * value:.1f}" for value in summary["ci95"])
        assert f"{100 * summary['accuracy']:.1f} % ({low}–{high}, n = 144)" in page.text
    assert "chance is 50.0 %" in page.text
    assert "91.7 % of judgements are in format, and 8.3 % have no verdict (before: 100.0 % and 0.0 %)" in page.text
    assert not any("missing" in (attrs.get("class") or "") for attrs in page.all("aside"))


def test_headline_says_what_holds_in_every_order_and_how_often_each_label_is_chosen(run: Path) -> None:
    assert "Right in every order" not in Page(write_report(run)).text
    both = judge_all(lambda i: i % 4 > 0, ITEMS)
    turned = [replace(each, presented=shuffle_responses(each.item, reverse=True)) for each in both]
    measure(run, 30, [*both, *turned])
    found = json.loads((run / "carb" / "step-30.json").read_text())
    shares = " , ".join(f"{label} {100 * of['chosen']:.1f} %" for label, of in found["slot_bias"].items())
    text = Page(write_report(run)).text  # a blank before each mark behind a tag
    right = found["order_consistency"]["all_right"]["accuracy"]
    assert f"Right in every order: {100 * right:.1f} % ; verdicts {shares} ." in text


def test_training_overlap_is_marked(tmp_path: Path) -> None:
    hashes = training_hashes(ITEMS[:30], None)
    measure(tmp_path, 5, judge_all(lambda i: i % 2, ITEMS), dataset="my_pairs.csv", training=hashes)
    own = measure(tmp_path / "own", 5, judge_all(lambda i: i % 2, ITEMS), training=hashes)
    (tmp_path / "eval").mkdir()
    own.parent.rename(tmp_path / "eval" / "own")
    page = Page(write_report(tmp_path))
    assert re.search(r"Accuracy on my_pairs\.csv at step 5 is 50\.0 % \([^)]*\) ?†; chance is", page.text)
    assert "this judge was trained on 30 of these 144 items" in page.text
    assert page.row("own † 144")
    assert "CARB" not in page.text


def test_tables_hold_n_interval_and_change(run: Path) -> None:
    page = Page(write_report(run))
    before, last = (json.loads((run / "carb" / f"step-{s}.json").read_text())["by_language"]["th"] for s in (0, 20))
    then, now = (
        f"{100 * part['accuracy']:.1f} [{100 * part['ci95'][0]:.1f}, {100 * part['ci95'][1]:.1f}]"
        for part in (before, last)
    )
    change = 100 * (last["accuracy"] - before["accuracy"])
    assert page.row("Thai 36").startswith(f"Thai 36 {then} {now} {change:+.1f}")
    starts = ["items of whole sets 144", "sets with every item right 72", "always the longest response 144", "B 72"]
    starts += ["3 36", "5 108", "Tai-Kadai 36", "Indo-European 108", "Latn 108", "items 144", "cells 144"]
    assert all(page.row(start) for start in starts)


def test_heat_map_has_a_cell_for_every_culture_and_domain(run: Path, tmp_path: Path) -> None:
    page = Page(write_report(run))
    part = json.loads((run / "carb/step-20.json").read_text())["by_cell"]["TH/value"]
    low, high = (f"{100 * end:.0f}" for end in part["ci95"])
    assert f"[{low}–{high}], n {part['n']}" in page.row("Thailand")
    assert page.row("all cultures").count(" n ") == 3
    measure(tmp_path / "carb", 5, judge_all(lambda i: i % 2, published_items(missing=["Thai/safety"])))
    page = Page(write_report(tmp_path / "carb"))
    assert "Warning: macro over 39 of 40 cells; missing: Thai/safety" in page.text
    assert "–" in page.row("Thai ").split()


def test_charts_show_every_curve_and_the_last_warning(run: Path) -> None:
    page = Page(write_report(run))
    for name in ("Training reward", "Share of the reward earned without judging", "Reward part: mine", "GRPO steps"):
        assert name in page.text
    lines = [json.dumps({"stage": "grpo", "step": step, "warning": f"<b>{step}</b> %"}) for step in (5, 10)]
    lines += ['{"sta', '{"stage": "grpo", "step": 1, "reward": NaN}', '{"stage": "grpo", "step": 2, "reward": 0.5}']
    (run / "metrics.jsonl").write_text("\n".join(lines))
    page = Page(write_report(run))
    assert "Training reward" in page.text
    assert "Warning: <b>10</b> %" in page.text
    assert "<b>5</b>" not in page.text


def test_judgements_pair_before_and_after_with_an_outcome(run: Path) -> None:
    page = Page(write_report(run))
    outcomes = [attrs["data-outcome"] for attrs in page.all("article")]
    assert len(outcomes) == 24
    kinds = ["wrong → right", "right → wrong", "parse failure", "still wrong", "still right"]
    assert list(dict.fromkeys(outcomes)) == kinds
    assert "wrong → right 60, right → wrong 12, parse failure 12, still wrong 36, still right 24." in page.text
    assert page.source.count('aria-label="Completion at step 0"') == 24
    assert page.source.count('aria-label="Completion at step 20"') == 24
    assert page.text.count("✓ best") == 24
    assert "Breaks the format:" in page.text
    assert {attrs.get("data-filter") for attrs in page.all("select")} == {"outcome", "culture", "domain"}


def test_missing_files_are_reported(run: Path) -> None:
    for gone in ("metrics.jsonl", "carb/step-0.json"):
        (run / gone).unlink()
    text = Page(write_report(run)).text
    assert "No GRPO rewards" in text
    assert "No evaluation at step 0" in text


def test_report_of_one_measurement(tmp_path: Path) -> None:
    measure(tmp_path, 0, judge_all(lambda i: i == 0, ITEMS[0:6:2]))
    page = Page(write_report(tmp_path))
    assert "at step 0 is 33.3 %" in page.text
    assert "The headline's method: Wilson" in page.text
    assert "No evaluation after step 0" in page.text
    assert [attrs["data-outcome"] for attrs in page.all("article")] == ["wrong", "wrong", "right"]


def test_missing_or_damaged_measurement_is_an_error(run: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"carb: no step-N\.json"):
        write_report(tmp_path / "nowhere")
    (run / "carb/step-20.parquet").write_text("not parquet")
    with pytest.raises(DataError, match=r"step-20\.parquet: not a readable table"):
        write_report(run)


def test_report_of_a_from_scratch_judge_shows_a_notice(run: Path) -> None:
    for settings, shown in (("{hidden_size: 8}", True), ("null", False)):
        (run / "config.yaml").write_text(f"model: {{scratch: {settings}}}")
        page = Page(write_report(run))
        assert (FROM_SCRATCH in page.text) == shown
    assert f"tal compare {run}/carb/step-0.parquet {run}/carb/step-20.parquet --by culture # what GRPO" in page.text
    assert f"tal serve {run}/model" in page.text
    assert "tal judge" not in page.text  # there are no examples


def test_choose_balances_outcomes_and_cultures() -> None:
    def an_item(i: int) -> Item:
        return make_item(id=str(i), culture="TH" if i < 90 else "JP")

    made = [
        [judged(an_item(i), right) for i, right in enumerate(rights)]
        for rights in zip(*[(i % 50 == 0, i % 50 != 0) for i in range(100)], strict=True)
    ]
    pairs = [BeforeAfter(*both) for both in zip(*map(rows, made), strict=True)]
    chosen = choose_judgements(pairs, limit=8)
    assert [pair.outcome for pair in chosen] == ["wrong → right"] * 6 + ["right → wrong"] * 2
    assert [pair.after.culture for pair in chosen[:6]].count("JP") == 3
    assert chosen == choose_judgements(list(reversed(pairs)), limit=8)


def test_tie_is_not_counted_as_a_parse_failure(tmp_path: Path) -> None:
    measure(tmp_path, 4, [tied(item, (1.0, 1.0) if i < 2 else (2.0, 1.0)) for i, item in enumerate(ITEMS[:6])])
    page = Page(write_report(tmp_path))
    right = sum(shuffle_responses(item).best == 0 for item in ITEMS[2:6])
    assert f"tie 2, wrong {4 - right}, right {right}." in page.text
    assert "0.0 % have no verdict" in page.text
    assert page.text.count(": a tie") == 2


def test_before_after_outcome_is_tie_if_either_side_ties() -> None:
    item = ITEMS[0]
    right, wrong, failure, tie = (rows([judged(item, right)])[0] for right in (True, False, None, 0.5))
    alone = ["right", "wrong", "tie", "parse failure"]
    assert [BeforeAfter(None, each).outcome for each in (right, wrong, tie, failure)] == alone
    assert {BeforeAfter(tie, other).outcome for other in (right, wrong, tie, failure)} == {"tie"}
    assert BeforeAfter(failure, right).outcome == "wrong → right"
    assert BeforeAfter(failure, wrong).outcome == "parse failure"
