"""The leaderboard: numbers, ranks, different items, hostile texts, and the data embedded in the page."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Tal
from evaluation.judged import Right, flip_items, judge_all, judged, measure
from evaluation.published import COUNTRIES, published_items
from html_page import Page

from think_as_locals.evaluation import leaderboard
from think_as_locals.evaluation.compare import compare, read
from think_as_locals.evaluation.judgements import annotate, read_judgements
from think_as_locals.evaluation.leaderboard import LONGEST_TEXT, browsable, read_entries, write_leaderboard
from think_as_locals.evaluation.statistics import holm
from think_as_locals.reward_models.reward_model import ScoredItem
from think_as_locals.reward_models.training_items import training_hashes
from think_as_locals.types import DataError, Item


def items(**changes: Any) -> list[Item]:
    """Of two domains; the last question group has one flip set only, so that cells differ in size."""
    return flip_items(last=1, **changes)


def predictions(right: Right, some: Sequence[Item] = ()) -> list[ScoredItem]:
    return judge_all(right, some or items())


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two that are good and alike, a constant one, and one that is worse, with ties and parse failures."""
    run = tmp_path_factory.mktemp("runs") / "evaluation"
    measure(run, "good", predictions(lambda i: i % 10 > 0))
    measure(run, "also-good", predictions(lambda i: i % 10 != 5))
    measure(run, "worse", predictions(lambda i: (None, 0.5, 1, 0)[i % 4]), protocol="pairwise", training=frozenset())
    measure(run, "constant", predictions(lambda _: 0.5))
    return run


@pytest.fixture
def evaluation(measured: Path, tmp_path: Path) -> Path:
    """A copy of that run, to be changed."""
    return Path(shutil.copytree(measured, tmp_path / "evaluation"))


@pytest.fixture(scope="module")
def out(measured: Path) -> Path:
    """Its leaderboard."""
    return write_leaderboard([measured], measured.parent / "out").parent


def board_of(folder: Path, number: int = 0) -> dict[str, Any]:
    return dict(json.loads((folder / "leaderboard.json").read_text(encoding="utf-8"))["boards"][number])


def model_of(board: dict[str, Any], name: str) -> dict[str, Any]:
    return dict(next(model for model in board["models"] if model["name"] == name))


# --- numbers ---


def test_figures_and_baselines_match_the_carb_file(measured: Path, out: Path) -> None:
    board = board_of(out)
    assert (board["n"], board["datasets"], board["splits"]) == (134, ["cards"], ["group"])
    for name in ("good", "also-good", "worse", "constant"):
        summary = json.loads((measured / f"carb/{name}.json").read_text())
        model = model_of(board, name)
        assert (model["macro"], model["micro"]["accuracy"]) == (summary["macro"], summary["accuracy"])
        assert (model["flips"]["accuracy"], model["flips"]["n"]) == (summary["flips"]["accuracy"], 134)
        assert model["parse_failure"]["share"] == summary["parse_failure"]
    worse = model_of(board, "worse")
    assert (worse["protocol"], worse["ties"]["n"]) == ("pairwise", 134)
    assert worse["ties"]["share"] == worse["parse_failure"]["share"] == pytest.approx(34 / 134)
    low, high = worse["ties"]["ci95"]
    assert 0 < low < 34 / 134 < high < 1
    for name, on in board["baselines"].items():
        assert on["micro"]["accuracy"] == pytest.approx(summary["baselines"][name]["accuracy"])
        assert on["flips"]["accuracy"] == pytest.approx(summary["flips"]["baselines"][name]["accuracy"])
        assert on["macro"]["n"] == on["micro"]["n"] == 134
    best = max(on["macro"]["accuracy"] for on in board["baselines"].values())
    assert board["baselines"][board["best_baseline"]]["macro"]["accuracy"] == best


def test_model_trained_on_measured_items_is_marked_everywhere(evaluation: Path, tmp_path: Path) -> None:
    hashes = training_hashes(items()[:30], None)
    measure(evaluation, "good", predictions(lambda i: i % 10 > 0), training=hashes)
    folder = write_leaderboard([evaluation], tmp_path).parent
    board = board_of(folder)
    trained_on = {"good": {"items": 30, "n": 134}, "worse": {"items": 0, "n": 134}}
    assert {model["name"]: model["trained_on"] for model in board["models"] if model["trained_on"]} == trained_on
    for file in ("leaderboard.md", "leaderboard.html"):
        text = (folder / file).read_text(encoding="utf-8")
        assert "good †" in text
        assert "trained on 30 of these 134 items" in text
    assert browsable(read_entries([evaluation]), 10**6)["models"].count("good †") == 1


def test_paired_differences_equal_those_of_compare_and_of_macro_accuracies(measured: Path, out: Path) -> None:
    board, raw = board_of(out), []
    assert len(board["pairs"]) == 6
    for pair in board["pairs"]:
        a, b = (read(measured / f"carb/{pair[place]}.parquet", {}) for place in ("worse", "better"))
        whole, flips, *_ = compare(a, b, "culture")
        for found, same in ((pair["items"], whole), (pair["flips"], flips)):
            assert found["difference"] == same["difference"]
        raw.append(whole["p"])
        better, worse = (model_of(board, pair[place])["macro"]["accuracy"] for place in ("better", "worse"))
        macro = pair["macro"]["difference"]
        assert (macro["a"], macro["b"], macro["difference"]) == pytest.approx((worse, better, better - worse))
        assert better >= worse
        assert macro["ci95"][0] <= macro["difference"] <= macro["ci95"][1]
    assert [pair["items"]["p_holm"] for pair in board["pairs"]] == pytest.approx(holm(raw))


# --- ranks ---


def test_models_without_a_significant_difference_share_ranks(out: Path) -> None:
    models = board_of(out)["models"]
    accuracies = [model["macro"]["accuracy"] for model in models]
    assert accuracies == sorted(accuracies, reverse=True)
    ranks = {"good": ([1, 2], True), "also-good": ([1, 2], True)}
    ranks |= {"constant": ([3, 3], False), "worse": ([4, 4], False)}
    assert {m["name"]: (m["ranks"], m["may_be_first"]) for m in models} == ranks


def test_leaderboard_command_prints_a_table_or_json(measured: Path, tmp_path: Path, tal: Tal) -> None:
    done = tal("leaderboard", str(measured), "--out", str(tmp_path), columns=80)
    assert done.out.strip().startswith("cards, split group: 134 items")
    rows = [line.split("│") for line in done.out.splitlines() if "good ●" in line]
    assert [row[1].strip() for row in rows] == ["1–2", "1–2"]
    assert done.out.endswith(f"\n{tmp_path}/leaderboard.html\n")
    done = tal("leaderboard", str(measured), "--out", str(tmp_path), "--json")
    assert json.loads(done.out) == json.loads((tmp_path / "leaderboard.json").read_text())


# --- what is read ---


def test_training_run_is_listed_by_its_last_step_under_its_name(tmp_path: Path) -> None:
    run = tmp_path / "trained"
    for step, right in ((0, 0.0), (9, 0.0), (10, 1.0)):
        measure(run, step, predictions(lambda _, right=right: right), model="judge")
    (entry,) = read_entries([run])
    assert (entry.name, entry.summary["step"], entry.summary["accuracy"]) == ("trained", 10, 1.0)


def test_reward_models_named_like_steps_are_all_listed(tmp_path: Path) -> None:
    for name in ("step-100", "step-200", "step-final"):
        measure(tmp_path / "checkpoints", name, predictions(lambda i: i % 2))
    assert [entry.name for entry in read_entries([tmp_path / "checkpoints"])] == ["step-100", "step-200", "step-final"]
    with pytest.raises(DataError, match=r"checkpoints: no carb/step-N\.json"):
        read(tmp_path / "checkpoints", {})


def test_equal_model_names_are_disambiguated_by_run(tmp_path: Path) -> None:
    for run in ("x/run", "y/run", "z"):
        measure(tmp_path / run, "rm", predictions(lambda i: i % 2), model="RM")
    measure(tmp_path / "z", "other", predictions(lambda i: i % 2))
    found = read_entries([tmp_path / "x/run", tmp_path / "x/run/../run", tmp_path / "z"])  # a run counts once
    assert sorted(entry.name for entry in found) == ["RM (run/rm)", "RM (z/rm)", "other"]
    assert len({entry.name for entry in read_entries([tmp_path / run for run in ("x/run", "y/run", "z")])}) == 4


def test_read_errors_name_the_file(evaluation: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing: no carb/NAME\.json"):
        read_entries([tmp_path / "nothing"])
    measure(evaluation, "short", predictions(lambda _: 1)[:9])
    shutil.copy(evaluation / "carb/short.parquet", evaluation / "carb/good.parquet")
    with pytest.raises(DataError, match=r"good\.parquet: 9 items, but good\.json is over 134"):
        read_entries([evaluation])


def test_macro_cells_and_missing_cells_are_listed(tmp_path: Path) -> None:
    gone = ["Korean/value", "Thai/safety"]
    measure(tmp_path / "run", "rm", predictions(lambda i: i % 3 > 0, published_items(gone)))
    page = Page(write_leaderboard([tmp_path / "run"], tmp_path / "out"))
    board, markdown = board_of(tmp_path / "out"), (tmp_path / "out/leaderboard.md").read_text(encoding="utf-8")
    assert board["macro"] == {"cells": 38, "of": 40, "missing": gone}
    assert board["macro"].items() <= model_of(board, "rm")["macro"].items()
    assert "items, 38 cells\n" in markdown
    warning = "Warning: macro over 38 of 40 cells; missing: Korean/value, Thai/safety"
    assert all(warning in text for text in (markdown, page.text))
    assert sum(row.startswith(tuple(COUNTRIES)) for row in page.rows) == 10


# --- different items ---


def test_models_on_different_items_get_separate_boards(evaluation: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    measure(other, "fewer", predictions(lambda _: 1, items()[:60]), dataset="fewer cards")
    first, *others = items()
    edited = replace(first, responses=(f"{first.responses[0]} Indeed.", *first.responses[1:]))
    changed = [replace(item, best=1 - item.best) for item in (edited, *others)]  # their ids are the same
    measure(other, "swapped", predictions(lambda _: 1, changed))
    page = Page(write_leaderboard([evaluation, other], tmp_path / "out"))
    boards = [board_of(tmp_path / "out", number) for number in range(3)]
    assert [[model["name"] for model in board["models"]] for board in boards][1:] == [["fewer"], ["swapped"]]
    assert [len(board["pairs"]) for board in boards] == [6, 0, 0]
    assert "3 different sets of items" in page.text
    data = embedded(page)
    columns = zip(*(data["judgements"][name] for name in ("item", "model")), strict=True)
    assert data["total"] == len(dict.fromkeys(columns)) == len(data["judgements"]["item"])
    assert "different items" in (tmp_path / "out/leaderboard.md").read_text()


# --- the page ---


def test_page_tables_hold_n_intervals_ranks_probes_and_baselines(evaluation: Path, tmp_path: Path) -> None:
    (evaluation / "probes").mkdir()
    moved = {"absolute": {"n": 400, "mean": 30.8, "ci95": [25, 36]}, "signed": {"n": 400, "mean": None, "ci95": None}}
    found = {"n_items": 134, "spread": 1.0, "CC": {"n": 402, "applicable": 0.75, "relative": moved}}
    (evaluation / "probes/good.json").write_text(json.dumps(found))
    page = Page(write_leaderboard([evaluation], tmp_path / "out"))
    good = model_of(board_of(tmp_path / "out"), "good")
    low, high = (f"{100 * end:.1f}" for end in good["macro"]["ci95"])
    row = page.row("1–2 good ●")
    for cell in (f"{100 * good['macro']['accuracy']:.1f} [{low}, {high}]", "n 134", "listwise"):
        assert cell in row
    assert "chance (best baseline)" in page.text
    assert page.row("good CC 400").startswith("good CC 400 75.0 30.8 [25.0, 36.0]")
    assert len([row for row in page.rows if row.startswith("all cultures")]) == 4


def test_cells_of_every_map_have_ids_of_their_own(out: Path) -> None:
    """Colours belong to ids: with shared ones a map would show another model's."""
    ids = re.findall(r' id="(T_[^"]+)"', (out / "leaderboard.html").read_text(encoding="utf-8"))
    assert len({name.split("_")[1] for name in ids}) > 1
    assert len(ids) == len(set(ids))


# --- the browser's data ---


def embedded(page: Page) -> dict[str, Any]:
    (text,) = re.findall(r'<script type="application/json" id="judgements-data">(.*?)</script>', page.source, re.DOTALL)
    return dict(json.loads(text))


def test_every_judgement_is_embedded_in_the_page(evil: Path, tmp_path: Path) -> None:
    data = embedded(Page(write_leaderboard([evil], tmp_path / "out")))
    entries = read_entries([evil])
    tables = {e.name: annotate(read_judgements(e.path.with_suffix(".parquet"))).set_index("id") for e in entries}
    found = set()
    for number in range(data["total"]):
        at = {name: column[number] for name, column in data["judgements"].items()}
        item = {name: column[at["item"]] for name, column in data["items"].items()}
        name = data["models"][at["model"]]
        row = tables[name].loc[item["id"]]
        assert item["prompt"] == row["prompt"]
        assert [item["responses"][i] for i in at["order"]] == [row["responses"][i] for i in row["order"]]
        assert (at["best"], -1 if at["verdict"] is None else at["verdict"]) == (row["best_slot"], row["slot"])
        assert data["outcomes"][at["outcome"]] == row["outcome"]
        assert (tuple(at["issues"]), at["completion"]) == (row["issues"], row["completion"])
        found.add((name, item["id"]))
    assert len(found) == data["total"] == 2 * 134
    assert data["cultures"]["TH"] == "Thailand"


def test_page_over_the_size_limit_samples_complete_items(
    evaluation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaderboard, "MAX_CHARACTERS", 30_000)
    page = Page(write_leaderboard([evaluation], tmp_path / "out"))
    data = embedded(page)
    kept = len(data["items"]["id"])
    assert 5 < kept < 134
    assert len(data["judgements"]["model"]) == 4 * kept
    assert f"{4 * kept} of 536 judgements, of {kept} of 134 items, to limit the size of the page" in page.text


def test_very_long_text_is_shortened_to_keep_other_items(tmp_path: Path) -> None:
    made = [judged(item, None, "x" * (100_000 if i == 0 else 1)) for i, item in enumerate(items()[:12])]
    measure(tmp_path / "run", "rm", made)
    data = browsable(read_entries([tmp_path / "run"]), 50_000)
    assert len(data["items"]["id"]) == 12
    assert max(map(len, data["judgements"]["completion"])) < LONGEST_TEXT + 50


# --- markdown ---


def test_slots_and_constant_verdicts_are_shown_and_markdown_has_a_row_for_each_figure(out: Path) -> None:
    page, markdown = Page(out / "leaderboard.html"), (out / "leaderboard.md").read_text(encoding="utf-8")
    bias = model_of(board_of(out), "good")["slot_bias"]["A"]
    low, high = bias["ci95"]
    assert f"A {100 * bias['bias']:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]" in page.row("good A ")
    assert not any(row.startswith("constant A ") for row in page.rows)  # of scores
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len(rows) == (2 + 4 + 6) + (2 + 6) + (2 + 3)


def test_markdown_cells_escape_untrusted_text(evil: Path, tmp_path: Path) -> None:
    write_leaderboard([evil], tmp_path / "out")
    written = (tmp_path / "out/leaderboard.md").read_text()
    rows = [line for line in written.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} <= {5, 6, 7, 10}
    assert "<" not in written.replace("p < 0.05", "").replace("< 0.001", "")
    assert r"\*b\*" in written
