"""A data configuration -> items -> a split into train and test that cannot leak."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from think_as_locals.data import blend, culture_cards, jsonl
from think_as_locals.data.flips import share
from think_as_locals.types import DataError, Item

Split = Literal["group", "pairing"]


class DataSpec(Protocol):
    """What `load` needs to know: the `data` section of a run."""

    @property
    def source(self) -> Literal["culture_cards", "blend", "jsonl"]: ...
    @property
    def path(self) -> str | None: ...
    @property
    def split(self) -> Split: ...
    @property
    def test_share(self) -> float: ...
    @property
    def languages(self) -> Sequence[str]: ...
    @property
    def groups(self) -> Sequence[str] | None: ...
    @property
    def num_responses(self) -> int: ...
    @property
    def sets_per_group(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Splits:
    """Items to learn from and items to be measured on."""

    train: tuple[Item, ...]
    test: tuple[Item, ...]


def load(data: DataSpec, seed: int = 0) -> Splits:
    """Read a source and split it.

    Raises:
        DataError: a fault in the data, or a split of which one side is empty.
    """
    items = tuple(read(data, seed))
    test = _test_keys(items, data.split, data.test_share)
    splits = Splits(
        train=tuple(item for item in items if split_key(item, data.split) not in test),
        test=tuple(item for item in items if split_key(item, data.split) in test),
    )
    if not splits.train or not splits.test:
        raise DataError(
            f"{data.source}: {len(items)} items give {len(splits.train)} to train on and {len(splits.test)} to test on "
            f"with data.split={data.split} and data.test_share={data.test_share}: change one of them, or add data"
        )
    return splits


def read(data: DataSpec, seed: int = 0) -> Iterator[Item]:
    """All items of a source."""
    if data.source == "culture_cards":
        return culture_cards.read(
            languages=data.languages,
            groups=data.groups,
            num_responses=data.num_responses,
            sets_per_group=data.sets_per_group,
            seed=seed,
        )
    if data.path is None:
        raise DataError(f"data={data.source} reads files: set data.path")
    path = Path(data.path).expanduser()
    if data.source == "blend":
        return blend.read(
            path,
            languages=data.languages,
            num_responses=data.num_responses,
            sets_per_group=data.sets_per_group,
            seed=seed,
        )
    return jsonl.read(path)


def split_key(item: Item, split: Split) -> str:
    """What must not be divided: the question group, or for `pairing` the set of responses in whatever language."""
    if split == "group":
        return item.group
    return "\n".join((item.group, *sorted(item.origins or item.responses)))


def _test_keys(items: Sequence[Item], split: Split, test_share: float) -> set[str]:
    """The test side's keys: of each domain the share that comes first by hash, and at least one."""
    by_domain: dict[str, set[str]] = defaultdict(set)
    for item in items:
        by_domain[item.domain].add(split_key(item, split))
    test: set[str] = set()
    for keys in by_domain.values():
        ranked = sorted(keys, key=share)
        test.update(ranked[: max(1, round(test_share * len(ranked)))])
    # A group that stands in several domains goes to one side as a whole.
    return test
