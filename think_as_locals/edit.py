"""Collect edits for the probes: items -> a model's edits, in several tries -> those that follow the rules."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

from pandas import DataFrame
from rich.progress import Progress

from think_as_locals.config.model_schema import EditConfig
from think_as_locals.data.edits import (
    EDIT_RULES,
    Edit,
    broken_rules,
    prompt_text,
    read_answer,
    request_text,
    skip_reason,
    target_language,
)
from think_as_locals.data.languages import language_tag
from think_as_locals.data.load import describe_items, load_side
from think_as_locals.engines import Engine, Messages, Sampling
from think_as_locals.engines.transformers_engine import quiet_transformers
from think_as_locals.evaluation.breakdowns import language_name
from think_as_locals.evaluation.journal import query_with_journal
from think_as_locals.evaluation.sampling import Completion, Sampler, advance, load_policy, yield_summary, yield_table
from think_as_locals.evaluation.tables import on_terminal
from think_as_locals.judging.formats import without_thinking
from think_as_locals.judging.prompt import break_tokens, culture_name
from think_as_locals.reward_models.reward_model import REFUSED, TOO_LONG, Answer, Request, is_unanswered
from think_as_locals.runtime.files import read_json, write_json, write_rows
from think_as_locals.runtime.output import print_result
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.runtime.terminal import progress_bar, progress_console
from think_as_locals.types import ConfigError, DataError, Item, is_stop


def load_data(config: EditConfig) -> Sequence[Item]:
    """Load the items to edit."""
    if language_tag(config.language) is None:
        raise ConfigError(f"language: got {config.language!r}, expected an English name or a BCP-47 tag")
    return load_side(config.data, config.seed, config.items)


def plan(config: EditConfig, items: Sequence[Item]) -> list[tuple[str, str]]:
    """Return what a run would do."""
    return [
        ("editor", config.editor.name),
        ("items", f"{describe_items(items)} ({config.data.source}, {config.items})"),
        ("probes", f"{', '.join(config.probes)}, up to {config.tries} tries per edit"),
    ]


def run(config: EditConfig, items: Sequence[Item], folder: RunFolder) -> None:
    """Ask a model for edits of items, and write those that keep the rules to the folder's `edits.jsonl`."""
    quiet_transformers()
    console = progress_console()
    console.print(f"{config.run.name}: {len(items):,} items ({config.data.title})")
    if not folder.edits.is_file():
        rows, found = list[dict[str, Any]](), dict[str, Any]()
        policy = load_policy(config.editor)
        with closing(policy[0]), progress_bar(console) as bar:
            for probe in config.probes:
                of_probe, found[probe] = query_editor(config, probe, policy, items, folder, bar)
                rows += of_probe
        write_json(folder.yields, {"n_items": len(items), "probes": found})
        if not rows:
            raise DataError(
                f"no edit of {len(items)} items keeps the rules: {folder.yields} counts those that are broken; start a "
                "new run with more tries, a larger max_completion_length or another editor"
            )
        write_rows(folder.edits, rows)
    print_result(*map(on_terminal, tables(read_json(folder.yields)["probes"])))
    print_result(f"edits  {folder.edits}")


def query_editor(
    config: EditConfig,
    probe: Edit,
    policy: tuple[Engine, Mapping[str, Any], int | None],
    items: Sequence[Item],
    folder: RunFolder,
    bar: Progress,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return a row for each edit of a probe that keeps the rules, in the order of the items, and the counts."""
    rows, completions = dict[str, dict[str, Any]](), list[Completion]()
    (engine, identity, chunk_size), language = policy, str(language_tag(config.language))
    reasons = {item.id: skip_reason(probe, item, language) for item in items}
    asked = [item for item in items if reasons[item.id] is None]
    targets = {item.id: target_language(item, language) if probe == "CL" else None for item in asked}
    prompt = hashlib.sha256(prompt_text(probe).encode()).hexdigest()[:16]
    limits = {"language": config.language, "max_completion_length": config.max_completion_length}

    def conversation(request: Request) -> Messages:
        item = request.item
        text = request_text(probe, item, culture_name(item.culture), language_name(targets[item.id] or item.language))
        return [{"role": "user", "content": break_tokens(text, engine.special_tokens)}]

    for number in range(1, config.tries + 1):
        if not (left := [item for item in asked if item.id not in rows]):
            break
        seed = random.Random(f"{config.seed}-{probe}-{number}").randrange(2**31)
        drawn: dict[str, Any] = {"temperature": config.temperature, "seed": seed}
        sampling = Sampling(max_completion_length=config.max_completion_length, **drawn)
        sampler = Sampler(engine, sampling, chunk_size, conversation, lambda request: request.item.prompt)
        made = {"editor": dict(identity), "prompt": prompt, **drawn}
        path, requests = folder.journal(f"{probe}-try-{number}"), [Request(item, ()) for item in left]
        shown = advance(bar, f"{probe}, try {number}")
        answers = query_with_journal(sampler, path, {**made, **limits}, requests, shown, too_long="wrong")
        for item, answer in zip(left, answers, strict=True):
            edited, broken = _read(probe, item, answer, targets[item.id])
            completions.append((item.id, "rejected" if broken else "kept", broken))
            if not broken:
                provenance = {**made, "try": number}
                rows[item.id] = {"item": asdict(item), "probe": probe, **edited, "provenance": provenance}
    summary = yield_summary(asked, completions, ("kept", "rejected"), rows.keys())
    not_asked = Counter(filter(None, reasons.values()))
    return [rows[item.id] for item in asked if item.id in rows], {**summary, "not_asked": not_asked}


def _read(probe: Edit, item: Item, answer: Answer, target: str | None) -> tuple[dict[str, Any], list[str]]:
    """Return the edited fields in an answer, as `eval.probes` reads them, and the rules that it breaks."""
    if is_unanswered(answer):
        return {}, list(answer)
    if not is_stop(answer["finish_reason"]):
        return {}, ["complete"]
    if (texts := read_answer(probe, item, without_thinking(answer["text"]))) is None:
        return {}, ["format"]
    prompt, *responses = texts
    edited: dict[str, Any] = {"prompt": prompt} if prompt != item.prompt else {}
    edited |= {"responses": responses} if responses != [*item.responses] else {}
    edited |= {"language": target} if target else {}
    return edited, broken_rules(probe, item, texts, target)


def tables(probes: Mapping[str, Any]) -> list[DataFrame]:
    """Return tables of the yields, of the rules that answers break, and of the items without a request."""
    limits = {TOO_LONG: "the item is not too long for the editor", REFUSED: "the editor's server takes the item"}
    names = {**EDIT_RULES, **limits}
    counted = {"completions": "completions", "kept": "kept", "rejected": "rejected"}
    found = [yield_table("probe", "items edited, % of those asked about", probes, counted)]
    for title, key in (("rule that answers break", "broken"), ("items not asked about", "not_asked")):
        counts = DataFrame({probe: part[key] for probe, part in probes.items()}).fillna(0)
        if len(counts):
            found.append(counts.map("{:,.0f}".format).rename(names).rename_axis(title).reset_index())
    return found
