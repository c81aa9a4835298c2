"""Collect demonstrations: items -> a teacher's completions, in several tries -> the correct ones in a file."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from pandas import DataFrame
from pydantic import Field, StrictInt
from rich.progress import Progress

from think_as_locals.config.model_schema import DemonstrationConfig
from think_as_locals.data.fields import RowModel, Text
from think_as_locals.data.load import describe_items, load_side
from think_as_locals.data.rows import Fault, Outcome, Row, check_rows, read_rows
from think_as_locals.data.sources import jsonl
from think_as_locals.engines import Messages, Sampling
from think_as_locals.engines.transformers_engine import quiet_transformers
from think_as_locals.evaluation.journal import query_with_journal
from think_as_locals.evaluation.sampling import Completion, Sampler, advance, yield_summary, yield_table
from think_as_locals.evaluation.tables import on_terminal
from think_as_locals.judging import RULES
from think_as_locals.judging.formats import Format
from think_as_locals.judging.prompt import hint
from think_as_locals.reward_models.judge import Judge
from think_as_locals.reward_models.load import load_judge
from think_as_locals.reward_models.reward_model import Answer, Request, is_unanswered
from think_as_locals.runtime.files import read_json, write_json, write_rows
from think_as_locals.runtime.output import print_result
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.runtime.terminal import progress_bar, progress_console
from think_as_locals.types import LABELS, DataError, Demonstration, Item, first_of

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
    console, completions = progress_console(), list[Completion]()
    console.print(f"{config.run.name}: {len(items):,} items ({config.data.title})")
    if not folder.demonstrations.is_file():
        with load_judge(config.teacher, config.seed) as teacher, progress_bar(console) as bar:
            # Those with the hint come last, for items that no other try judged right.
            specs = product((False, True) if config.hint else (False,), range(1, config.tries + 1))
            rows = dict[str, list[dict[str, Any]]]()
            for spec in specs:
                left = [item for item in items if item.id not in rows]
                rows |= query_teacher(config, teacher, *spec, left, completions, folder, bar)
        hinted = {name for name, (row, *_) in rows.items() if row["hint"]}
        summary = yield_summary(items, completions, _OUTCOMES, rows.keys(), hinted=hinted)
        write_json(folder.yields, summary)
        if not rows:
            most = next(iter(summary["broken"]), None)
            why = f"broken most: {RULES.get(most, most)}" if most else "none chose the best response"
            raise DataError(
                f"no completion about {len(items)} items was right ({why}): look at {folder.journal('try-1')}; "
                "start a new run with more tries, a larger teacher.max_completion_length or another teacher"
            )
        write_rows(folder.demonstrations, (row for item in items for row in rows.get(item.id, ())))
    print_result(on_terminal(table(read_json(folder.yields))))
    print_result(f"demonstrations  {folder.demonstrations}")


def query_teacher(
    config: DemonstrationConfig,
    teacher: Judge,
    hinted: bool,
    number: int,
    left: Sequence[Item],
    completions: list[Completion],
    folder: RunFolder,
    bar: Progress,
) -> dict[str, list[dict[str, Any]]]:
    """Ask about the items that are left, and add to the completions.

    Returns:
        By id of an item a row for each right completion, with `both_orders` of both or none.
    """
    rows, name = defaultdict[str, list[dict[str, Any]]](list), f"try-{number}{'-hint' * hinted}"
    teacher.engine.check_texts(left)
    seed = random.Random(f"{config.seed}-{number}-{hinted}").randrange(2**31)
    drawn: dict[str, Any] = {"temperature": config.temperature, "seed": seed}
    sampling = Sampling(max_completion_length=teacher.settings.max_completion_length, **drawn)
    conversation = partial(_conversation, teacher, with_hint=hinted)
    sampler = Sampler(teacher.engine, sampling, teacher.chunk_size, conversation, teacher.sort_key)
    path, made = folder.journal(name), {**drawn, "hint": hinted}
    identity = {"teacher": teacher.identity, **made}
    provenance = {"teacher": config.teacher.name, "settings": teacher.identity, "try": number, **made}
    for reverse in (False, True) if config.both_orders else (False,):
        requests = [request for item in left for request in teacher.requests(item)]  # one for each, as it is listwise
        if reverse:
            requests = [replace(request, order=request.order[::-1]) for request in requests]
        advance_bar = advance(bar, f"{name}{', reversed' if reverse else ''}")
        answers = query_with_journal(sampler, path, identity, requests, advance_bar, too_long="wrong")
        left = []
        for request, answer in zip(requests, answers, strict=True):
            outcome, issues = _outcome(teacher, request, answer)
            completions.append((request.item.id, outcome, issues))
            if outcome == "right":
                found = {"order": list(request.order), "completion": answer["text"]}
                rows[request.item.id].append({"item": asdict(request.item), **found, **provenance})
                left.append(request.item)
    return {item.id: rows[item.id] for item in left}


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
    counted |= {"too_long": "too long"} if summary["too_long"] else {}
    counted |= {"hinted": "by hint"} if summary["hinted"] else {}
    parts = {**summary["by_culture"], "all": summary}
    return yield_table("culture", "items demonstrated, %", parts, counted)


class DemonstrationRow(RowModel):
    """A row as it is in the file; other keys say how it was made."""

    item: Any  # with the fields of `Item`
    order: tuple[StrictInt, ...]
    completion: Text
    settings: dict[str, Any] = Field(default_factory=dict)  # the teacher's; rows by people have none


def read_demonstrations(path: str, format_: Format) -> tuple[Demonstration, ...]:
    """Read demonstrations from a JSONL file of rows with `item`, `order` and `completion`; other keys are ignored.

    A DataError names rows whose completion is not in the format that it is to teach, or not right.
    """
    found = list[Demonstration]()

    def read(row: Row) -> Iterator[Fault]:
        fields = DemonstrationRow.model_validate(row.value)
        items = Outcome.of(row._replace(value=fields.item), jsonl.items)
        if not items.imported:
            yield from items.faults
            return
        (item,), order = items.items, fields.order
        if sorted(order) != [*range(len(item.responses))]:
            yield Fault("order", f"order: expected each index of {len(item.responses)} responses once, got {order}")
            return
        judgement, right = format_.read(fields.completion, len(order), "stop"), order.index(item.best)
        if judgement.issues:
            broken = first_of((RULES.get(rule, rule) for rule in judgement.issues), 2, "; ")
            written = fields.settings.get("prompt", "that it was written for")
            remedy = f"leave it out, or choose the prompt {written}"
            yield Fault("format", f"the completion breaks the format that it is to teach ({broken}): {remedy}")
        elif judgement.verdict != right:
            labels = f"{LABELS[judgement.verdict or 0]}, but {LABELS[right]}"
            yield Fault("wrong", f"the completion chooses {labels} is the best: leave it out")
        else:
            found.append(Demonstration(item, order, fields.completion))

    check_rows(Outcome.of(row, read) for row in read_rows(str(Path(path).expanduser())))
    return tuple(found)
