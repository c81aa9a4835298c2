"""PRISM's two tables: responses scored by a person, and the country of the person."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import ceil
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, FiniteFloat, model_validator

from think_as_locals.data.fields import Identifier, RowModel, Text
from think_as_locals.data.languages import culture_code
from think_as_locals.data.rows import SUFFIXES, Fault, Outcome, Row, hub_id, read_rows, unpack, warn_unread
from think_as_locals.data.sources.care import RatedRow, pairs
from think_as_locals.types import DataError


class PersonRow(RowModel):
    """The survey of PRISM (arXiv 2404.16019, HF HannahRoseKirk/prism-alignment; CC-BY-NC, so never shipped)."""

    user_id: Identifier
    country: Text = Field(validation_alias="location.reside_country")
    country_code: Text = Field("", validation_alias="location.reside_countryISO")

    @model_validator(mode="before")
    @classmethod
    def _flatten(cls, row: Any) -> Any:
        location = unpack(row.get("location")) if isinstance(row, Mapping) else None
        if not isinstance(location, Mapping):  # in other exports its parts are columns
            return row
        return {**row, **{f"location.{name}": part for name, part in location.items()}}


class UtteranceRow(RatedRow):
    """PRISM's utterances; pairs are made within an interaction, as in SCPO (arXiv 2606.18606).

    The group is the person, so that nobody is on both sides of a split and intervals are over people. The prompt is a
    single turn: this table does not have the earlier ones. The authors count 99 % of the texts as English.
    """

    user_id: Identifier
    interaction_id: Identifier
    utterance_id: Identifier
    prompt: Text = Field(validation_alias="user_prompt")
    response: str = Field(validation_alias="model_response")
    rating: Annotated[FiniteFloat, Field(ge=1, le=100, validation_alias="score")]
    domain: Text = Field("conversation", validation_alias="conversation_type")


def _survey(path: str, countries: dict[str, str | None]) -> Iterator[Outcome]:
    """Yield the outcomes of the survey; add each person's country to `countries`, `None` if it is unknown."""

    def read(row: Row) -> Iterator[Fault]:
        person = PersonRow.model_validate(row.value)
        if person.user_id in countries:
            yield Fault("repeated_id", f"user_id {person.user_id!r} is already in an earlier row")
            return
        countries[person.user_id] = culture_code(person.country) or culture_code(person.country_code)
        if countries[person.user_id] is None:
            message = f"reside_country {person.country!r}: expected the English name of a country"
            yield Fault("no_country", message)

    yield from (Outcome.of(row, read) for row in _read_table(path, "survey"))


def outcomes(path: str) -> Iterator[Outcome]:
    """Yield the outcomes of both tables; a pair belongs to the row of its better response."""
    if (folder := Path(path).expanduser()).is_dir():
        files = (folder / f"{table}{suffix}" for table in ("survey", "utterances") for suffix in SUFFIXES)
        warn_unread(folder, files, "PRISM is read from survey and utterances")
    utterances = _read_table(path, "utterances")
    countries: dict[str, str | None] = {}
    yield from _survey(path, countries)
    places: dict[str, str] = {}
    turns: dict[tuple[str, ...], list[tuple[Row, UtteranceRow]]] = defaultdict(list)

    def read(row: Row) -> Iterator[Fault]:
        fields = UtteranceRow.model_validate(row.value)
        user, earlier = fields.user_id, places.setdefault(fields.utterance_id, row.place)
        if earlier != row.place:
            yield Fault("repeated_id", f"utterance_id {fields.utterance_id!r} is already in {earlier}")
        elif fields.response.strip() in ("", "EMPTY STRING"):  # the latter is PRISM's mark
            yield Fault("no_response", "the response is empty")
        elif user not in countries:
            yield Fault("unknown_user", f"user_id {user!r} has no valid row in the survey")
        elif countries[user] is None:
            yield Fault("no_country", f"the survey has no country for user_id {user!r}")
        else:
            turns[user, fields.interaction_id, fields.prompt].append((row, fields))

    yield from (outcome for row in utterances if (outcome := Outcome.of(row, read)).faults)

    def rest(better: tuple[Row, UtteranceRow], worse: tuple[Row, UtteranceRow]) -> dict[str, Any]:
        fields = better[1]
        return {
            "id": f"prism/{fields.interaction_id}/{fields.utterance_id}-{worse[1].utterance_id}",
            "culture": countries[fields.user_id],
            "domain": fields.domain,
            "group": fields.user_id,
            "source": "prism",
        }

    for responses in turns.values():
        yield from pairs(responses, rest, None)


def released_test_people(path: str, share: float, seed: int) -> frozenset[str]:
    """Return the test people of SCPO's released code, which `datasets` draws from the whole survey.

    They are the first `ceil(share * n)` of a permutation of the n rows by NumPy's default generator.
    """
    from numpy.random import default_rng

    rows = (row.value for row in _read_table(path, "survey"))
    people = [str(row["user_id"]) for row in rows if isinstance(row, Mapping) and "user_id" in row]
    return frozenset(people[i] for i in default_rng(seed).permutation(len(people))[: ceil(share * len(people))])


def _read_table(path: str, table: str) -> Iterator[Row]:
    if hub := hub_id(path):
        if hub["config"]:
            raise DataError(f"{path}: PRISM's configs survey and utterances are read both: give owner/name[@revision]")
        # Row 7 of one table is not row 7 of the other.
        name = f"{path}:{table}"
        return (row._replace(file=f"{name}:{row.file.rpartition(':')[2]}") for row in read_rows(name))
    folder = Path(path).expanduser()
    files = [file for suffix in SUFFIXES if (file := folder / f"{table}{suffix}").is_file()]
    if len(files) != 1:
        got = f"{len(files)} ({', '.join(file.name for file in files)})" if files else "none"
        expected = f"one file {table} ({', '.join(SUFFIXES)})"
        tables = "a folder with survey and utterances, or owner/name[@revision] on the Hub"
        raise DataError(f"{path}: expected {expected}, got {got}; PRISM is {tables}")
    return read_rows(str(files[0]))
