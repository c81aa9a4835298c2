"""The leak check: find evaluated items that are also training items, by id, question group and text.

Benchmarks are full of prompts that differ in one word and are different questions ("What is the most popular fruit in
Thailand?", "... in Japan?"), so similar prompts alone prove little. By text, two items are the same question if

- the prompts are the same up to case, punctuation, markup and Unicode forms, and so is the culture or every response;
- or culture, responses and the best response are the same, and the longer prompt has most words of the shorter one;
- or the culture is the same and the prompts share `NEAR` of their shingles, and are long or have the same best response
  and half of the others; `NEAR_ALONE` is enough by itself. Text that many questions share (a template) hardly
  counts.

An unknown culture matches any. Prompts with different numbers are different questions.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, Literal

from think_as_locals.data.rows import SUFFIXES
from think_as_locals.types import DataError, Item, first_of

NEAR, NEAR_ALONE = 0.5, 0.7
"""Similarity of near-duplicates: of prompts that are long or have the same responses, and of any others."""

_CONTAINED = 0.65  # share of the shorter prompt's words that the longer one has
_LONG = 20  # words of a long prompt (characters in scripts without spaces)
_FEW = 4  # distinct words of responses: fewer ("yes", "no") do not identify a question
_COMMON = 4  # question groups on one side: a text that more of them have does not identify a question
_TEMPLATE = 2  # prompts on one side: a shingle that more of them have counts for less
_RARE = 30  # prompts on one side: a shingle that more of them have finds no candidates
_UNRELATED = 0.2  # similarity of prompts below which the same numeric id is a coincidence
_CACHE_SIZE = 2**14  # cached texts: many items share some
_SHOWN = 5  # pairs in a message

_NUMBERED = re.compile(rf"(?:^|/)\d+$|(?:{'|'.join(map(re.escape, SUFFIXES))}|:\w+)-\d+$")
"""An id that is only a number, or the row of a file: two data sets may share it by chance."""

Kind = Literal["id", "group", "text"]
_Key = tuple[Any, ...]
_Shingles = set[int]  # hashes of three words in a row


@dataclass(frozen=True, slots=True)
class Overlap:
    """A test item and a training item that are the same question."""

    set: str  # name of the test set
    kind: Kind  # how it was found
    item: Item
    train: Item


def find_overlaps(
    train: Sequence[Item], sets: Mapping[str, Sequence[Item]], *, pairing: Collection[str] = ()
) -> list[Overlap]:
    """Return the items of `sets` that are training items too, each with the first such training item.

    Sets named in `pairing` are sides of a split by pairing. Within one source they share questions with the training
    items by design: only the same id, or the same prompt, culture and responses, is an overlap.
    """
    if not any(sets.values()):
        return []
    words = lru_cache(_CACHE_SIZE)(normalise)
    evaluated = {name: [_Text.of(item, words) for item in items] for name, items in sets.items()}
    index = _Index(train, [text for texts in evaluated.values() for text in texts], words)
    found = []
    for name, texts in evaluated.items():
        for text in texts:
            for kind, match in index.matches(text, by_group=name not in pairing):
                shown = [(each.item.prompt, each.item.culture, {*each.item.responses}) for each in (match, text)]
                by_design = name in pairing and match.item.source == text.item.source
                if not by_design or kind == "id" or shown[0] == shown[1]:
                    found.append(Overlap(name, kind, text.item, match.item))
                    break
    return found


def check_overlaps(overlaps: Sequence[Overlap], *, refuse: bool) -> str:
    """Return a message about overlaps by set and kind, with the first pairs; with `refuse` raise it as a DataError."""
    if not overlaps:
        return ""
    counts: dict[str, Counter[Kind]] = defaultdict(Counter)
    for overlap in overlaps:
        counts[overlap.set][overlap.kind] += 1
    lines = [
        f"{name}: {of_set.total():,} items are training items too "
        f"({', '.join(f'{count:,} by {kind}' for kind, count in of_set.items())})"
        for name, of_set in counts.items()
    ]
    pairs = [
        f"{each.set} {each.item.id!r} is training item {each.train.id!r} by {each.kind}: "
        + " ".join(each.item.prompt[:60].split())
        for each in overlaps
        if refuse or each.kind != "id"  # the same id in a warning: the very items may be in both sets
    ]
    lines += ["  " + first_of(pairs, _SHOWN, between="\n  ")] if pairs else []
    if refuse:
        remedy = "leave them out of one side (another source, split or share), give rows of a question one `group`, "
        raise DataError("\n".join([*lines, f"{remedy}or measure as it is: eval.leaks=report"]))
    return "\n".join(lines)


# --- Normalised texts ---

_LABEL = re.compile(  # before a prompt, e.g. `**Question 3:**`
    r"\W*(?:question|prompt|user|q|frage|pregunta|pergunta|pertanyaan|domanda|soru|вопрос|câu hỏi|سؤال|السؤال|پرسش"
    r"|प्रश्न|คำถาม|问题|問題|質問|问|問|질문|문제)\s*\d*\s*[:.)]"
)
_UNSPACED = re.compile(  # scripts without spaces between words: Thai, Lao, Burmese, Khmer, kana, Han
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff\U00020000-\U0003ffff]"
)


class _Characters(dict[int, str]):
    """The normalised form of each character: letters, their marks, digits and symbols are kept."""

    def __missing__(self, code: int) -> str:
        character, category = chr(code), unicodedata.category(chr(code))
        if category == "Nd":
            kept = str(unicodedata.decimal(character))
        elif category == "Cf" or (category == "Mn" and code < 0x900) or character in "'’\u0640\ufe0e\ufe0f":
            kept = ""  # joiners, optional vowel points, apostrophes
        elif category == "So" or _UNSPACED.match(character):
            kept = f" {character} "
        else:
            kept = character if category[0] in "LMN" else " "
        return self.setdefault(code, kept)


_CHARACTERS = _Characters({ord("ı"): "i"})  # both have the capital I


def normalise(text: str) -> str:
    """Return the words of a text (characters in scripts without spaces), without case, punctuation and markup."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    label = _LABEL.match(folded)
    words = folded[label.end() :] if label else folded
    kept = words.translate(_CHARACTERS).strip()
    return (" ".join(kept.split()) if "  " in kept else kept) or folded.strip()


@dataclass(frozen=True, slots=True)
class _Text:
    """An item and its normalised texts."""

    item: Item
    prompt: str
    best: str
    responses: frozenset[str]
    words: frozenset[str]  # of the prompt
    numbers: frozenset[str]  # in the prompt
    keys: Mapping[str, _Key]  # that the same question may share

    @classmethod
    def of(cls, item: Item, words: Callable[[str], str]) -> _Text:
        prompt, best = words(item.prompt), words(item.responses[item.best])
        responses = frozenset(map(words, item.responses))
        numbers = frozenset(re.findall(r"\d+", prompt))
        keys = {
            "id": ("id", item.source, item.id),
            "group": ("group", item.source, item.group),
            "prompt": ("prompt", prompt),
            "content": ("content", prompt, responses),
            "answers": ("answers", best, responses),
        }
        return cls(item, prompt, best, responses, frozenset(prompt.split()), numbers, keys)

    @property
    def is_long(self) -> bool:
        """Whether the prompt is too long for another question to share half of it by chance."""
        return self.prompt.count(" ") >= _LONG - 1

    def compatible(self, other: _Text) -> bool:
        """Return whether cultures and numbers allow that both items ask the same question."""
        cultures = {self.item.culture, other.item.culture} - {None}
        return len(cultures) < 2 and (self.numbers <= other.numbers or other.numbers <= self.numbers)

    def contains_question(self, other: _Text) -> bool:
        """Return whether the longer prompt has most of the shorter one, and the responses identify the question."""
        shared = len(self.words & other.words)
        identifying = {word for response in self.responses for word in response.split()}
        return shared >= _CONTAINED * min(len(self.words), len(other.words)) and len(identifying) >= _FEW

    def same_answers(self, other: _Text) -> bool:
        """Return whether both have the same best response and share half of the other responses."""
        wrong, others = self.responses - {self.best}, other.responses - {other.best}
        return self.best == other.best and 2 * len(wrong & others) >= min(len(wrong), len(others))


class _Index:
    """The training items that may be the question of a test item, by their keys."""

    def __init__(self, train: Sequence[Item], evaluated: Sequence[_Text], words: Callable[[str], str]) -> None:
        prompts = [words(item.prompt) for item in train]
        self._near = _near_prompts(set(prompts), {text.prompt for text in evaluated})
        near = {prompt for found in self._near.values() for prompt, _ in found}
        measured, bests = _by_key(evaluated), {text.best for text in evaluated}
        texts = []
        for item, prompt in zip(train, prompts, strict=True):
            named = {("id", item.source, item.id), ("group", item.source, item.group), ("prompt", prompt)}
            # The other responses of most need not be read: what shares them has a test prompt or best response too.
            if prompt in near or named & measured.keys() or words(item.responses[item.best]) in bests:
                texts.append(_Text.of(item, words))
        self._training = _by_key(texts)
        self._common = {
            key
            for side in (self._training, measured)
            for key, having in side.items()
            if len({(text.item.source, text.item.group) for text in having}) > _COMMON
        }

    def matches(self, text: _Text, *, by_group: bool) -> Iterator[tuple[Kind, _Text]]:
        """Yield the training items that are the same question, the most certain first; those of its group if asked."""
        named: tuple[tuple[Kind, str], ...] = (("id", text.item.id), ("group", text.item.group))
        for kind, name in named[: 1 + by_group]:
            numbered = _NUMBERED.search(name)
            for match in self._training.get(text.keys[kind], ()):
                by_chance = numbered and match.item.language == text.item.language
                one, other = _shingles(text.prompt), _shingles(match.prompt)
                if not by_chance or len(one & other) >= _UNRELATED * len(one | other):
                    yield kind, match
        identifying = {name: self._training.get(key, ()) for name, key in text.keys.items() if key not in self._common}
        yield from (("text", match) for match in self._training.get(text.keys["content"], ()))
        yield from (("text", match) for match in identifying.get("prompt", ()) if match.compatible(text))
        for match in identifying.get("answers", ()):
            if match.compatible(text) and match.contains_question(text):
                yield "text", match
        for prompt, similarity in self._near.get(text.prompt, ()):
            for match in self._training.get(("prompt", prompt), ()):
                alone = NEAR if match.is_long and text.is_long else NEAR_ALONE
                if match.compatible(text) and (similarity >= alone or match.same_answers(text)):
                    yield "text", match


def _by_key(texts: Iterable[_Text]) -> dict[_Key, list[_Text]]:
    found: dict[_Key, list[_Text]] = defaultdict(list)
    for text in texts:
        for key in text.keys.values():
            found[key].append(text)
    return found


def _near_prompts(training: Collection[str], evaluated: Collection[str]) -> dict[str, list[tuple[str, float]]]:
    """Return the training prompts near each evaluated one, with similarities, the most similar first.

    Prompts are compared that share a rare shingle, and enough others. A shared shingle that many prompts of one side
    have, as a template does, counts for less.
    """
    shingles = {prompt: _shingles(prompt) for prompt in evaluated}
    in_evaluated, in_training = Counter(chain.from_iterable(shingles.values())), Counter[int]()
    candidates = []
    for prompt in training:
        own = _shingles(prompt)
        shared = own & in_evaluated.keys()
        in_training.update(shared)
        # Of two prompts with a and b shingles, s of them shared, the similarity is at most s / (a + b - s).
        if len(shared) * (1 + NEAR) >= NEAR * len(own):
            candidates.append(prompt)
    counts = {shingle: max(count, in_training[shingle]) for shingle, count in in_evaluated.items()}
    having: dict[int, list[str]] = defaultdict(list)  # evaluated prompts by rare shingle
    for prompt, own in shingles.items():
        for shingle in own:
            if counts[shingle] <= _RARE:
                having[shingle].append(prompt)
    near: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for prompt in candidates:
        own = _shingles(prompt)
        hits = Counter(chain.from_iterable(having[shingle] for shingle in own if shingle in having))
        rare = sum(shingle in having for shingle in own)
        least = NEAR * rare - (1 - NEAR) * (len(own) - rare) * _TEMPLATE / _RARE
        for other, count in hits.items():
            if other != prompt and count >= least:
                shared = own & shingles[other]
                weight = sum(min(1, _TEMPLATE / counts[shingle]) for shingle in shared)
                similarity = weight / (weight + len(own) + len(shingles[other]) - 2 * len(shared))
                if similarity >= NEAR:
                    near[other].append((prompt, similarity))
    return {prompt: sorted(found, key=lambda pair: (-pair[1], pair[0])) for prompt, found in near.items()}


def _shingles(prompt: str) -> _Shingles:
    """Return the hashes of every three words in a row, with blanks at both ends."""
    words = ["", "", *prompt.split(), "", ""]
    return set(map(hash, zip(words, words[1:], words[2:], strict=False)))
