"""The report of an SCPO run: figures with n and interval, hostile names, and little to show."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from html_page import Page
from rich.console import Console
from scpo.hand_worked import BEFORE, ITEMS, QUESTIONS, RESULTS, answers, config, held_out, item, scores, variant_result

from think_as_locals.evaluation.tables import figure
from think_as_locals.judging.prompt import culture_name
from think_as_locals.scpo.report import DIFFERENCES, VARIANT_NAMES, on_terminal, write_report
from think_as_locals.scpo.results import HeldOutSet, Scores, VariantResult
from think_as_locals.types import Item

HOSTILE_NAME = "</style><script>alert('x')</script>\"><img src=x onerror=alert(1)> | [a](http://x) *b* `c`"
VARIANTS = ("full", "filter", "weight", "scpo", "inverse_weight")


def margins(items: Sequence[Item]) -> dict[str, float]:
    """What a global RM says that has every third pair wrong."""
    return {i.id: -1.0 if n % 3 == 0 else 1.0 for n, i in enumerate(items)}


def make_run(
    countries: Sequence[str], seeds: Sequence[int], counts: Sequence[int | None]
) -> tuple[HeldOutSet, Scores, list[VariantResult]]:
    """Seven people of each country with six pairs each, and trainings that turn the signs of some margins."""
    rng = random.Random(0)
    items = [item(f"{c}-{p}-{n}", c, f"{c}-{p}") for c in countries for p in range(7) for n in range(6)]
    before, results = margins(items), []
    for country, variant, seed, count in product(sorted(countries), VARIANTS, seeds, counts):
        if count is None or variant in ("full", "scpo"):
            turned = {name: -by if rng.random() < (0.5 if by < 0 else 0.05) else by for name, by in before.items()}
            pairs = count or 900
            record = {"available": pairs, "kept": pairs // 3, "mean_weight": rng.random()}
            results.append(variant_result(country, seed, turned, variant=variant, num_pairs=count, **record))
    minority = frozenset(i.id for n, i in enumerate(items) if n % 3 == 0 or n % 7 == 0)
    known = held_out(items=items, minority=minority, disagreed=frozenset(i.id for i in items[::3]))
    return known, scores(before), results


def write(
    folder: Path,
    known: HeldOutSet | None = None,
    before: Scores | None = None,
    results: Sequence[VariantResult] = RESULTS,
    overrides: Sequence[str] = (),
) -> Page:
    """Write a report, of the run worked out by hand but for what is given."""
    folder.mkdir(exist_ok=True)
    return Page(write_report(folder, config(*overrides), known or held_out(), before or scores(BEFORE), results))


def summary_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "scpo.json").read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four countries, five variants, two seeds, and fewer pairs."""
    run = tmp_path_factory.mktemp("runs") / "run"
    write(run, *make_run(("EG", "CN", "TH", "VN"), (0, 1), (None, 100)))
    return run


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    return Page(folder / "report.html")


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    return summary_of(folder)


def mean(found: dict[str, Any], variant: str) -> dict[str, Any]:
    return next(row for row in found["means"] if row["variant"] == variant and row["num_pairs"] is None)


# --- the file ---


def test_summary_file_records_what_was_compared(found: dict[str, Any]) -> None:
    assert (found["dataset"], found["model"], found["seed"]) == ("opinion_cards", "randomly initialised", 0)
    assert (found["filter_threshold"], found["weight_temperature"], found["reference"]) == (0.7, 1.1, "global_rm")
    assert (found["n"], found["max_accuracy_drop"], found["differences"]) == (168, 0.02, [])
    assert found["minority_share"] == pytest.approx(sum(n % 3 == 0 or n % 7 == 0 for n in range(168)) / 168)
    assert len(found["rows"]) == 4 * len(found["means"]) == 4 * (1 + 5 + 2)


def test_report_lists_each_difference_of_the_released_mode(tmp_path: Path) -> None:
    page = write(tmp_path, overrides=["mode=as_released"])
    summary, text = summary_of(tmp_path), (tmp_path / "scpo.md").read_text()
    assert (summary["differences"], summary["mode"]["name"]) == (list(DIFFERENCES.values()), "as_released")
    for sentence in DIFFERENCES.values():
        assert sentence in page.text
        assert f"- {sentence}" in text
    one = write(tmp_path / "one", overrides=["mode.ties=wrong"])
    assert DIFFERENCES["ties", "wrong"] in one.text
    assert DIFFERENCES["dropout", True] not in one.text


# --- the page ---


def test_page_states_gains_with_n_and_interval(page: Page, found: dict[str, Any]) -> None:
    counts = found["improved"]["scpo"]
    assert f"SCPO (filter and weight) helps in {counts['helped']} of 4 countries: accuracy" in page.text
    assert f"In {counts['significantly']} of these the 95 % interval of the rise excludes 0" in page.text
    rows = [r for r in found["rows"] if r["variant"] == "scpo" and r["num_pairs"] is None]
    for row in rows:
        helps = {"no": "no", "yes": "yes", "significantly": "yes, significantly"}[row["helps"]]
        parts = [row[name] for name in ("minority", "overall", "others")]
        gains = [f"{figure(part['gain'], 'mean', '+.1f')}, n {part['n']}" for part in parts]
        assert page.row(f"{culture_name(row['country'])} ({row['country']}) {helps} {' '.join(gains)}")
    for row in found["means"]:
        name = VARIANT_NAMES[row["variant"]] + (f", {row['num_pairs']} pairs" if row["num_pairs"] else "")
        assert page.row(f"{name} {figure(row['minority'], show_n=True)}")
    sizes = [mean(found, "global")[name]["n"] for name in ("minority", "overall", "others", "disagreed")]
    assert sizes == [72, 168, 504, 56]


# --- hostile names, and little to show ---


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    codes = {"CL": HOSTILE_NAME, "TH": "<b>|TH"}
    items = [replace(i, culture=codes[str(i.culture)], group=HOSTILE_NAME + i.group) for i in ITEMS]
    results = [replace(result, spec=replace(result.spec, country=codes[result.spec.country])) for result in RESULTS]
    (tmp_path / "config.yaml").write_text(f"x: {HOSTILE_NAME}\n")
    changes = {"data": {"source": HOSTILE_NAME}, "model": {"path": HOSTILE_NAME}, "run": {"name": HOSTILE_NAME}}
    sections = {name: getattr(config(), name).model_copy(update=update) for name, update in changes.items()}
    hostile = config().model_copy(update=sections)
    page = Page(write_report(tmp_path, hostile, held_out(items=items), scores(BEFORE), results))
    assert not any(page.all(tag) for tag in ("script", "img", "link"))
    assert page.text.count("alert('x')") >= 5  # run, data, model, culture, settings
    assert not any(name.startswith("on") or name == "src" for _, attrs in page.tags for name in attrs)
    assert "default-src 'none'" in str(page.all("meta")[1]["content"])
    text = (tmp_path / "scpo.md").read_text()
    assert "<" not in text.replace("p < tau", "").replace("r+ < r-", "")
    assert "](http" not in text
    assert r"&lt;b&gt;\|TH" in text


AS_FULL = [replace(result, spec=replace(result.spec, variant="full")) for result in RESULTS]
WORSE = [variant_result(country, 0, dict.fromkeys(BEFORE, -1.0)) for country in ("CL", "TH")]
NO_MINORITY: dict[str, Any] = {"minority": frozenset(), "disagreed": frozenset()}
NOWHERE = "helps in 0 of 2 countries: in no country does accuracy on the minority's view rise while"


@pytest.mark.parametrize(
    ("changes", "results", "there", "absent"),
    [  # one pair of the minority has the widest of intervals
        ({}, RESULTS, ["Thailand (TH) yes +50.0 [-100.0, +100.0], n 1"], ["by the number of pairs", "left out"]),
        (NO_MINORITY, RESULTS, ["no test pair counts as a minority's view"], ["further right"]),
        ({"left_out": 17}, RESULTS, ["17 training and test pairs are left out"], []),
        ({}, AS_FULL, ["Full fine-tuning helps in"], []),
        ({}, WORSE, [NOWHERE, "Thailand (TH) no"], []),
    ],
    ids=["by hand", "no minority", "pairs left out", "without SCPO", "it helps nowhere"],
)
def test_page_shows_only_sections_with_data(
    tmp_path: Path, changes: dict[str, Any], results: list[VariantResult], there: list[str], absent: list[str]
) -> None:
    page = write(tmp_path, held_out(**changes), results=results)
    assert all(text in page.text for text in there)
    assert not any(text in page.text for text in absent)


def test_intervals_name_what_is_resampled(tmp_path: Path) -> None:
    assert "intervals over people" in (page := write(tmp_path)).text
    assert write(tmp_path).source == page.source
    pairs = write(tmp_path, overrides=["data=blend_pairs", "data.path=FOLDER"])
    assert "intervals over question groups" in pairs.text
    assert summary_of(tmp_path)["resampled"] == "question groups"


def test_survey_distances_have_n_and_interval(tmp_path: Path) -> None:
    results = [replace(each, scores={**each.scores, **answers(float(each.spec.seed), 1.0)}) for each in RESULTS]
    page = write(tmp_path, held_out(questions=QUESTIONS), scores(BEFORE, answers(0, 0)), results)
    summary = summary_of(tmp_path)
    row, others = mean(summary, "scpo")["distance"], summary["others_distance"]
    assert f"lies at {others['mean']:.3f}, n = 4" in page.text
    shown = figure(row, "mean", ".3f", 1, show_n=True)
    for written in (page.text, (tmp_path / "scpo.md").read_text()):
        assert shown in written.replace("\\", "")
        assert "95 % intervals over questions of the survey" in written


def test_markdown_and_terminal_have_means_and_countries(folder: Path, found: dict[str, Any]) -> None:
    text = (folder / "scpo.md").read_text()
    assert "n = 168 test pairs of 4 countries" in text
    shown, counts = figure(mean(found, "scpo")["minority"], show_n=True), found["improved"]["scpo"]
    assert shown in text.replace("\\", "")
    assert f"falls by 2 points at most in {counts['helped']} of 4 countries" in text
    assert sum(line.startswith(r"| Thailand \(TH") for line in text.splitlines()) == 4
    console = Console(record=True, width=200)
    console.print(*on_terminal(folder))
    assert shown in console.export_text()
