"""Downstream validity (arXiv 2509.21798): do reward models that CARB ranks high select better candidates?

An item has at most eight responses, so more candidates are judged in a knock-out tournament.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pandas import DataFrame
from pydantic import Field, FiniteFloat, ValidationError
from scipy import stats

from think_as_locals.data.fields import RowModel, Text
from think_as_locals.data.load import Candidates
from think_as_locals.data.rows import faults_of, read_rows
from think_as_locals.data.splits import hash_fraction
from think_as_locals.evaluation import carb
from think_as_locals.evaluation.pages import BLUE, GREY, draw, page_style, svg
from think_as_locals.evaluation.probes import Scorer
from think_as_locals.evaluation.statistics import estimate_mean
from think_as_locals.evaluation.tables import figure, p_value
from think_as_locals.runtime.files import read_json, write_json, write_text
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.types import DataError, Item

_MIN_RMS = 3  # with fewer reward models every correlation is perfect, or undefined
_FEW_RMS = 10  # with fewer the result carries a warning


def tournament(rows: Sequence[Candidates], scorer: Scorer, group_size: int, seed: int) -> tuple[list[int], int]:
    """Return the index of the candidate that wins a knock-out tournament, for each row, and the number of unsure rows.

    In these some candidate had no score: it was too long, or the judgement could not be parsed.

    The highest score of a group reaches the next round (after a tie or parse failures the first drawn), as does one
    alone in its group. A hash of seed, id and text decides the draw, of each copy: equal candidates compete once, and
    are as likely to come first as they are many. The scorer is called once for each round.
    """
    left, unsure, stage = list[list[int]](), set[int](), 0
    for row in rows:
        lots = {
            text: min(hash_fraction(f"{row.id}:{text}{f':{copy}' * bool(copy)}", seed) for copy in range(copies))
            for text, copies in Counter(row.texts).items()
        }
        left.append([row.texts.index(text) for text in sorted(lots, key=lots.__getitem__)])
    while any(len(drawn) > 1 for drawn in left):
        stage += 1
        parts = list[tuple[int, list[int]]]()
        for number, of_row in enumerate(left):
            count = -(-len(of_row) // group_size)  # as few as possible, of nearly equal sizes
            parts += [(number, of_row[start::count]) for start in range(count)]
        left = [[] for _ in rows]
        for (number, part), scores in zip(parts, _part_scores(rows, parts, scorer, f"{stage}."), strict=True):
            left[number].append(part[scores.index(max(scores))])
            unsure.update([number] if -math.inf in scores else [])
    return [winner for (winner,) in left], len(unsure)


def selection_quality(rows: Sequence[Candidates], chosen: Sequence[int], samples: int, seed: int) -> dict[str, Any]:
    """Return the mean quality of the selected candidates, and those of a random and a perfect choice.

    Intervals are over question groups (rows with the same prompt). `headroom` is the share of the possible gain that
    was achieved; `None` if the candidates of each row are equally good.
    """
    qualities = [row.qualities or () for row in rows]
    groups = [row.question_group for row in rows]
    selected = [of_row[index] for of_row, index in zip(qualities, chosen, strict=True)]
    oracle = [max(of_row) for of_row in qualities]
    random = [best - math.fsum(best - q for q in row) / len(row) for best, row in zip(oracle, qualities, strict=True)]
    gain = [s - r for s, r in zip(selected, random, strict=True)]
    columns = {"selected": selected, "random": random, "oracle": oracle, "gain": gain}
    possible = math.fsum(best - r for best, r in zip(oracle, random, strict=True))
    return {
        **{name: estimate_mean(values, groups, samples, seed).as_dict("mean") for name, values in columns.items()},
        "headroom": math.fsum(gain) / possible if possible else None,
    }


def _part_scores(
    rows: Sequence[Candidates], parts: Sequence[tuple[int, list[int]]], scorer: Scorer, stage: str
) -> list[list[float]]:
    """Return the scores of parts of rows (by number): -inf for a parse failure, 0 for a candidate alone."""
    compared = [(rows[number], part) for number, part in parts if len(part) > 1]
    items = [
        Item(
            id=f"{row.id}#{stage}{i}",
            prompt=row.prompt,
            turns=row.turns,
            responses=tuple(row.texts[index] for index in part),
            best=0,  # unknown, and no scorer sees it
            culture=row.culture,
            language=row.language,
            domain="downstream",
            group=row.question_group,
            source="candidates",
        )
        for i, (row, part) in enumerate(compared)
    ]
    answers = iter(scorer(items) if items else ())
    return [
        [-math.inf if math.isnan(score) else score for score in next(answers)] if len(part) > 1 else [0.0]
        for _, part in parts
    ]


@dataclass(frozen=True, slots=True)
class Result:
    """A reward model's accuracy, in [0, 1], and the mean quality of what it selected, on any scale."""

    name: str
    accuracy: float
    downstream: float
    warning: str = ""  # what is doubtful about them
    benchmark: str = ""  # what it was evaluated on
    trained_on: bool = False  # some of those items


class _ResultRow(RowModel):
    name: Text
    accuracy: Annotated[FiniteFloat, Field(ge=0, le=1)]
    downstream: FiniteFloat


def read_results(path: Path) -> list[Result]:
    """Load results of reward models: an evaluation's folder, or rows of `name`, `accuracy` and `downstream`."""
    results = []
    if not path.exists():
        raise DataError(f"{path}: no such file; expected the folder of an evaluation, or rows of results")
    if not path.is_dir():
        for row in read_rows(str(path)):
            try:
                results.append(Result(**_ResultRow.model_validate(row.value).model_dump()))
            except ValidationError as error:
                faults = [row.fault] if row.fault else faults_of(error)
                raise DataError(f"{row.place}: {'; '.join(fault.detail for fault in faults)}") from error
        return results
    for file in sorted((folder := RunFolder(path)).results("selections")):
        found = read_json(file)
        if (selected := found.get("selected")) is None:
            raise DataError(f"{file}: the candidates had no qualities; add them, and evaluate again")
        summary = carb.read(folder.result("carb", file.stem))
        doubts, on = carb.warnings(file.stem, summary), carb.benchmark(summary["dataset"]).rstrip(",")
        if found.get("unsure"):
            doubts.append(f"{file.stem}: some candidates of {found['unsure']:,} of {found['n']:,} rows have no score")
        accuracy = float(summary["macro"]["accuracy"])  # which ranks reward models
        trained_on = bool(carb.trained_on_note(summary))
        results.append(Result(file.stem, accuracy, float(selected["mean"]), "; ".join(doubts), on, trained_on))
    if not results:
        raise DataError(f"{path}: no selections/NAME.json; evaluate with eval.candidates=FILE")
    return results


def write_validity(results: Sequence[Result], file: Path) -> dict[str, Any]:
    """Write `validity.json`, the file, and `validity.svg` beside it; return the content of the former."""
    found = {**validity(results), "results": [asdict(result) for result in results]}
    write_json(file, found)
    write_text(file.with_suffix(".svg"), plot(results, found))
    return found


def validity(results: Sequence[Result]) -> dict[str, Any]:
    """Return how well accuracy predicts the downstream result, over reward models.

    Pearson's p-value is by Student's t, its interval by Fisher's z. Spearman's p-value is over all permutations with
    fewer than ten reward models. `leave_one_out` is the r2 of the others, or `None` if undefined.
    """
    if len(results) < _MIN_RMS:
        needed = f"a correlation needs at least {_MIN_RMS}: evaluate more of them on CARB"
        raise DataError(f"{len(results)} reward models; {needed}")
    if repeated := sorted(name for name, times in Counter(r.name for r in results).items() if times > 1):
        raise DataError(f"several results are called {', '.join(map(repr, repeated))}; give each reward model one")
    for what in ("accuracy", "downstream"):
        if len({getattr(result, what) for result in results}) == 1:
            raise DataError(f"{what} is the same for all {len(results)} reward models: there is no correlation")
    x, y = [result.accuracy for result in results], [result.downstream for result in results]
    pearson, spearman, line = stats.pearsonr(x, y), stats.spearmanr(x, y), stats.linregress(x, y)
    n = len(results)
    doubts = [f"n = {n}: with so few reward models a correlation says little"] if n < _FEW_RMS else []
    doubts += sorted({result.warning for result in results if result.warning})
    return {
        "n": n,
        "pearson": {
            "r": float(pearson.statistic),
            "p": float(pearson.pvalue),
            "ci95": [float(end) for end in pearson.confidence_interval()],
            "r2": float(pearson.statistic**2),
        },
        "spearman": {
            "rho": float(spearman.statistic),
            "p": float(spearman.pvalue) if n >= _FEW_RMS else _rank_p(x, y),
            "ci95": _rank_interval(float(spearman.statistic), n),
        },
        "leave_one_out": {
            result.name: _r2([v for j, v in enumerate(x) if j != i], [v for j, v in enumerate(y) if j != i])
            for i, result in enumerate(results)
        },
        "line": {"slope": float(line.slope), "intercept": float(line.intercept)},
        "warning": "; ".join(doubts) or None,
    }


def tables(found: Mapping[str, Any]) -> list[DataFrame]:
    """Return the content of `validity.json` as tables of the correlations and of the reward models."""
    pearson, spearman = ({**found[kind], "n": found["n"]} for kind in ("pearson", "spearman"))
    correlations = [
        ("Pearson r", figure(pearson, "r", ".2f", 1, show_n=True), p_value(pearson["p"]), f"{pearson['r2']:.2f}"),
        ("Spearman rho", figure(spearman, "rho", ".2f", 1, show_n=True), p_value(spearman["p"]), "–"),
    ]
    rows = []
    for each in found["results"]:
        without = found["leave_one_out"][each["name"]]
        r2 = "none" if without is None else f"{without:.2f}"
        rows.append((each["name"], f"{100 * each['accuracy']:.1f}", f"{each['downstream']:.3f}", r2))
    return [
        DataFrame(correlations, columns=["correlation", "value", "p", "r2"]),
        DataFrame(rows, columns=["reward model", "accuracy, %", "best-of-N quality", "r2 of the others"]),
    ]


@page_style()
def plot(results: Sequence[Result], found: Mapping[str, Any]) -> str:
    """Return an SVG of the reward models as points, with the line of least squares, n and r2, from `validity`."""
    figure, (axes,) = draw(5.0)
    benchmarks = {result.benchmark for result in results} - {""}
    ends = [min(result.accuracy for result in results), max(result.accuracy for result in results)]
    axes.plot(
        [100 * end for end in ends], [found["line"]["intercept"] + found["line"]["slope"] * e for e in ends], "--"
    )
    for result in results:
        place = (100 * result.accuracy, result.downstream)
        axes.plot(*place, "o", color=BLUE)
        axes.annotate(f"{result.name}{' †' * result.trained_on}", place, xytext=(6, 3), textcoords="offset points")
    pearson, spearman = found["pearson"], found["spearman"]
    axes.set_title(
        f"n = {found['n']}, r² = {pearson['r2']:.3f} (p {_sign(pearson['p'])}), "
        f"ρ = {spearman['rho']:.3f} (p {_sign(spearman['p'])})",
        loc="left",
    )
    on = f" on {benchmarks.pop()}" if len(benchmarks) == 1 else ""
    axes.set(xlabel=f"accuracy{on}, %", ylabel="quality of selected responses")
    return str(svg(figure)).replace("currentColor", GREY)


def _sign(p: float) -> str:
    return p_value(p) if p < 0.001 else f"= {p_value(p)}"


def _r2(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Return r2; `None` for two points, or without variation."""
    if len(x) < _MIN_RMS or len(set(x)) == 1 or len(set(y)) == 1:
        return None
    return float(stats.pearsonr(x, y).statistic ** 2)


def _rank_p(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the exact p-value of rho over all pairings; by Student's t it would be 0 for three models in order."""
    ranks, others = stats.rankdata(x), stats.rankdata(y) - (len(y) + 1) / 2
    test = stats.permutation_test(
        (ranks,), lambda paired, axis: paired @ others, permutation_type="pairings", n_resamples=np.inf, batch=50_000
    )
    return float(test.pvalue)


def _rank_interval(rho: float, n: int) -> list[float]:
    """Return Bonett and Wright's interval (2000); a perfect order counts as halfway to the one with a swap."""
    most = 1 - 6 / (n * (n * n - 1))
    centre = math.atanh(min(most, max(-most, rho)))
    reach = stats.norm.ppf(0.975) * math.sqrt((1 + rho**2 / 2) / (n - 3)) if n > 3 else math.inf
    return [float(min(rho, math.tanh(centre - reach))), float(max(rho, math.tanh(centre + reach)))]
