"""The page and the tables of an SCPO run: numbers with n and interval, hostile names, drawings within their frames."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from html_page import Page
from recorded import assert_recorded
from scpo.hand_worked import (
    BEFORE,
    ITEMS,
    QUESTIONS,
    RESULTS,
    STEERED,
    answers,
    config,
    held_out,
    item,
    scores,
    variant_result,
)

from think_as_locals.evaluation.pages import axis
from think_as_locals.scpo.report import DIFFERENCES, write_report
from think_as_locals.scpo.results import HeldOutSet, VariantResult
from think_as_locals.scpo.scores import Scores
from think_as_locals.types import Item

EVIL = "</style><script>alert('x')</script>\"><img src=x onerror=alert(1)> | [a](http://x) *b* `c`"
SIDES = ("x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "width", "height")
VARIANTS = ("full", "filter", "weight", "scpo", "inverse_weight")


def margins(items: Sequence[Item]) -> dict[str, float]:
    """What a global RM says that has every third pair wrong."""
    return {i.id: -1.0 if n % 3 == 0 else 1.0 for n, i in enumerate(items)}


def crowd(
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
            record = {"available": pairs, "kept": pairs // 3, "weights": tuple(rng.sample(range(40), 10))}
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
    summary: dict[str, Any] = json.loads((folder / "scpo.json").read_text(encoding="utf-8"))
    return summary


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four countries, five variants, two seeds, and fewer pairs."""
    run = tmp_path_factory.mktemp("runs") / "run"
    write(run, *crowd(("EG", "CN", "TH", "VN"), (0, 1), (None, 100)))
    return run


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    return Page(folder / "report.html")


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    return summary_of(folder)


# --- the file ---


def test_the_file_says_what_was_compared_and_how(found: dict[str, Any]) -> None:
    assert (found["dataset"], found["model"], found["seed"]) == ("opinion_cards", "randomly initialised", 0)
    assert (found["filter_threshold"], found["weight_temperature"], found["reference"]) == (0.7, 1.1, "global_rm")
    assert (found["n"], found["max_loss"], found["differences"]) == (168, 0.02, [])
    assert found["minority_share"] == pytest.approx(sum(n % 3 == 0 or n % 7 == 0 for n in range(168)) / 168)
    assert len(found["rows"]) == 4 * len(found["means"]) == 4 * (1 + 5 + 2)


def test_the_released_codes_differences_are_named_one_by_one(tmp_path: Path) -> None:
    page = write(tmp_path, overrides=["mode=as_released"])
    summary, text = summary_of(tmp_path), (tmp_path / "scpo.md").read_text()
    assert (summary["differences"], summary["mode"]["name"]) == (list(DIFFERENCES.values()), "as_released")
    for sentence in DIFFERENCES.values():
        assert sentence in page.text
        assert f"- {sentence}" in text
    one = write(tmp_path / "one", overrides=["mode.ties=wrong"])
    assert DIFFERENCES["ties", "wrong"] in one.text
    assert DIFFERENCES["dropout", True] not in one.text


# --- the tables of the page ---


@pytest.mark.parametrize("name", ["four_countries", "survey", "no_minority"])
def test_page_and_tables_are_the_recorded_ones(tmp_path: Path, page: Page, folder: Path, name: str) -> None:
    """Every figure with n and interval, countries with the greatest gain first, and every sentence."""
    if name != "four_countries":
        results = [
            variant_result(country, seed, by, scores=scores(by, answers(float(seed), 1.0)))
            for (country, seed), by in STEERED.items()
        ]
        changes = {"questions": QUESTIONS} if name == "survey" else {"minority": frozenset({"c2"})}
        folder = tmp_path
        page = write(folder, held_out(**changes), scores(BEFORE, answers(0, 0)), results)
    assert_recorded(f"scpo_report/{name}.txt", page.lines)
    assert_recorded(f"scpo_report/{name}.md", (folder / "scpo.md").read_text(encoding="utf-8"))


def test_a_gain_is_bold_where_its_interval_excludes_0(tmp_path: Path) -> None:
    known, before, results = crowd(("CL", "TH"), (0,), (None,))
    sure = [replace(result, scores=scores(dict.fromkeys(margins(known.items), 1.0))) for result in results]
    page = write(tmp_path, known, before, sure)
    marked = re.findall(r"(<b>)?([+−±][\d.]+)(?:</b>)? <small[^>]*>([^<(]* to [^<(]*)</small>", page.source)
    assert {value for bold, value, _ in marked if bold} >= {"+33.3"}
    for bold, _, interval in marked:
        low, high = (float(end.translate({0x2212: "-", 0xB1: " "})) for end in interval.split(",")[0].split(" to "))
        assert bool(bold) == (low > 0 or high < 0), interval


# --- drawings ---


def frames(page: Page) -> list[tuple[float, float, list[tuple[str, dict[str, str | None]]]]]:
    """Width and height of each drawing, and what is in it."""
    found: list[tuple[float, float, list[tuple[str, dict[str, str | None]]]]] = []
    shapes = {"line", "circle", "rect", "polyline", "text"}
    for tag, attrs in page.tags:
        if tag == "svg":
            _, _, width, height = map(float, str(attrs["viewbox"]).split())
            found.append((width, height, []))
        elif tag in shapes:
            found[-1][2].append((tag, attrs))
    return found


def check_drawings(page: Page) -> None:
    """Every point that a shape reaches is finite and within its frame."""
    for width, height, shapes in frames(page):
        for tag, attrs in shapes:
            at = {name: float(str(value)) for name, value in attrs.items() if name in SIDES and value}
            if tag == "polyline":
                points = [tuple(map(float, pair.split(","))) for pair in str(attrs["points"]).split()]
            elif "transform" in attrs:
                points = [tuple(map(float, re.findall(r"[\d.]+", str(attrs["transform"]))[:2]))]
            elif tag == "line":
                points = [(at["x1"], at["y1"]), (at["x2"], at["y2"])]
            elif tag == "circle":
                points = [(at["cx"] + side * at["r"], at["cy"] + side * at["r"]) for side in (-1, 1)]
            else:  # a rectangle, or a text
                points = [(at["x"], at["y"]), (at["x"] + at.get("width", 0), at["y"] + at.get("height", 0))]
            for x, y in points:
                assert 0 <= x <= width, (tag, attrs)  # NaN is in no frame
                assert 0 <= y <= height, (tag, attrs)


def test_everything_that_is_drawn_is_within_its_frame(page: Page) -> None:
    assert len(frames(page)) == 12 + 1 + 1 + 2  # three of each country, the plane, the pairs, two histograms
    check_drawings(page)


def test_the_plane_has_a_point_for_each_variant_where_its_accuracies_are(page: Page, found: dict[str, Any]) -> None:
    (_, _, shapes) = next(frame for frame in frames(page) if frame[1] == 390)
    rows = sorted((r for r in found["means"] if r["num_pairs"] is None), key=lambda r: -r["minority"]["accuracy"])
    scales = {}
    for name, start, end in (("overall", 60, 480), ("minority", 330, 20)):
        ends = [r[name]["ci95"] for r in rows]
        scales[name] = axis(min(low for low, _ in ends), max(high for _, high in ends), start, end)
    dots = [(float(str(attrs["cx"])), float(str(attrs["cy"]))) for tag, attrs in shapes if tag == "circle"]
    assert dots == [tuple(scale.at(r[name]["accuracy"]) for name, scale in scales.items()) for r in rows]
    assert len(dots) == 6


def test_names_beside_a_drawing_do_not_lie_on_one_another(page: Page) -> None:
    for _, height, shapes in frames(page):
        if height in (390, 310):
            lines = sorted(float(str(a["y"])) for tag, a in shapes if tag == "text" and a.get("x") == "514")
            assert len(lines) > 2
            assert all(lower - upper >= 20 for upper, lower in pairwise(lines))


# --- hostile names, and little to show ---


@pytest.fixture
def evil(tmp_path: Path) -> Page:
    codes = {"CL": EVIL, "TH": "<b>|TH"}
    items = [replace(i, culture=codes[str(i.culture)], group=EVIL + i.group) for i in ITEMS]
    results = [replace(result, spec=replace(result.spec, country=codes[result.spec.country])) for result in RESULTS]
    (tmp_path / "config.yaml").write_text(f"x: {EVIL}\n")
    (tmp_path / "environment.json").write_text(json.dumps({EVIL: EVIL}))
    changes = {"data": {"source": EVIL}, "model": {"path": EVIL}, "run": {"name": EVIL}}
    sections = {name: getattr(config(), name).model_copy(update=update) for name, update in changes.items()}
    hostile = config().model_copy(update=sections)
    return Page(write_report(tmp_path, hostile, held_out(items=items), scores(BEFORE), results))


def test_names_from_outside_are_text_and_nothing_else(evil: Page) -> None:
    assert not evil.all("script")
    assert not evil.all("img")
    assert evil.text.count("alert('x')") >= 5  # run, data, model, culture, settings
    assert not any(name.startswith("on") for _, attrs in evil.tags for name in attrs)
    check_drawings(evil)


def test_names_from_outside_mean_nothing_to_markdown(evil: Page, tmp_path: Path) -> None:
    text = (tmp_path / "scpo.md").read_text()
    assert "<" not in text.replace("p < tau", "").replace("r+ < r-", "")
    assert "](http" not in text
    assert r"&lt;b&gt;\|TH" in text
    cells = {len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|")}
    assert cells == {9, 10, 6, 4}  # of means, training, gains, countries: no name opens a cell


def test_the_page_loads_nothing_and_its_policy_allows_nothing(page: Page, evil: Page) -> None:
    for each in (page, evil):
        assert not each.all("link")
        assert not any("src" in attrs or "href" in attrs for _, attrs in each.tags)
        assert "default-src 'none'" in str(each.all("meta")[1]["content"])
    assert not re.search(r"https?:|@import|url\(", page.source)


def test_headers_have_a_scope_and_drawings_a_name(page: Page) -> None:
    assert {attrs.get("scope") for attrs in page.all("th")} == {"col", "row"}
    assert all(attrs.get("aria-label") or attrs.get("aria-hidden") for attrs in page.all("svg"))
    assert [len(page.all(tag)) for tag in ("header", "main")] == [1, 1]


@pytest.mark.parametrize(
    ("countries", "seeds", "counts"),
    [(("TH",), (0,), (None,)), (("CL", "TH"), (0, 1), (None,)), (("TH",), (0, 1, 2), (None, 4))],
)
def test_few_countries_or_seeds_are_enough(
    tmp_path: Path, countries: Sequence[str], seeds: Sequence[int], counts: Sequence[int | None]
) -> None:
    page = write(tmp_path, *crowd(countries, seeds, counts))
    check_drawings(page)
    assert ("Accuracy against data" in page.text) == (len(counts) > 1)
    assert page.text.count("no such pairs") == (2 if len(countries) == 1 else 0)  # the others', in sum and in the table
    assert "nan" not in page.text.lower().replace("nance", "")


AS_FULL = [replace(result, spec=replace(result.spec, variant="full")) for result in RESULTS]
WORSE = [variant_result(country, 0, dict.fromkeys(BEFORE, -1.0)) for country in ("CL", "TH")]
NO_MINORITY: dict[str, Any] = {"minority": frozenset(), "disagreed": frozenset()}
NOWHERE = "helps in 0 of 2 countries: nowhere does accuracy on the minority's view rise without"


@pytest.mark.parametrize(
    ("changes", "results", "there", "absent"),
    [  # one pair of the minority has no interval
        ({}, RESULTS, ["Thailand TH yes", "+50.0 n 1"], ["Accuracy against data", "left out"]),
        (NO_MINORITY, RESULTS, ["no test pair counts as a minority's view"], []),
        ({"left_out": 17}, RESULTS, ["17 training and test pairs are left out"], []),
        ({}, AS_FULL, ["full fine-tuning helps in"], ["How much a pair counts"]),
        ({}, WORSE, [NOWHERE, "Thailand TH no"], []),
    ],
    ids=["by hand", "no minority", "pairs left out", "without SCPO", "it helps nowhere"],
)
def test_the_page_says_what_there_is(
    tmp_path: Path, changes: dict[str, Any], results: list[VariantResult], there: list[str], absent: list[str]
) -> None:
    page = write(tmp_path, held_out(**changes), results=results)
    check_drawings(page)
    assert all(text in page.text for text in there)
    assert not any(text in page.text for text in absent)
    assert any(height == 390 for _, height, _ in frames(page)) == (changes != NO_MINORITY)
    assert ("helps in" in page.text.split("Where")[0]) == (changes != NO_MINORITY)
    text = (tmp_path / "scpo.md").read_text()
    assert ("| none |" in text) == (changes == NO_MINORITY)
    assert ("17 training and test pairs are left out" in text) == ("left_out" in changes)
    assert write(tmp_path, held_out(**changes), results=results).source == page.source
