"""The report of an SCPO run: figures with n and interval, hostile names, drawings within their frames."""

from __future__ import annotations

import html
import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from html_page import Page, check_tables, check_texts
from markupsafe import escape
from rich.console import Console
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
from think_as_locals.scpo.report import DIFFERENCES, VARIANT_NAMES, on_terminal, write_report
from think_as_locals.scpo.results import HeldOutSet, Scores, VariantResult
from think_as_locals.types import Item

HOSTILE_NAME = "</style><script>alert('x')</script>\"><img src=x onerror=alert(1)> | [a](http://x) *b* `c`"
COORDINATES = ("x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "width", "height")
VARIANTS = ("full", "filter", "weight", "scpo", "inverse_weight")
PARTS = {
    "minority": "minority's view",
    "overall": "all pairs of that country",
    "others": "pairs of all other countries",
}


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


def signed(value: float, scale: float = 100, digits: int = 1) -> str:
    rounded = round(scale * value, digits)
    return ("+" if rounded > 0 else "−" if rounded < 0 else "±") + f"{abs(rounded):.{digits}f}"


def span(part: dict[str, Any]) -> str:
    return "–".join(f"{100 * end:.1f}" for end in part["ci95"])


def gain(part: dict[str, Any]) -> str:
    low, high = map(signed, part["gain"]["ci95"])
    return f"{signed(part['gain']['mean'])} {low} to {high}"


# --- the file ---


def test_summary_file_records_what_was_compared(found: dict[str, Any]) -> None:
    assert (found["dataset"], found["model"], found["seed"]) == ("opinion_cards", "randomly initialised", 0)
    assert (found["filter_threshold"], found["weight_temperature"], found["reference"]) == (0.7, 1.1, "global_rm")
    assert (found["n"], found["max_loss"], found["differences"]) == (168, 0.02, [])
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


# --- the tables of the page ---


def test_page_intro_states_gains_and_costs(page: Page, found: dict[str, Any]) -> None:
    counts, row, before = found["improved"]["scpo"], mean(found, "scpo"), mean(found, "global")
    assert f"SCPO (filter and weight) helps in {counts['helped']} of 4 countries: accuracy" in page.text
    assert f"In {counts['significantly']} of these the 95 % interval of the rise excludes 0" in page.text
    for name in PARTS:
        low, high = map(signed, row[name]["gain"]["ci95"])
        assert f"{signed(row[name]['gain']['mean'])} points ({low} to {high}, n = {row[name]['n']})" in page.text
        then, now = (f"{100 * part[name]['accuracy']:.1f} ({span(part[name])})" for part in (before, row))
        assert f"from {then} to {now} % right" in page.text


def cells(page: Page, label: str) -> list[list[str]]:
    """Return the text of a table's cells, row by row."""
    (table,) = re.findall(rf'aria-label="{escape(label)}" tabindex="0">(.*?)</table>', page.source, re.DOTALL)
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in re.findall(r"<tr>(.*?)</tr>", table)]
    plain = [[html.unescape(" ".join(re.sub(r"<[^>]*>", " ", cell).split())) for cell in row] for row in rows]
    return [
        [cell for cell, source in zip(line, row, strict=True) if "<svg" not in source and "unseen" not in source]
        for line, row in zip(plain, rows, strict=True)
    ]


def percent(part: dict[str, Any], n: bool = False) -> str:
    return f"{100 * part['accuracy']:.1f} {span(part)}" + (f", n {part['n']}" if n else "")


def test_country_gains_have_n_and_interval_in_descending_order(page: Page, found: dict[str, Any]) -> None:
    rows = [r for r in found["rows"] if r["variant"] == "scpo" and r["num_pairs"] is None]
    rows.sort(key=lambda r: -r["minority"]["gain"]["mean"])
    for row, written in zip(rows, cells(page, "Gains by country")[1:], strict=True):
        helps = {"no": "no", "yes": "yes", "significantly": "yes, significantly"}[row["helps"]]
        assert written[0].endswith(row["country"])
        assert written[1:] == [helps, *(f"{gain(row[p])}, n {row[p]['n']}" for p in PARTS)]
    assert page.source.count('class="strip"') == 12


def test_variant_means_have_n_and_interval(page: Page, found: dict[str, Any]) -> None:
    sizes = [mean(found, "global")[name]["n"] for name in ("minority", "overall", "others", "disagreed")]
    assert sizes == [72, 168, 504, 56]
    for row, written in zip(found["means"], cells(page, "Means over countries")[1:], strict=True):
        expected = [VARIANT_NAMES[row["variant"]] + (f" {row['num_pairs']} pairs" if row["num_pairs"] else "")]
        for name in PARTS:
            expected += [percent(row[name], n=True), "–" if row["variant"] == "global" else gain(row[name])]
        assert written == [*expected, percent(row["disagreed"], n=True)]


@pytest.mark.parametrize(("name", "label"), PARTS.items())
def test_country_tables_show_every_variant_with_n_and_interval(
    page: Page, found: dict[str, Any], name: str, label: str
) -> None:
    written = {line[0].split(" ")[-3].strip(","): line for line in cells(page, f"{label} by country")[1:]}
    for country in ("EG", "TH"):
        rows = [r for r in found["rows"] if r["country"] == country and r["num_pairs"] is None]
        expected = [percent(r[name]) + ("" if r["variant"] == "global" else f" {gain(r[name])}") for r in rows]
        assert written[country][0].endswith(f"{country}, n {rows[0][name]['n']}")
        assert written[country][1:] == expected


def test_training_table_shows_pairs_steps_and_seed_spread(page: Page, found: dict[str, Any]) -> None:
    row = mean(found, "scpo")
    counts, seeds = found["improved"]["scpo"], row["seeds"]
    (written,) = (line for line in cells(page, "Training") if line[0] == VARIANT_NAMES["scpo"])
    helps = [f"{counts[key]} of 4" for key in ("helped", "significantly", "over_biased")]
    spread = [f"{100 * seeds['minority']:.1f}", f"{100 * seeds['overall']:.1f}"]
    assert written[1:] == [*helps, "900", "33.3 %", "6", "2", *spread]
    assert f"{sum(row['training']['weights']):,} training pairs, over countries and seeds" in page.text


def test_gain_is_bold_if_its_interval_excludes_zero(tmp_path: Path) -> None:
    known, before, results = make_run(("CL", "TH"), (0,), (None,))
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
    """Every point that a shape reaches is finite and within its frame, tables scroll, and no text lies on another."""
    check_tables(page.source)
    check_texts(page.source)
    for width, height, shapes in frames(page):
        for tag, attrs in shapes:
            at = {name: float(str(value)) for name, value in attrs.items() if name in COORDINATES and value}
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


def test_drawings_stay_within_their_frames(page: Page) -> None:
    assert len(frames(page)) == 12 + 1 + 1 + 2  # three of each country, the plane, the pairs, two histograms
    check_drawings(page)


def test_scatter_plot_places_each_variant_at_its_accuracies(page: Page, found: dict[str, Any]) -> None:
    (_, _, shapes) = next(frame for frame in frames(page) if frame[1] == 394)
    rows = sorted((r for r in found["means"] if r["num_pairs"] is None), key=lambda r: -r["minority"]["accuracy"])
    scales = {}
    for name, start, end in (("overall", 80, 480), ("minority", 330, 20)):
        ends = [r[name]["ci95"] for r in rows]
        scales[name] = axis(min(low for low, _ in ends), max(high for _, high in ends), start, end)
    dots = [(float(str(attrs["cx"])), float(str(attrs["cy"]))) for tag, attrs in shapes if tag == "circle"]
    assert dots == [tuple(scale.at(r[name]["accuracy"]) for name, scale in scales.items()) for r in rows]
    assert len(dots) == 6


# --- hostile names, and little to show ---


@pytest.fixture
def hostile_page(tmp_path: Path) -> Page:
    codes = {"CL": HOSTILE_NAME, "TH": "<b>|TH"}
    items = [replace(i, culture=codes[str(i.culture)], group=HOSTILE_NAME + i.group) for i in ITEMS]
    results = [replace(result, spec=replace(result.spec, country=codes[result.spec.country])) for result in RESULTS]
    (tmp_path / "config.yaml").write_text(f"x: {HOSTILE_NAME}\n")
    (tmp_path / "environment.json").write_text(json.dumps({HOSTILE_NAME: HOSTILE_NAME}))
    changes = {"data": {"source": HOSTILE_NAME}, "model": {"path": HOSTILE_NAME}, "run": {"name": HOSTILE_NAME}}
    sections = {name: getattr(config(), name).model_copy(update=update) for name, update in changes.items()}
    hostile = config().model_copy(update=sections)
    return Page(write_report(tmp_path, hostile, held_out(items=items), scores(BEFORE), results))


def test_hostile_names_are_escaped_in_html(hostile_page: Page) -> None:
    assert not hostile_page.all("script")
    assert not hostile_page.all("img")
    assert hostile_page.text.count("alert('x')") >= 5  # run, data, model, culture, settings
    assert not any(name.startswith("on") for _, attrs in hostile_page.tags for name in attrs)
    check_drawings(hostile_page)


def test_hostile_names_are_escaped_in_markdown(hostile_page: Page, tmp_path: Path) -> None:
    text = (tmp_path / "scpo.md").read_text()
    assert "<" not in text.replace("p < tau", "").replace("r+ < r-", "")
    assert "](http" not in text
    assert r"&lt;b&gt;\|TH" in text
    cells = {len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|")}
    assert cells == {9, 11, 6, 4}  # of means, training, gains, countries: no name opens a cell


def test_page_loads_no_resources_and_its_csp_forbids_them(page: Page, hostile_page: Page) -> None:
    for each in (page, hostile_page):
        assert not each.all("link")
        assert not any("src" in attrs or "href" in attrs for _, attrs in each.tags)
        assert "default-src 'none'" in str(each.all("meta")[1]["content"])
    assert not re.search(r"https?:|@import|url\(", page.source)


def test_table_headers_have_a_scope_and_drawings_a_label(page: Page) -> None:
    assert {attrs.get("scope") for attrs in page.all("th")} == {"col", "row"}
    assert all(attrs.get("aria-label") or attrs.get("aria-hidden") for attrs in page.all("svg"))
    assert [len(page.all(tag)) for tag in ("header", "main")] == [1, 1]


@pytest.mark.parametrize(
    ("countries", "seeds", "counts"),
    [(("TH",), (0,), (None,)), (("CL", "TH"), (0, 1), (None,)), (("TH",), (0, 1, 2), (None, 4))],
)
def test_report_works_with_few_countries_or_seeds(
    tmp_path: Path, countries: Sequence[str], seeds: Sequence[int], counts: Sequence[int | None]
) -> None:
    page = write(tmp_path, *make_run(countries, seeds, counts))
    check_drawings(page)
    assert ("Accuracy by amount of data" in page.text) == (len(counts) > 1)
    assert page.text.count("no such pairs") == (2 if len(countries) == 1 else 0)  # the others', in sum and in the table
    assert "nan" not in page.text.lower().replace("nance", "")


AS_FULL = [replace(result, spec=replace(result.spec, variant="full")) for result in RESULTS]
WORSE = [variant_result(country, 0, dict.fromkeys(BEFORE, -1.0)) for country in ("CL", "TH")]
NO_MINORITY: dict[str, Any] = {"minority": frozenset(), "disagreed": frozenset()}
NOWHERE = "helps in 0 of 2 countries: in no country does accuracy on the minority's view rise while"


@pytest.mark.parametrize(
    ("changes", "results", "there", "absent"),
    [  # one pair of the minority has no interval
        ({}, RESULTS, ["Thailand TH yes", "+50.0 n 1"], ["Accuracy by amount of data", "left out"]),
        (NO_MINORITY, RESULTS, ["no test pair counts as a minority's view"], []),
        ({"left_out": 17}, RESULTS, ["17 training and test pairs are left out"], []),
        ({}, AS_FULL, ["Full fine-tuning helps in"], ["The weight of a pair in training"]),
        ({}, WORSE, [NOWHERE, "Thailand TH no"], []),
    ],
    ids=["by hand", "no minority", "pairs left out", "without SCPO", "it helps nowhere"],
)
def test_page_shows_only_sections_with_data(
    tmp_path: Path, changes: dict[str, Any], results: list[VariantResult], there: list[str], absent: list[str]
) -> None:
    page = write(tmp_path, held_out(**changes), results=results)
    check_drawings(page)
    assert all(text in page.text for text in there)
    assert not any(text in page.text for text in absent)
    assert any(height == 394 for _, height, _ in frames(page)) == (changes != NO_MINORITY)
    assert ("helps in" in page.text.split("Where")[0]) == (changes != NO_MINORITY)
    text = (tmp_path / "scpo.md").read_text()
    assert ("| none |" in text) == (changes == NO_MINORITY)
    assert ("17 training and test pairs are left out" in text) == ("left_out" in changes)
    assert write(tmp_path, held_out(**changes), results=results).source == page.source


def test_country_without_minority_pairs_is_listed_last(tmp_path: Path) -> None:
    page = write(tmp_path, held_out(minority=frozenset({"c2"})))
    chile, thailand = cells(page, "Gains by country")[1:]
    assert chile[:2] == ["Chile CL", "yes"]
    assert thailand[0] == "Thailand TH"
    assert "no such pairs" in thailand
    assert any(cell.startswith("+25.0") for cell in thailand)


def test_survey_distances_have_n_and_interval(tmp_path: Path) -> None:
    results = [
        variant_result(country, seed, by, scores=scores(by, answers(float(seed), 1.0)))
        for (country, seed), by in STEERED.items()
    ]
    page = write(tmp_path, held_out(questions=QUESTIONS), scores(BEFORE, answers(0, 0)), results)
    summary = summary_of(tmp_path)
    row, others = mean(summary, "scpo")["distance"], summary["others_distance"]
    low, high = (signed(end, 1, 3) for end in row["gain"]["ci95"])
    assert f"{signed(row['gain']['mean'], 1, 3)} ({low} to {high}, n = 4)" in page.text
    assert f"lies at {others['mean']:.3f} {others['ci95'][0]:.3f}–{others['ci95'][1]:.3f} , n = 4" in page.text
    assert cells(page, "Means over countries")[0][-2:] == ["distance", "change"]
    ends = [f"{end:.3f}" for end in row["ci95"]]
    assert f"{row['mean']:.3f} {ends[0]}–{ends[1]} , n 4" in page.text.replace(", n 4", " , n 4")
    text = (tmp_path / "scpo.md").read_text()
    for written in (page.text, text):
        assert "95 % intervals over questions of the survey" in written
        assert "people" not in written.partition("Settings of the run")[0]
    assert f"| {row['mean']:.3f} [{ends[0]}, {ends[1]}], n 4 |" in text
    assert f"Distance of the mean of all other countries: {others['mean']:.3f} [" in text


# --- the tables as text ---


def test_markdown_has_tables_of_means_and_of_countries(folder: Path, found: dict[str, Any]) -> None:
    text = (folder / "scpo.md").read_text()
    assert "n = 168 test pairs of 4 countries" in text
    part = mean(found, "scpo")["minority"]
    low, high = (100 * end for end in part["ci95"])
    cell = f"{100 * part['accuracy']:.1f} [{low:.1f}, {high:.1f}], n {part['n']}"
    assert f"| {cell} |" in text
    counts = found["improved"]["scpo"]
    rises = "SCPO (filter and weight): minority accuracy rises and overall accuracy falls by 2 points at most in"
    assert f"{rises} {counts['helped']} of 4 countries" in text
    assert sum(line.startswith(r"| Thailand \(TH") for line in text.splitlines()) == 4


# --- in the terminal ---


MEANS = """\
SCPO on opinion_cards: 5 test pairs
┏━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━━━━━━━┓
┃ variant              ┃       minority's view ┃                  gain ┃
┡━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━━━━━━┩
│ global RM            │ 12.5 [0.4, 84.5], n 3 │                       │
│ SCPO (filter and     │ 50.0 [3.6, 96.4], n 3 │ +37.5 [-28.4, +100.0] │
│ weight)              │                       │                       │
└──────────────────────┴───────────────────────┴───────────────────────┘
┏━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━━━━━━┓
┃ variant              ┃              all pairs ┃                 gain ┃
┡━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━━━━━┩
│ global RM            │  50.0 [5.5, 94.5], n 5 │                      │
│ SCPO (filter and     │ 70.8 [21.3, 95.6], n 5 │ +20.8 [-34.2, +75.9] │
│ weight)              │                        │                      │
└──────────────────────┴────────────────────────┴──────────────────────┘
┏━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━━━━━━━━┓
┃ variant              ┃                others ┃                   gain ┃
┡━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━━━━━━━┩
│ global RM            │ 50.0 [5.5, 94.5], n 5 │                        │
│ SCPO (filter and     │ 33.3 [4.0, 85.8], n 5 │ -16.7 [-100.0, +100.0] │
│ weight)              │                       │                        │
└──────────────────────┴───────────────────────┴────────────────────────┘
┏━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━━━━━━━┓
┃ variant              ┃             disagreed ┃
┡━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━━━━━━┩
│ global RM            │  0.0 [0.0, 98.8], n 2 │
│ SCPO (filter and     │ 50.0 [0.3, 99.7], n 2 │
│ weight)              │                       │
└──────────────────────┴───────────────────────┘
"""
TRAINING = """\
┏━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━┳━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━┳━━━━━━━━━┓
┃                      ┃        ┃               ┃             ┃   pairs ┃
┃                      ┃  helps ┃               ┃             ┃    of a ┃
┃ variant              ┃     in ┃ significantly ┃ over-biased ┃ country ┃
┡━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━╇━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━╇━━━━━━━━━┩
│ SCPO (filter and     │ 2 of 2 │        0 of 2 │      0 of 2 │      10 │
│ weight)              │        │               │             │         │
└──────────────────────┴────────┴───────────────┴─────────────┴─────────┘
┏━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━┳━━━━━━━┳━━━━━━━┳━━━━━━━━━━┳━━━━━━━━━┓
┃                      ┃        ┃       ┃       ┃          ┃ spread: ┃
┃                      ┃        ┃       ┃       ┃  spread: ┃     all ┃
┃ variant              ┃   kept ┃ steps ┃ seeds ┃ minority ┃   pairs ┃
┡━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━╇━━━━━━━╇━━━━━━━╇━━━━━━━━━━╇━━━━━━━━━┩
│ SCPO (filter and     │ 40.0 % │     6 │     2 │     35.4 │    17.7 │
│ weight)              │        │       │       │          │         │
└──────────────────────┴────────┴───────┴───────┴──────────┴─────────┘
"""


def test_terminal_tables_fit_into_80_columns(tmp_path: Path) -> None:
    write_report(tmp_path, config(), held_out(), scores(BEFORE), RESULTS)
    console = Console(record=True, width=80)
    console.print(*on_terminal(tmp_path))
    text = console.export_text()
    assert text.startswith(MEANS)
    assert text.endswith(TRAINING)
