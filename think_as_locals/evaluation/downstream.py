"""Best-of-N selection: what a reward model is worth where it is used, to pick one of many candidate responses.

CARB (arXiv 2509.21798) has reward models select among 16 candidates on BLEnD and OMGEval and compares what they select
with their accuracy (`validity.py`). An item holds eight responses at most, so more candidates are judged in parts: by
`best_scored` where scores of different parts compare, in a `tournament` where they do not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from think_as_locals.data.candidates import Candidates
from think_as_locals.data.fields import question_group
from think_as_locals.data.flips import share
from think_as_locals.data.jsonl import new_file
from think_as_locals.evaluation.means import estimate_mean
from think_as_locals.evaluation.probes import Scorer, scored
from think_as_locals.types import LABELS, ConfigError, DataError, Item


def best_scored(rows: Sequence[Candidates], scorer: Scorer, seed: int) -> list[int]:
    """The index of the candidate with the highest score, for each row.

    For RMs that score each response for itself (scalar, implicit, pointwise rating), so that scores of one prompt's
    candidates compare wherever they were computed. The scorer is asked once, in items of up to eight responses; `best`
    of these means nothing.

    Args:
        rows: Prompts with their candidates.
        scorer: Scores the responses of items.
        seed: Decides ties, by the hash of seed, id and text.
    """
    heats = [
        (number, part) for number, row in enumerate(rows) for part in _parts(_drawn(row, seed), len(LABELS)) if part[1:]
    ]
    items = [_heat(rows[number], part, f"{n}") for n, (number, part) in enumerate(heats)]
    best = [(-math.inf, _drawn(row, seed)[0]) for row in rows]
    for (number, part), scores in zip(heats, scored(items, scorer), strict=True):
        for index, score in zip(part, scores, strict=True):
            if score > best[number][0]:  # of equals the first drawn
                best[number] = (score, index)
    return [index for _, index in best]


def tournament(rows: Sequence[Candidates], scorer: Scorer, group_size: int, seed: int) -> list[int]:
    """The index of the candidate that wins a knock-out tournament, for each row.

    For judges that compare the responses they are shown, whose scores mean nothing beside another item's. Candidates
    are drawn by hash into groups as even as can be, of `group_size` at most. The highest score of a group goes on to
    the next round, and one alone in its group does so unjudged. Sixteen candidates in groups of eight are two groups
    and a final, in groups of two fifteen duels. The scorer is asked once in each round.

    Args:
        rows: Prompts with their candidates.
        scorer: Scores the responses of items; where they tie, or there are none (an unreadable judgement), who was
            drawn first goes on.
        group_size: Responses that a judge sees together, from 2 to 8.
        seed: Of the draw, with the row's id and the candidates' texts: their order in the file does not matter.

    Raises:
        ConfigError: `group_size` is out of range.
    """
    if not 2 <= group_size <= len(LABELS):
        raise ConfigError(f"a tournament has groups of 2 to {len(LABELS)}, got {group_size}")
    left = [_drawn(row, seed) for row in rows]
    stage = 0
    while any(len(drawn) > 1 for drawn in left):
        stage += 1
        groups = [(number, part) for number, drawn in enumerate(left) for part in _parts(drawn, group_size)]
        judged = [(number, part) for number, part in groups if len(part) > 1]
        items = [_heat(rows[number], part, f"{stage}.{n}") for n, (number, part) in enumerate(judged)]
        won = iter(scored(items, scorer))
        left = [[] for _ in rows]
        for number, part in groups:
            left[number].append(_winner(part, next(won)) if len(part) > 1 else part[0])
    return [winner for (winner,) in left]


def selection_quality(rows: Sequence[Candidates], chosen: Sequence[int], samples: int, seed: int) -> dict[str, Any]:
    """Mean quality of what was selected, and beside it what a blind and a perfect choice would have.

    Args:
        rows: With qualities.
        chosen: An index for each row.
        samples: Resamples of question groups (rows with the same prompt), for the intervals.
        seed: Of the resampling.

    Returns:
        `selected`, `random` (the mean of each row's candidates), `oracle` (the best of each) and `gain` (selected less
        random, paired), each `n`, `mean`, `ci95`, `interval`; `headroom`, the share of what could be gained that was,
        `None` where all candidates of every row are equally good.

    Raises:
        DataError: a row has no qualities.
    """
    if lacks := [row.id for row in rows if row.qualities is None]:
        raise DataError(f"{len(lacks)} of {len(rows)} rows have no qualities, such as {lacks[0]!r}: nothing to average")
    qualities = [row.qualities or () for row in rows]
    groups = [question_group(row.prompt) for row in rows]
    selected = [of_row[index] for of_row, index in zip(qualities, chosen, strict=True)]
    oracle = [max(of_row) for of_row in qualities]
    random = [best - math.fsum(best - q for q in row) / len(row) for best, row in zip(oracle, qualities, strict=True)]
    columns = {
        "selected": selected,
        "random": random,
        "oracle": oracle,
        "gain": [s - r for s, r in zip(selected, random, strict=True)],
    }
    possible = math.fsum(best - r for best, r in zip(oracle, random, strict=True))
    return {
        **{name: estimate_mean(values, groups, samples, seed).as_dict() for name, values in columns.items()},
        "headroom": math.fsum(columns["gain"]) / possible if possible else None,
    }


def write_selections(rows: Sequence[Candidates], chosen: Sequence[int], path: Path) -> None:
    """Write a row for each prompt: `id`, `chosen` (an index into the candidates), `candidate`, `quality` (or null).

    Raises:
        DataError: the file is there already.
    """
    with new_file(path) as file:
        for row, index in zip(rows, chosen, strict=True):
            quality = None if row.qualities is None else row.qualities[index]
            line = {"id": row.id, "chosen": index, "candidate": row.texts[index], "quality": quality}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _drawn(row: Candidates, seed: int) -> list[int]:
    """Indices of the distinct candidates, in an order that seed, id and texts decide."""
    first = {text: row.texts.index(text) for text in row.texts}
    return [first[text] for text in sorted(first, key=lambda text: share(f"{row.id}:{text}", seed))]


def _parts(drawn: Sequence[int], size: int) -> Iterator[list[int]]:
    """As few parts of at most `size` as will do, as even as can be."""
    count = -(-len(drawn) // size)
    yield from (list(drawn[start::count]) for start in range(count))


def _heat(row: Candidates, part: Sequence[int], name: str) -> Item:
    return Item(
        id=f"{row.id}#{name}",
        prompt=row.prompt,
        responses=tuple(row.texts[index] for index in part),
        best=0,
        culture=row.culture,
        language=row.language,
        domain="downstream",
        group=question_group(row.prompt),
        source="candidates",
    )


def _winner(part: Sequence[int], scores: Sequence[float]) -> int:
    known = [-math.inf if math.isnan(score) else score for score in scores]
    return part[known.index(max(known))]
