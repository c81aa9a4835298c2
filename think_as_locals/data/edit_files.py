"""Edits from a file (`eval.probes=FILE`): items before and after one edit by people or by a model.

A row names the item (`item`: the id of one that is evaluated, or an item of its own with the fields of `Item`), the
`probe` (CC, RC, CL or RP) and what the edit changed: the `prompt`, the `responses` in the item's own order, or both.
Fields that a row leaves out are the item's; an RC edit also removes the item's culture.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args

from think_as_locals.config.compose import nearest
from think_as_locals.data.edits import Edit, Edits, Pair
from think_as_locals.data.fields import Language, Prompt, Responses, RowModel, check_text, field
from think_as_locals.data.languages import language_tag
from think_as_locals.data.rows import Defect, Fault, Outcome, Row, local_path, read_rows
from think_as_locals.data.sources import jsonl
from think_as_locals.types import DataError, Item, first_of, shown

_MAX_FAULTS = 10  # in a message


def _check_probe(name: str, value: Any, faults: list[Fault]) -> str:
    if value not in get_args(Edit):
        faults.append(
            Fault(Defect.WRONG_TYPE, f"{name} must be one of {', '.join(get_args(Edit))}, got {shown(value)}")
        )
    return str(value)


def _check_item(name: str, value: Any, faults: list[Fault]) -> str | dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else check_text(name, value, faults)


class EditRow(RowModel):
    """A row of the file."""

    FIELDS: ClassVar = ("item", "probe", "prompt", "responses", "language", "provenance")
    EXACT: ClassVar = True

    item: Annotated[str | dict[str, Any], field(_check_item, "")]
    probe: Annotated[str, field(_check_probe, "")]
    prompt: Prompt | None = None
    responses: Responses | None = None
    language: Language | None = None  # of the responses after CL; that of the item is the prompt's
    provenance: Any = None  # who made the edit; not used


def read_edits(path: Path, items: Sequence[Item]) -> Edits:
    """Return the edited pairs of a file by probe, in the order of its rows; ids refer to `items`.

    Raises:
        DataError: some rows are faulty; the message names file and line of each.
    """
    found: dict[Edit, list[Pair]] = {edit: [] for edit in get_args(Edit)}
    faults: list[str] = []
    for outcome in edit_outcomes(str(path), {item.id: item for item in items}):
        if outcome.items:
            (before, after), row = outcome.items, outcome.row.value
            spoken = row.get("language")
            pair = Pair(before, after, str(language_tag(spoken)) if spoken else before.language)
            found[row["probe"]].append(pair)
        faults += [f"{outcome.row.place}: {fault.detail}" for fault in outcome.faults]
    if faults:
        raise DataError(first_of(faults, _MAX_FAULTS, "\n"))
    return found


def are_edits(path: str) -> bool:
    """Return whether the first row of a file is an edit."""
    first = next(read_rows(path), None) if local_path(path).is_file() else None
    return first is not None and isinstance(first.value, Mapping) and {"item", "probe"} <= first.value.keys()


def edit_outcomes(path: str, by_id: Mapping[str, Item] | None) -> Iterator[Outcome]:
    """Yield the outcome of every row: its item before and after the edit, or faults.

    `by_id` are the items that are evaluated; if it is `None`, rows that name an item by id have no items.
    """
    places: dict[tuple[str, str], str] = {}
    for row in read_rows(path):
        fields = EditRow.read(row)
        before = _item(fields, row, by_id)
        name = (before.id if before else str(fields.item), fields.probe)
        if before is not None and not fields.faults:
            _check_edit(fields, before)
        if not fields.faults and (earlier := places.setdefault(name, row.place)) != row.place:
            fields.add(Defect.REPEATED_ID, f"item {name[0]!r} has a {fields.probe} edit already, in {earlier}")
        yield fields.outcome(*((before, _edited(fields, before)) if before and not fields.faults else ()))


def _item(fields: EditRow, row: Row, by_id: Mapping[str, Item] | None) -> Item | None:
    """Return the item that a row edits; record a fault if there is none."""
    if isinstance(fields.item, dict):
        outcome = jsonl.outcome(replace(row, value=fields.item))
        for fault in outcome.faults:
            fields.add(fault.defect, f"item: {fault.detail}")
        return outcome.items[0] if outcome.items else None
    if by_id is None:
        return None
    if fields.item and fields.item not in by_id:
        near = nearest(fields.item, list(by_id))
        fields.add(Defect.UNKNOWN_ITEM, f"item {shown(fields.item)} is not among the {len(by_id):,} items{near}")
    return by_id.get(fields.item)


def _check_edit(fields: EditRow, before: Item) -> None:
    """Record what is wrong with an edit of an item."""
    if fields.responses is not None:
        if len(fields.responses) != len(before.responses):
            got = f"got {len(fields.responses)}"
            fields.add(Defect.WRONG_COUNT, f"expected the item's {len(before.responses)} responses in its order, {got}")
        fields.check_distinct(fields.responses)
    if fields.probe == "CL" and fields.responses is None:
        fields.add(Defect.MISSING_FIELD, "a CL edit changes the language of the responses: it needs responses")
    same = fields.prompt in (None, before.prompt) and fields.responses in (None, before.responses)
    if same:
        fields.add(Defect.MISSING_FIELD, "prompt and responses are the item's: expected at least one that differs")


def _edited(fields: EditRow, before: Item) -> Item:
    return replace(
        before,
        id=f"{before.id}#{fields.probe}",
        prompt=fields.prompt or before.prompt,
        responses=fields.responses or before.responses,
        culture=None if fields.probe == "RC" else before.culture,
        origins=() if fields.probe == "CC" else before.origins,
    )


def of_items(edits: Edits, items: Iterable[Item], known: Iterable[Item]) -> Edits:
    """Return the pairs, without those of `known` items that are not among `items`."""
    left_out = {item.id for item in known}.difference(item.id for item in items)
    return {edit: [pair for pair in of_edit if pair[0].id not in left_out] for edit, of_edit in edits.items()}
