"""`tal judge` and `tal serve`: run a trained judge on your own items, or serve it over HTTP."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from think_as_locals.types import ConfigError, DataError, Item, PreflightError, TooLongError, first_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    Read = Callable[[Sequence[Item]], list[tuple[RenderableType, dict[str, Any]]]]
    """A function from items to what is printed for each, in a table and with `--json`."""

_CHUNK = 8  # items between two updates: vLLM batches within them, and on a CPU more take minutes
_MAX_TOKENS = 512  # of a judgement by a model that was not trained as a judge, and may never stop


def add(commands: Any) -> None:
    """Add the parsers of these commands."""
    judge = commands.add_parser("judge", help="print rubric, analysis and verdict (or scores) for your items")
    judge.add_argument("model", help="directory or Hub id of a judge or of a scalar reward model")
    file = "rows with prompt, responses and culture, or in any format for training; or use --prompt and --response"
    judge.add_argument("items", nargs="?", help=file)
    columns = "data.columns={prompt: NAME, responses: [NAME, NAME]}, for a file whose columns have other names"
    judge.add_argument("overrides", nargs="*", default=[], help=columns)
    judge.add_argument("--prompt", help="the user's prompt")
    candidate = "a candidate response; give it 2 to 8 times"
    judge.add_argument("--response", action="append", default=[], metavar="TEXT", help=candidate)
    judge.add_argument("--culture", help="ISO 3166 code, e.g. TH; for a file, the culture of rows that have none")
    judge.add_argument("--language", help="BCP-47 tag of the prompt; for a file, the language of rows that have none")
    judge.add_argument("--limit", type=_positive, metavar="N", help="judge only the first N rows")
    most = "maximum length of a judgement; default: the one it was trained with, or 512"
    judge.add_argument("--max-tokens", type=_positive, metavar="N", help=most)
    judge.add_argument("--json", action="store_true", help="print one JSON object per line")
    judge.add_argument(
        "--backend", choices=["transformers", "vllm"], default="transformers", help="engine; default: transformers"
    )
    judge.set_defaults(command=_judge)

    serve = commands.add_parser(
        "serve",
        help="serve a judge over HTTP: /judge, /score (for OpenRLHF), /v1/chat/completions",
        epilog="With TAL_API_KEY set, every request but /health needs that key; needed beyond loopback.",
    )
    serve.add_argument("model", help="directory or Hub id of a judge")
    example = "key=value of conf/serve.yaml, e.g. port=9000 judge.backend=vllm"
    serve.add_argument("overrides", nargs="*", default=[], help=example)
    serve.set_defaults(command=_serve)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"expected an integer of at least 1, got {text!r}")
    return int(text)


def _judge(arguments: Namespace) -> None:
    from rich.progress import Progress

    from think_as_locals.runtime.output import print_error, print_result
    from think_as_locals.runtime.terminal import Terminal, progress_console

    items = _items(arguments)[: arguments.limit]
    out = Terminal()
    console = out if out.is_terminal else progress_console()
    show_progress = len(items) > 1 and console.is_terminal and not console.quiet
    with ExitStack() as stack:
        read = stack.enter_context(_loaded_reader(arguments.model, arguments.backend, arguments.max_tokens))
        progress = stack.enter_context(Progress(console=console, transient=True, disable=not show_progress))
        task, failures = progress.add_task("judging", total=len(items)), 0
        for first in range(0, len(items), _CHUNK):
            for view, record in read(items[first : first + _CHUNK]):
                if arguments.json:
                    print_result(json.dumps(record))
                else:
                    out.print(view)
                failures += record["verdict"] is None and "issues" in record
                progress.advance(task)
    if failures:
        print_error(
            f"{failures} of {len(items)} judgements have no verdict: the model did not follow the format of its "
            "prompt (`issues` name the rules it broke). Check that it was trained as a judge on data of this kind, and "
            "--max-tokens is large enough. `tal doctor --model` tries other prompts; `tal run pretrained` and "
            "`tal run tal_grpo` train a pretrained model"
        )
        raise SystemExit(1)


def _items(arguments: Namespace) -> list[Item]:
    """Return the items of the file, or the one item of the options."""
    one = arguments.prompt is not None or bool(arguments.response)
    if arguments.items is None and "=" not in (arguments.overrides or ["="])[0]:
        arguments.items, *arguments.overrides = arguments.overrides  # argparse, if options stand before the file
    if one == (arguments.items is not None or bool(arguments.overrides)):
        raise ConfigError("give a file of items, or --prompt TEXT with --response TEXT, 2 to 8 times")
    from think_as_locals.cli.data import recognised, rows_config
    from think_as_locals.data import read
    from think_as_locals.data.languages import culture_fault, language_tag, named_culture
    from think_as_locals.data.rows import Outcome, mark_repeats, read_rows, valid_items
    from think_as_locals.data.sources import SOURCES, jsonl
    from think_as_locals.data.sources.columns import Columns

    path, culture = arguments.items, arguments.culture and named_culture(arguments.culture)
    if culture is not None and (fault := culture_fault(culture)):
        raise ConfigError(f"--culture: got {culture!r}, {fault}")
    language = arguments.language and language_tag(arguments.language)
    if arguments.language and language is None:
        raise ConfigError(f"--language: got {arguments.language!r}, expected an English name or a BCP-47 tag")
    given = {name: value for name, value in (("culture", culture), ("language", language)) if value}
    if one:
        fields = {"id": "your item", "prompt": arguments.prompt, "responses": arguments.response, "culture": None}
        return [jsonl.query_item(fields | given, place="your item")]
    items: Iterable[Item]
    keys = {each.partition("=")[0] for each in arguments.overrides} - {"data.labels"}  # no label is needed to judge
    if keys or _in_training_format(path):
        overrides = [f"data.language={language}"] if language else []
        config = rows_config(path, recognised(path, [*overrides, *arguments.overrides]))
        prepare = SOURCES[(data := config.data).source].in_columns
        if prepare and keys <= {"data", "data.columns", "data.culture", "data.language", "data.domain"}:
            columns, named = Columns.of(data), (data.source == "rows" and data.columns) or ()
            outcomes = (Outcome.of(prepare(row), columns.queries) for row in read_rows(path))
            items = valid_items(mark_repeats(columns.present(outcomes, named)))
        else:
            items = read(data, config.seed)
    else:
        read_row = partial(jsonl.query_items, defaults=given, is_strict=False)
        items = valid_items(mark_repeats(Outcome.of(row, read_row) for row in read_rows(path)))
    return [replace(item, culture=item.culture or culture) for item in items]


def _in_training_format(path: str) -> bool:
    """Return whether rows have a label, or else are none of a prompt and `responses`, or `response_a` and so on."""
    from think_as_locals.data.rows import read_rows
    from think_as_locals.data.sources import jsonl
    from think_as_locals.data.sources.columns import Columns

    first = None if Path(path).is_fifo() else next(read_rows(path)).value  # a pipe can be read only once
    if not isinstance(first, Mapping):
        return False
    labels = [first[name] for name in Columns.of_conf("rows").names["best"] if first.get(name) is not None]
    if "responses" in first:
        return any(not isinstance(label, int) for label in labels)  # ours are indices
    return bool(labels) or "prompt" not in first or first.keys().isdisjoint(jsonl.IN_COLUMNS)


@contextmanager
def _loaded_reader(model: str, backend: Any, max_tokens: int | None) -> Iterator[Read]:
    """Load a judge or a classifier, and close it; a PreflightError if there is no such model."""
    from think_as_locals.engines.transformers_engine import quiet_transformers
    from think_as_locals.evaluation.tables import judgement_view, scores_view
    from think_as_locals.machine.doctor import model_fault
    from think_as_locals.reward_models.published import architecture
    from think_as_locals.reward_models.reward_model import favourite
    from think_as_locals.runtime.files import read_json
    from think_as_locals.runtime.model_files import model_file

    if fault := model_fault(model, revision=None, whole=backend == "vllm"):
        raise PreflightError(fault)
    quiet_transformers()
    config = model_file(model, "config.json")
    settings = read_json(config) if config else {}  # an adapter alone has none
    heads = ("ForSequenceClassification", "RewardModel")  # the latter as OpenRLHF calls its own
    classifies = any(name.endswith(heads) for name in settings.get("architectures") or [])
    if classifies or architecture(settings):
        if backend != "transformers":
            raise ConfigError(f"--backend {backend}: {model} is a scalar reward model, which only transformers loads")
        from think_as_locals.reward_models.scalar import ScalarRM

        rm = ScalarRM.load(model)
        yield lambda items: [
            (scores_view(item, scores), {"id": item.id, "verdict": favourite(scores), "scores": list(scores)})
            for item, scores in zip(items, rm.score(items), strict=True)
        ]
        return
    from think_as_locals.reward_models.judge import SETTINGS_FILE, Judge

    if max_tokens is None and model_file(model, SETTINGS_FILE) is None:
        max_tokens = _MAX_TOKENS
    changes: dict[str, Any] = {"max_completion_length": max_tokens} if max_tokens else {}
    with Judge.load(model, backend=backend, **changes) as judge:

        def read(items: Sequence[Item]) -> list[tuple[RenderableType, dict[str, Any]]]:
            try:
                return [(judgement_view(s), s.record()) for s in judge.predict(items)]
            except TooLongError as error:
                ids = first_of((repr(items[index].id) for index in error.indices), 5)
                raise DataError(f"{ids}: {error}") from error

        yield read


def _serve(arguments: Namespace) -> None:
    from think_as_locals.engines.transformers_engine import quiet_transformers
    from think_as_locals.machine.doctor import preflight
    from think_as_locals.serving.app import load_server, serve

    config = load_server(arguments.model, arguments.overrides)
    preflight(config)
    quiet_transformers()
    serve(config)
