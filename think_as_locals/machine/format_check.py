"""`tal doctor --model`: count the rules of the format that a model breaks in a few judgements of culture cards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from think_as_locals.config.checks import load_items
from think_as_locals.data import read
from think_as_locals.data.splits import select
from think_as_locals.engines.engine import Backend
from think_as_locals.judging import RULES
from think_as_locals.machine.doctor import Finding
from think_as_locals.reward_models.judge import Judge
from think_as_locals.reward_models.reward_model import TOO_LONG
from think_as_locals.runtime.output import quiet_transformers
from think_as_locals.types import Item

JUDGEMENTS = 20


def ask_model(path: str, backend: Backend, prompt: str | None) -> list[Finding]:
    """Ask a model in a directory or on the Hub, with its own prompt or another; return what its answers are like."""
    quiet_transformers()
    changes: dict[str, Any] = {} if prompt is None else {"prompt": prompt}
    items = select(tuple(read(load_items(["data=culture_cards"]).data, 0)), JUDGEMENTS)
    with Judge.load(path, backend, **changes) as judge:
        return list(check_format(judge, items))


def check_format(judge: Judge, items: Sequence[Item]) -> Iterator[Finding]:
    """Yield how many judgements of items keep the format, are right by either figure, and break each of its rules."""
    scored = judge.predict(items, fitting=True)
    kept = sum(s.judgement.verdict is not None for s in scored)
    tagged = sum(s.judgement.verdict_only is not None for s in scored)
    strict, lenient = sum(s.correct for s in scored), sum(s.verdict_only_credit for s in scored)
    of, prompt = len(scored), judge.settings.prompt
    yield Finding(
        "format", f"{kept} of {of} judgements keep the format of prompt {prompt}, {tagged} have a verdict tag"
    )
    yield Finding("format", f"right: {strict} strictly, {lenient:g} by the last verdict tag, of {of}")
    broken = Counter(issue for s in scored for issue in s.judgement.issues)
    meanings = {**RULES, TOO_LONG: "the prompt leaves the model no room", "rating": "the last word has to be a rating"}
    for rule, count in broken.most_common():
        yield Finding("format", f"{count:3} of {of} break {rule}: {meanings[rule]}")
