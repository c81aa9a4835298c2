"""`tal judge`: a judge, or a classifier, reads items for a person."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from think_as_locals.types import ConfigError, DataError, Item, PreflightError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from think_as_locals.commands import Commands

    Read = Callable[[Sequence[Item]], list[tuple[RenderableType, dict[str, Any]]]]
    """Items -> what to show a person, and what to tell a machine, of each."""

_AT_A_TIME = 64
_UNTOLD = {"best": 0, "domain": "any", "group": "any", "source": "command line"}
"""What somebody who wants a judgement need not know: none of it is shown to a reward model."""


def add(commands: Commands) -> None:
    """How it is called."""
    judge = commands.add_parser("judge", help="rubric, analysis and verdict (or scores) on your own items")
    judge.add_argument("model", help="directory or Hub id of a judge, or of a reward model that scores")
    judge.add_argument(
        "items", nargs="?", help="JSONL file: prompt, responses, culture, other fields of Item as known; or one item:"
    )
    judge.add_argument("--prompt", help="what the user asked")
    judge.add_argument(
        "--response", action="append", default=[], metavar="TEXT", help="a candidate answer, 2 to 8 times"
    )
    judge.add_argument("--culture", help="whose custom counts, an ISO 3166 code such as TH; of rows that do not say")
    judge.add_argument("--language", default="und", help="BCP-47 tag of the prompt")
    judge.add_argument("--json", action="store_true", help="one JSON object a line")
    judge.add_argument("--backend", choices=["transformers", "vllm"], default="transformers")
    judge.set_defaults(command=_judge)


def _judge(arguments: Namespace) -> None:
    """Show, item by item, what a reward model makes of it."""
    from rich.console import Console
    from rich.progress import Progress

    items = _items(arguments)
    read = _load(arguments.model, arguments.backend)
    out = Console(markup=False, highlight=False, emoji=False)
    beside = out if out.is_terminal else Console(stderr=True)
    with Progress(console=beside, transient=True, disable=len(items) == 1 or not beside.is_terminal) as progress:
        task = progress.add_task("judging", total=len(items))
        for start in range(0, len(items), _AT_A_TIME):
            for view, record in read(items[start : start + _AT_A_TIME]):
                _print(out, json.dumps(record) if arguments.json else view)
                progress.advance(task)


def _print(out: Console, shown: RenderableType) -> None:
    if isinstance(shown, str):
        out.out(shown, highlight=False)  # a line is a line, however narrow the terminal
    else:
        out.print(shown)


def _items(arguments: Namespace) -> list[Item]:
    """The items of the file, or the one of the options."""
    one = arguments.prompt is not None or bool(arguments.response)
    if one == (arguments.items is not None):
        raise ConfigError("give a JSONL file of items, or --prompt TEXT with --response TEXT, 2 to 8 times")
    untold = {"language": arguments.language, **_UNTOLD}
    if one:
        asked = {"prompt": arguments.prompt, "responses": tuple(arguments.response), "culture": arguments.culture}
        return [Item(id="your item", **asked, **untold)]
    return _read(arguments.items, untold if arguments.culture is None else {"culture": arguments.culture, **untold})


def _read(file: str, untold: dict[str, Any]) -> list[Item]:
    """Items of a file, with values for what its rows do not say.

    Raises:
        DataError: there are none, or the first bad row.
    """
    from think_as_locals.data import jsonl
    from think_as_locals.data.outcomes import mark_repeats, sound_items
    from think_as_locals.data.rows import read_rows

    told = (
        replace(row, value={"id": row.name, **untold, **row.value}) if isinstance(row.value, dict) else row
        for row in read_rows(file)
    )
    if not (items := list(sound_items(mark_repeats(map(jsonl.outcome, told))))):
        raise DataError(f"{file}: got no items; expected one as a JSON object on each line")
    return items


def _load(model: str, backend: Any) -> Read:
    """Load a model of either kind.

    Raises:
        PreflightError: there is none.
    """
    from transformers import AutoConfig
    from transformers.utils import logging

    from think_as_locals.commands import judgements as show
    from think_as_locals.preflight import model_fault

    if fault := model_fault(model, revision=None):
        raise PreflightError(fault)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    architectures = AutoConfig.from_pretrained(model).architectures or []
    if any(name.endswith("ForSequenceClassification") for name in architectures):
        from think_as_locals.models.scalar import ScalarRM

        rm = ScalarRM.load(model)
        return lambda items: [
            (show.scores_view(item, scores), show.scores_record(item, scores))
            for item, scores in zip(items, rm.score(items), strict=True)
        ]
    from think_as_locals.models.generative import Judge

    judge = Judge.load(model, backend=backend)
    return lambda items: [(show.judgement_view(p), show.judgement_record(p)) for p in judge.predict(items)]
