"""Collect edits for the probes: items -> a model's edits, in several tries -> those that follow the rules."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from pandas import DataFrame
from rich.progress import Progress

from think_as_locals.config.model_schema import EditConfig
from think_as_locals.data import edit_rules
from think_as_locals.data.edits import Edit
from think_as_locals.data.languages import language_tag
from think_as_locals.data.load import describe_items, load_side
from think_as_locals.engines import Engine, Messages, Sampling
from think_as_locals.evaluation.breakdowns import language_name
from think_as_locals.evaluation.journal import query_with_journal
from think_as_locals.evaluation.sampling import Sampler, YieldCounter, advance, load_policy, yield_table
from think_as_locals.evaluation.tables import on_terminal
from think_as_locals.judging.prompt import break_tokens, culture_name
from think_as_locals.reward_models.reward_model import REFUSED, TOO_LONG, Answer, Request, is_unanswered
from think_as_locals.runtime.files import read_json, write_json, write_rows
from think_as_locals.runtime.output import print_result, progress_bar, progress_console, quiet_transformers
from think_as_locals.runtime.run_folder import RunFolder
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
    console.print(f"{config.run.name}: {len(items):,} items ({config.data.title})", highlight=False)
    if not folder.edits.is_file():
        rows, found = list[dict[str, Any]](), dict[str, Any]()
        engine, identity, chunk_size = load_policy(config.editor)
        with closing(engine), progress_bar(console) as bar:
            for probe in config.probes:
                editing = Editing(config, probe, engine, identity, chunk_size, folder, bar)
                of_probe, found[probe] = editing.run(items)
                rows += of_probe
        write_json(folder.yields, {"n_items": len(items), "probes": found})
        if not rows:
            raise DataError(
                f"no edit of {len(items)} items keeps the rules: {folder.yields} counts those that are broken; start a "
                "new run with more tries, a larger max_completion_length or another editor"
            )
        write_rows(folder.edits, rows)
    print_result(*map(on_terminal, tables(read_json(folder.yields)["probes"])))
    print(f"edits  {folder.edits}")


@dataclass(frozen=True, slots=True)
class Editing:
    """The edits of all items for one probe."""

    config: EditConfig
    probe: Edit
    engine: Engine
    identity: Mapping[str, Any]
    chunk_size: int | None
    folder: RunFolder
    bar: Progress

    def run(self, items: Sequence[Item]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Return a row for each edit that keeps the rules, in the order of the items, and the counts."""
        language = str(language_tag(self.config.language))
        reasons = {item.id: edit_rules.skip_reason(self.probe, item, language) for item in items}
        tally = YieldCounter([item for item in items if reasons[item.id] is None], ("kept", "rejected"))
        rows = [row for number in range(1, self.config.tries + 1) for row in self._try(number, tally)]
        rows.sort(key=lambda row: tally.index(row["item"]["id"]))
        return rows, {**tally.summary(), "not_asked": Counter(reason for reason in reasons.values() if reason)}

    def _target(self, item: Item) -> str | None:
        language = str(language_tag(self.config.language))
        return edit_rules.target_language(item, language) if self.probe == "CL" else None

    def _try(self, number: int, tally: YieldCounter) -> Iterator[dict[str, Any]]:
        """Ask about the remaining items, and yield a row for each edit that keeps the rules."""
        left, config = tally.left(), self.config
        if not left:
            return
        seed = random.Random(f"{config.seed}-{self.probe}-{number}").randrange(2**31)
        drawn: dict[str, Any] = {"temperature": config.temperature, "seed": seed}
        sampling = Sampling(max_completion_length=config.max_completion_length, **drawn)
        sampler = Sampler(self.engine, sampling, self.chunk_size, self._conversation, lambda r: r.item.prompt)
        prompt = hashlib.sha256(edit_rules.prompt_text(self.probe).encode()).hexdigest()[:16]
        made = {"editor": dict(self.identity), "prompt": prompt, **drawn}
        identity = {**made, "language": config.language, "max_completion_length": config.max_completion_length}
        path = self.folder.journal(f"{self.probe}-try-{number}")
        shown = advance(self.bar, f"{self.probe}, try {number}")
        requests = [Request(item, ()) for item in left]
        answers = query_with_journal(sampler, path, identity, requests, shown, too_long="wrong")
        for item, answer in zip(left, answers, strict=True):
            after, broken = self._read(item, answer)
            tally.add(item, "rejected" if broken else "kept", broken)
            if after is not None and not broken:
                tally.keep([item])
                yield self._row(item, after, {**made, "try": number})

    def _conversation(self, request: Request) -> Messages:
        item = request.item
        language = language_name(self._target(item) or item.language)
        text = edit_rules.request_text(self.probe, item, culture_name(item.culture), language)
        return [{"role": "user", "content": break_tokens(text, self.engine.special_tokens)}]

    def _read(self, item: Item, answer: Answer) -> tuple[edit_rules.Texts | None, list[str]]:
        """Return the edit in an answer, if it can be read, and the rules that it breaks."""
        if is_unanswered(answer):
            return None, list(answer)
        if not is_stop(answer["finish_reason"]):
            return None, ["complete"]
        after = edit_rules.read_answer(self.probe, item, answer["text"])
        return after, edit_rules.broken_rules(self.probe, item, after, self._target(item)) if after else ["format"]

    def _row(self, item: Item, after: edit_rules.Texts, provenance: Mapping[str, Any]) -> dict[str, Any]:
        """Return an edit as `eval.probes` reads it: the item, and its edited fields."""
        prompt = {"prompt": after.prompt} if after.prompt != item.prompt else {}
        responses = {"responses": list(after.responses)} if after.responses != item.responses else {}
        language = {"language": self._target(item)} if self.probe == "CL" else {}
        edited = {**prompt, **responses, **language}
        return {"item": asdict(item), "probe": self.probe, **edited, "provenance": dict(provenance)}


def tables(probes: Mapping[str, Any]) -> list[DataFrame]:
    """Return tables of the yields, of the rules that answers break, and of the items without a request."""
    limits = {TOO_LONG: "the item is not too long for the editor", REFUSED: "the editor's server takes the item"}
    names = {**edit_rules.EDIT_RULES, **limits}
    counted = {"completions": "completions", "kept": "kept", "rejected": "rejected"}
    found = [yield_table("probe", "items edited, % of those asked about", probes, counted)]
    for title, key in (("rule that answers break", "broken"), ("items not asked about", "not_asked")):
        reasons = dict.fromkeys(reason for part in probes.values() for reason in part[key])
        rows = [
            {title: names.get(reason, reason)}
            | {probe: f"{part[key].get(reason, 0):,}" for probe, part in probes.items()}
            for reason in reasons
        ]
        found += [DataFrame(rows)] if rows else []
    return found
