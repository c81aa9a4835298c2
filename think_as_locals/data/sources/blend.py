"""BLEnD (arXiv 2406.09948, HF nayeon212/BLEnD): answers of people in 16 regions about everyday life, with votes.

The right answer of a region is its most frequent one, if that is unique and has at least three votes. Wrong answers are
frequent answers of other regions that do not mean the same as any answer of the region: no spelling of one shares a
word, a synonym or a kind with it (`Synonyms`). All responses are in English, so that a question in a local language
cannot be answered by looking for that language.
"""

from __future__ import annotations

import csv
import json
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, combinations, product
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, StringConstraints, ValidationError

from think_as_locals.config.schema import DataSection
from think_as_locals.data.languages import PLACEHOLDERS
from think_as_locals.data.rows import Fault, Outcome, Row, faults_of, path_of, size_of, valid_items, warn_unread
from think_as_locals.data.splits import flip_set_combinations
from think_as_locals.runtime.files import read_json
from think_as_locals.types import DataError, Item

MIN_VOTES = 3

REGIONS = {  # file name -> culture (ISO 3166), language (BCP-47), English words for its people and things
    "Algeria": ("DZ", "ar", "algerian?"),
    "Assam": ("IN-AS", "as", "assam|assamese|india|indian"),
    "Azerbaijan": ("AZ", "az", "azerbaijani?"),
    "China": ("CN", "zh", "china|chinese"),
    "Ethiopia": ("ET", "am", "ethiopian?"),
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
    "West_Java": ("ID-JB", "su", "west java|west javanese|sundanese"),
}
_NAMES = re.compile("|".join(rf"\b(?:{names})s?\b" for _, _, names in REGIONS.values()))
# Every region has these: such an answer may be right, but never serves as a wrong one.
_EVERYWHERE = re.compile(r"(?:the |in the )?(?:capital|(?:north|south)?(?:east|west)?|coast|countryside|other)")
_Text = Annotated[str, StringConstraints(strip_whitespace=True)]  # pydantic takes only what UTF-8 can encode


class Votes(BaseModel):
    """One answer in all its spellings, and the number of annotators who gave it."""

    en_answers: list[_Text | None]
    count: int

    @property
    def spellings(self) -> list[str]:
        """Return the spellings that contain a word."""
        texts = filter(None, self.en_answers)
        return [text for text in texts if re.search(r"\w", text) and text.casefold() not in PLACEHOLDERS]


class QuestionRow(BaseModel):
    """A question in the file of a region."""

    question: _Text
    en_question: _Text
    annotations: list[Votes]


@dataclass(frozen=True, slots=True)
class RegionQuestion:
    """One question in one region."""

    row: Row
    topic: str  # its first part: the domain of the items
    culture: str
    prompts: dict[str, str]  # by language, those of the configuration; some are blank in the files
    best: str | None  # the right answer
    frequent: str | None  # a possible wrong answer in other regions
    means: frozenset[str]  # the marks (`Synonyms.marks`) of all spellings of the most frequent answer
    answered: frozenset[str]  # the marks of all answers
    fault: Fault | None  # why there is no right answer

    def item(
        self, question: str, language: str, responses: tuple[str, ...], best: int, origins: tuple[str, ...] = ()
    ) -> Item:
        """Return an item that asks the question in a language."""
        key = f"/{'-'.join(origins)}" if origins else ""
        return Item(
            id=f"blend/{question}/{self.culture}/{language}{key}",
            prompt=self.prompts[language],
            responses=responses,
            best=best,
            culture=self.culture,
            language=language,
            domain=self.topic,
            group=question,
            source="blend",
            origins=origins,
        )


def read(data: DataSection, seed: int, faulty: list[str] | None = None) -> Iterator[Item]:
    """Yield the items of BLEnD: flip sets, and single items for regions that are in none.

    `data.path` is a folder with `annotations/<Region>_data.json` and `questions/<Region>_questions.csv`; each of
    `data.languages` is `en` or `own` (the region's language).
    """
    by_question, invalid = _questions(data)
    made = (
        Outcome(region.row, tuple(_items(question, regions, data, seed)) if region is regions[0] else ())
        for question, regions in by_question.items()
        for region in regions
    )
    yield from valid_items(chain(invalid, made), faulty)


def outcomes(data: DataSection, seed: int) -> Iterator[Outcome]:
    """Yield the outcome of each question of a region: the items in which the region's answer is right, or a fault."""
    by_question, invalid = _questions(data)
    yield from invalid
    for question, regions in by_question.items():
        items = list(_items(question, regions, data, seed))
        for region in regions:
            if own := tuple(item for item in items if item.culture == region.culture):
                yield Outcome(region.row, own)
                continue
            name, detail = "blank", "blank in every language asked"
            if region.prompts:
                name, detail = "no_rivals", f"fewer than {size_of(data) - 1} wrong answers"
            yield Outcome(region.row, faults=(region.fault or Fault(name, f"question {question!r}: {detail}"),))


def short_answers(data: DataSection) -> Iterator[tuple[Item, list[tuple[list[str], int]]]]:
    """Yield each question of a region, with the votes for its answers in its language; the responses mean nothing.

    Questions whose most frequent answer has too few votes are left out.
    """
    for question, of_question in _questions(data)[0].items():
        for region in of_question:
            for language in region.prompts:
                key = "en_answers" if language == "en" else "answers"
                votes = [
                    ([text for text in vote.get(key) or () if isinstance(text, str) and text.strip()], vote["count"])
                    for vote in region.row.value["annotations"]
                ]
                votes = [(spellings, count) for spellings, count in votes if spellings]
                if max((count for _, count in votes), default=0) >= MIN_VOTES:
                    yield region.item(question, language, responses=("a", "b"), best=0), votes


def _items(question: str, regions: list[RegionQuestion], data: DataSection, seed: int) -> Iterator[Item]:
    """Yield the items of one question, given the answers of all regions."""
    size = size_of(data)
    right = {region.culture: region for region in regions if region.best}
    best = {culture: str(region.best) for culture, region in right.items()}
    also = {a: [b for b in right if b != a and right[a].means & right[b].answered] for a in right}
    in_sets = tuple(culture for culture in right if right[culture].frequent)
    sets = flip_set_combinations(in_sets, also, size, data.sets_per_group, f"{seed}:{question}", answers=best)
    rows = [(culture, {c: best[c] for c in chosen}) for chosen in sets for culture in chosen]
    cultures_in_sets = {culture for culture, _ in rows}
    for culture, region in right.items():
        responses = {culture: best[culture]}
        for other in regions:
            answer = other.frequent
            if answer and not other.means & region.answered and answer not in responses.values():
                responses[other.culture] = answer
        if culture not in cultures_in_sets and len(responses) >= size:
            rows.append((culture, dict([*responses.items()][:size])))
    for culture, responses in rows:
        for language in right[culture].prompts:
            texts, origins = tuple(responses.values()), tuple(responses)
            yield right[culture].item(question, language, texts, origins.index(culture), origins)


def _questions(data: DataSection) -> tuple[dict[str, list[RegionQuestion]], list[Outcome]]:
    """Return by question the answers of each region, and the outcomes of rows that cannot be read."""
    languages = ["en", "own"] if data.languages is None else data.languages
    if unknown := sorted(set(languages) - {"en", "own"}):
        raise DataError(f"no language {', '.join(map(repr, unknown))} in BLEnD; known: en, own")
    path = Path(path_of(data)).expanduser()
    files = sorted((path / "questions").glob("*_questions.csv"))
    if not files:
        raise DataError(f"{path / 'questions'}: no <Region>_questions.csv; data.path is a folder of BLEnD's data")
    topics = _topics(files[0])
    annotations = {region: path / "annotations" / f"{region}_data.json" for region in REGIONS}
    valid, invalid = [], []
    for region, file in annotations.items():
        questions = read_json(file) if file.is_file() else {}  # not all regions have to be there
        for number, (question, value) in enumerate(questions.items(), 1):
            row = Row(str(file), number, value, json.dumps({question: value}, ensure_ascii=False))
            try:
                fields = QuestionRow.model_validate(value)
            except ValidationError as error:
                faults = (Fault(each.name, f"question {question!r}: {each.detail}") for each in faults_of(error))
                invalid.append(Outcome(row, faults=tuple(faults)))
                continue
            if question not in topics:
                fault = Fault("unknown_question", f"question {question!r}: no row of {files[0]} has this ID")
                invalid.append(Outcome(row, faults=(fault,)))
                continue
            valid.append((region, question, row, fields))
    if not valid and not invalid:
        expected = f"no <Region>_data.json of {', '.join(REGIONS)}; data.path is a folder of BLEnD's data"
        raise DataError(f"{path / 'annotations'}: {expected}")
    expected = f"expected <Region>_data.json of {', '.join(REGIONS)}"
    warn_unread(path / "annotations", annotations.values(), expected)
    synonyms = Synonyms([vote.spellings for vote in fields.annotations] for _, _, _, fields in valid)
    by_question: dict[str, list[RegionQuestion]] = defaultdict(list)
    for region, question, row, fields in valid:
        by_question[question].append(
            _region_question(row, question, topics[question], fields, region, languages, synonyms)
        )
    return by_question, invalid


def _topics(file: Path) -> dict[str, str]:
    """Return the topic of every question by ID."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as rows:
            return {row["ID"]: row["Topic"].split("/")[0].lower() for row in csv.DictReader(rows)}
    except (KeyError, AttributeError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file}: expected UTF-8 rows with the columns ID and Topic ({error!r})") from error


def _region_question(
    row: Row, question: str, topic: str, fields: QuestionRow, region: str, languages: list[str], synonyms: Synonyms
) -> RegionQuestion:
    """Return a question in one region, with the right answer by its votes."""
    culture, language, _ = REGIONS[region]
    texts = {language: fields.question, "en": fields.en_question}
    tags = [language if tag == "own" else tag for tag in languages]
    votes = [vote for vote in fields.annotations if vote.spellings]
    most = max((vote.count for vote in votes), default=0)
    # Lower case: regions differ in how their annotators capitalise, which would tell them apart.
    spelled = [[text.lower() for text in vote.spellings] for vote in votes if vote.count == most]
    top = [next((text for text in texts if not _EVERYWHERE.fullmatch(text)), texts[0]) for texts in spelled]
    fault = None
    if len(top) != 1 or most < MIN_VOTES:
        got = f"{most} votes for {' and for '.join(map(repr, top[:3]))}" if votes else "no answers"
        fault = Fault("no_majority", f"question {question!r}: {got}")
    elif _NAMES.search(top[0]):
        fault = Fault("names_culture", f"question {question!r}: {top[0]!r}")
    is_frequent = len(top) == 1 and most >= MIN_VOTES - 1
    is_frequent = is_frequent and not (_NAMES.search(top[0]) or _EVERYWHERE.fullmatch(top[0]))
    marks = [(vote.count, synonyms.marks(text)) for vote in votes for text in vote.spellings]
    return RegionQuestion(
        row=row,
        topic=topic,
        culture=culture,
        prompts={tag: texts[tag] for tag in tags if texts[tag]},
        best=None if fault else top[0],
        frequent=top[0] if is_frequent else None,
        means=frozenset().union(*(found for count, found in marks if count == most)),
        answered=frozenset().union(*(found for _, found in marks)),
        fault=fault,
    )


_FILLER = re.compile("a|an|and|at|by|for|from|go|going|in|is|it|of|on|or|the|their|they|to|with")
_POSSESSIVE = re.compile(r"['’]s?\b")
_ENDING = re.compile(r"(?<=[^\W\d_]{3})(?:ings?|ers?|ies|ism|ist|ed|e|y)$")
_Phrase = tuple[str, ...]  # the stems of its words


class Synonyms:
    """Marks of meanings: two answers that share a mark can both be right.

    They are the words, the annotators' alternatives, and a table written for this project, `synonyms.json`: everyday
    synonyms (British and American ones first), and kinds, whose general answer holds wherever a specific one does.
    """

    def __init__(self, answered: Iterable[Sequence[Sequence[str]]]) -> None:
        """Learn synonyms from answers, each a list of spellings, grouped by region and question.

        Two phrases are synonyms if they are spellings of one answer more often than they are different answers.
        """
        one: Counter[tuple[_Phrase, ...]] = Counter()
        two: Counter[tuple[_Phrase, ...]] = Counter()
        for answers in answered:
            spelled = [{phrase for text in spellings if (phrase := _phrase(text))} for spellings in answers]
            one.update(pair for phrases in spelled for pair in combinations(sorted(phrases), 2))
            pairs = (pair for a, b in combinations(spelled, 2) for pair in product(a, b))
            two.update({(min(pair), max(pair)) for pair in pairs})
        self._learned: dict[_Phrase, set[str]] = defaultdict(set)
        for pair, count in one.items():
            if count > two[pair]:
                for phrase in pair:
                    self._learned[phrase].add(str(pair))

    def marks(self, text: str) -> frozenset[str]:
        """Return the marks of an answer: the stems of its words, and all that it is a synonym or a kind of."""
        phrase, (same, special, general) = _phrase(text), _table()
        parts = [phrase[i:j] for i in range(len(phrase)) for j in range(i + 1, len(phrase) + 1)]
        found = (names.get(part, ()) for names in (same, special) for part in parts)
        initials = "".join(word[0] for word in re.findall(r"\w+", text.lower()))
        return frozenset({initials, *phrase} if len(initials) > 2 else phrase).union(
            *found, general.get(phrase, ()), self._learned.get(phrase, ())
        )


@cache
def _phrase(text: str) -> _Phrase:
    """Return the stems of the words, without filler words."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", text.lower()) if not unicodedata.combining(c))
    return tuple(_stem(w) for w in re.findall(r"\w+", _POSSESSIVE.sub("", plain)) if not _FILLER.fullmatch(w))


def _stem(word: str) -> str:
    """Remove endings: `run` for `running` and `runners`, `bus` for `buses`; the result need not be a word."""
    stem = word if len(word) < 4 or word.endswith("ss") else word.removesuffix("s")
    stem = _ENDING.sub("", _ENDING.sub("", stem))
    return stem[:-1] if len(stem) > 3 and stem[-1] == stem[-2] else stem


@cache
def _table() -> tuple[dict[_Phrase, set[str]], ...]:
    """Return marks by phrase: of synonyms and special things, in any part of an answer; of kinds, as a whole answer."""
    table = read_json(Path(__file__).with_name("synonyms.json"))
    same, special, general = (defaultdict[_Phrase, set[str]](set) for _ in range(3))
    for number, synonyms in enumerate(table["same"]):
        for text in synonyms:
            same[_phrase(text)].add(f"same {number}")
    for kind, members in table["kinds"].items():
        for text in members:
            special[_phrase(text)].add(f"{kind}: {text}")
            general[_phrase(kind)].add(f"{kind}: {text}")
    return same, special, general
