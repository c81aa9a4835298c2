"""Reward models side by side: a table for each set of items, as JSON, markdown and one offline page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from think_as_locals.evaluation.baselines import baseline_credits
from think_as_locals.evaluation.browser import LONGEST_TEXT, browsable
from think_as_locals.evaluation.entries import Entry, read_entries
from think_as_locals.evaluation.judged import BREAKDOWNS, JudgedItem, grouped, judged_flip_sets, outcome
from think_as_locals.evaluation.markdown import leaderboard_text
from think_as_locals.evaluation.pages import read_settings, templates
from think_as_locals.evaluation.ranking import ALPHA, pairs, rank_ranges, ranked
from think_as_locals.evaluation.statistics import accuracy, macro
from think_as_locals.files import write_json, write_text

_OF_SUMMARY = ("model", "protocol", "seed", "step", "macro", "micro", "slot_bias", "order_consistency", "calibration")
MAX_CHARACTERS = 24_000_000
"""Of judgements on the page: what a browser still opens and searches at once."""


def write_leaderboard(runs: Sequence[Path], folder: Path) -> Path:
    """Write `leaderboard.json`, `leaderboard.md` and `leaderboard.html`; the page's path.

    Args:
        runs: Folders of evaluations and training runs; see `read_entries`.
        folder: Where to; made where it is not there.

    Raises:
        DataError: a file of a run is missing or cannot be read; the message names it.
    """
    tables = by_items(read_entries(runs))
    boards = [board(entries) for entries in tables]
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "leaderboard.json", {"alpha": ALPHA, "boards": boards})
    write_text(folder / "leaderboard.md", leaderboard_text(boards, ALPHA))
    page = folder / "leaderboard.html"
    write_text(page, _page(tables, boards))
    return page


def by_items(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Entries over the same items, best first; of different items nothing is compared."""
    return [ranked(same) for same in grouped(entries, lambda entry: entry.items).values()]


def board(entries: Sequence[Entry]) -> dict[str, Any]:
    """A table of ranked reward models over the same items, as plain JSON.

    Returns:
        `datasets`, `splits`, `n`; `models`, best first, each with its `ranks` (the best and the worst that it may have)
        and `may_be_first`, which says that none is significantly better; `baselines` on the same items, and the one
        with the highest macro accuracy as `best_baseline`; `pairs`, the paired differences.
    """
    first = entries[0]
    found = pairs(entries)
    ranges = rank_ranges([entry.name for entry in entries], found)
    baselines = _baselines(first.judged)
    return {
        "datasets": sorted({str(entry.summary["dataset"]) for entry in entries}),
        "splits": sorted({str(entry.summary["split"]) for entry in entries}),
        "n": len(first.judged),
        "models": [_model(entry, ranges[entry.name]) for entry in entries],
        "best_baseline": max(baselines, key=lambda name: float(baselines[name]["macro"]["accuracy"])),
        "baselines": baselines,
        "pairs": [asdict(pair) for pair in found],
    }


def _model(entry: Entry, ranks: tuple[int, int]) -> dict[str, Any]:
    summary = entry.summary
    ties = accuracy([float(outcome(row) == "tie") for row in entry.rows], [str(row["group"]) for row in entry.rows])
    return {
        "name": entry.name,
        "ranks": list(ranks),
        "may_be_first": ranks[0] == 1,
        **{key: summary[key] for key in _OF_SUMMARY},
        "flips": {key: summary["flips"].get(key) for key in ("n", "sets", "accuracy", "ci95", "interval")},
        "unparsable": {
            "n": len(entry.rows),
            "share": summary["parse_failure"],
            "ci95": summary["parse_failure_ci95"],
        },
        "ties": {"n": ties.n, "share": ties.accuracy, "ci95": list(ties.ci95)},
        "probes": {name: part["relative"] for name, part in entry.probes.items()},
    }


def _baselines(judged: Sequence[JudgedItem]) -> dict[str, dict[str, Any]]:
    """What the baselines score on the same items: over cells, over items and on whole flip sets."""
    flips = [j.item for members in judged_flip_sets(judged) for j in members]
    items = [j.item for j in judged]
    groups, cells = [item.group for item in items], [BREAKDOWNS["cell"](item) for item in items]
    found = {}
    for name, worth in baseline_credits(items).items():
        credit = [worth[item.id] for item in items]
        on_flips = accuracy([worth[item.id] for item in flips], [item.group for item in flips]) if flips else None
        found[name] = {
            "macro": macro(credit, groups, cells).as_dict(),
            "micro": accuracy(credit, groups).as_dict(),
            "flips": on_flips.as_dict() if on_flips else {"n": 0},
        }
    return found


def _page(tables: Sequence[Sequence[Entry]], boards: Sequence[dict[str, Any]]) -> str:
    entries = [entry for table in tables for entry in table]
    runs = dict.fromkeys(entry.run for entry in entries)
    names = Counter(run.name for run in runs)
    return (
        templates()
        .get_template("leaderboard.html.jinja")
        .render(
            boards=boards,
            entries=entries,
            alpha=ALPHA,
            browser=browsable(entries, MAX_CHARACTERS),
            longest_text=LONGEST_TEXT,
            runs=[(run.name if names[run.name] == 1 else str(run), read_settings(run)) for run in runs],
        )
    )
