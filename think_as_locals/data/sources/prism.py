"""PRISM's two tables: responses scored by a person, and the country of the person."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import ceil
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from think_as_locals.data.fields import Identifier, Prompt, RowModel, Text, check_text, field
from think_as_locals.data.languages import culture_code
from think_as_locals.data.rows import SUFFIXES, Defect, Fault, Outcome, Row, hub_id, read_rows, unpack, warn_ignored
from think_as_locals.data.sources.care import RatedRow, pair, rating_up_to
from think_as_locals.types import DataError

_TABLES = ("survey", "utterances")


class PersonRow(RowModel):
    """The survey of PRISM (arXiv 2404.16019, HF HannahRoseKirk/prism-alignment; CC-BY-NC, so never shipped)."""

    FIELDS: ClassVar = ("user_id", "location.reside_country")
    user_id: Identifier
    country: Text = Field(validation_alias="location.reside_country")
    country_code: Text = Field("", validation_alias="location.reside_countryISO")


def _check_response(name: str, value: Any, faults: list[Fault]) -> str:
    if value == "EMPTY STRING":  # PRISM's mark of an empty response
        faults.append(Fault(Defect.NO_RESPONSE, f"{name} is {value!r}"))
    return check_text(name, value, faults, Defect.NO_RESPONSE)


class UtteranceRow(RatedRow):
    """PRISM's utterances; pairs are made within an interaction, as in SCPO (arXiv 2606.18606).

    The group is the person, so that nobody is on both sides of a split and intervals are over people. The prompt is a
    single turn: this table does not have the earlier ones. The authors count 99 % of the texts as English.
    """

    FIELDS: ClassVar = ("user_id", "interaction_id", "utterance_id", "user_prompt", "model_response", "score")
    user_id: Identifier
    interaction_id: Identifier
    utterance_id: Identifier
    prompt: Prompt = Field(validation_alias="user_prompt")
    response: Annotated[str, field(_check_response, "")] = Field(validation_alias="model_response")
    rating: Annotated[float, rating_up_to(100)] = Field(validation_alias="score")
    domain: Text = Field("conversation", validation_alias="conversation_type")


def _add_person(row: Row, countries: dict[str, str | None]) -> Outcome:
    """Read a row of the survey, and add the person's country to `countries` (`None` if it is unknown)."""
    location = unpack(row.value.get("location")) if isinstance(row.value, Mapping) else None
    if isinstance(location, Mapping):  # in other exports its parts are columns
        row = row._replace(value={**row.value, **{f"location.{name}": part for name, part in location.items()}})
    fields = PersonRow.read(row)
    if fields.user_id in countries:
        fields.add(Defect.REPEATED_ID, f"user_id {fields.user_id!r} is already in an earlier row")
    if not fields.faults:
        countries[fields.user_id] = culture_code(fields.country) or culture_code(fields.country_code)
        if countries[fields.user_id] is None:
            message = f"reside_country {fields.country!r}: expected the English name of a country"
            fields.add(Defect.NO_COUNTRY, message)
    return fields.outcome()


def outcomes(path: str) -> Iterator[Outcome]:
    """Yield the outcomes of both tables; a pair belongs to the row of its better response."""
    survey, utterances = (_read_table(path, table) for table in _TABLES)
    if (folder := Path(path).expanduser()).is_dir():
        files = (folder / f"{table}{suffix}" for table in _TABLES for suffix in SUFFIXES)
        warn_ignored(folder, files, "PRISM is read from survey and utterances")
    countries: dict[str, str | None] = {}
    for row in survey:
        yield _add_person(row, countries)
    places: dict[str, str] = {}
    turns: dict[tuple[str, ...], list[UtteranceRow]] = defaultdict(list)
    for row in utterances:
        fields = UtteranceRow.read(row)
        utterance, user = fields.utterance_id, fields.user_id
        if utterance and (earlier := places.setdefault(utterance, row.place)) != row.place:
            fields.add(Defect.REPEATED_ID, f"utterance_id {utterance!r} is already in {earlier}")
        if user and user not in countries:
            fields.add(Defect.UNKNOWN_USER, f"user_id {user!r} has no valid row in the survey")
        elif user and countries[user] is None:
            fields.add(Defect.NO_COUNTRY, f"the survey has no country for user_id {user!r}")
        if fields.faults:
            yield fields.outcome()
        else:
            turns[user, fields.interaction_id, fields.prompt].append(fields)

    def rest(better: UtteranceRow, worse: UtteranceRow) -> dict[str, Any]:
        key = f"prism/{better.interaction_id}/{better.utterance_id}-{worse.utterance_id}"
        return {"id": key, "culture": countries[better.user_id], "group": better.user_id, "source": "prism"}

    for responses in turns.values():
        yield from pair(responses, rest, None)


def released_test_people(path: str, share: float, seed: int) -> frozenset[str]:
    """Return the test people of SCPO's released code, which `datasets` draws from the whole survey.

    They are the first `ceil(share * n)` of a permutation of the n rows by NumPy's default generator.
    """
    from numpy.random import default_rng

    people = [PersonRow.read(row).user_id for row in _read_table(path, "survey")]
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
