"""`tal run`, `launch`, `doctor`, `recipes`, `demonstrate`: run, check or show a recipe."""

from __future__ import annotations

import io
import json
import os
import sys
from argparse import REMAINDER, Namespace
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from think_as_locals.config.compose import ASSETS, find_recipe, recipes
from think_as_locals.config.launch import find_launch
from think_as_locals.runtime.output import print_result
from think_as_locals.types import ConfigError

_RECIPE = "a recipe file, or the name of a built-in one (tal recipes)"
_EXAMPLES = {
    "demonstrate": "teacher.path=MODEL data=jsonl data.path=FILE tries=8",
    "edit": "data=carb data.path=FILE editor.url=URL editor.model=MODEL",
}


def add(commands: Any) -> None:
    """Add the parsers of these commands."""
    run = commands.add_parser("run", help="run a recipe (training, evaluation or SCPO) in one process")
    sweep = "run a sweep: one job per combination, e.g. seed=1,2 sweep=joblib"
    of_one = run.add_mutually_exclusive_group()
    of_one.add_argument("-m", "--multirun", action="store_true", help=sweep)
    of_one.add_argument("--print-config", action="store_true", help="print the configuration of one run as YAML")
    run.add_argument("--dry-run", action="store_true", help="print the plan, or with -m the jobs; run nothing")
    found = "print the results as one JSON document, and nothing else; with --dry-run, the plan"
    run.add_argument("--json", action="store_true", help=found)
    run.add_argument("recipe", help=_RECIPE)
    example = "key=value, e.g. model=qwen3_8b grpo.beta=0.001 seed=3"
    run.add_argument("overrides", nargs="*", default=[], help=example)
    run.set_defaults(command=_run)

    several = "run a recipe in several processes with accelerate launch"
    launch = commands.add_parser("launch", help=several)
    launch.add_argument("recipe", help=_RECIPE)
    options = "options of accelerate launch (--config_file may be a name in launch/) and key=value"
    launch.add_argument("rest", nargs=REMAINDER, metavar="...", help=options)
    launch.set_defaults(command=_launch)

    of_machine = "show what this machine has and what a recipe needs; status 1 if something is missing"
    doctor = commands.add_parser("doctor", help=of_machine)
    doctor.add_argument("recipe", nargs="?", help=f"{_RECIPE}; without one, the machine alone")
    doctor.add_argument("overrides", nargs="*", default=[], help="key=value, as for tal run")
    of_launch = "accelerate configuration: a name in launch/, or a file; default: the recipe's run.launch, or single"
    doctor.add_argument("--launch", help=of_launch)
    doctor.add_argument(
        "--model", metavar="PATH", help="directory or Hub id of a model: sample judgements, count broken rules"
    )
    template = "with --model: a prompt template; default: the one it was trained with, or several"
    doctor.add_argument("--prompt", help=template)
    doctor.add_argument("--backend", choices=["transformers", "vllm"], default="transformers", help="engine of --model")
    doctor.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    doctor.set_defaults(command=_doctor)

    known = commands.add_parser("recipes", help="list the built-in recipes, or print one")
    known.add_argument("recipe", nargs="?", help="the recipe to print")
    known.set_defaults(command=_recipes)

    add_command(commands, "demonstrate", "have a model write demonstrations for a cold start (sft.data)")


def add_command(commands: Any, name: str, summary: str) -> None:
    """Add the parser of a command that is configured by conf/NAME.yaml."""
    again = "To continue a killed run, add run.name=NAME run.resume=auto."
    parser = commands.add_parser(name, help=summary, epilog=again)
    example = f"key=value of conf/{name}.yaml, e.g. {_EXAMPLES[name]}"
    parser.add_argument("overrides", nargs="*", default=[], help=example)
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    recipe = str(ASSETS / "conf" / f"{name}.yaml")
    parser.set_defaults(command=_run, recipe=recipe, multirun=False, print_config=False, dry_run=False)


def _run(arguments: Namespace) -> None:
    """Run a recipe, or a sweep of it, and print the results; status 1 if a job or a reward model failed."""
    recipe, overrides = arguments.recipe, arguments.overrides
    if arguments.print_config:
        from think_as_locals.config.checks import load_config

        if arguments.json:
            raise ConfigError("--print-config prints YAML: leave out --json")
        print_result(load_config(recipe, overrides).to_yaml().rstrip("\n"))
        return
    if arguments.dry_run:
        program = import_module("think_as_locals.sweeps.sweep" if arguments.multirun else "think_as_locals.run")
        rows = program.plan(recipe, overrides)
        if arguments.json:
            print_result(json.dumps({"plan": rows}))
        else:
            _print_grid(rows)
        return
    from think_as_locals.runtime.run_folder import RunFolder

    with redirect_stdout(io.StringIO()) if arguments.json else nullcontext():
        if arguments.multirun:
            from think_as_locals.sweeps.sweep import sweep

            path, is_done = sweep(recipe, overrides)
        else:
            from think_as_locals.run import start

            run = start(recipe, overrides)
            path, is_done = run.path, not run.results("failed")
    if arguments.json:
        print_result(RunFolder(path).findings.read_text(encoding="utf-8").rstrip("\n"))
    if not is_done:
        raise SystemExit(1)


def _launch(arguments: Namespace) -> None:
    """Become `launch/node.sh`, which starts `tal run` in every process and passes signals on."""
    recipe, options, overrides = find_recipe(arguments.recipe), list[str](), list[str]()
    for word in arguments.rest:
        is_override = word.startswith("~") or ("=" in word and not word.startswith("-"))
        (overrides if is_override else options).extend(word.split("=", word.startswith("--config_file=")))
    if "--config_file" in options[:-1]:
        file = options.index("--config_file") + 1
        options[file] = str(find_launch(options[file]))
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # has accelerate
    program = ["--module", "think_as_locals", "run", str(recipe), *overrides]
    os.execvp("bash", ["bash", str(ASSETS / "launch" / "node.sh"), *options, *program])  # noqa: S606, S607


def _doctor(arguments: Namespace) -> None:
    from think_as_locals.config.checks import load_config
    from think_as_locals.config.launch import read_launch
    from think_as_locals.machine.doctor import examine
    from think_as_locals.runtime.terminal import progress_console

    config = load_config(arguments.recipe, arguments.overrides) if arguments.recipe else None
    launch = read_launch(arguments.launch or (config.run.launch if config else None))
    findings = examine(config, launch)
    if arguments.model:
        from think_as_locals.machine.model_check import query_model

        findings += query_model(arguments.model, arguments.backend, arguments.prompt, progress_console())
    if arguments.json:
        print_result(json.dumps({"findings": [asdict(finding) for finding in findings]}))
    else:
        _print_grid(("MISSING" if finding.fault else "", finding.what, finding.found) for finding in findings)
    raise SystemExit(any(finding.fault for finding in findings))


def _recipes(arguments: Namespace) -> None:
    """Print a recipe, or the name of each and what it does, its first comment after the line that launches it."""
    if arguments.recipe:
        print_result(find_recipe(arguments.recipe).read_text(encoding="utf-8").rstrip("\n"))
    else:
        _print_grid((path.stem, path.read_text(encoding="utf-8").splitlines()[2].lstrip("# ")) for path in recipes())


def _print_grid(rows: Any) -> None:
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    for row in rows:
        grid.add_row(*row)
    print_result(grid)
