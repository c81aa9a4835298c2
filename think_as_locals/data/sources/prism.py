"""PRISM (arXiv 2404.16019, HF HannahRoseKirk/prism-alignment): people of many countries score models' responses.

Two tables. `survey` has a row for each person: `user_id` and `location`, with `reside_country` and `reside_countryISO`
in it. `utterances` has one for each response: `user_id, interaction_id, utterance_id, conversation_type, user_prompt,
model_response, score` (1 to 100), as the codebook in the authors' repository says; what a model left empty is stored as
`EMPTY STRING`.

Within an interaction every two responses whose scores differ make a pair, the higher score the best (the reading of
SCPO, arXiv 2606.18606). Its culture is the person's country of residence, its group the person, so that nobody is in
both splits and intervals are over people. The prompt is what the person wrote in that turn alone; earlier turns are not
in this table. The authors count 99 % of the texts as English, so every item is labelled English.

Prompts are CC-BY-4.0, model responses CC-BY-NC-4.0: they are read from the user's own copy and never shipped.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from think_as_locals.data.fields import Identifier, Prompt, RowModel, Text, check_rating, check_text, field
from think_as_locals.data.languages import culture_code
from think_as_locals.data.rows import SUFFIXES, Defect, Fault, Outcome, Row, hub_id, read_rows, unpack
from think_as_locals.data.sources.ratings import pair_responses
from think_as_locals.types import DataError, Item

TABLES = ("survey", "utterances")
_EMPTY = "EMPTY STRING"


def _check_response(name: str, value: Any, faults: list[Fault]) -> str:
    if value == _EMPTY:
        faults.append(Fault(Defect.NO_RESPONSE, f"{name} is {_EMPTY!r}"))
    return check_text(name, value, faults, Defect.NO_RESPONSE)


class PersonRow(RowModel):
    """A row of the survey."""

    FIELDS: ClassVar = ("user_id", "location.reside_country")

    user_id: Identifier
    country: Text = Field(validation_alias="location.reside_country")
    country_code: Text = Field("", validation_alias="location.reside_countryISO")


class UtteranceRow(RowModel):
    """A row of the utterances."""

    FIELDS: ClassVar = ("user_id", "interaction_id", "utterance_id", "user_prompt", "model_response", "score")

    user_id: Identifier
    interaction_id: Identifier
    utterance_id: Identifier
    user_prompt: Prompt
    response: Annotated[str, field(_check_response, "")] = Field(validation_alias="model_response")
    rating: Annotated[float, field(partial(check_rating, lowest=1, highest=100), math.nan)] = Field(
        validation_alias="score"
    )
    conversation_type: Text = "conversation"


def outcomes(path: str) -> Iterator[Outcome]:
    """Yield what becomes of every row of both tables; a pair is with the row of its better response.

    Args:
        path: A folder with `survey.*` and `utterances.*`, or `owner/name[@revision]` on the Hub.

    Raises:
        DataError: a table is missing, is there twice, or cannot be read as a whole.
    """
    survey, utterances = (_read_table(path, table) for table in TABLES)
    people: dict[str, str | None] = {}
    for row in survey:
        yield _add_person(row, people)
    seen: dict[str, str] = {}
    interactions: dict[tuple[str, ...], list[UtteranceRow]] = defaultdict(list)
    for row in utterances:
        fields = UtteranceRow.read(row)
        _check_utterance(fields, people, seen)
        if fields.faults:
            yield fields.outcome()
        else:
            interactions[fields.user_id, fields.interaction_id, fields.user_prompt].append(fields)
    for responses in interactions.values():
        yield from pair_responses(responses, partial(_pair, people), None)


def has_tables(folder: Path) -> bool:
    """Return whether a folder holds both tables."""
    return all(_table_files(folder, table) for table in TABLES)


def _table_files(folder: Path, table: str) -> list[Path]:
    return [path for suffix in SUFFIXES if (path := folder / f"{table}{suffix}").is_file()]


def _read_table(path: str, table: str) -> Iterator[Row]:
    if hub := hub_id(path):
        if hub["config"]:
            raise DataError(f"{path}: PRISM's configs {' and '.join(TABLES)} are read both: give owner/name[@revision]")
        # Row 7 of one table is not row 7 of the other.
        name = f"{path}:{table}"
        return (replace(row, file=f"{name}:{row.file.rpartition(':')[2]}") for row in read_rows(name))
    files = _table_files(Path(path).expanduser(), table)
    if len(files) != 1:
        got = f"{len(files)} ({', '.join(file.name for file in files)})" if files else "none"
        raise DataError(
            f"{path}: expected one file {table} ({', '.join(SUFFIXES)}), got {got}; PRISM is a folder with "
            f"{' and '.join(TABLES)}, or owner/name[@revision] on the Hub"
        )
    return read_rows(str(files[0]))


def _add_person(row: Row, people: dict[str, str | None]) -> Outcome:
    """Read a row of the survey, and add the person's country to `people` (`None` if it is unknown)."""
    location = unpack(row.value.get("location")) if isinstance(row.value, Mapping) else None
    if isinstance(location, Mapping):  # other exports have its parts as columns
        row = replace(row, value={**row.value, **{f"location.{name}": part for name, part in location.items()}})
    fields = PersonRow.read(row)
    if fields.user_id in people:
        fields.add(Defect.REPEATED_ID, f"user_id {fields.user_id!r} is already in an earlier row")
    if not fields.faults:
        country = culture_code(fields.country) or culture_code(fields.country_code)
        people[fields.user_id] = country
        if country is None:
            message = f"reside_country {fields.country!r}: expected the English name of a country"
            fields.add(Defect.NO_COUNTRY, message)
    return fields.outcome()


def _check_utterance(fields: UtteranceRow, people: Mapping[str, str | None], seen: dict[str, str]) -> None:
    """Record a repeated id, and a person without a country."""
    utterance, user, place = fields.utterance_id, fields.user_id, fields.row.place
    if utterance and (earlier := seen.setdefault(utterance, place)) != place:
        fields.add(Defect.REPEATED_ID, f"utterance_id {utterance!r} is already in {earlier}")
    if user and user not in people:
        fields.add(Defect.UNKNOWN_USER, f"user_id {user!r} has no valid row in the survey")
    elif user and people[user] is None:
        fields.add(Defect.NO_COUNTRY, f"the survey has no country for user_id {user!r}")


def _pair(people: Mapping[str, str | None], better: UtteranceRow, worse: UtteranceRow) -> Item:
    return Item(
        id=f"prism/{better.interaction_id}/{better.utterance_id}-{worse.utterance_id}",
        prompt=better.user_prompt,
        responses=(better.response, worse.response),
        best=0,
        culture=people[better.user_id],
        language="en",
        domain=better.conversation_type,
        group=better.user_id,
        source="prism",
    )
