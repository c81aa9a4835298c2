"""Collect demonstrations: items -> a teacher's completions, in several tries -> the correct ones in a file."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pandas import DataFrame
from rich.progress import Progress

from think_as_locals.config.model_schema import DemonstrationConfig
from think_as_locals.data.load import describe_items, load_side
from think_as_locals.data.rows import Outcome, Row, read_rows, valid_items
from think_as_locals.data.sources import jsonl
from think_as_locals.engines import Messages, Sampling
from think_as_locals.evaluation.journal import query_with_journal
from think_as_locals.evaluation.sampling import Sampler, YieldCounter, advance, yield_table
from think_as_locals.evaluation.tables import on_terminal
from think_as_locals.judging import RULES
from think_as_locals.judging.formats import Format
from think_as_locals.judging.prompt import hint
from think_as_locals.reward_models.judge import Judge
from think_as_locals.reward_models.load import load_judge
from think_as_locals.reward_models.reward_model import Answer, Request, is_unanswered
from think_as_locals.runtime.files import read_json, write_json, write_rows
from think_as_locals.runtime.output import print_result, progress_bar, progress_console, quiet_transformers
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.types import LABELS, DataError, Demonstration, Item, is_text

_OUTCOMES = ("right", "wrong", "out_of_format", "too_long")


def load_data(config: DemonstrationConfig) -> Sequence[Item]:
    """Load the items to demonstrate; a DataError names an id that two sources of a mix share."""
    found = dict[str, Item]()
    for name, source in config.data.sources.items():
        for item in load_side(source, config.seed, config.items):
            if item.id in found:
                raise DataError(f"data.mix.{name}: item {item.id!r} is in another source too: demonstrate it apart")
            found[item.id] = item
    return list(found.values())


def plan(config: DemonstrationConfig, items: Sequence[Item]) -> list[tuple[str, str]]:
    """Return what a run would do."""
    orders = ", in both orders" if config.both_orders else ""
    return [
        ("teacher", config.teacher.name),
        ("items", f"{describe_items(items)} ({config.data.title}, {config.items})"),
        ("tries", f"up to {config.tries}{orders}{', then with the hint' if config.hint else ''}"),
    ]


def run(config: DemonstrationConfig, items: Sequence[Item], folder: RunFolder) -> None:
    """Ask a teacher about items, and write its right completions to the folder's `demonstrations.jsonl`."""
    quiet_transformers()
    console, tally = progress_console(), YieldCounter(items, _OUTCOMES, marks=["hinted"])
    console.print(f"{config.run.name}: {len(items):,} items ({config.data.title})", highlight=False)
    if not folder.demonstrations.is_file():
        with load_judge(config.teacher, config.seed) as teacher, progress_bar(console) as bar:
            rows = [row for spec in tries(config) for row in query_teacher(config, teacher, spec, tally, folder, bar)]
        summary = tally.summary()
        write_json(folder.yields, summary)
        if not rows:
            most = next(iter(summary["broken"]), None)
            why = f"broken most: {RULES.get(most, most)}" if most else "none chose the best response"
            raise DataError(
                f"no completion about {len(items)} items was right ({why}): look at {folder.journal('try-1')}; "
                "start a new run with more tries, a larger teacher.max_completion_length or another teacher"
            )
        write_rows(folder.demonstrations, sorted(rows, key=lambda row: tally.index(row["item"]["id"])))
    print_result(on_terminal(table(read_json(folder.yields))))
    print(f"demonstrations  {folder.demonstrations}")


@dataclass(frozen=True, slots=True)
class TrySpec:
    """A try: its number, counted from 1, its seed, and whether the prompt contains the best response."""

    number: int
    seed: int
    hint: bool

    @property
    def name(self) -> str:
        return f"try-{self.number}{'-hint' if self.hint else ''}"


def tries(config: DemonstrationConfig) -> Iterator[TrySpec]:
    """Yield the tries; those with the hint come last, for items that no other try judged right."""
    for hinted in (False, True) if config.hint else (False,):
        for number in range(1, config.tries + 1):
            yield TrySpec(number, random.Random(f"{config.seed}-{number}-{hinted}").randrange(2**31), hinted)


def query_teacher(
    config: DemonstrationConfig, teacher: Judge, spec: TrySpec, tally: YieldCounter, folder: RunFolder, bar: Progress
) -> list[dict[str, Any]]:
    """Ask about the remaining items; return a row for each right completion (with `both_orders`, of both or none)."""
    left, rows = tally.left(), defaultdict[str, list[dict[str, Any]]](list)
    teacher.engine.check_texts(left)
    drawn: dict[str, Any] = {"temperature": config.temperature, "seed": spec.seed}
    sampling = Sampling(max_completion_length=teacher.settings.max_completion_length, **drawn)
    conversation = partial(_conversation, teacher, with_hint=spec.hint)
    sampler = Sampler(teacher.engine, sampling, teacher.chunk_size, conversation, teacher.sort_key)
    path, identity = folder.journal(spec.name), {"teacher": teacher.identity, **drawn, "hint": spec.hint}
    provenance = {
        "teacher": config.teacher.name,
        "settings": teacher.identity,
        "try": spec.number,
        **drawn,
        "hint": spec.hint,
    }
    for reverse in (False, True) if config.both_orders else (False,):
        requests = [request for item in left for request in teacher.requests(item)]  # one for each, as it is listwise
        if reverse:
            requests = [replace(request, order=request.order[::-1]) for request in requests]
        advance_bar = advance(bar, f"{spec.name}{', reversed' if reverse else ''}")
        answers = query_with_journal(sampler, path, identity, requests, advance_bar, too_long="wrong")
        left = []
        for request, answer in zip(requests, answers, strict=True):
            outcome, issues = _outcome(teacher, request, answer)
            tally.add(request.item, outcome, issues)
            if outcome == "right":
                found = {"order": list(request.order), "completion": answer["text"]}
                rows[request.item.id].append({"item": asdict(request.item), **found, **provenance})
                left.append(request.item)
    tally.keep(left, "hinted" if spec.hint else None)
    return [row for item in left for row in rows[item.id]]


def _conversation(teacher: Judge, request: Request, with_hint: bool) -> Messages:
    *before, user = teacher.conversation(request)
    if not with_hint:
        return [*before, user]
    hint_text = hint(LABELS[request.order.index(request.item.best)])
    return [*before, {**user, "content": f"{user['content']}\n\n{hint_text}"}]


def _outcome(teacher: Judge, request: Request, answer: Answer) -> tuple[str, Sequence[str]]:
    """Return which of `_OUTCOMES` a completion is, and the rules of the format that it breaks."""
    if is_unanswered(answer):
        return "too_long", tuple(answer)
    judgement = teacher.read(request, answer)
    if judgement.issues:  # also those with which a verdict counts: the format is what is demonstrated
        return "out_of_format", judgement.issues
    return "right" if judgement.verdict == request.order.index(request.item.best) else "wrong", ()


def table(summary: Mapping[str, Any]) -> DataFrame:
    """Return the yield by culture as a table, with all items in its last row."""
    counted = {"completions": "completions", "right": "right", "wrong": "wrong", "out_of_format": "out of format"}
    counted |= {"hinted": "by hint"} if summary["hinted"] else {}
    parts = {**summary["by_culture"], "all": summary}
    return yield_table("culture", "items demonstrated, %", parts, counted)


def read_demonstrations(path: str, format_: Format) -> tuple[Demonstration, ...]:
    """Read demonstrations from a JSONL file of rows with `item`, `order` and `completion`; other keys are ignored.

    A DataError names a row whose completion is not in the format that it is to teach, or not right.
    """
    return tuple(_demonstration(row, format_) for row in read_rows(str(Path(path).expanduser())))


def _demonstration(row: Row, format_: Format) -> Demonstration:
    if row.fault or not isinstance(row.value, Mapping):
        got = row.fault.detail if row.fault else f"got {type(row.value).__name__}"
        expected = "a demonstration: item (an object with the fields of Item), order, completion"
        raise DataError(f"{row.place}: {got}; expected {expected}")
    (item,) = valid_items([Outcome.of(row._replace(value=row.value.get("item")), jsonl.items)])
    order, completion = row.value.get("order"), row.value.get("completion")
    indices = list(range(len(item.responses)))
    if not isinstance(order, list) or any(type(index) is not int for index in order) or sorted(order) != indices:
        raise DataError(f"{row.place}: order must have each of {indices} once, got {order!r}")
    if not is_text(completion):
        raise DataError(f"{row.place}: completion must be a non-blank string, got {completion!r}")
    judgement = format_.read(str(completion), len(order), "stop")
    if judgement.issues:
        broken = f"breaks the format that it is to teach: {', '.join(judgement.issues)}"
        raise DataError(f"{row.place}: the completion {broken}; leave it out, or choose the prompt it was written for")
    if judgement.verdict != order.index(item.best):
        labels = [LABELS[i] for i in (judgement.verdict or 0, order.index(item.best))]
        raise DataError(f"{row.place}: the completion chooses {labels[0]}, but {labels[1]} is the best: leave it out")
    return Demonstration(item, tuple(order), str(completion))
