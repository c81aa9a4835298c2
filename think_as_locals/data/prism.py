"""PRISM (arXiv 2404.16019, HF HannahRoseKirk/prism-alignment): people of many countries score models' responses.

Two tables. `survey` has a row for each person: `user_id` and `location`, with `reside_country` and `reside_countryISO`
in it. `utterances` has one for each response: `user_id, interaction_id, utterance_id, conversation_type, user_prompt,
model_response, score` (1 to 100), as the codebook in the authors' repository says; what a model left empty is stored as
`EMPTY STRING`.

Within an interaction every two responses whose scores differ make a pair, the higher score the best (the reading of
SCPO, arXiv 2606.18606). Its culture is the person's country of residence, its group the person: whoever is in the test
split is not trained on, and intervals are over people. The prompt is what the person wrote in that turn alone; the
turns before it are not in this table. The authors count 99 % of the texts as English, so every item is said to be.

Prompts are CC-BY-4.0, model responses CC-BY-NC-4.0: they are read from the user's own copy and never shipped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from think_as_locals.data.defects import Defect
from think_as_locals.data.fields import Fields, unpacked
from think_as_locals.data.names import culture_code
from think_as_locals.data.outcomes import Outcome
from think_as_locals.data.places import SUFFIXES, hub_id
from think_as_locals.data.ratings import paired
from think_as_locals.data.rows import Row, read_rows
from think_as_locals.types import DataError, Item

TABLES = ("survey", "utterances")
SURVEY_FIELDS = ("user_id", "location.reside_country")
UTTERANCE_FIELDS = ("user_id", "interaction_id", "utterance_id", "user_prompt", "model_response", "score")
_EMPTY = "EMPTY STRING"
_LOWEST, _HIGHEST = 1, 100


@dataclass(frozen=True, slots=True)
class _Scored:
    """One response, and what a person gave it."""

    row: Row
    user: str
    culture: str
    interaction: str
    utterance: str
    prompt: str
    response: str
    rating: float
    domain: str


def outcomes(path: str) -> Iterator[Outcome]:
    """What becomes of every row of both tables; a pair is with the row of its better response.

    Args:
        path: A folder with `survey.*` and `utterances.*`, or `owner/name[@revision]` on the Hub.

    Raises:
        DataError: a table is not there, is there twice, or cannot be read as a whole.
    """
    survey, utterances = (_rows(path, table) for table in TABLES)
    people: dict[str, str | None] = {}
    for row in survey:
        yield _person(row, people)
    seen: dict[str, str] = {}
    interactions: dict[tuple[str, ...], list[_Scored]] = defaultdict(list)
    for row in utterances:
        fields = Fields(row, UTTERANCE_FIELDS)
        scored = _scored(fields, people, seen)
        if scored is None:
            yield fields.outcome()
        else:
            interactions[scored.user, scored.interaction, scored.prompt].append(scored)
    for responses in interactions.values():
        yield from paired(responses, _pair, None)


def tables(folder: Path) -> dict[str, list[Path]]:
    """The files of each table in a folder; the data set's other files are none."""
    return {table: [path for suffix in SUFFIXES if (path := folder / f"{table}{suffix}").is_file()] for table in TABLES}


def _rows(path: str, table: str) -> Iterator[Row]:
    if hub := hub_id(path):
        if hub["config"]:
            raise DataError(f"{path}: PRISM's configs {' and '.join(TABLES)} are read both: give owner/name[@revision]")
        # Row 7 of one table is not row 7 of the other.
        named = f"{path}:{table}"
        return (replace(row, file=f"{named}:{row.file.rpartition(':')[2]}") for row in read_rows(named))
    files = tables(Path(path).expanduser())[table]
    if len(files) != 1:
        got = f"{len(files)} ({', '.join(file.name for file in files)})" if files else "none"
        raise DataError(
            f"{path}: expected one file {table} ({', '.join(SUFFIXES)}), got {got}; PRISM is a folder with "
            f"{' and '.join(TABLES)}, or owner/name[@revision] on the Hub"
        )
    return read_rows(str(files[0]))


def _person(row: Row, people: dict[str, str | None]) -> Outcome:
    """A row of the survey: whoever it is about is in `people` from then on, with a country or none."""
    fields = Fields(_flat(row), SURVEY_FIELDS)
    user, name = fields.identifier("user_id"), fields.text("location.reside_country")
    code = fields.text("location.reside_countryISO") if fields.has("location.reside_countryISO") else ""
    if user in people:
        fields.add(Defect.REPEATED_ID, f"user_id {user!r} stands already in an earlier row")
    if not fields.faults:
        people[user] = culture_code(name) or culture_code(code)
        if people[user] is None:
            fields.add(Defect.NO_COUNTRY, f"reside_country {name!r}: expected the English name of a country")
    return fields.outcome()


def _flat(row: Row) -> Row:
    """The row with the parts of `location` as columns, as other exports have them."""
    location = unpacked(row.value.get("location")) if isinstance(row.value, Mapping) else None
    if not isinstance(location, Mapping):
        return row
    return replace(row, value={**row.value, **{f"location.{name}": part for name, part in location.items()}})


def _scored(fields: Fields, people: Mapping[str, str | None], seen: dict[str, str]) -> _Scored | None:
    """A row of the utterances; `None` where it has a fault."""
    user, interaction, utterance = map(fields.identifier, UTTERANCE_FIELDS[:3])
    prompt = fields.text("user_prompt", Defect.EMPTY_PROMPT)
    response = fields.text("model_response", Defect.NO_RESPONSE)
    if response == _EMPTY:
        fields.add(Defect.NO_RESPONSE, f"model_response is {_EMPTY!r}")
    score = fields.number("score")
    if score is not None and not _LOWEST <= score <= _HIGHEST:
        fields.add(Defect.BAD_RATING, f"score must be from {_LOWEST} to {_HIGHEST}, got {score:g}")
    domain = fields.text("conversation_type") if fields.has("conversation_type") else "conversation"
    if utterance and (earlier := seen.setdefault(utterance, fields.row.place)) != fields.row.place:
        fields.add(Defect.REPEATED_ID, f"utterance_id {utterance!r} stands already in {earlier}")
    culture = people.get(user)
    if user and user not in people:
        fields.add(Defect.UNKNOWN_USER, f"user_id {user!r} has no sound row in the survey")
    elif user and culture is None:
        fields.add(Defect.NO_COUNTRY, f"the survey has no country for user_id {user!r}")
    if fields.faults or score is None or culture is None:
        return None
    return _Scored(fields.row, user, culture, interaction, utterance, prompt, response, score, domain)


def _pair(better: _Scored, worse: _Scored) -> Item:
    return Item(
        id=f"prism/{better.interaction}/{better.utterance}-{worse.utterance}",
        prompt=better.prompt,
        responses=(better.response, worse.response),
        best=0,
        culture=better.culture,
        language="en",
        domain=better.domain,
        group=better.user,
        source="prism",
    )
