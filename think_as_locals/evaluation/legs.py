"""One training of an SCPO run as files: what it learnt from, and what it scores every test response."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from think_as_locals.evaluation.judged import read_json, read_rows
from think_as_locals.evaluation.response_scores import Scores
from think_as_locals.files import parquet, write_bytes, write_json
from think_as_locals.scpo_schema import ScpoConfig, Variant
from think_as_locals.types import DataError

RECORD, SCORES = "leg.json", "scores.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A training to be done: a country, a variant, a seed.

    Args:
        country: ISO 3166 code.
        variant: What is learnt from, and how much each pair counts.
        seed: Of the order of pairs, and of dropout.
        num_pairs: How many of the country's pairs it is given; `None` for all.
    """

    country: str
    variant: Variant
    seed: int
    num_pairs: int | None = None

    @property
    def name(self) -> str:
        """For folders and records, e.g. `TH/scpo-seed-0`."""
        given = "" if self.num_pairs is None else f"-{self.num_pairs}"
        return f"{self.country}/{self.variant}{given}-seed-{self.seed}"


def plans(config: ScpoConfig, countries: Sequence[str]) -> list[Plan]:
    """Every training of a run: variants and seeds of each country, then those on fewer pairs."""
    scpo = config.scpo
    every = [Plan(country=c, variant=v, seed=s) for c, v, s in product(countries, scpo.variants, scpo.seeds)]
    compared = [variant for variant in scpo.variants if variant in ("full", "scpo")]
    fewer = product(countries, compared, scpo.pair_counts, scpo.seeds)
    return every + [Plan(country=c, variant=v, num_pairs=n, seed=s) for c, v, n, s in fewer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """A training that was done.

    Args:
        plan: Which one.
        available: Pairs that it was given.
        kept: Pairs that it learnt from.
        steps: Optimizer steps.
        weights: How many of these have a weight in each tenth from 0 to 1; what is above 1 counts with the last.
        scores: Of every test response.
    """

    plan: Plan
    available: int
    kept: int
    steps: int
    weights: tuple[int, ...]
    scores: Scores


def write_leg(folder: Path, leg: Leg) -> None:
    """Write its files; where `leg.json` is, it is done."""
    record: dict[str, Any] = asdict(leg)
    rows = [{"response": key, "score": score} for key, score in record.pop("scores").items()]
    write_bytes(folder / SCORES, parquet(rows))
    write_json(folder / RECORD, record)


def read_leg(folder: Path) -> Leg | None:
    """What `write_leg` wrote; `None` where it is not done.

    Raises:
        DataError: a file is damaged; the message names it.
    """
    if not (folder / RECORD).is_file():
        return None
    try:
        record = read_json(folder / RECORD)
        scores = {row["response"]: row["score"] for row in read_rows(folder / SCORES)}
        plan, weights = Plan(**record.pop("plan")), tuple(record.pop("weights"))
        return Leg(plan=plan, weights=weights, scores=scores, **record)
    except (DataError, KeyError, TypeError) as error:
        raise DataError(f"{folder}: damaged ({error}): remove this folder, and its training is done again") from error
