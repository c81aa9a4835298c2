"""The report of a run: its numbers, its escaping, and how it reports missing files."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest
from evaluation.judged import flip_items, judge_all, judged, measure, tied
from evaluation.published import published_items
from html_page import Page
from items import make_item

from think_as_locals.evaluation.report import FROM_SCRATCH, BeforeAfter, choose_judgements, write_report
from think_as_locals.judging import shuffle_responses
from think_as_locals.reward_models.training_items import training_hashes
from think_as_locals.types import DataError, Item

ITEMS = flip_items()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """144 items: 36 right before; after, 84 right, of which 24 were, and 12 parse failures."""
    folder = tmp_path_factory.mktemp("runs") / "quick-run"
    measure(folder, 0, judge_all(lambda i: i % 4 == 0, ITEMS))
    measure(folder, 10, judge_all(lambda i: i % 2 == 0, ITEMS))
    made = judge_all(lambda i: None if i % 12 == 11 else i % 6 > 1, ITEMS)
    measure(folder, 20, made, dataset="culture_cards")
    lines = [{"stage": "sft", "step": s, "loss": 1.0} for s in range(3)]
    degenerate = {"degenerate_reward_share": 0.25}
    lines += [
        {"stage": "grpo", "step": s, "reward": s / 20 - 0.5, "rewards/mine/mean": s / 40, **degenerate}
        for s in range(1, 21)
    ]
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
    before, last = (json.loads((run / "carb" / f"step-{s}.json").read_text()) for s in (0, 20))
    assert "quick-run" in page.text
    assert "culture_cards" in page.text
    for summary in (before, last):
        low, high = (f"{100 * value:.1f}" for value in summary["ci95"])
        assert f"{100 * summary['accuracy']:.1f} % ({low}–{high}, n = 144)" in page.text
    assert "chance is 50.0 %" in page.text
    assert "(12 of 144; before: 0.0 %)" in page.text
    assert "Missing from this run's folder" not in page.text


def test_own_data_is_named_by_file_and_training_overlap_is_marked(tmp_path: Path) -> None:
    hashes = training_hashes(ITEMS[:30], None)
    measure(tmp_path, 5, judge_all(lambda i: i % 2, ITEMS), dataset="my_pairs.csv", training=hashes)
    page = Page(write_report(tmp_path))
    assert re.search(r"Accuracy on my_pairs\.csv at step 5 is 50\.0 % \([^)]*\) ?†; chance is", page.text)
    assert "Warning: this judge was trained on 30 of these 144 items" in page.text
    assert "CARB" not in page.text


def test_set_with_training_items_is_marked_in_the_table_of_sets(tmp_path: Path) -> None:
    measure(tmp_path, 5, judge_all(lambda i: i % 2, ITEMS))
    own = measure(tmp_path / "own", 5, judge_all(lambda i: i % 2, ITEMS), training=training_hashes(ITEMS[:30], None))
    (tmp_path / "eval").mkdir()
    own.parent.rename(tmp_path / "eval" / "own")
    page = Page(write_report(tmp_path))
    assert page.row("own † 144")
    assert page.row("test 144")
    assert "† own: this judge was trained on 30 of these 144 items." in page.text


def test_tables_hold_n_interval_and_change(run: Path) -> None:
    page = Page(write_report(run))
    before, last = (json.loads((run / "carb" / f"step-{s}.json").read_text())["by_language"]["th"] for s in (0, 20))
    spans = [f"{100 * part['ci95'][0]:.1f}–{100 * part['ci95'][1]:.1f}" for part in (before, last)]
    change = 100 * (last["accuracy"] - before["accuracy"])
    cells = (f"{100 * before['accuracy']:.1f}", spans[0], f"{100 * last['accuracy']:.1f}", spans[1], f"+{change:.1f}")
    assert page.row("Thai th 36").split()[3:8] == list(cells)
    assert page.row("items of whole sets").split()[4] == "144"
    assert page.row("sets with every item right").split()[5] == "72"
    assert page.row("always the longest response 144")
    assert page.row("B 72")


def test_tables_by_language_features_and_macro_mean(run: Path) -> None:
    page = Page(write_report(run))
    last = json.loads((run / "carb" / "step-20.json").read_text())
    for start in ("3 36", "5 108", "Tai-Kadai 36", "Indo-European 108", "Thai 36", "Latn 108", "items 144"):
        assert page.row(start)
    assert page.row("cells 144").split()[4] == f"{100 * last['macro']['accuracy']:.1f}"
    assert page.row("TF-IDF of the response alone 144")
    assert "bootstrap by group" in page.text


def test_carb_report_lists_missing_cells_and_maps_languages(tmp_path: Path) -> None:
    measure(tmp_path / "run", 5, judge_all(lambda i: i % 2, published_items(missing=["Thai/safety"])))
    page = Page(write_report(tmp_path / "run"))
    assert "Warning: macro over 39 of 40 cells; missing: Thai/safety" in page.text
    titles = {title.split(":")[0]: title for attrs in page.all("td") if (title := attrs.get("title"))}
    assert len(titles) == (10 + 1) * (4 + 1)
    assert titles["Thai, safety"] == "Thai, safety: no items"


def test_heat_map_has_a_cell_for_every_culture_and_domain(run: Path) -> None:
    page = Page(write_report(run))
    titles = [attrs["title"] or "" for attrs in page.all("td") if attrs.get("title")]
    assert len(titles) == (4 + 1) * (2 + 1)
    part = json.loads((run / "carb/step-20.json").read_text())["by_cell"]["TH/value"]
    title = next(title for title in titles if title.startswith("Thailand, value"))
    assert f"{100 * part['accuracy']:.1f} % right, n = {part['n']}" in title.replace("\u202f", " ")
    assert f"{100 * part['ci95'][0]:.1f}–{100 * part['ci95'][1]:.1f}" in title


def test_charts_show_every_measurement_and_reward(run: Path) -> None:
    page = Page(write_report(run))
    assert re.findall(r"<g><title>(Step \d+)", page.source) == ["Step 0", "Step 10", "Step 20"]
    curves = [attrs["points"] or "" for attrs in page.all("polyline")]
    assert [len(points.split()) for points in curves] == [3, 20, 20, 20]
    assert re.findall(
        r"(Training reward|Share of the reward earned without judging|Reward part: \w+) at 20 logged steps", page.text
    ) == ["Training reward", "Share of the reward earned without judging", "Reward part: mine"]
    assert all(attrs.get("aria-labelledby") or attrs.get("aria-hidden") for attrs in page.all("svg"))
    assert "From -0.450 at step 1 to 0.500 at step 20" in page.text


def test_single_logged_step_is_drawn_as_a_point(run: Path) -> None:
    of_lines = len(Page(write_report(run)).all("circle"))
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text(next(line for line in lines if '"reward"' in line))
    page = Page(write_report(run))
    assert "1 logged steps" not in page.text
    assert len(page.all("circle")) == of_lines + page.text.count("at 1 logged step") == of_lines + 3


def test_judgements_pair_before_and_after_with_an_outcome(run: Path) -> None:
    page = Page(write_report(run))
    outcomes = [attrs["data-outcome"] for attrs in page.all("article")]
    assert len(outcomes) == 24
    assert list(dict.fromkeys(outcomes)) == [
        "wrong → right",
        "right → wrong",
        "parse failure",
        "still wrong",
        "still right",
    ]
    assert "wrong → right 60, right → wrong 12, parse failure 12, still wrong 36, still right 24." in page.text
    assert page.source.count('aria-label="Completion at step 0"') == 24
    assert page.source.count('aria-label="Completion at step 20"') == 24
    assert page.text.count("✓ best") == 24
    assert "Breaks the grammar:" in page.text
    assert {attrs.get("data-filter") for attrs in page.all("select")} == {"outcome", "culture", "domain"}


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("metrics.jsonl", "No GRPO rewards"),
        ("config.yaml", "No config.yaml"),
        ("environment.json", "No environment.json"),
        ("carb/step-0.json", "No evaluation at step 0"),
        ("carb/step-0.parquet", "judgements before GRPO cannot be shown"),
        ("carb/step-20.parquet", "No carb/step-20.parquet"),
    ],
)
def test_missing_file_is_reported(run: Path, gone: str, message: str) -> None:
    (run / gone).unlink()
    assert message in Page(write_report(run)).text


def test_report_of_one_measurement(tmp_path: Path) -> None:
    measure(tmp_path, 0, judge_all(lambda i: i == 0, ITEMS[0:6:2]))
    page = Page(write_report(tmp_path))
    assert "at step 0 is 33.3 %" in page.text
    assert "The headline's method: Wilson" in page.text
    assert "No evaluation after step 0" in page.text
    assert "this data has no complete set" in page.text
    assert [attrs["data-outcome"] for attrs in page.all("article")] == ["wrong", "wrong", "right"]


def test_run_without_measurements_raises(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"carb: no step-N\.json"):
        write_report(tmp_path)


def test_damaged_file_error_names_the_file(run: Path) -> None:
    (run / "carb/step-10.json").write_text('{"step": 10}')
    with pytest.raises(DataError, match=r"step-10\.json: a CARB file lacks accuracy"):
        write_report(run)
    (run / "carb/step-10.json").unlink()
    (run / "carb/step-20.parquet").write_text("not parquet")
    with pytest.raises(DataError, match=r"step-20\.parquet: not a readable table"):
        write_report(run)


def test_report_shows_the_last_training_warning(run: Path) -> None:
    lines = [json.dumps({"stage": "grpo", "step": step, "warning": f"<b>{step}</b> %"}) for step in (5, 10)]
    (run / "metrics.jsonl").write_text("\n".join(lines))
    page = Page(write_report(run))
    assert "Warning: <b>10</b> %" in page.text
    assert "<b>5</b>" not in page.text


@pytest.mark.parametrize("scratch", [True, False])
def test_report_of_a_from_scratch_judge_shows_a_notice(run: Path, scratch: bool) -> None:
    (run / "config.yaml").write_text(f"model: {{scratch: {'{hidden_size: 8}' if scratch else 'null'}}}")
    page = Page(write_report(run))
    assert (FROM_SCRATCH in page.text) == scratch
    assert f"tal compare {run}/carb/step-0.parquet {run}/carb/step-20.parquet --by culture # what GRPO" in page.text
    assert f"tal serve {run}/model" in page.text
    assert "tal judge" not in page.text  # there are no examples


def test_damaged_metrics_lines_are_counted_except_a_truncated_last_one(run: Path) -> None:
    log = run / "metrics.jsonl"
    log.write_text('{"sta\n[1]\n{"stage": "grpo", "step": 1, "reward": NaN}\n' + log.read_text())
    assert "2 lines of metrics.jsonl could not be read." in Page(write_report(run)).text


def test_choose_balances_outcomes_and_cultures() -> None:
    def an_item(i: int) -> Item:
        return make_item(id=str(i), culture="TH" if i < 90 else "JP")

    made = [
        [judged(an_item(i), right) for i, right in enumerate(rights)]
        for rights in zip(*[(i % 50 == 0, i % 50 != 0) for i in range(100)], strict=True)
    ]
    pairs = [BeforeAfter(*both) for both in zip(*made, strict=True)]
    chosen = choose_judgements(pairs, limit=8)
    assert [pair.outcome for pair in chosen] == ["wrong → right"] * 6 + ["right → wrong"] * 2
    assert [pair.after.item.culture for pair in chosen[:6]].count("JP") == 3
    assert chosen == choose_judgements(list(reversed(pairs)), limit=8)


def test_tie_is_not_counted_as_a_parse_failure(tmp_path: Path) -> None:
    some = ITEMS[:6]
    scores = [(1.0, 1.0) if i < 2 else (2.0, 1.0) for i in range(6)]
    measure(tmp_path, 4, [tied(item, worth) for item, worth in zip(some, scores, strict=True)])
    page = Page(write_report(tmp_path))
    right = sum(shuffle_responses(item).best == 0 for item in some[2:])
    assert f"parse failure 0, tie 2, wrong {4 - right}, right {right}." in page.text
    assert "0.0 % of judgements cannot be parsed" in page.text
    assert page.text.count(": a tie") == 2


def test_before_after_outcome_is_tie_if_either_side_ties() -> None:
    item = ITEMS[0]
    right, wrong, failure = (judged(item, right) for right in (True, False, None))
    tie = tied(item, (1.0, 1.0))
    lucky = dataclasses.replace(failure, parse_failure_credit=0.25)  # RewardBench 2 gives 1/N for a parse failure
    assert [BeforeAfter(None, each).outcome for each in (right, wrong, tie, failure, lucky)] == [
        *("right", "wrong", "tie", "parse failure", "parse failure")
    ]
    assert {BeforeAfter(tie, other).outcome for other in (right, wrong, tie, failure)} == {"tie"}
    assert BeforeAfter(failure, right).outcome == "wrong → right"
    assert BeforeAfter(failure, wrong).outcome == "parse failure"
