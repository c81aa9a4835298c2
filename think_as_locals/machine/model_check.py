"""`tal doctor --model`: ask a model for a few judgements, and say how well it keeps the format of a prompt."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from think_as_locals.config.checks import load_data_config
from think_as_locals.data import read
from think_as_locals.data.splits import select
from think_as_locals.engines.engine import Backend
from think_as_locals.engines.transformers_engine import quiet_transformers
from think_as_locals.evaluation.report import FROM_SCRATCH, is_randomly_initialised
from think_as_locals.judging import RULES
from think_as_locals.machine.doctor import Finding, model_fault
from think_as_locals.reward_models.judge import SETTINGS_FILE, Judge
from think_as_locals.reward_models.reward_model import TOO_LONG, ScoredItem
from think_as_locals.runtime.model_files import model_file
from think_as_locals.runtime.output import shorten_repeats
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.types import Item, PreflightError, cut

_ITEMS, _ITEMS_EACH = 20, 4  # with one prompt, and with each of several
_MAX_TOKENS = 512  # of a judgement: a model that was not trained for it may never stop
_PROMPTS = ("listwise", "rewardbench2", "rm_r1")  # of different formats, for a model that was trained for none of ours
_SHOWN = 160  # characters of a completion
_MEANINGS = {**RULES, TOO_LONG: "the prompt leaves the model no room", "rating": "the last word has to be a rating"}


def format_findings(prompt: str, scored: Sequence[ScoredItem]) -> list[Finding]:
    """Return how many judgements are in the format, have a verdict and are right, broken rules and an example."""
    of, in_format = len(scored), sum(not each.judgement.issues for each in scored)
    right = sum(each.correct for each in scored)
    lines = [
        f"of {of} judgements with prompt {prompt}, {in_format} are in the format",
        f"{of - count_verdicts(scored)} have no verdict, {right} have the right one",
    ]
    broken = Counter(issue for each in scored for issue in each.judgement.issues)
    lines += [f"{count:3} of {of} break {rule}: {_MEANINGS[rule]}" for rule, count in broken.most_common()]
    shown = max(scored, key=lambda each: bool(each.judgement.issues)).judgement.completion
    lines.append(f"it wrote, for example: {cut(shorten_repeats(' '.join(shown.split())), _SHOWN)!r}")
    return [Finding("format", line) for line in lines]


def count_verdicts(scored: Sequence[ScoredItem]) -> int:
    """Return how many judgements have a verdict."""
    return sum(each.judgement.verdict is not None for each in scored)


def query_model(path: str, backend: Backend, prompt: str | None, console: Console) -> list[Finding]:
    """Ask a model for judgements of our culture cards with this prompt, its own, or several, the best of them first."""
    if fault := model_fault(path, revision=None):
        raise PreflightError(fault)
    quiet_transformers()
    items = tuple(read(load_data_config(["data=culture_cards"]).data, 0))
    own = model_file(path, SETTINGS_FILE) is not None
    with Judge.load(path, backend) as judge:
        prompts = [prompt] if prompt else [judge.settings.prompt] if own else _PROMPTS
        chosen = select(items, _ITEMS if len(prompts) == 1 else _ITEMS_EACH)
        scored = {name: judge_with(judge, name, chosen, console) for name in prompts}
    best, *others = sorted(scored, key=lambda name: -count_verdicts(scored[name]))
    findings = [finding for name in (best, *others) for finding in format_findings(name, scored[name])]
    if not own and count_verdicts(scored[best]) < len(chosen):
        cold = f"tal run pretrained model.path={shlex.quote(path)} data.path=FILE"
        findings.append(Finding("format", f"prompt={best} does best; a cold start teaches a format: {cold}"))
    folders = map(RunFolder, Path(path).resolve().parents[:2])
    if run := next(filter(is_randomly_initialised, folders), None):
        command = shlex.join(["tal", "judge", path, str(run.examples)])
        ask = f" Ask it some of its own: {command}" if run.examples.is_file() else ""
        findings.append(Finding("format", FROM_SCRATCH + ask))
    return findings


def judge_with(judge: Judge, prompt: str, items: Sequence[Item], console: Console) -> list[ScoredItem]:
    """Return a model's judgements with a prompt, of at most 512 tokens each."""
    most = min(judge.settings.max_completion_length, _MAX_TOKENS)
    console.print(f"prompt {prompt}: {len(items)} judgements of up to {most} tokens")
    changes: dict[str, Any] = {"prompt": prompt, "max_completion_length": most}
    asked = replace(judge, settings=replace(judge.settings, **changes))
    return asked.predict(items, allow_long=True)
