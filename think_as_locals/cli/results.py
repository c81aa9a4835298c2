"""`tal compare`, `leaderboard`, `validity` and `push`: commands that use the results of runs."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from think_as_locals.runtime.output import print_error, print_result
from think_as_locals.types import Item


def add(commands: Any) -> None:
    """Add the parsers of these commands."""
    compare = commands.add_parser("compare", help="compare two runs on the same items: which judges better, and where")
    first = "a training run's folder (its last evaluation on test items) or a carb/NAME.parquet"
    compare.add_argument("a", metavar="RUN_A", help=first)
    compare.add_argument("b", metavar="RUN_B", help="the other run")
    compare.add_argument("--by", default="cell", help="cell (culture and domain), culture, language, script ...")
    as_json = "print one JSON document and nothing else"
    compare.add_argument("--json", action="store_true", help=as_json)
    compare.set_defaults(command=_compare)
    board = commands.add_parser("leaderboard", help="rank the reward models of several runs in a table and a page")
    board.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="folder of an evaluation or of a training run")
    board.add_argument(
        "--out", default="leaderboard", type=Path, help="folder for leaderboard.json, .md and .html (leaderboard/)"
    )
    board.add_argument("--json", action="store_true", help=as_json)
    board.set_defaults(command=_leaderboard)
    validity = commands.add_parser("validity", help="measure how well accuracy on CARB predicts best-of-N quality")
    results = "an evaluation with eval.candidates, or rows of name, accuracy, downstream"
    validity.add_argument("results", type=Path, help=results)
    validity.add_argument(
        "--out", default="validity", type=Path, help="folder for validity.json and validity.svg (validity/)"
    )
    validity.add_argument("--json", action="store_true", help=as_json)
    validity.set_defaults(command=_validity)

    to_hub = "push a trained judge or scalar reward model to the Hugging Face Hub, privately"
    push = commands.add_parser("push", help=to_hub)
    push.add_argument("run", type=Path, help="folder of a training run")
    push.add_argument("--repo", required=True, metavar="OWNER/NAME", help="repository, created if needed")
    push.add_argument(
        "--model", metavar="NAME", help="for an SCPO run: TH/scpo-seed-0, ... of its models/, or global_rm"
    )
    push.add_argument(
        "--adapter", action="store_true", help="push the LoRA adapter alone, not merged into the base model"
    )
    of_model = "an evaluation of this model, for the card; may be repeated"
    push.add_argument("--evaluation", action="append", default=[], metavar="RUN", type=Path, help=of_model)
    licence = "licence of the weights, an id of the Hub such as cc-by-4.0; `other`: the one in model/LICENSE"
    push.add_argument("--license", metavar="ID", help=licence)
    push.add_argument("--public", action="store_true", help="make the repository public")
    push.add_argument("--update", action="store_true", help="replace existing files in the repository")
    push.add_argument("--revision", help="branch to commit to, created if needed")
    push.add_argument("--dry-run", action="store_true", help="list every file, without any network access")
    push.add_argument("--json", action="store_true", help=as_json)
    push.set_defaults(command=_push)


def _compare(arguments: Namespace) -> None:
    from think_as_locals.evaluation.breakdowns import macro_cells, macro_warning
    from think_as_locals.evaluation.compare import CAPTION, compare, notes, read, table
    from think_as_locals.evaluation.tables import on_terminal

    runs = {"A": Path(arguments.a), "B": Path(arguments.b)}
    known = dict[str, Item]()
    a, b = (read(run, known) for run in runs.values())
    macro, (found_in_runs, trained) = macro_warning(macro_cells(a.items)), notes(runs)
    warnings = [*dict.fromkeys([*([f"Warning: {macro}"] if macro else []), *found_in_runs])]
    found = compare(a, b, arguments.by)
    if arguments.json:
        named = {name: str(run) for name, run in zip("ab", runs.values(), strict=True)}
        print_result(json.dumps({**named, "warnings": warnings, "comparisons": found}))
        return
    title, caption = f"A: {arguments.a}\nB: {arguments.b}", "\n".join([CAPTION, *warnings])
    print_result(on_terminal(table(found, trained), title, caption))


def _leaderboard(arguments: Namespace) -> None:
    from think_as_locals.evaluation.leaderboard import on_terminal, write_leaderboard
    from think_as_locals.runtime.run_folder import RunFolder

    folder = arguments.out
    folder.mkdir(parents=True, exist_ok=True)
    page = write_leaderboard(arguments.runs, folder)
    if arguments.json:
        print_result(RunFolder(folder).leaderboard.read_text(encoding="utf-8").rstrip("\n"))
        return
    print_result(*on_terminal(folder))
    print_result(str(page))


def _validity(arguments: Namespace) -> None:
    from think_as_locals.evaluation.downstream import read_results, tables, write_validity
    from think_as_locals.evaluation.tables import on_terminal
    from think_as_locals.runtime.run_folder import RunFolder

    results, file = read_results(arguments.results), RunFolder(arguments.out).validity
    arguments.out.mkdir(parents=True, exist_ok=True)
    found = write_validity(results, file)
    if found["warning"]:
        print_error(f"warning: {found['warning']}")
    if arguments.json:
        print_result(file.read_text(encoding="utf-8").rstrip("\n"))
        return
    print_result(*map(on_terminal, tables(found)))
    print_result(str(file.with_suffix(".svg")))


def _push(arguments: Namespace) -> None:
    from huggingface_hub import HfApi

    from think_as_locals.hub.push import prepare, upload

    of_model = {"model": arguments.model, "adapter": arguments.adapter, "evaluations": arguments.evaluation}
    push = prepare(arguments.run, arguments.repo, **of_model, licence=arguments.license)
    files = [{"path": file.path, "size": file.size, "sha256": file.sha256} for file in push.files]
    listed = {"repo": push.repo, "files": files, "left_out": push.left_out}
    if arguments.dry_run:
        visibility = "public" if arguments.public else "private"
        if arguments.json:
            print_result(json.dumps({**listed, "private": not arguments.public, "url": None, "removed": []}))
        else:
            print_result("\n".join([f"{push.repo}, {visibility}: dry run, nothing is sent", *push.lines()]))
        return
    access = {"public": arguments.public, "update": arguments.update, "revision": arguments.revision}
    done = upload(push.files, push.repo, api=HfApi(), **access)
    if arguments.json:
        print_result(json.dumps({**listed, **asdict(done)}))
        return
    for reason in push.left_out:
        print_result(f"left out  {reason}")
    for path in done.removed:
        print_result(f"removed   {path}")
    print_result(f"sent      {len(push.files)} files, {'private' if done.private else 'public'}", done.url)
