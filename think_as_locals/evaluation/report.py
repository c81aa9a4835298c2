"""The report of a training run as an offline page: learning curve, accuracies, judgements before and after."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import zip_longest
from pathlib import Path
from typing import Any

import yaml

from think_as_locals.data.splits import hash_fraction
from think_as_locals.evaluation import carb
from think_as_locals.evaluation.breakdowns import BREAKDOWNS
from think_as_locals.evaluation.pages import read_settings, templates
from think_as_locals.evaluation.scored import outcome, read_scored
from think_as_locals.reward_models.reward_model import ScoredItem
from think_as_locals.runtime.files import write_text
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.types import TEST, DataError

MAX_JUDGEMENTS = 24

PAIRED = ("wrong → right", "right → wrong", "parse failure", "too long", "tie", "still wrong", "still right")
# Metric -> curve, in this order, before the parts of the reward.
_TOTALS = {"reward": "Training reward", "degenerate_reward_share": "Share of the reward earned without judging"}
SINGLE = ("parse failure", "too long", "tie", "wrong", "right")


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """The judgements of an item at the last step and, if known, before GRPO."""

    before: ScoredItem | None
    after: ScoredItem

    @property
    def outcome(self) -> str:
        """The outcome: one of `PAIRED`, or of `SINGLE` without a judgement before."""
        now = outcome(self.after)
        if self.before is None:
            return now
        both = (outcome(self.before), now)
        for rare in ("too long", "tie"):
            if rare in both:
                return rare
        if both.count("right") == 1:
            return "wrong → right" if now == "right" else "right → wrong"
        return "parse failure" if "parse failure" in both else f"still {now}"


def write_report(run_dir: Path) -> Path:
    """Write `report.html` into a run's folder, which must have a CARB file; the page names other missing files."""
    run = RunFolder(run_dir)
    summaries = [carb.read(path) for path in run.evaluated_steps().values()]
    if not summaries:
        raise DataError(f"{run.carb_dir}: no step-N.json; a report needs at least one CARB measurement")
    first, last = summaries[0], summaries[-1]
    sets = {name: run.evaluated_steps(name) for name in run.evaluated_sets()}
    before = first if first["step"] == 0 and len(summaries) > 1 else None
    tables = [run.evaluation(TEST, step["step"]).with_suffix(".parquet") if step else None for step in (before, last)]
    pairs = _pairs(*(read_scored(table) if table and table.is_file() else None for table in tables))
    outcomes = Counter(pair.outcome for pair in pairs or ())
    names = PAIRED if pairs and pairs[0].before else SINGLE
    curves, warned, skipped_lines = _logged(run.metrics)
    page = templates().get_template("report.html.jinja")
    contents = page.render(
        run=run_dir.resolve().name,
        summaries=summaries,
        before=before,
        last=last,
        benchmark=carb.benchmark(last["dataset"]),
        sets={name: carb.read(steps[last["step"]]) for name, steps in sets.items() if last["step"] in steps},
        sets_before={name: carb.read(steps[0]) for name, steps in sets.items() if 0 in steps} if before else None,
        best_step=carb.best_step(run),
        warnings=[*carb.warnings("this judge", last), *warned[-1:]],
        purpose=FROM_SCRATCH if is_randomly_initialised(run) else None,
        next_steps=next_steps(run),
        flips_before=_flip_rows(before),
        flips_last=_flip_rows(last),
        curves={name: (points, _moving_mean(points)) for name, points in curves.items()},
        skipped_lines=skipped_lines,
        x_high=max(1, last["step"], *(step for step, _ in curves.get(_TOTALS["reward"], ()))),
        pairs=None if pairs is None else choose_judgements(pairs),
        outcomes=outcomes,
        outcome_names=[name for name in names if name not in ("tie", "too long") or outcomes[name]],
        **read_settings(run_dir),
    )
    write_text(run.report, contents)
    return run.report


FROM_SCRATCH = (
    "This judge was trained from scratch: it knows only questions like those it was trained on, and its verdicts on "
    "any others are guesses."
)


def is_randomly_initialised(run: RunFolder) -> bool:
    """Return whether a run's model was randomly initialised, by its configuration."""
    try:
        return bool(yaml.safe_load(run.config.read_text(encoding="utf-8"))["model"]["scratch"])
    except (OSError, yaml.YAMLError, KeyError, TypeError):  # the page says what is missing
        return False


def next_steps(run: RunFolder) -> list[tuple[str, str]]:
    """Return commands to continue with after a training run, each with its purpose."""
    tables = [path.with_suffix(".parquet") for path in run.evaluated_steps().values()]
    steps: list[tuple[tuple[object, ...], str]] = []
    if run.examples.is_file():
        steps.append((("tal", "judge", run.model, run.examples), "judges a few of its test items"))
    if len(tables) > 1:
        steps.append((("tal", "compare", tables[0], tables[-1], "--by", "culture"), "what GRPO changed"))
    if is_randomly_initialised(run):
        steps.append((("tal", "init", "mine"), "a recipe for your own pairs: --from FILE, or a sample"))
    steps.append((("tal", "serve", run.model), "the judge behind HTTP"))
    return [(shlex.join(map(str, words)), why) for words, why in steps]


def choose_judgements(pairs: Iterable[BeforeAfter], limit: int = MAX_JUDGEMENTS) -> list[BeforeAfter]:
    """Return the pairs to show, most informative outcomes first, evenly from outcomes and from their cells."""
    by_outcome: dict[str, dict[Any, list[BeforeAfter]]] = {name: defaultdict(list) for name in (*PAIRED, *SINGLE)}
    for pair in sorted(pairs, key=lambda pair: hash_fraction(pair.after.item.id)):
        by_outcome[pair.outcome][BREAKDOWNS["cell"](pair.after.item)].append(pair)
    chosen = _take_turns(_take_turns(cells.values()) for cells in by_outcome.values())[:limit]
    return sorted(chosen, key=lambda pair: list(by_outcome).index(pair.outcome))


def _take_turns(queues: Iterable[Iterable[BeforeAfter]]) -> list[BeforeAfter]:
    """Return the first of each queue, then the second of each, and so on."""
    return [pair for turn in zip_longest(*queues) for pair in turn if pair]


def _pairs(before: Iterable[ScoredItem] | None, after: Iterable[ScoredItem] | None) -> list[BeforeAfter] | None:
    if after is None or before is None:
        return None if after is None else [BeforeAfter(None, each) for each in after]
    earlier = {each.item.id: each for each in before}
    # Labels can be compared only if both steps presented the responses in the same order.
    return [
        BeforeAfter(then, now)
        for now in after
        if (then := earlier.get(now.item.id)) and then.presented.responses == now.presented.responses
    ]


def _logged(path: Path) -> tuple[dict[str, list[tuple[int, float]]], list[str], int]:
    """Return the curves of training by name, the warnings, and how many lines could not be read."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    warned, skipped = list[str](), 0
    lines = path.read_bytes().splitlines() if path.is_file() else []
    for number, line in enumerate(lines, start=1):
        try:
            values = json.loads(line)
            if "warning" in values:
                warned.append(str(values["warning"]))
            for key, value in values.items() if values["stage"] == "grpo" else ():
                name = _TOTALS.get(key, f"Reward part: {key[len('rewards/') : -len('/mean')]}")
                if (key in _TOTALS or fnmatchcase(key, "rewards/*/mean")) and math.isfinite(value):
                    found[name][int(values["step"])] = float(value)  # a resumed run logs a step again: the later counts
        except (ValueError, TypeError, KeyError, AttributeError):
            skipped += number < len(lines)  # a run that was stopped leaves a torn last line
    names = (*_TOTALS.values(), *sorted(found.keys() - {*_TOTALS.values()}))
    return {name: sorted(found[name].items()) for name in names if name in found}, warned, skipped


def _moving_mean(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    window = max(1, len(points) // 20)
    around = [points[max(0, i - window // 2) : i + window // 2 + 1] for i in range(len(points))]
    return [(step, sum(v for _, v in near) / len(near)) for (step, _), near in zip(points, around, strict=True)]


def _flip_rows(summary: dict[str, Any] | None) -> dict[str, Any]:
    """Return the two rows of the table of flip sets; none without flip sets."""
    if summary is None or not summary["flips"]["n"]:
        return {}
    return {"items of whole sets": summary["flips"], "sets with every item right": summary["flips"]["by_set"]}
