"""The results of an SCPO run: scores of responses, the record of each training, accuracies by country and variant.

Accuracies are means over training seeds, pair by pair, with intervals over people (`Item.group`), who are resampled
whole; the spread over seeds is reported separately.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from accelerate import PartialState
from accelerate.utils import gather_object
from scipy.spatial.distance import jensenshannon
from scipy.special import softmax

from think_as_locals.config.scpo_schema import ScpoConfig, Variant
from think_as_locals.data.sources.globalopinionqa import OpinionQuestion, is_answer, others_mean
from think_as_locals.evaluation.journal import by_response, content_key, query_with_journal
from think_as_locals.evaluation.statistics import accuracy, difference, estimate_mean
from think_as_locals.reward_models.reward_model import Request
from think_as_locals.reward_models.scalar import ScalarRM
from think_as_locals.runtime.files import parquet, parquet_batches, read_json, write_bytes, write_json
from think_as_locals.runtime.run_folder import StageFolder
from think_as_locals.types import DataError, Item

Scores = dict[str, float]
"""`journal.content_key` of a prompt and a response -> the score of the response."""


def pair_keys(item: Item) -> tuple[str, str]:
    """Return the keys in `Scores` of a pair's chosen and rejected response."""
    best, other = item.responses[item.best], item.responses[1 - item.best]
    asked = item.turns or item.prompt
    return content_key(asked, best), content_key(asked, other)


def response_requests(items: Sequence[Item], questions: Sequence[OpinionQuestion] = ()) -> list[Request]:
    """Return a request for each distinct response and each answer to a question, whatever the order of the items."""
    requests = [Request(item, (i,)) for item in items for i in range(len(item.responses))]
    for question in questions:
        answers = [question.options[i] for i in _answer_indices(question)]
        # An item has two responses; only the first is scored.
        pairs = (question.item(str(i), (answer, answers[i - 1]), None) for i, answer in enumerate(answers))
        requests += [Request(pair, (0,)) for pair in pairs]
    by_key = {by_response(request): request for request in sorted(requests, key=lambda r: (r.item.id, r.order))}
    return [by_key[key] for key in sorted(by_key)]


def fitting_requests(rm: ScalarRM, requests: Sequence[Request]) -> list[Request]:
    """Return the requests that are not too long for a reward model."""
    rows = rm.rows(requests) if requests else []  # a rank may have none
    return [request for request, row in zip(requests, rows, strict=True) if len(row["input_ids"]) <= rm.max_length]


def score_responses(
    rm: ScalarRM, requests: Sequence[Request], folder: Path, advance: Callable[[int, int], None]
) -> Scores:
    """Score the requests that are not too long; all ranks call this with the same requests and get all scores."""
    state = PartialState()
    mine = fitting_requests(rm, requests[state.process_index :: state.num_processes])
    path = folder / f"rank-{state.process_index}.jsonl"
    if rm.model.training:  # with dropout, a resumed run would score the rest with other random draws
        path.unlink(missing_ok=True)
    answers = query_with_journal(rm, path, rm.identity, mine, advance, key=by_response)
    scored = [(by_response(request), float(answer["score"])) for request, answer in zip(mine, answers, strict=True)]
    return dict(gather_object(scored))


# The distance of a reward model's opinion from a country's, as in GlobalOpinionQA (arXiv 2306.16388).


def _answer_indices(question: OpinionQuestion) -> list[int]:
    """Return the indices of the options that are answers; none if there are fewer than two."""
    indices = [i for i, option in enumerate(question.options) if is_answer(option)]
    return indices if len(indices) > 1 else []


def opinion_distances(questions: Sequence[OpinionQuestion], country: str, scores: Scores | None) -> dict[int, float]:
    """Return by index of a question the distance of the softmax of its scores from a country's answers.

    Without scores it is the distance of the mean of all other countries. Shares are scaled to sum to 1 (ours). Options
    that are not answers are left out, as are questions that were not asked in the country, have fewer than two answers,
    or an answer without a score.
    """
    distances = {}
    for index, question in enumerate(questions):
        indices = _answer_indices(question)
        if country not in question.shares or not indices:
            continue
        predicted: Sequence[float] | None
        if scores is None:
            others = others_mean(question, country)
            predicted = [others[i] for i in indices] if others else None
        else:
            values = [scores.get(content_key(question.question, question.options[i])) for i in indices]
            predicted = None if None in values else softmax(np.array(values, float)).tolist()
        shares = [question.shares[country][i] for i in indices]
        if predicted and sum(shares) and sum(predicted):
            distances[index] = js_distance(shares, predicted)
    return distances


def js_distance(p: Sequence[float], q: Sequence[float]) -> float:
    """Return the Jensen-Shannon distance, 0 if equal and 1 if disjoint: its base is 2 (ours: the paper names none)."""
    columns = [np.asarray(shares, dtype=np.float64) for shares in (p, q)]
    valid = [column.size and np.isfinite(column).all() and (column >= 0).all() and column.any() for column in columns]
    if len(p) != len(q) or not all(valid):
        raise DataError(f"expected shares of the same options, none negative and not all 0, got {p!r} and {q!r}")
    with np.errstate(invalid="ignore"):
        distance = float(jensenshannon(*columns, base=2))
    return 0.0 if np.isnan(distance) else min(distance, 1.0)  # rounding may put the divergence of equals below 0


GLOBAL = "global"  # the global reward model among the variants
MAX_ACCURACY_DROP = 0.02  # how much overall accuracy may fall for a variant to count as helping


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantSpec:
    country: str  # ISO 3166 code
    variant: Variant  # which pairs are trained on, and with which weights
    seed: int  # of the order of pairs, and of dropout
    num_pairs: int | None = None  # how many of the country's pairs are available to it; None: all

    @property
    def name(self) -> str:
        """For folders and records, e.g. `TH/scpo-seed-0`."""
        count = "" if self.num_pairs is None else f"-{self.num_pairs}"
        country = quote(self.country, safe="").replace(".", "%2E")  # a free name may hold a path
        return f"{country}/{self.variant}{count}-seed-{self.seed}"


def variant_specs(config: ScpoConfig, countries: Sequence[str]) -> list[VariantSpec]:
    """Return every training of a run: variants and seeds of each country, then those on fewer pairs."""
    scpo = config.scpo
    specs = [VariantSpec(country=c, variant=v, seed=s) for c, v, s in product(countries, scpo.variants, scpo.seeds)]
    compared = [variant for variant in scpo.variants if variant in ("full", "scpo")]
    fewer = product(countries, compared, scpo.pair_counts, scpo.seeds)
    return specs + [VariantSpec(country=c, variant=v, num_pairs=n, seed=s) for c, v, n, s in fewer]


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantResult:
    spec: VariantSpec
    available: int  # pairs available to it
    kept: int  # pairs that it was trained on
    steps: int  # optimizer steps
    mean_weight: float  # of the kept pairs; 0 without any
    scores: Scores  # of every test response


def write_result(folder: Path, result: VariantResult) -> None:
    """Write the files of a training, last its record: if it exists, the training is done."""
    record = asdict(result)
    rows = [{"response": key, "score": score} for key, score in record.pop("scores").items()]
    files = StageFolder(folder)
    write_bytes(files.record_scores, parquet(rows))
    write_json(files.record, record)


def read_result(folder: Path) -> VariantResult | None:
    """Read what `write_result` wrote; `None` if the training is not done."""
    files = StageFolder(folder)
    if not files.record.is_file():
        return None
    record = read_json(files.record)
    rows = (row for batch in parquet_batches(files.record_scores) for row in batch.to_pylist())
    scores = {row["response"]: row["score"] for row in rows}
    return VariantResult(spec=VariantSpec(**record.pop("spec")), scores=scores, **record)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutSet:
    items: Sequence[Item]  # pairs of all countries
    minority: frozenset[str]  # ids of those that count as a minority's view, by the run's definition
    disagreed: frozenset[str]  # ids of those with r+ < r-
    questions: Sequence[OpinionQuestion]  # of a survey
    left_out: int  # training and test pairs that were too long, or whose question no other country was asked
    tie: float  # what two equal scores count
    samples: int  # of the bootstrap over people, for the intervals
    seed: int  # of the bootstrap
    faulty: int = 0  # rows of the data with a fault, which gave no pair


def summarise(held_out: HeldOutSet, global_scores: Scores, results: Sequence[VariantResult]) -> dict[str, Any]:
    """Return `rows` (a country, variant and number of pairs each), their `means`, and what `improved`."""
    evaluator = _Evaluator(held_out, global_scores, results)
    countries = sorted({str(item.culture) for item in held_out.items})
    settings = [(GLOBAL, None), *dict.fromkeys((result.spec.variant, result.spec.num_pairs) for result in results)]
    rows = [
        evaluator.figures(variant, num_pairs, [country]) | {"country": country}
        for country in countries
        for variant, num_pairs in settings
    ]
    improved: dict[str, dict[str, int]] = {}
    for row in rows:
        row["helps"], row["over_biased"] = helps, over_biased = _effect(row)
        if helps is not None and row["num_pairs"] is None:
            names = ("countries", "helped", "significantly", "over_biased", "surely_over_biased")
            counts = improved.setdefault(row["variant"], dict.fromkeys(names, 0))
            counts["countries"] += 1
            counts["helped"] += helps != "no"
            counts["significantly"] += helps == "significantly"
            counts["over_biased"] += over_biased != "no"
            counts["surely_over_biased"] += over_biased == "surely"
    others = {country: opinion_distances(held_out.questions, country, None) for country in countries}
    return {
        "rows": rows,
        "means": [evaluator.figures(variant, num_pairs, countries) for variant, num_pairs in settings],
        "improved": improved,
        "others_distance": evaluator.mean_distance(others, lowest=0.0),
    }


def _effect(row: dict[str, Any]) -> tuple[str | None, str | None]:
    """Return whether a variant helps and whether it is over-biased, where minority accuracy rises.

    It helps if overall accuracy falls by at most `MAX_ACCURACY_DROP`, `significantly` if the interval of the rise
    excludes 0; it is over-biased if overall accuracy falls, `surely` if that interval excludes 0.
    """
    if row["variant"] == GLOBAL or not row["minority"]["n"]:
        return None, None
    minority, overall = row["minority"]["gain"], row["overall"]["gain"]
    if minority["mean"] <= 0:
        return "no", "no"
    helps = "significantly" if minority["ci95"] and minority["ci95"][0] > 0 else "yes"
    over_biased = "surely" if overall["ci95"] and overall["ci95"][1] < 0 else "yes"
    return helps if overall["mean"] >= -MAX_ACCURACY_DROP else "no", over_biased if overall["mean"] < 0 else "no"


Credits = Mapping[str, float]
"""Id of a test pair -> 1 if the chosen response scores higher, `HeldOutSet.tie` for equal scores, else 0."""


class _Evaluator:
    def __init__(self, held_out: HeldOutSet, global_scores: Scores, results: Sequence[VariantResult]) -> None:
        self._held_out = held_out
        self._keys = {item.id: pair_keys(item) for item in held_out.items}
        self._global_scores = global_scores
        self._global_credits = self._credits(global_scores)
        self._by_setting: dict[tuple[str, str, int | None], list[tuple[VariantResult, Credits]]] = defaultdict(list)
        for result in results:
            setting = result.spec.country, result.spec.variant, result.spec.num_pairs
            self._by_setting[setting].append((result, self._credits(result.scores)))

    def _credits(self, scores: Scores) -> Credits:
        margins = {name: scores[chosen] - scores[rejected] for name, (chosen, rejected) in self._keys.items()}
        return {name: float(margin > 0) if margin else self._held_out.tie for name, margin in margins.items()}

    def figures(self, variant: str, num_pairs: int | None, countries: Sequence[str]) -> dict[str, Any]:
        """Return figures of one or several countries with equal weights, and gains over the global RM.

        `others` are all other countries' pairs; its `n` counts a pair once for each country whose model judges it.
        """
        items, minority, disagreed = self._held_out.items, self._held_out.minority, self._held_out.disagreed
        by_country = {country: self._by_setting[country, variant, num_pairs] for country in countries}
        after: dict[str, Credits] = {}  # means over seeds; of the global RM, which has no training, its own
        for country, found in by_country.items():
            seeds = [correct for _, correct in found] or [self._global_credits]
            after[country] = {name: statistics.fmean(correct[name] for correct in seeds) for name in self._keys}
        own = [(item, after[str(item.culture)]) for item in items if str(item.culture) in after]
        others = [(item, correct) for c, correct in after.items() for item in items if str(item.culture) != c]
        return {
            "variant": variant,
            "num_pairs": num_pairs,
            "overall": self._accuracy(own),
            "minority": self._accuracy([(item, correct) for item, correct in own if item.id in minority]),
            "disagreed": self._accuracy([(item, correct) for item, correct in own if item.id in disagreed]),
            "others": self._accuracy(others),
            "distance": self._distance(by_country),
            "training": _training([result for seeds in by_country.values() for result, _ in seeds]),
            "seeds": self._spread(by_country),
        }

    def _accuracy(self, pairs: Sequence[tuple[Item, Credits]]) -> dict[str, Any]:
        if not pairs:
            return {"n": 0}
        values, people = [correct[item.id] for item, correct in pairs], [item.group for item, _ in pairs]
        cells = [str(item.culture) for item, _ in pairs]
        how = self._held_out.samples, self._held_out.seed, cells
        before = [self._global_credits[item.id] for item, _ in pairs]
        gain = difference(before, values, people, *how).as_dict("mean")
        return {**accuracy(values, people, *how).as_dict(), "gain": gain}

    def _distance(self, by_country: Mapping[str, Sequence[tuple[VariantResult, Credits]]]) -> dict[str, Any]:
        """Return the mean distance to the countries' answers, and its change from that of the global RM."""
        after, change = {}, {}
        for country, seeds in by_country.items():
            before = opinion_distances(self._held_out.questions, country, self._global_scores)
            found = [opinion_distances(self._held_out.questions, country, result.scores) for result, _ in seeds]
            after[country] = {i: statistics.fmean(of_seed[i] for of_seed in found or [before]) for i in before}
            change[country] = {i: after[country][i] - before[i] for i in before}
        return {**self.mean_distance(after, lowest=0.0), "gain": self.mean_distance(change, lowest=-1.0)}

    def mean_distance(self, distances: Mapping[str, Mapping[int, float]], lowest: float) -> dict[str, Any]:
        """Return the mean of distances (by country and index of a question) with an interval over questions."""
        held_out = self._held_out
        values = [value for found in distances.values() for value in found.values()]
        questions = [held_out.questions[i].id for found in distances.values() for i in found]
        cells = [country for country, found in distances.items() for _ in found]
        return estimate_mean(values, questions, held_out.samples, held_out.seed, cells, (lowest, 1)).as_dict("mean")

    def _spread(self, by_country: Mapping[str, Sequence[tuple[VariantResult, Credits]]]) -> dict[str, Any]:
        """Return the number of seeds, and the standard deviation of overall and minority accuracy over them."""
        seeds = sorted({result.spec.seed for found in by_country.values() for result, _ in found})
        spread: dict[str, Any] = {"n": len(seeds)}
        minority = [item for item in self._held_out.items if item.id in self._held_out.minority]
        for name, items in (("overall", self._held_out.items), ("minority", minority)):
            accuracies: dict[int, list[float]] = defaultdict(list)  # of the countries, by seed
            for country, found in by_country.items():
                own = [item.id for item in items if item.culture == country]
                for result, correct in found if own else ():
                    accuracies[result.spec.seed].append(statistics.fmean(correct[pair] for pair in own))
            means = [statistics.fmean(of_seed) for of_seed in accuracies.values()]
            spread[name] = statistics.stdev(means) if len(means) > 1 else None
        return spread


def _training(results: Sequence[VariantResult]) -> dict[str, Any]:
    """Return what was trained on, over countries and seeds, as one process or several do; nothing for the global RM."""
    if not results:
        return {}
    available, kept = sum(result.available for result in results), sum(result.kept for result in results)
    return {
        "pairs": available / len(results),
        "kept": kept / available if available else 0.0,
        "steps": statistics.fmean(result.steps for result in results),
        "weight": round(sum(result.mean_weight * result.kept for result in results) / max(1, kept), 4),
    }
