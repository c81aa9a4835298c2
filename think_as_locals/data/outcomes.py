"""What became of rows: items, faults, and which of them say what an earlier one said."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace

from think_as_locals.data.defects import Defect, Fault
from think_as_locals.data.rows import Row
from think_as_locals.types import DataError, Item


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a row: its items, and its faults.

    A row that has no item of its own can be of use all the same, as the worse response of a pair.
    """

    row: Row
    items: tuple[Item, ...] = ()
    faults: tuple[Fault, ...] = ()

    @property
    def imported(self) -> bool:
        """Whether the row was of use."""
        return all(fault.imports for fault in self.faults)

    def with_faults(self, *more: Fault) -> Outcome:
        """The same row with more faults, and without its items where it cannot be imported for them."""
        if not more:
            return self
        faults = (*self.faults, *more)
        return replace(self, items=self.items if all(fault.imports for fault in faults) else (), faults=faults)

    def of_groups(self, groups: Container[str]) -> Outcome:
        """The same row with those of its items that are of certain question groups."""
        return replace(self, items=tuple(item for item in self.items if item.group in groups))

    def of_countries(self, countries: Container[str | None]) -> Outcome:
        """The same row with those of its items that are of certain cultures."""
        return replace(self, items=tuple(item for item in self.items if item.culture in countries))


def mark_repeats(outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
    """Name the rows whose id, or whose prompt and responses, an earlier row has."""
    ids: dict[str, tuple[int, str]] = {}
    contents: dict[bytes, tuple[int, str]] = {}
    for outcome in outcomes:
        here = outcome.row.number, outcome.row.file
        faults = []
        for item in outcome.items:
            if (earlier := ids.setdefault(item.id, here)) != here:
                said = f"id {item.id!r} stands already in line {earlier[0]} of {earlier[1]}"
                faults.append(Fault(Defect.REPEATED_ID, said))
                break
        if outcome.items and (earlier := contents.setdefault(_content(outcome.items), here)) != here:
            said = f"the same prompt and responses stand in line {earlier[0]} of {earlier[1]}"
            faults.append(Fault(Defect.DUPLICATE, said))
        yield outcome.with_faults(*faults)


def sound_items(outcomes: Iterable[Outcome]) -> Iterator[Item]:
    """The items, where no row has an error.

    Raises:
        DataError: at the first row that cannot be an item, as `file:row: what is wrong`.
    """
    for outcome in outcomes:
        require(outcome)
        yield from outcome.items


def require(outcome: Outcome) -> None:
    """See to it that a row has no error.

    Raises:
        DataError: it has, as `file:row: what is wrong`.
    """
    errors = [fault.detail for fault in outcome.faults if fault.defect.severity == "error"]
    if errors:
        raise DataError(f"{outcome.row.place}: {'; '.join(errors)}")


def _content(items: tuple[Item, ...]) -> bytes:
    """What makes two rows the same: who is asked what, which responses there are, and which is the best."""
    said = [(item.prompt, item.culture or "", item.responses[item.best], *sorted(item.responses)) for item in items]
    return hashlib.sha256("\0".join(text for texts in said for text in texts).encode()).digest()
