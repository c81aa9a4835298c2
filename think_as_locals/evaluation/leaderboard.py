"""Reward models side by side: a board for each set of items, as JSON, markdown and one offline page.

Only reward models on the same items are compared: by paired differences, and by ranks as precise as these allow.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from pandas import DataFrame
from rich.console import RenderableType

from think_as_locals.data.splits import hash_fraction
from think_as_locals.evaluation import carb, tables
from think_as_locals.evaluation.baselines import NAMES
from think_as_locals.evaluation.breakdowns import BREAKDOWNS, language_name, macro_cells
from think_as_locals.evaluation.compare import ALPHA
from think_as_locals.evaluation.judgements import OUTCOMES, Judgements, annotate, grouped, read_judgements
from think_as_locals.evaluation.pages import heat_map, intervals_plot, read_settings, templates
from think_as_locals.evaluation.probes import DIRECTIONS
from think_as_locals.evaluation.statistics import (
    Codes,
    Floats,
    accuracies,
    accuracy,
    codes,
    min_detectable_effect,
    paired,
)
from think_as_locals.evaluation.tables import escape_markdown, figure, p_value
from think_as_locals.judging.prompt import culture_name
from think_as_locals.runtime.files import read_json, write_json, write_text
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.types import DataError, Item, cut

MAX_CHARACTERS = 24_000_000
"""The size of the judgements on a page, such that browsers still open and search it without delay."""

LONGEST_TEXT = 20_000
"""Characters of a text that are shown, so that one endless completion does not displace all others."""

_SUMMARY_KEYS = (
    *("model", "protocol", "seed", "step", "macro", "slot_bias", "order_consistency"),
    *("in_format", "trained_on", "too_long", "faulty_rows"),
)
_NOTE = (
    "Per cent with 95 % intervals by question group. Macro: the mean over all cells of culture and domain (an item "
    "without a culture, and every item of CARB, counts under its language). Ranks "
    f"are only as sharp as paired differences allow (p < {ALPHA:g}, Holm over the pairs); ● may be first. Rows "
    "without a rank are baselines on the same items. In format: judgements that keep every rule. † Trained on some of "
    "these items; for models without a record of their training items this is unknown."
)
_PAIRS_NOTE = (
    "Paired differences, the higher-ranked model minus the lower-ranked one, in points; p by question group, Holm over "
    "the pairs; detectable: the smallest true difference that these items would show with 80 % power."
)
_SLOTS_NOTE = (
    "How much more often each slot is chosen than it holds the best response, in points; for items that were "
    "presented in several orders, how often the choice stays the same, and is right in all."
)


@dataclass(frozen=True, slots=True)
class LeaderboardEntry:
    """A reward model under its listed name, with its judgements."""

    name: str
    path: Path  # of its CARB file
    summary: dict[str, Any]  # the content of that file
    judged: Judgements
    credit: Floats  # of each item of these
    probes: dict[str, Any]  # results of `probes.probe` by name; empty without probes

    @property
    def run(self) -> Path:
        """The folder of the run that evaluated it."""
        return self.path.parents[1]


def write_leaderboard(runs: Sequence[Path], folder: Path) -> Path:
    """Write `leaderboard.json`, `.md` and `.html`; return the page's path."""
    same_items = grouped(read_entries(runs), lambda entry: entry.judged.items).values()
    ranked = [sorted(same, key=lambda e: (-e.summary["macro"]["accuracy"], e.name)) for same in same_items]
    boards = [board(entries) for entries in ranked]
    read = [(run, read_json(path)) for run in runs for path in RunFolder(run).results("failed")]
    failed = [{"model": found["model"], "run": run.name, "message": found["message"]} for run, found in read]
    folder.mkdir(parents=True, exist_ok=True)
    board_file = RunFolder(folder).leaderboard
    write_json(board_file, {"alpha": ALPHA, "boards": boards, "failed": failed})
    write_text(board_file.with_suffix(".md"), _markdown(boards, failed))
    page = board_file.with_suffix(".html")
    write_text(page, _page([entry for entries in ranked for entry in entries], boards, failed))
    return page


def on_terminal(folder: Path) -> Iterator[RenderableType]:
    """Yield the boards of a folder's `leaderboard.json` as tables for a terminal, with their warnings."""
    found = read_json(RunFolder(folder).leaderboard)
    for board in found["boards"]:
        title = f"{_title(board)}: {board['n']} items"
        shown = _models_table(board)[["rank", "reward model", "macro accuracy, %", "by items, %", "parse failures, %"]]
        yield tables.on_terminal(shown, title, "\n".join([_NOTE, *_notes(board)]))
    if found["failed"]:
        yield tables.on_terminal(_failures_table(found["failed"]), "Failed")


def read_entries(runs: Sequence[Path]) -> list[LeaderboardEntry]:
    """Load all reward models of evaluations and the last step of training runs, under distinct names."""
    folders = dict.fromkeys(run.resolve() for run in runs)
    known = dict[str, Item]()  # by id, which reward models share
    entries = [entry for folder in folders for entry in _entries(folder, known)]
    for longer in ("{0.name} ({0.run.name}/{0.path.stem})", "{0.name} ({0.path})"):
        count = Counter(entry.name for entry in entries)
        entries = [replace(e, name=longer.format(e)) if count[e.name] > 1 else e for e in entries]
    return entries


def _entries(run: Path, known: dict[str, Item]) -> Iterator[LeaderboardEntry]:
    paths = RunFolder(run).results("carb")
    if not paths and not RunFolder(run).results("failed"):
        raise DataError(
            f"{run}: no carb/NAME.json and no carb/step-N.json; expected the folder of a "
            "finished evaluation or training (tal run RECIPE)"
        )
    steps = carb.steps(RunFolder(run))
    yield from (_entry(path, known) for path in paths if path not in steps.values())
    if steps:
        yield replace(_entry(steps[max(steps)], known), name=run.name)


def _entry(path: Path, known: dict[str, Item]) -> LeaderboardEntry:
    summary, table = carb.read(path), path.with_suffix(".parquet")
    judged = Judgements.read(table, known)
    if len(judged.items) != summary["n"]:
        raise DataError(f"{table}: {len(judged.items)} items, but {path.name} is over {summary['n']}; measure again")
    file = RunFolder(path.parents[1]).result("probes", path.stem)
    probes = read_json(file) if file.is_file() else {}
    return LeaderboardEntry(
        name=str(summary["model"]),
        path=path,
        summary=summary,
        judged=judged,
        credit=judged.by_item("credit"),
        probes={name: probes[name] for name in DIRECTIONS if name in probes},
    )


def board(entries: Sequence[LeaderboardEntry]) -> dict[str, Any]:
    """Return ranked reward models over the same items, with baselines and paired differences, as JSON.

    `ranks` are the best and worst possible rank; `may_be_first` says that no model is significantly better.
    """
    items, group = entries[0].judged.items, entries[0].judged.group
    sets = entries[0].judged.flip_sets()
    flips = np.concatenate(sets) if sets else np.array([], np.intp)
    cells = codes(list(map(BREAKDOWNS["cell"], items)))
    pairs = _pairs(entries, flips, cells)
    differ = [pair for pair in pairs if pair["macro"]["p_holm"] < ALPHA]
    models = []
    for entry in entries:
        summary = entry.summary
        # Below all better and above all worse models; among the others any order is possible.
        first = 1 + sum(pair["worse"] == entry.name for pair in differ)
        last = len(entries) - sum(pair["better"] == entry.name for pair in differ)
        rows = entry.judged.rows
        ties = accuracy(rows["outcome"].eq("tie").to_numpy(float), group[rows["item"]])
        failures = {"n": len(rows), "share": summary["parse_failure"], "ci95": summary["parse_failure_ci95"]}
        models.append(
            {
                "name": entry.name,
                "ranks": [first, last],
                "may_be_first": first == 1,
                **{key: summary[key] for key in _SUMMARY_KEYS},
                "flips": {key: summary["flips"].get(key) for key in ("n", "sets", "accuracy", "ci95", "ci_method")},
                "micro": {key: summary[key] for key in ("n", "accuracy", "ci95", "ci_method")},
                "parse_failure": failures,
                "ties": ties.as_dict("share"),
                "probes": {name: part["relative"] for name, part in entry.probes.items()},
            }
        )
    baselines = _baselines(entries[0].judged, flips, cells)
    return {
        "datasets": sorted({str(entry.summary["dataset"]) for entry in entries}),
        "splits": sorted({str(entry.summary["split"]) for entry in entries}),
        "n": len(items),
        "macro": macro_cells(items),
        "models": models,
        "best_baseline": max(baselines, key=lambda name: float(baselines[name]["macro"]["accuracy"])),
        "baselines": baselines,
        "pairs": pairs,
    }


def _baselines(judged: Judgements, flips: Codes, cells: Codes) -> dict[str, dict[str, Any]]:
    """Return the accuracies of the baselines: over cells, over items and on complete flip sets."""
    credit, every = judged.baselines(), np.arange(len(judged.items))
    found: dict[str, dict[str, Any]] = {name: {"flips": {"n": 0}} for name in credit}
    for kind, indices, of_cells in (("macro", every, cells), ("micro", every, None), ("flips", flips, None)):
        if len(indices):
            columns = [column[indices] for column in credit.values()]
            for name, estimate in zip(credit, accuracies(columns, judged.group[indices], cells=of_cells), strict=True):
                found[name][kind] = estimate.as_dict()
    return found


def _pairs(entries: Sequence[LeaderboardEntry], flips: Codes, cells: Codes) -> list[dict[str, Any]]:
    """Return the differences of all pairs of ranked entries: over cells (the ranking), by items and on flip sets."""
    two, group = [(worse, better) for better, worse in combinations(entries, 2)], entries[0].judged.group
    by_items = _differences([(a.credit, b.credit) for a, b in two], group)
    over_cells = _differences([(a.credit, b.credit) for a, b in two], group, cells)
    on_flips: Sequence[dict[str, Any] | None] = [None] * len(two)
    if len(flips):
        on_flips = _differences([(a.credit[flips], b.credit[flips]) for a, b in two], group[flips])
    return [
        {"better": b.name, "worse": a.name, "macro": macro, "items": items, "flips": flip}
        for (a, b), macro, items, flip in zip(two, over_cells, by_items, on_flips, strict=True)
    ]


def _differences(
    pairs: Sequence[tuple[Floats, Floats]], group: Codes, cells: Codes | None = None
) -> list[dict[str, Any]]:
    """Return the difference of each pair; without cells also the smallest that these items would show."""
    found = paired([(a, b, group) for a, b in pairs], cells)
    least = [min_detectable_effect(a, b, group, ALPHA / len(pairs)) if cells is None else None for a, b in pairs]
    columns = zip(found, least, strict=True)
    return [
        {"difference": gain.as_dict(), "p_holm": p, "min_detectable_effect": effect} for (gain, p), effect in columns
    ]


def _title(board: Mapping[str, Any]) -> str:
    return f"{' / '.join(board['datasets'])}, split {' / '.join(board['splits'])}"


def _notes(board: Mapping[str, Any]) -> list[str]:
    """Return the warnings about a board's models, each once."""
    found = (warning for model in board["models"] for warning in carb.warnings(model["name"], model))
    return [f"Warning: {warning}" for warning in dict.fromkeys(found)]


def _name(model: Mapping[str, Any]) -> str:
    """Return a model's name, with a mark if it was trained on some of the items."""
    return f"{model['name']} †" if carb.trained_on_note(model) else str(model["name"])


def _models_table(board: Mapping[str, Any]) -> DataFrame:
    rows = [
        {
            "rank": "–".join(map(str, dict.fromkeys(model["ranks"]))),
            "reward model": f"{_name(model)} ●" if model["may_be_first"] else _name(model),
            "macro accuracy, %": figure(model["macro"]),
            "by items, %": figure(model["micro"], show_n=True),
            "flip sets, %": figure(model["flips"], show_n=True) or "none",
            "in format, %": figure(model["in_format"], "share"),
            "parse failures, %": figure(model["parse_failure"], "share", show_n=True),
            "ties, %": figure(model["ties"], "share"),
            "protocol": model["protocol"],
        }
        for model in board["models"]
    ]
    rows += [
        {
            "reward model": f"{NAMES[name]} (best baseline)" if name == board["best_baseline"] else NAMES[name],
            "macro accuracy, %": figure(on["macro"]),
            "by items, %": figure(on["micro"], show_n=True),
            "flip sets, %": figure(on["flips"], show_n=True) or "none",
        }
        for name, on in board["baselines"].items()
    ]
    return DataFrame(rows).fillna("")


def _failures_table(failed: Sequence[Mapping[str, Any]]) -> DataFrame:
    rows = [[found["model"], found["run"], found["message"]] for found in failed]
    return DataFrame(rows, columns=["reward model", "run", "why there is no result, or not all of it"])


def _pairs_table(board: Mapping[str, Any]) -> DataFrame:
    names, rows = {model["name"]: _name(model) for model in board["models"]}, []
    for pair in board["pairs"]:
        row = {"higher-ranked": names[pair["better"]], "lower-ranked": names[pair["worse"]]}
        for kind, heading in (("macro", "macro"), ("items", "by items"), ("flips", "flip sets")):
            if found := pair[kind]:
                row[heading] = figure(found["difference"], "difference", "+.1f")
                row[f"p, {heading}"] = p_value(found["p_holm"])
        least = pair["items"]["min_detectable_effect"]
        rows.append({**row, "detectable": "none" if least is None else f"{100 * least:.1f}"})
    return DataFrame(rows).fillna("")


def _slots_table(board: Mapping[str, Any]) -> DataFrame:
    rows = [
        {
            "reward model": _name(model),
            "slot: chosen more often than best there, points": "; ".join(
                f"{label} {figure(part, 'bias', '+.1f')}" for label, part in model["slot_bias"].items()
            ),
            "the same choice in every order, %": figure(model["order_consistency"], "consistent", show_n=True),
            "right in every order, %": figure(model["order_consistency"].get("all_right", {})),
        }
        for model in board["models"]
        if model["slot_bias"]
    ]
    return DataFrame(rows)


def _probes_table(entries: Sequence[LeaderboardEntry]) -> DataFrame:
    rows = []
    for entry in entries:
        for name, part in entry.probes.items():
            absolute, signed = (part["relative"][kind] for kind in ("absolute", "signed"))
            others = part.get("of_other_items")
            rows.append(
                {
                    "reward model": _name({**entry.summary, "name": entry.name}),
                    "probe": name,
                    "n": f"{absolute['n']}{f', {others} of other items' if others else ''}",
                    "of items, %": f"{100 * part['applicable']:.1f}",
                    "change, %": figure(absolute, "mean", scale=1),
                    "signed, %": figure(signed, "mean", "+.1f", 1),
                }
            )
    return DataFrame(rows)


_TABLES = {"Paired differences": (_pairs_table, _PAIRS_NOTE), "Slots": (_slots_table, _SLOTS_NOTE)}
"""The tables of a board below its ranks: title -> table, what it says."""


def _markdown(boards: Sequence[Mapping[str, Any]], failed: Sequence[Mapping[str, Any]]) -> str:
    parts = ["# Leaderboard", _NOTE]
    if len(boards) > 1:
        parts.append("Reward models over different items stand in tables of their own and are not compared.")
    for board in boards:
        parts.append(f"## {escape_markdown(_title(board))}: {board['n']} items, {board['macro']['cells']} cells")
        parts += [tables.markdown(_models_table(board)), *map(escape_markdown, _notes(board))]
        for make, note in _TABLES.values():
            if not (table := make(board)).empty:
                parts += [note, tables.markdown(table)]
    parts += ["## Failed", tables.markdown(_failures_table(failed))] if failed else []
    return "\n\n".join(parts) + "\n"


def _page(
    entries: Sequence[LeaderboardEntry], boards: Sequence[Mapping[str, Any]], failed: Sequence[Mapping[str, Any]]
) -> str:
    runs = dict.fromkeys(entry.run for entry in entries)
    names = Counter(run.name for run in runs)
    shown = [
        {
            "title": _title(board),
            "n": board["n"],
            "cells": board["macro"]["cells"],
            "notes": _notes(board),
            "plot": intervals_plot(
                [*((_name(model), model["macro"]) for model in board["models"])],
                board["baselines"]["chance"]["macro"]["accuracy"],
            ),
            "ranks": tables.html(_models_table(board), f"Reward models on {_title(board)}"),
            "tables": [
                (title, note, tables.html(table, f"{title} on {_title(board)}"))
                for title, (make, note) in _TABLES.items()
                if not (table := make(board)).empty
            ],
        }
        for board in boards
    ]
    probes = _probes_table(entries)
    return (
        templates()
        .get_template("leaderboard.html.jinja")
        .render(
            note=_NOTE,
            boards=shown,
            failures=tables.html(_failures_table(failed), "Failed") if failed else "",
            probes="" if probes.empty else tables.html(probes, "Spurious-feature probes"),
            maps=[
                (_name({**entry.summary, "name": entry.name}), heat_map(entry.summary, number=number))
                for number, entry in enumerate(entries)
            ],
            browser=browsable(entries, MAX_CHARACTERS),
            longest_text=LONGEST_TEXT,
            runs=[(run.name if names[run.name] == 1 else str(run), read_settings(run)) for run in runs],
        )
    )


_ITEM = ("id", "prompt", "culture", "domain", "language", "responses")
_JUDGEMENT = ("model", "item", "order", "best", "verdict", "outcome", "issues", "scores", "completion")


def browsable(entries: Sequence[LeaderboardEntry], limit: int) -> dict[str, Any]:
    """Return the judgements for the page's script, as columns, with each item once.

    Items are drawn by a hash of their ids, each with all its judgements, until the next one would exceed `limit`
    characters of JSON. `order` has the indices of responses as presented, which `best` and `verdict` refer to.
    """
    judged = dict.fromkeys(item for entry in entries for item in entry.judged.items)
    values, room = dict[Item, list[Any]](), limit
    for item in sorted(judged, key=lambda item: (hash_fraction(item.id), item.id)):
        # Sorted, in whatever order they were read.
        prompt, *texts = (cut(text, LONGEST_TEXT) for text in (item.prompt, *sorted(item.responses)))
        of_item = [item.id, prompt, item.culture, item.domain, item.language, texts]
        room -= len(json.dumps(of_item, ensure_ascii=False))
        if room < 0:  # without its judgements already
            break
        values[item] = of_item
    by_item = defaultdict[Item, list[tuple[int, Any]]](list)
    for number, entry in enumerate(entries):
        shown = {item.id: item for item in entry.judged.items if item in values}  # others may share these ids
        table = read_judgements(entry.path.with_suffix(".parquet"))
        for row in annotate(table[table["id"].isin(set(shown))]).itertuples(index=False):
            by_item[shown[row.id]].append((number, row))
    items: dict[str, list[Any]] = {name: [] for name in _ITEM}
    judgements: dict[str, list[Any]] = {name: [] for name in _JUDGEMENT}
    for number, (item, of_item) in enumerate(values.items()):
        rows = [_judgement(model, number, sorted(item.responses), row) for model, row in by_item[item]]
        limit -= len(json.dumps([of_item, *rows], ensure_ascii=False))
        if limit < 0:
            break
        for columns, values_of in ((items, of_item), *((judgements, row) for row in rows)):
            for column, value in zip(columns.values(), values_of, strict=True):
                column.append(value)
    return {
        "models": [f"{e.name} †" if carb.trained_on_note(e.summary) else e.name for e in entries],
        "cultures": {code: culture_name(code) for code in sorted({code for code in items["culture"] if code})},
        "languages": {tag: language_name(tag) for tag in sorted(set(items["language"]))},
        "outcomes": list(OUTCOMES),
        "issues": sorted({issue for issues in judgements["issues"] for issue in issues}),
        "items": items,
        "judgements": judgements,
        "total": sum(len(entry.judged.rows) for entry in entries),
        "total_items": len(judged),
    }


def _judgement(model: int, item: int, texts: list[str], row: Any) -> list[Any]:
    """Return the values of `_JUDGEMENT`."""
    order = [texts.index(row.responses[index]) for index in row.order]
    scores = None if row.scores is None else [float(row.scores[index]) for index in row.order]
    choice = row.best_slot, None if row.slot < 0 else row.slot, OUTCOMES.index(row.outcome)
    return [model, item, order, *choice, list(row.issues), scores, cut(row.completion, LONGEST_TEXT)]
