"""Load the items of a data configuration, split without leaks, and prompts with many candidates."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from think_as_locals.config.schema import DataSection, RunConfig
from think_as_locals.data.fields import (
    Culture,
    Identifier,
    Language,
    Prompt,
    Responses,
    RowModel,
    Text,
    field,
    question_group,
)
from think_as_locals.data.rows import Defect, Fault, mark_repeats, read_rows, valid_items
from think_as_locals.data.sources import SOURCES, check_settings, recognise, row_outcomes
from think_as_locals.data.splits import Splits, choose, mix, select, split_items
from think_as_locals.types import (
    TEST,
    VALIDATION,
    DataError,
    DataWarning,
    Demonstration,
    Item,
    ProtocolKind,
    first_of,
    shown,
)


def load(data: DataSection, seed: int = 0) -> Splits:
    """Load and split a source; raise a `DataError` for a fault in the data, or for a split with an empty side."""
    if data.source == "culture_cards" and data.split == "pairing" and "own" in (data.languages or ()):
        # Every Thai item is about Thailand: a judge that has seen its facts need not read the question.
        raise DataError("data.split=pairing with data.languages=own measures memory alone: use en, or data.split=group")
    items = tuple(read(data, seed))
    splits = split_items(items, data.split, data.test_share, data.validation_share)
    if not splits.train or not splits.test or (data.validation_share and not splits.validation):
        raise DataError(
            f"{data.source}: {len(items)} items give {len(splits.train)} to train on, {len(splits.validation)} to "
            f"validate on and {len(splits.test)} to test on with data.split={data.split}, data.validation_share="
            f"{data.validation_share} and data.test_share={data.test_share}: change one of them, or add data"
            + " (pairing holds out facts that other items show in other combinations)"
            * (data.split == "pairing")
        )
    return splits


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSet:
    """Items that a training run evaluates on, and how the judge is asked about them."""

    items: tuple[Item, ...]
    dataset: str  # their source or sources
    split: str  # how they were held out; `all` if they were not
    protocol: ProtocolKind
    orders: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """The training items of a run, and by name the sets it evaluates on: its held-out items and `eval.sets`."""

    train: tuple[Item, ...]
    sources: tuple[str, ...]  # of each training item, as named in the mix
    sets: Mapping[str, EvalSet]
    demonstrations: tuple[Demonstration, ...] = ()  # of sft.data
    # Once counted: the tokens of the prompt of an item, with its responses in reverse order or not.
    prompt_tokens: dict[tuple[Item, bool], int] = dataclasses.field(default_factory=dict)


def load_side(data: DataSection, seed: int, side: Literal["train", "validation", "test", "all"]) -> tuple[Item, ...]:
    """Load one side of a source's split, or `all` its items."""
    if side == "all":
        return tuple(read(data, seed))
    items: tuple[Item, ...] = getattr(load(data, seed), side)
    return items


def describe_items(items: Sequence[Item]) -> str:
    """Return how many items, groups and cultures there are, and their languages."""
    groups, cultures = len({item.group for item in items}), {str(item.culture) for item in items}
    languages = first_of(sorted({item.language for item in items}), 8)
    return f"{len(items):,} items, {groups:,} question groups, {len(cultures)} cultures, languages {languages}"


def load_training_data(config: RunConfig, cell: Callable[[Item], str]) -> TrainingData:
    """Load and split the sources of a run, mix their training items, and load the sets that it evaluates on."""
    splits = {name: load(data, config.seed) for name, data in config.data.sources.items()}
    weights = config.data.weights if config.data.source == "mix" else None
    mixed = mix({name: sides.train for name, sides in splits.items()}, weights)
    limit, dataset = config.eval.max_items, config.data.title
    by = " and ".join(sorted({data.split for data in config.data.sources.values()}))
    own_set, sets = partial(EvalSet, protocol="listwise", orders=1), dict[str, EvalSet]()
    for side in (VALIDATION, TEST):
        own = {name: select(getattr(sides, side), limit, cell) for name, sides in splits.items()}
        if any(own.values()):
            sets[side] = own_set(items=tuple(chain.from_iterable(own.values())), dataset=dataset, split=by)
        if side == TEST and config.data.source == "mix":
            for name, data in config.data.sources.items():
                sets[name] = own_set(items=own[name], dataset=data.title, split=data.split)
    for name, section in config.eval.sets.items():
        sets[name] = EvalSet(
            items=select(load_side(section.data, config.seed, section.items), limit, cell),
            dataset=section.data.title,
            split="all" if section.items == "all" else section.data.split,
            protocol=section.protocol,
            orders=section.orders,
        )
    names, train = zip(*mixed, strict=True)
    return TrainingData(train=train, sources=names, sets=sets)


def check_leaks(config: RunConfig, data: TrainingData) -> None:
    """Raise or warn, as `eval.leaks` says, if items to evaluate on are training items too.

    With a split by pairing, a run's held-out items share questions with its training items by design.
    """
    from think_as_locals.data.overlap import check_overlaps, find_overlaps

    own = {VALIDATION, TEST, *config.data.sources}
    by_pairing = {name for name, each in data.sets.items() if name in own and "pairing" in each.split}
    evaluated = {name: each.items for name, each in data.sets.items()}
    train = [*data.train, *(demonstration.item for demonstration in data.demonstrations)]
    overlaps = find_overlaps(list(dict.fromkeys(train)), evaluated, pairing=by_pairing)
    if message := check_overlaps(overlaps, refuse=config.eval.leaks == "refuse"):
        warnings.warn(message, DataWarning, stacklevel=2)


def read(data: DataSection, seed: int = 0) -> Sequence[Item]:
    """Load the items of a source, limited by the selection keys of its configuration."""
    check_settings(data)
    source = SOURCES[data.source]
    try:
        items = source.items(data, seed) if source.items else valid_items(mark_repeats(row_outcomes(data, seed)))
        return choose(items, data, source.applies, seed)
    except DataError as error:
        other: str = data.source
        if source.fields and data.path and Path(data.path).is_file():
            with suppress(DataError):
                other = recognise(data.path)
        if other == data.source:
            raise
        raise DataError(f"{error}\nThe rows look like data={other}, got data={data.source}") from error


# --- Candidates: prompts with any number of responses, of which a reward model selects one ---

_MAX_FAULTS = 10  # in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """A prompt and any number of candidate responses; `qualities` says how good each is, on any scale."""

    id: str
    prompt: str
    culture: str | None
    language: str
    texts: tuple[str, ...]
    qualities: tuple[float, ...] | None = None
    group: str = ""  # the question group; empty to derive it from the prompt

    @property
    def question_group(self) -> str:
        """The unit of the bootstrap: prompts that ask the same question."""
        return self.group or question_group(self.prompt)


def _check_qualities(name: str, value: Any, faults: list[Fault]) -> tuple[float, ...] | None:
    if isinstance(value, list) and all(type(n) in (int, float) and abs(n) <= sys.float_info.max for n in value):
        return tuple(map(float, value))
    faults.append(Fault(Defect.WRONG_TYPE, f"{name} must be a list of finite numbers, got {shown(value)}"))
    return None


class CandidatesRow(RowModel):
    """A row as it is in the file."""

    FIELDS: ClassVar = ("id", "prompt", "culture", "language", "candidates", "qualities", "group", "sampled")
    EXACT: ClassVar = True

    texts: Responses = Field(validation_alias="candidates")
    id: Identifier
    prompt: Prompt
    culture: Culture = None
    language: Language
    qualities: Annotated[tuple[float, ...] | None, field(_check_qualities, None)] = None
    group: Text = ""


def read_candidates(path: Path) -> list[Candidates]:
    """Load rows of `id`, `prompt`, `culture` (or null), `language`, `candidates` and, optionally, `qualities`."""
    found: dict[str, Candidates] = {}
    faults: list[str] = []
    with_qualities: dict[bool, str] = {}
    for row in read_rows(str(path)):
        fields = CandidatesRow.read(row)
        count = len(fields.texts)
        if fields.count_texts("candidates") == 0:
            fields.add(Defect.WRONG_COUNT, "expected at least one candidate, got none")
        if fields.qualities is not None and len(fields.qualities) != count:
            message = f"expected a quality for each of {count} candidates, got {len(fields.qualities)}"
            fields.add(Defect.WRONG_COUNT, message)
        if fields.id in found:
            fields.add(Defect.REPEATED_ID, f"id {fields.id!r} is already in an earlier row")
        faults += [f"{row.place}: {fault.detail}" for fault in fields.faults]
        if not fields.faults:
            found[fields.id] = Candidates(**fields.model_dump())
            with_qualities.setdefault(fields.qualities is not None, row.place)
    if len(with_qualities) > 1:
        faults.append(f"{with_qualities[True]} has qualities and {with_qualities[False]} has none; give all or none")
    if faults:
        raise DataError(first_of(faults, _MAX_FAULTS, "\n"))
    return list(found.values())
