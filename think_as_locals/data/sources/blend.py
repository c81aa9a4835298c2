"""BLEnD (arXiv 2406.09948, HF nayeon212/BLEnD): what people of 13 regions answered about everyday life, with votes.

A region's right answer to a question is its most frequent one, if that is unique and has at least three votes. Wrong
answers are other regions' frequent answers that share no word with anything the region itself answered. Responses are
in English throughout: a question asked in a local language must not be answerable by looking for that language.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, BaseModel, ValidationError

from think_as_locals.data.fields import shown
from think_as_locals.data.rows import Defect, Fault, Outcome, Row, path_of, valid_items
from think_as_locals.data.splits import flip_set_combinations, richest
from think_as_locals.types import DataError, Item

if TYPE_CHECKING:
    from think_as_locals.config.schema import DataSection

MIN_VOTES = 3

REGIONS = {  # file name -> culture (ISO 3166), language (BCP-47), what its people and things are called in English
    "Algeria": ("DZ", "ar", "algerian?"),
    "Azerbaijan": ("AZ", "az", "azerbaijani?"),
    "China": ("CN", "zh", "china|chinese"),
    "Greece": ("GR", "el", "greece|greek"),
    "Indonesia": ("ID", "id", "indonesian?"),
    "Iran": ("IR", "fa", "iranian|iran|persian"),
    "Mexico": ("MX", "es", "mexico|mexican"),
    "North_Korea": ("KP", "ko", "korean?"),
    "Northern_Nigeria": ("NG", "ha", "nigerian?"),
    "South_Korea": ("KR", "ko", "korean?"),
    "Spain": ("ES", "es", "spain|spanish"),
    "UK": ("GB", "en", "uk|britain|british|england|english"),
    "US": ("US", "en", "us|usa|america|american"),
}
_NAMES = re.compile("|".join(rf"\b(?:{names})s?\b" for _, _, names in REGIONS.values()))
_FILLERS = frozenset(
    ["a", "an", "and", "at", "for", "from", "in", "is", "it", "of", "on", "or", "the", "their", "they", "to", "with"]
)


def _check_encodable(text: str) -> str:
    text.encode()  # fails for half of a surrogate pair
    return text


_Text = Annotated[str, AfterValidator(_check_encodable)]


class Votes(BaseModel):
    """One answer, in all its spellings, and how many annotators gave it."""

    en_answers: list[_Text | None]
    count: int

    @property
    def spellings(self) -> list[str]:
        return [text for text in self.en_answers if text]


class QuestionRow(BaseModel):
    """A question as the file of a region has it."""

    question: _Text
    en_question: _Text
    annotations: list[Votes]


@dataclass(frozen=True, slots=True)
class Asked:
    """One question in one region, and why it has no right answer, if it has none."""

    row: Row
    culture: str
    language: str
    prompts: dict[str, str]
    best: str | None
    frequent: str | None
    words: frozenset[str]
    fault: Fault | None


def is_folder(path: Path) -> bool:
    """Return whether a folder is one of BLEnD's data."""
    return (path / "annotations").is_dir()


def read(data: DataSection, seed: int) -> Iterator[Item]:
    """Yield the items of BLEnD: flip sets, and single items for regions that fit into none.

    Args:
        data: `path` is a folder with `annotations/<Region>_data.json` and `questions/<Region>_questions.csv`; each of
            `languages` is `en` or `own` (the region's language).
        seed: Which flip sets are drawn if `sets_per_group` limits them.

    Raises:
        DataError: a file is missing or cannot be read; the message names it.
    """
    asked_of, invalid = _questions(data)
    yield from valid_items(invalid)
    items = (item for q, (topic, asked) in asked_of.items() for item in _items(q, topic, asked, data, seed))
    yield from _chosen(items, data)


def outcomes(data: DataSection, seed: int) -> Iterator[Outcome]:
    """Yield, for each question of each region, the items in which the region's answer is right, or why there are none.

    Args and errors as for `read`, but a question that cannot be read is an outcome.
    """
    asked_of, invalid = _questions(data)
    yield from invalid
    items_of = {q: list(_items(q, topic, asked, data, seed)) for q, (topic, asked) in asked_of.items()}
    kept = {item.id for item in _chosen((item for items in items_of.values() for item in items), data)}
    for question, (_, asked) in asked_of.items():
        for region in asked:
            if own := [item for item in items_of[question] if item.culture == region.culture]:
                yield Outcome(region.row, tuple(item for item in own if item.id in kept))
            else:
                yield Outcome(region.row, faults=(region.fault or _no_item_fault(question, region, data),))


def _chosen(items: Iterable[Item], data: DataSection) -> Iterable[Item]:
    """Return the items of the question groups that the configuration asks for."""
    return richest((item for item in items if data.groups is None or item.group in data.groups), data.max_groups)


def _no_item_fault(question: str, region: Asked, data: DataSection) -> Fault:
    """Return why a region's question is in no item although it has a right answer."""
    if region.prompts.keys() & {region.language if tag == "own" else tag for tag in data.languages}:
        return Fault(Defect.NO_RIVALS, f"question {question!r}: fewer than {data.num_responses - 1} wrong answers")
    return Fault(Defect.EMPTY_PROMPT, f"question {question!r}: blank in every language asked")


def _items(question: str, topic: str, asked: list[Asked], data: DataSection, seed: int) -> Iterator[Item]:
    """Yield the items of one question, from what every region answered."""
    size = data.num_responses
    right = {region.culture: region for region in asked if region.best}
    also = {a: [b for b in right if b != a and _holds(right[a].best, right[b])] for a in right}
    sets = flip_set_combinations(tuple(right), also, size, data.sets_per_group, key=f"{seed}:{question}")
    rows = [(culture, chosen, tuple(str(right[c].best) for c in chosen)) for chosen in sets for culture in chosen]
    in_sets = {culture for culture, _, _ in rows}
    for culture, region in right.items():
        if culture in in_sets:
            continue
        others = _wrong_answers(region, asked)
        if len(others) >= size - 1:
            rows.append((culture, (culture, *others)[:size], (str(region.best), *others.values())[:size]))
    for culture, chosen, responses in rows:
        prompts = right[culture].prompts
        for language in dict.fromkeys(right[culture].language if tag == "own" else tag for tag in data.languages):
            if language in prompts:
                yield Item(
                    id=f"blend/{question}/{culture}/{language}/{'-'.join(chosen)}",
                    prompt=prompts[language],
                    responses=responses,
                    best=chosen.index(culture),
                    culture=culture,
                    language=language,
                    domain=topic,
                    group=question,
                    source="blend",
                    origins=chosen,
                )


def _wrong_answers(region: Asked, asked: list[Asked]) -> dict[str, str]:
    """Return, by culture, frequent answers that are not true of the region; distinct texts."""
    wrong: dict[str, str] = {}
    for other in asked:
        answer = other.frequent
        if other.culture != region.culture and answer and not _holds(answer, region) and answer not in wrong.values():
            wrong[other.culture] = answer
    return wrong


def _questions(data: DataSection) -> tuple[dict[str, tuple[str, list[Asked]]], list[Outcome]]:
    """Return, by question, its topic and what each region answered; and the rows that cannot be read."""
    if unknown := sorted(set(data.languages) - {"en", "own"}):
        raise DataError(f"no language {', '.join(map(repr, unknown))} in BLEnD; known: en, own")
    path = Path(path_of(data)).expanduser()
    file, topics = _topics(path)
    asked_of: dict[str, tuple[str, list[Asked]]] = {}
    invalid = []
    for region in REGIONS:
        for row in _rows(path / "annotations" / f"{region}_data.json"):
            (question,) = row.value
            try:
                asked = _asked(row, question, region)
            except ValidationError as error:
                invalid.append(Outcome(row, faults=(_schema_fault(question, error),)))
                continue
            if question not in topics:
                message = f"no row with the ID {question!r}, which the annotations ask; expected its Topic"
                raise DataError(f"{file}: {message}")
            asked_of.setdefault(question, (topics[question], []))[1].append(asked)
    if not asked_of and not invalid:
        known = ", ".join(REGIONS)
        raise DataError(
            f"{path / 'annotations'}: no <Region>_data.json of {known}; data.path is a folder of BLEnD's data"
        )
    return asked_of, invalid


def _schema_fault(question: str, error: ValidationError) -> Fault:
    first = error.errors(include_url=False)[0]
    got = f"{'.'.join(map(str, first['loc'])) or 'the row'}: {first['msg']}, got {shown(first['input'])}"
    message = f"expected question, en_question and annotations with en_answers and count ({got})"
    return Fault(Defect.WRONG_TYPE, f"question {question!r}: {message}")


def _rows(file: Path) -> Iterator[Row]:
    """Yield the questions of a region; none if there is no file: some of the regions are enough."""
    if not file.is_file():
        return
    try:
        questions = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{file}: not JSON: {error}") from error
    if not isinstance(questions, dict):
        raise DataError(f"{file}: expected an object of questions, got {type(questions).__name__}")
    for number, (question, value) in enumerate(questions.items(), 1):
        row = {question: value}
        yield Row(str(file), number, row, json.dumps(row, ensure_ascii=False))


def _asked(row: Row, question: str, region: str) -> Asked:
    culture, language, _ = REGIONS[region]
    fields = QuestionRow.model_validate(row.value[question])
    # Lower case: regions differ in how their annotators capitalise, which would tell them apart.
    votes = [
        (answer.count, text)
        for answer in fields.annotations
        for text in [text.strip().lower() for text in answer.spellings if _words(text)][:1]
    ]
    votes.sort(key=lambda vote: -vote[0])
    top = [text for count, text in votes if count == votes[0][0]]
    unique = top[0] if len(top) == 1 and not _NAMES.search(top[0]) else None
    has_majority = unique is not None and votes[0][0] >= MIN_VOTES
    # A few questions are blank in one of the languages.
    prompts = {language: fields.question.strip(), "en": fields.en_question.strip()}
    return Asked(
        row=row,
        culture=culture,
        language=language,
        prompts={tag: text for tag, text in prompts.items() if text},
        best=unique if has_majority else None,
        frequent=unique if unique and votes[0][0] >= MIN_VOTES - 1 else None,
        words=frozenset(word for answer in fields.annotations for text in answer.spellings for word in _words(text)),
        fault=None if has_majority else _no_majority_fault(question, votes, top),
    )


def _no_majority_fault(question: str, votes: list[tuple[int, str]], top: list[str]) -> Fault:
    """Return why a region's question has no right answer."""
    if len(top) == 1 and votes[0][0] >= MIN_VOTES:
        return Fault(Defect.NAMES_CULTURE, f"question {question!r}: {top[0]!r}")
    got = f"{votes[0][0]} votes for {' and for '.join(map(repr, top[:3]))}" if votes else "no answers"
    return Fault(Defect.NO_MAJORITY, f"question {question!r}: {got}")


def _holds(answer: str | None, region: Asked) -> bool:
    """Return whether an answer shares a word with anything that a region answered."""
    return bool(_words(answer or "") & region.words)


def _words(text: str) -> frozenset[str]:
    words = re.findall(r"\w+", text.lower())
    return frozenset(word.removesuffix("s") if len(word) > 3 else word for word in words if word not in _FILLERS)


def _topics(path: Path) -> tuple[Path, dict[str, str]]:
    """Return the file of topics and, by question, the first word of its topic: the domain of its items."""
    files = sorted((path / "questions").glob("*_questions.csv"))
    if not files:
        raise DataError(f"{path / 'questions'}: no <Region>_questions.csv; data.path is a folder of BLEnD's data")
    try:
        with files[0].open(encoding="utf-8-sig", newline="") as rows:
            return files[0], {row["ID"]: row["Topic"].split("/")[0].lower() for row in csv.DictReader(rows)}
    except (KeyError, AttributeError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{files[0]}: expected UTF-8 rows with the columns ID and Topic ({error!r})") from error
