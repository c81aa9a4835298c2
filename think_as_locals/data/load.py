"""Load the items of a data configuration, split without leaks, and prompts with many candidates."""

from __future__ import annotations

import shlex
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, FiniteFloat

from think_as_locals.config.compose import nearest
from think_as_locals.config.run_schema import RunConfig
from think_as_locals.config.schema import DataSection, Side
from think_as_locals.data.edits import remove_label
from think_as_locals.data.fields import Culture, Identifier, Language, RowModel, Text, Texts, question_group
from think_as_locals.data.rows import Fault, Outcome, Row, check_rows, mark_repeats, read_rows, valid_items
from think_as_locals.data.sources import SOURCES, check_settings, recognise, row_outcomes
from think_as_locals.data.splits import Splits, distinct_ids, flip_sets, hash_fraction, mix, root, select, split_items
from think_as_locals.types import (
    TEST,
    VALIDATION,
    DataError,
    DataWarning,
    Demonstration,
    Item,
    ProtocolKind,
    first_of,
    reorder_responses,
    shown,
)


def load(data: DataSection, seed: int = 0, faulty: list[str] | None = None) -> Splits:
    """Load and split a source, see `read`; raise a `DataError` for a split with an empty side."""
    if data.source == "culture_cards" and data.split == "pairing" and "own" in (data.languages or ()):
        # Every Thai item is about Thailand: a judge that has seen its facts need not read the question.
        raise DataError("data.split=pairing with data.languages=own measures memory alone: use en, or data.split=group")
    items = tuple(read(data, seed, faulty))
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
    faulty: Sequence[str] = ()  # rows of their sources that were left out


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """The training items of a run, and by name the sets it evaluates on: its held-out items and `eval.sets`."""

    train: tuple[Item, ...]
    sources: tuple[str, ...]  # of each training item, as named in the mix
    sets: Mapping[str, EvalSet]
    demonstrations: tuple[Demonstration, ...] = ()  # of sft.data


def load_side(data: DataSection, seed: int, side: Side, faulty: list[str] | None = None) -> tuple[Item, ...]:
    """Load one side of a source's split, or `all` its items, see `read`."""
    if side == "all":
        return tuple(read(data, seed, faulty))
    items: tuple[Item, ...] = getattr(load(data, seed, faulty), side)
    return items


def describe_items(items: Sequence[Item]) -> str:
    """Return how many items, groups and cultures there are, and their languages."""
    groups, cultures = len({item.group for item in items}), {item.culture for item in items} - {None}
    languages = first_of(sorted({item.language for item in items}), 8)
    return f"{len(items):,} items, {groups:,} question groups, {len(cultures)} cultures, languages {languages}"


def load_training_data(config: RunConfig, cell: Callable[[Item], str]) -> TrainingData:
    """Load and split the sources of a run, mix their training items, and load the sets that it evaluates on."""
    faulty = {name: list[str]() for name in config.data.sources}
    loaded = {name: load(data, config.seed, faulty[name]) for name, data in config.data.sources.items()}
    splits = distinct_ids(loaded) if len(loaded) > 1 else loaded
    mixed = mix({name: sides.train for name, sides in splits.items()}, config.data.weights)
    limit, dataset = config.eval.max_items, config.data.title
    by = " and ".join(sorted({data.split for data in config.data.sources.values()}))
    held_out = chain.from_iterable((*sides.validation, *sides.test) for sides in splits.values())
    # Pairs in both orders: a judge that prefers a position is right in half of them, and not in all or none.
    orders = 2 if all(len(item.responses) == 2 for item in held_out) else 1
    own_set, sets = partial(EvalSet, protocol="listwise", orders=orders), dict[str, EvalSet]()
    for side in (VALIDATION, TEST):
        own = {name: select(getattr(sides, side), limit, cell) for name, sides in splits.items()}
        if any(own.values()):
            items, left_out = tuple(chain.from_iterable(own.values())), [*chain.from_iterable(faulty.values())]
            sets[side] = own_set(items=items, dataset=dataset, split=by, faulty=left_out)
        if side == TEST and config.data.source == "mix":
            for name, data in config.data.sources.items():
                sets[name] = own_set(items=own[name], dataset=data.title, split=data.split, faulty=faulty[name])
    for name, section in config.eval.sets.items():
        faulty_here = list[str]()
        sets[name] = EvalSet(
            items=select(load_side(section.data, config.seed, section.items, faulty_here), limit, cell),
            dataset=section.data.title,
            split="all" if section.items == "all" else section.data.split,
            protocol=section.protocol,
            orders=section.orders,
            faulty=faulty_here,
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


def read(data: DataSection, seed: int = 0, faulty: list[str] | None = None) -> Sequence[Item]:
    """Load the items of a source, limited by the selection keys of its configuration.

    Rows with an error are left out and added to `faulty`, or raise a `DataError`, as `data.faulty_rows` says.
    """
    check_settings(data)
    source = SOURCES[data.source]
    left_out = None if data.faulty_rows == "error" else [] if faulty is None else faulty
    try:
        if source.items:
            items = source.items(data, seed, left_out)
        else:
            items = valid_items(mark_repeats(row_outcomes(data, seed)), left_out)
        return choose(items, data, source.applies, seed)
    except DataError as error:
        other = [f"data={data.source}"]
        if data.path and Path(data.path).is_file():
            with suppress(DataError):
                other = recognise(data.path)
        if other[0] == f"data={data.source}" and (data.columns or not other[1:]):
            raise
        raise DataError(f"{error}\nThe rows look like {shlex.join(other)}, got data={data.source}") from error


# --- Selection by the keys of `data` ---


def choose(items: Iterable[Item], data: DataSection, applied: Set[str], seed: int) -> Sequence[Item]:
    """Return the selected items; keys that the source has `applied` itself are skipped.

    The keys apply in this order: languages, question groups, countries, the largest question groups, the number of
    responses, pairs, places to hide, the number of items. A `DataError` names values that no item has.
    """
    if "languages" not in applied:
        items = _matching("data.languages", data.languages, items, lambda item: _with_primary(item.language))
    if "groups" not in applied:
        items = _matching("data.groups", data.groups, items, lambda item: {item.group})
    if SOURCES[data.source].in_columns or data.source == "blend":  # which asks some questions under two ids
        items = join_groups(items)
    items = _matching("data.countries", data.countries, items, lambda item: _with_primary(item.culture or ""))
    items = _largest_groups(items, data.max_groups)
    if (size := data.num_responses) is not None:
        items = _of_size(items, size, seed)
    if data.as_pairs:
        each = ((item, sorted((item.best, i)), i) for item in items for i in _wrong(item))
        items = [
            replace(reorder_responses(item, two), id=f"{item.id}/pair-{i}") if len(item.responses) > 2 else item
            for item, two, i in each
        ]
    if data.hide_place:
        edited = [(item, remove_label(item)) for item in items]
        items = [replace(item, prompt=cut.prompt) for item, cut in edited if cut]
        if not items:
            raise DataError("data.hide_place: no question names its place in words that can be cut: set it to false")
        if unnamed := [item.id for item, cut in edited if not cut]:
            reason = f"whose question does not name its place in words that can be cut, such as {unnamed[0]!r}"
            warnings.warn(f"data.hide_place: left out {len(unnamed):,} items {reason}", DataWarning, stacklevel=2)
    return select(tuple(items), data.max_items)


def join_groups(items: Iterable[Item]) -> list[Item]:
    """Give items whose prompts have the same words one question group, whatever the ids and the order of their rows.

    A group that a row gives itself, such as a person, stays as it is.
    """
    items, joined = list(items), dict[str, str]()
    for item in items:
        if item.source == "blend" or not has_own_group(item):
            first, second = sorted(root(joined, each) for each in (item.group, question_group(item.prompt)))
            joined[second] = first
    first_by_name = {root(joined, group): group for group in sorted({item.group for item in items}, reverse=True)}
    names = (first_by_name[root(joined, item.group)] for item in items)
    return [replace(item, group=name) if name != item.group else item for item, name in zip(items, names, strict=True)]


def has_own_group(item: Item) -> bool:
    """Return whether an item's row gives its question group, instead of its being named after the words or the id."""
    return item.group != question_group(item.prompt) and not item.id.endswith(f"/{item.group}")


def _matching(
    key: str, wanted: Sequence[str] | None, items: Iterable[Item], names: Callable[[Item], Set[str]]
) -> Iterable[Item]:
    """Return the items with a wanted name."""
    if wanted is None:
        return items
    items = tuple(items)
    known = sorted(set().union(*map(names, items)) - {""})
    if missing := [name for name in wanted if name not in known]:
        raise DataError(
            f"{key}: no items of {', '.join(map(repr, missing))}; there are items of: "
            f"{first_of(known, 20) or 'none'}{nearest(missing[0], known)}"
        )
    return [item for item in items if not names(item).isdisjoint(wanted)]


def _with_primary(code: str) -> set[str]:
    """Return a code and its first part: `zh-Hant` and `zh` (BCP-47), `CA-QC` and `CA` (ISO 3166-2)."""
    return {code, code.partition("-")[0]}


def _largest_groups(items: Iterable[Item], limit: int | None) -> Iterable[Item]:
    """Return the items of the `limit` question groups with the most flip sets, or if there are none the most items."""
    if limit is None:
        return items
    items = tuple(items)
    sizes = Counter(members[0].group for members in flip_sets(items)) or Counter(item.group for item in items)
    groups = sorted({item.group for item in items}, key=lambda group: (-sizes[group], hash_fraction(group)))
    largest = set(groups[:limit])
    return [item for item in items if item.group in largest]


def _of_size(items: Iterable[Item], size: int, seed: int) -> Iterable[Item]:
    """Reduce items to the best response and others drawn by a hash; leave out shorter items with a warning."""
    items = tuple(items)
    long_enough = [item for item in items if len(item.responses) >= size]
    short = [item.id for item in items if len(item.responses) < size]
    if items and not long_enough:
        most = max(len(item.responses) for item in items)
        raise DataError(f"data.num_responses: got {size}, but no item has more than {most} responses")
    if short:
        message = f"data.num_responses={size}: left out {len(short):,} items with fewer, such as {short[0]!r}"
        warnings.warn(message, DataWarning, stacklevel=2)
    drawn = []
    for item in long_enough:
        wrong = sorted(_wrong(item), key=lambda i: hash_fraction(f"{item.id}/{i}", seed))[: size - 1]
        drawn.append(reorder_responses(item, sorted([item.best, *wrong])) if len(item.responses) > size else item)
    return drawn


def _wrong(item: Item) -> list[int]:
    return [i for i in range(len(item.responses)) if i != item.best]


# --- Candidates: prompts with any number of responses, of which a reward model selects one ---


class Candidates(RowModel):
    """A prompt and any number of candidate responses; `qualities` says how good each is, on any scale."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Identifier
    prompt: Text
    culture: Culture | None = None
    language: Language
    texts: Annotated[Texts, Field(min_length=1, validation_alias="candidates")]
    qualities: tuple[FiniteFloat, ...] | None = None
    group: Text | None = None  # derived from the prompt if it is not given
    turns: tuple[tuple[str, str], ...] = ()  # of a prompt that is a conversation, as `Item.turns`
    sampled: Any = None  # how an evaluation drew them

    @property
    def question_group(self) -> str:
        """The unit of the bootstrap: prompts that ask the same question."""
        return self.group or question_group(self.prompt)


def read_candidates(path: Path) -> list[Candidates]:
    """Load rows of `id`, `prompt`, `culture` (or null), `language`, `candidates` and, optionally, `qualities`."""
    found: dict[str, Candidates] = {}

    def read(row: Row) -> Iterator[Fault]:
        fields = Candidates.model_validate(row.value)
        if found.setdefault(fields.id, fields) is not fields:
            yield Fault("repeated_id", f"id {fields.id!r} is already in an earlier row")
        if fields.qualities is not None and len(fields.qualities) != len(fields.texts):
            got = f"got {shown(row.value['qualities'])}"
            yield Fault("wrong_count", f"expected a quality for each of {len(fields.texts)} candidates, {got}")
        if (fields.qualities is None) != (next(iter(found.values())).qualities is None):
            yield Fault("some_qualities", "expected qualities in all rows or in none: this one differs from the first")

    check_rows(Outcome.of(row, read) for row in read_rows(str(path)))
    return list(found.values())
