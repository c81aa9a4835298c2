"""BLEnD (arXiv 2406.09948): what people of 13 regions answered about everyday life, with the votes of annotators.

A region's right answer to a question is its most frequent one, where that is unique and has at least three votes.
Wrong answers are other regions' frequent answers that share no word with anything the region itself answered.
Responses are in English throughout: a question asked in a local language must not be answerable by looking for that
language.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from think_as_locals.data.defects import Defect, Fault
from think_as_locals.data.fields import shown
from think_as_locals.data.flips import quadruples
from think_as_locals.data.outcomes import Outcome, sound_items
from think_as_locals.data.rows import Row
from think_as_locals.types import DataError, Item

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


@dataclass(frozen=True, slots=True)
class Asked:
    """One question in one region, and why its row asks nothing, if it does not."""

    row: Row
    culture: str
    language: str
    prompts: dict[str, str]
    best: str | None
    frequent: str | None
    words: frozenset[str]
    fault: Fault | None


def read(
    path: Path, *, languages: Sequence[str], num_responses: int, sets_per_group: int | None, seed: int
) -> Iterator[Item]:
    """Items of BLEnD: flip sets, and single items for regions that fit into none.

    Args:
        path: A folder that holds `annotations/<Region>_data.json` and `questions/<Region>_questions.csv`.
        languages: `"en"`, `"own"` (the region's language), or both.
        num_responses: N, from 2 to 8.
        sets_per_group: At most this many flip sets for each question; `None` for all.
        seed: Which sets, where there is a limit.

    Raises:
        DataError: a file is missing or cannot be read; the message names it.
    """
    asked_of, unreadable = questions(path, languages)
    yield from sound_items(unreadable)
    for question, (topic, asked) in asked_of.items():
        yield from question_items(question, topic, asked, languages, num_responses, sets_per_group, seed)


def question_items(
    question: str,
    topic: str,
    asked: list[Asked],
    languages: Sequence[str],
    num_responses: int,
    sets_per_group: int | None,
    seed: int,
) -> Iterator[Item]:
    """The items of one question, from what every region said."""
    right = {region.culture: region for region in asked if region.best}
    also = {a: [b for b in right if b != a and _holds(right[a].best, right[b])] for a in right}
    sets = quadruples(tuple(right), also, num_responses, sets_per_group, key=f"{seed}:{question}")
    rows = [(culture, chosen, tuple(str(right[c].best) for c in chosen)) for chosen in sets for culture in chosen]
    in_sets = {culture for culture, _, _ in rows}
    for culture, region in right.items():
        if culture in in_sets:
            continue
        others = _wrong_answers(region, asked)
        if len(others) >= num_responses - 1:
            chosen = (culture, *others)[:num_responses]
            rows.append((culture, chosen, (str(region.best), *others.values())[:num_responses]))
    for culture, chosen, responses in rows:
        prompts = right[culture].prompts
        spoken = dict.fromkeys(right[culture].language if tag == "own" else tag for tag in languages)
        for language in spoken:
            if language not in prompts:
                continue
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
    """Culture -> a frequent answer of it that is not true of the region; distinct texts."""
    wrong: dict[str, str] = {}
    for other in asked:
        answer = other.frequent
        if other.culture != region.culture and answer and not _holds(answer, region) and answer not in wrong.values():
            wrong[other.culture] = answer
    return wrong


def questions(path: Path, languages: Sequence[str]) -> tuple[dict[str, tuple[str, list[Asked]]], list[Outcome]]:
    """Question -> its topic and what each region said; the rows that cannot be read."""
    if unknown := sorted(set(languages) - {"en", "own"}):
        raise DataError(f"no language {', '.join(map(repr, unknown))} in BLEnD; known: en, own")
    file, topics = _topics(path)
    asked_of: dict[str, tuple[str, list[Asked]]] = {}
    unreadable = []
    for region in REGIONS:
        for row in _rows(path / "annotations" / f"{region}_data.json"):
            (question,) = row.value
            try:
                asked = _asked(row, region)
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                said = f"expected question, en_question and annotations with en_answers and count ({error!r})"
                unreadable.append(Outcome(row).with_faults(Fault(Defect.WRONG_TYPE, f"question {question!r}: {said}")))
                continue
            if question not in topics:
                said = f"no row with the ID {question!r}, which the annotations ask; expected its Topic"
                raise DataError(f"{file}: {said}")
            asked_of.setdefault(question, (topics[question], []))[1].append(asked)
    if not asked_of and not unreadable:
        known = ", ".join(REGIONS)
        raise DataError(
            f"{path / 'annotations'}: no <Region>_data.json of {known}; data.path is a folder of BLEnD's data"
        )
    return asked_of, unreadable


def _rows(file: Path) -> Iterator[Row]:
    """The questions of a region; none where there is no file: a part of the regions is enough."""
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


def _asked(row: Row, region: str) -> Asked:
    culture, language, _ = REGIONS[region]
    ((question, value),) = row.value.items()
    json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is no text
    spellings = [(int(answer["count"]), _spellings(answer["en_answers"])) for answer in value["annotations"]]
    # Lower case: regions differ in how their annotators capitalise, which would tell them apart.
    votes = [
        (count, text) for count, texts in spellings for text in [t.strip().lower() for t in texts if _words(t)][:1]
    ]
    votes.sort(key=lambda vote: -vote[0])
    top = [text for count, text in votes if count == votes[0][0]]
    unique = top[0] if len(top) == 1 and not _NAMES.search(top[0]) else None
    return Asked(
        row=row,
        culture=culture,
        language=language,
        # A few questions are blank in one of the languages.
        prompts={
            tag: text.strip()
            for tag, text in ((language, value["question"]), ("en", value["en_question"]))
            if text.strip()
        },
        best=unique if unique and votes[0][0] >= MIN_VOTES else None,
        frequent=unique if unique and votes[0][0] >= MIN_VOTES - 1 else None,
        words=frozenset(word for _, texts in spellings for text in texts for word in _words(text)),
        fault=None if unique and votes[0][0] >= MIN_VOTES else _unasked(question, votes, top),
    )


def _spellings(answers: object) -> list[str]:
    if not isinstance(answers, list):  # of a text every letter would be an answer
        raise TypeError(f"en_answers is no list but {shown(answers)}")
    return [text for text in answers if text]


def _unasked(question: str, votes: list[tuple[int, str]], top: list[str]) -> Fault:
    """Why a region's question has no right answer."""
    if len(top) == 1 and votes[0][0] >= MIN_VOTES:
        return Fault(Defect.NAMES_CULTURE, f"question {question!r}: {top[0]!r}")
    said = f"{votes[0][0]} votes for {' and for '.join(map(repr, top[:3]))}" if votes else "no answers"
    return Fault(Defect.NO_MAJORITY, f"question {question!r}: {said}")


def _holds(answer: str | None, region: Asked) -> bool:
    """Whether an answer shares a word with anything that a region answered."""
    return bool(_words(answer or "") & region.words)


def _words(text: str) -> frozenset[str]:
    words = re.findall(r"\w+", text.lower())
    return frozenset(word.removesuffix("s") if len(word) > 3 else word for word in words if word not in _FILLERS)


def _topics(path: Path) -> tuple[Path, dict[str, str]]:
    """The file of topics; question -> the first word of its topic: the domain of its items."""
    files = sorted((path / "questions").glob("*_questions.csv"))
    if not files:
        raise DataError(f"{path / 'questions'}: no <Region>_questions.csv; data.path is a folder of BLEnD's data")
    try:
        with files[0].open(encoding="utf-8-sig", newline="") as rows:
            return files[0], {row["ID"]: row["Topic"].split("/")[0].lower() for row in csv.DictReader(rows)}
    except (KeyError, AttributeError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{files[0]}: expected UTF-8 rows with the columns ID and Topic ({error!r})") from error
