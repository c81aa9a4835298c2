"""Downstream validity: whether reward models that CARB ranks high select better responses.

The paper (arXiv 2509.21798) correlates the CARB accuracy of 17 reward models with what each selects, Best-of-16, on
BLEnD and OMGEval. scipy computes everything here.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from think_as_locals.data.defects import Defect
from think_as_locals.data.fields import Fields
from think_as_locals.data.rows import read_rows
from think_as_locals.evaluation import carb
from think_as_locals.evaluation.judged import read_json
from think_as_locals.evaluation.pages import axis, templates
from think_as_locals.files import write_json, write_text
from think_as_locals.types import DataError

FEWEST = 3
"""Of fewer reward models every correlation is perfect, or none."""

FEW = 10
"""With fewer the result says so itself."""

SAMPLES = 2000
"""Resamples of reward models."""

FIELDS = ("name", "accuracy", "downstream")

_NOT_XML = re.compile(r"[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What no XML may hold, however it is escaped: with one control character in a name the picture would not open."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a reward model scored.

    Args:
        name: Of the reward model.
        accuracy: On CARB, in [0, 1].
        downstream: Of what it selected; on any scale.
    """

    name: str
    accuracy: float
    downstream: float


def read_results(path: Path) -> list[Result]:
    """Results of reward models: of an evaluation's folder, or rows of `name`, `accuracy` and `downstream`.

    Raises:
        DataError: the first bad row, as `file:row: what is wrong`; an evaluation that measured no quality of choices.
    """
    if path.is_dir():
        return _of_evaluation(path)
    results = []
    for row in read_rows(str(path)):
        fields = Fields(row, FIELDS)
        name = fields.text("name")
        accuracy, downstream = fields.number("accuracy"), fields.number("downstream")
        if accuracy is not None and not 0 <= accuracy <= 1:
            fields.add(Defect.WRONG_TYPE, f"accuracy must be a share in [0, 1], got {accuracy:g}")
        if fields.faults or accuracy is None or downstream is None:
            raise DataError(f"{row.place}: {'; '.join(fault.detail for fault in fields.faults)}")
        results.append(Result(name, accuracy, downstream))
    return results


def _of_evaluation(run: Path) -> list[Result]:
    """Macro accuracy, which is what ranks them, and the mean quality of what was selected, of each reward model."""
    results = []
    for file in sorted((run / "selections").glob("*.json")):
        selected = read_json(file).get("selected")
        if selected is None:
            raise DataError(f"{file}: the candidates had no qualities; add them, and evaluate again")
        macro = carb.read(run / "carb" / file.name)["macro"]
        results.append(Result(file.stem, float(macro["accuracy"]), float(selected["mean"])))
    if not results:
        raise DataError(f"{run}: no selections/NAME.json; evaluate with eval.candidates=FILE")
    return results


def write_validity(results: Sequence[Result], folder: Path) -> Path:
    """Write `validity.json` and `validity.svg`; the picture's path.

    Raises:
        DataError: from `validity`.
    """
    found = validity(results, SAMPLES, 0)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "validity.json", {**found, "results": [asdict(result) for result in results]})
    picture = folder / "validity.svg"
    write_text(picture, plot(results, found, "what is selected"))
    return picture


def validity(results: Sequence[Result], samples: int, seed: int) -> dict[str, Any]:
    """How well CARB accuracy foretells the downstream result, over reward models.

    Args:
        results: One for each reward model.
        samples: Bootstrap resamples of reward models, for Spearman's interval.
        seed: Of the resampling.

    Returns:
        `n`; `pearson`: `r`, `p` (two-sided, Student's t), `ci95` of r (Fisher's z), `r2`; `spearman`: `rho`, `p`
        (two-sided, Student's t; of fewer than ten by all their orders), `ci95` (percentiles of a bootstrap);
        `leave_one_out`: name -> r2 of the others, `None` where that is not defined; `line`: `slope` and `intercept` of
        least squares; `warning`, `None` from ten reward models on.

    Raises:
        DataError: fewer than three reward models, one named twice, or nothing varies.

    Example:
        >>> found = validity([Result("a", 0.2, 1.0), Result("b", 0.4, 2.0), Result("c", 0.5, 2.4)], samples=50, seed=0)
        >>> round(found["pearson"]["r2"], 3)
        0.997
    """
    _check(results)
    x, y = [result.accuracy for result in results], [result.downstream for result in results]
    pearson, line = stats.pearsonr(x, y), stats.linregress(x, y)
    spearman = stats.spearmanr(x, y)
    n = len(results)
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
            "p": float(spearman.pvalue) if n >= FEW else _rank_p(x, y),
            "ci95": _rank_interval(x, y, samples, seed),
        },
        "leave_one_out": {
            result.name: _r2([v for j, v in enumerate(x) if j != i], [v for j, v in enumerate(y) if j != i])
            for i, result in enumerate(results)
        },
        "line": {"slope": float(line.slope), "intercept": float(line.intercept)},
        "warning": None if n >= FEW else f"n = {n}: of so few reward models a correlation says little",
    }


def plot(results: Sequence[Result], found: dict[str, Any], downstream: str) -> str:
    """The reward models as points, with the line of least squares, n and r2: an SVG to stand alone or in a page.

    Args:
        results: One for each reward model.
        found: What `validity` made of them.
        downstream: What the downstream result is called.
    """
    x, y = [result.accuracy for result in results], [result.downstream for result in results]
    drawn = (
        templates()
        .get_template("validity.svg.jinja")
        .render(
            results=results,
            found=found,
            downstream=downstream,
            x=axis(min(x), max(x), 70, 600),
            y=axis(min(y), max(y), 350, 40),
            ends=(min(x), max(x)),
        )
    )
    return _NOT_XML.sub("\ufffd", drawn)


def _check(results: Sequence[Result]) -> None:
    if len(results) < FEWEST:
        raise DataError(
            f"{len(results)} reward models; a correlation needs at least {FEWEST}: evaluate more of them on CARB"
        )
    names = [result.name for result in results]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"several results are called {', '.join(map(repr, repeated))}; give each reward model one")
    for what in ("accuracy", "downstream"):
        if len({getattr(result, what) for result in results}) == 1:
            raise DataError(f"{what} is the same for all {len(results)} reward models: there is no correlation")


def _r2(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Of two points, or where nothing varies, there is none."""
    if len(x) < FEWEST or len(set(x)) == 1 or len(set(y)) == 1:
        return None
    return float(stats.pearsonr(x, y).statistic ** 2)


def _rank_p(x: Sequence[float], y: Sequence[float]) -> float:
    """Exact, over all pairings: by Student's t even three reward models in the same order would have p = 0."""
    ranks, others = stats.rankdata(x), stats.rankdata(y)

    def agreement(paired: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
        return np.asarray(np.moveaxis(paired, axis, -1) @ (others - others.mean()))

    return float(
        stats.permutation_test(
            (ranks,), agreement, permutation_type="pairings", n_resamples=np.inf, batch=50_000
        ).pvalue
    )


def _rank_interval(x: Sequence[float], y: Sequence[float], samples: int, seed: int) -> list[float]:
    def rho(a: Sequence[float], b: Sequence[float]) -> float:
        return float(stats.spearmanr(a, b).statistic)

    with warnings.catch_warnings():
        # A resample that holds one reward model alone has no correlation; it is left out.
        warnings.simplefilter("ignore", stats.ConstantInputWarning)
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        drawn = stats.bootstrap(
            (x, y), rho, paired=True, vectorized=False, n_resamples=samples, method="percentile", rng=seed
        ).bootstrap_distribution
    return [float(end) for end in np.nanquantile(drawn, [0.025, 0.975])]
