"""Rewards of hand-written completions in six languages: good ones must earn more than mediocre or gamed ones.

`tests/golden/completions.yaml` has the texts, `completions.json` what each component pays: every text's figures, and
their distribution by kind. `python tests/judging/test_completions.py` writes the latter anew.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from judging.frontier import item_in

from think_as_locals.judging import COMPONENTS, Evidence, parse

GOLDEN = Path(__file__).parents[1] / "golden"
KINDS = ("good", "mediocre", "empty", "gamed")
MEASURED = ("correctness", "structure", "rubric_quality")
ORDERED = ("structure", "rubric_quality")


@cache
def completions() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = yaml.safe_load((GOLDEN / "completions.yaml").read_text(encoding="utf-8"))
    for row in rows:
        judgement, item = parse(row["text"], 3), item_in(row["language"])
        evidence = Evidence(rubric_language=row["rubric_language"])
        row["paid"] = {name: round(COMPONENTS[name](judgement, item, evidence), 3) for name in MEASURED}
    return rows


def paid(component: str, *kinds: str) -> list[float]:
    """What the completions of some kinds earn of a component that concerns them."""
    return [r["paid"][component] for r in completions() if r["kind"] in kinds and component in r["concerns"]]


def recorded() -> dict[str, Any]:
    spread: dict[str, dict[str, Any]] = {name: {} for name in ORDERED}
    for name, by_kind in spread.items():
        for kind in KINDS:
            found = paid(name, kind)
            by_kind[kind] = {"n": len(found), "min": min(found), "median": median(found), "max": max(found)}
    each = [[r["language"], r["kind"], r["rubric_language"], *r["paid"].values()] for r in completions()]
    return {"distribution": spread, "columns": ["language", "kind", "rubric_language", *MEASURED], "paid": each}


def written(found: dict[str, Any]) -> str:
    parts = [f' "{name}": {json.dumps(by_kind)}' for name, by_kind in found["distribution"].items()]
    rows = [f" {json.dumps(row)}" for row in found["paid"]]
    distribution, every = ",\n".join(parts), ",\n".join(rows)
    columns = json.dumps(found["columns"])
    return f'{{"distribution": {{\n{distribution}\n}},\n"columns": {columns},\n"paid": [\n{every}\n]}}\n'


def test_rewards_of_hand_written_completions_match_the_golden_file() -> None:
    assert (GOLDEN / "completions.json").read_text(encoding="utf-8") == written(recorded())
    count = Counter((row["language"], row["kind"]) for row in completions())
    assert len(completions()) >= 60
    assert {language for language, _ in count} == {"en", "es", "th", "ja", "ar", "zh"}
    assert min(count.values()) >= 2
    assert len(count) == 6 * len(KINDS)


def test_good_completions_earn_more_than_mediocre_and_gamed_ones() -> None:
    # In the median, as `rubric_quality` cannot see what a text means; in `structure` each gamed one earns less.
    for component in ORDERED:
        good, mediocre = paid(component, "good"), paid(component, "mediocre")
        assert min(good) == 1.0 > median(mediocre) > median(paid(component, "empty", "gamed"))
    assert min(paid("structure", "mediocre")) > max(paid("structure", "empty", "gamed"))
    english = [row for row in completions() if row["rubric_language"] != "item"]
    assert {(row["language"], row["rubric_language"]) for row in english} >= {
        (language, choice) for language in ("th", "ja") for choice in ("any", "en")
    }
    assert {row["paid"]["rubric_quality"] for row in english} == {1.0}


if __name__ == "__main__":
    (GOLDEN / "completions.json").write_text(written(recorded()), encoding="utf-8")
