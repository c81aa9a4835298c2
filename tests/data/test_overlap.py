"""The leak check finds training items, edited or not, among evaluation items, without false positives."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable
from dataclasses import replace

import pytest
from data.sections import data_section
from items import make_item

from think_as_locals.data import load, read
from think_as_locals.data.overlap import check_overlaps, find_overlaps
from think_as_locals.types import DataError, Item, reorder_responses

FILLER = {"ar": "عادة", "de": "normalerweise", "ja": "通常", "ko": "보통", "ru": "обычно", "th": "ปกติ", "zh": "通常"}


def kinds(train: list[Item], measured: list[Item], **options: object) -> dict[str, str]:
    """Id of a measured item -> by what it was found."""
    return {o.item.id: o.kind for o in find_overlaps(train, {"test": measured}, **options)}  # type: ignore[arg-type]


def words_of(text: str) -> list[str]:
    return text.split() if " " in text else list(text)


def with_words(item: Item, words: list[str]) -> Item:
    return replace(item, prompt=(" " if " " in item.prompt else "").join(words))


def word_replaced(item: Item) -> Item:
    words, size = words_of(item.prompt), 1 if " " in item.prompt else 2
    middle = len(words) // 2
    return with_words(item, [*words[:middle], FILLER.get(item.language, "usually"), *words[middle + size :]])


EDITS: dict[str, Callable[[Item], Item]] = {
    "another case and punctuation": lambda i: replace(i, prompt=f"  {i.prompt.upper().rstrip('?？.。')} !!"),
    "decomposed": lambda i: replace(i, prompt=unicodedata.normalize("NFD", i.prompt)),
    "markup and line breaks": lambda i: replace(i, prompt=f"## **{i.prompt.replace(' ', chr(10), 2)}**\n\n> "),
    "a label": lambda i: replace(i, prompt=f"**Question 7:** {i.prompt}"),
    "an instruction around it": lambda i: replace(i, prompt=f"Answer this as a local would. {i.prompt} Thank you."),
    "a word replaced": word_replaced,
    "the end cut off": lambda i: with_words(i, words_of(i.prompt)[: -max(1, len(words_of(i.prompt)) // 4)]),
    "responses reordered": lambda i: reorder_responses(i, range(len(i.responses))[::-1]),
    "a word replaced, responses reordered and shouted": lambda i: reorder_responses(
        replace(word_replaced(i), responses=tuple(r.upper() for r in i.responses)), range(len(i.responses))[::-1]
    ),
    "no culture": lambda i: replace(i, culture=None, prompt=i.prompt.title()),
}


@pytest.fixture(scope="module")
def cards() -> list[Item]:
    return list(read(data_section(source="culture_cards", languages=["own"], sets_per_group=1)))


def planted(items: list[Item], edit: Callable[[Item], Item], seed: int, count: int = 10) -> list[Item]:
    """Edited copies under other names, of each language as many."""
    rng, copies = random.Random(seed), []
    for language in sorted({item.language for item in items}):
        picked = rng.sample([item for item in items if item.language == language], count)
        names = [f"{language}/{n}" for n in range(count)]
        copies += [replace(edit(i), id=name, group=name, source="b") for name, i in zip(names, picked, strict=True)]
    return copies


@pytest.mark.parametrize("name", EDITS)
def test_all_edited_copies_in_ten_languages_are_found(cards: list[Item], name: str) -> None:
    copies = planted(cards, EDITS[name], seed=len(name))
    assert len(copies) == 100
    assert kinds(cards, copies) == {copy.id: "text" for copy in copies}


def test_reformatted_prompt_with_other_responses_is_found(cards: list[Item]) -> None:
    for name in ("another case and punctuation", "decomposed", "markup and line breaks", "a label", "no culture"):
        copies = [replace(c, responses=("this", "that"), best=0, origins=()) for c in planted(cards, EDITS[name], 1, 3)]
        assert len(kinds(cards, copies)) == len(copies) == 30, name


KINDS = ("popular", "common", "famous", "traditional", "typical", "expensive", "healthy", "old", "new", "loved")
THINGS = ("fruit", "sport", "dish", "drink", "dessert", "holiday", "song", "toy", "game", "flower", "tree", "animal")
COUNTRIES = {"TH": "Thailand", "JP": "Japan", "DE": "Germany", "US": "the United States", "EG": "Egypt"}
TEMPLATES = {
    "a few slots": lambda n: (
        f"What is the most {KINDS[n // 5 % 10]} {THINGS[n // 50 % 12]} of a {word(n // 600)} in "
        f"{[*COUNTRIES.values()][n % 5]}?"
    ),
    "numbers": lambda n: f"Question {n} about topic {n * 7 % 5003} in {[*COUNTRIES.values()][n % 5]}",
    "a long instruction": lambda n: "You are an expert of customs, and answer with care. " * 9 + f"Who eats {word(n)}?",
    "Chinese": lambda n: f"在{'泰日德美埃'[n % 5]}国，人们最喜欢的{chr(0x4E00 + n // 5)}是什么？",
    "the same prompt": lambda n: "Which of these would a local say?",
}


def word(n: int) -> str:
    return "".join(("ka", "mo", "ti", "re", "su", "lo", "ba", "ni", "ve", "do")[int(digit)] for digit in f"{n:05}")


def test_long_prompts_are_copies_exactly_from_a_similarity_of_one_half() -> None:
    rng, numbers = random.Random(0), iter(range(10**5))

    def word() -> str:
        return "".join(chr(ord("a") + int(digit)) for digit in str(next(numbers)))

    def shingles(words: list[str]) -> set[tuple[str, ...]]:
        padded = ["", "", *words, "", ""]
        return {tuple(padded[i : i + 3]) for i in range(len(padded) - 2)}

    train, edited, expected = [], [], set()
    for number in range(400):
        words = [word() for _ in range(24)]
        changed = {*rng.sample(range(24), rng.randrange(9))}
        others = [word() if index in changed else each for index, each in enumerate(words)]
        train.append(make_item(id=f"t{number}", group=f"t{number}", prompt=" ".join(words), responses=(word(), word())))
        copy = replace(train[-1], id=f"e{number}", group=f"e{number}", prompt=" ".join(others))
        edited.append(replace(copy, responses=(word(), word())))
        mine, theirs = shingles(words), shingles(others)
        if 2 * len(mine & theirs) >= len(mine | theirs):
            expected.add(f"e{number}")
    assert 100 < len(expected) < 300
    assert set(kinds(train, edited)) == expected


@pytest.mark.parametrize("name", TEMPLATES)
def test_rows_of_one_template_are_not_copies(name: str) -> None:
    scale = ("A very big problem", "Not a problem at all")
    items = []
    for n in range(10_000):
        responses = scale if n % 2 and name != "the same prompt" else (word(n), word(n + 1))
        about = {"prompt": TEMPLATES[name](n), "responses": responses, "culture": [*COUNTRIES][n % 5]}
        items.append(make_item(id=f"{n}", group=f"{n}", **about))
    assert kinds(items[:7000], items[7000:]) == {}


def test_only_equal_questions_are_copies_of_short_ones() -> None:
    train = make_item(prompt="What is the most popular fruit in Thailand?", responses=("mango", "apple", "durian"))
    others = {
        "another culture": {"prompt": "What is the most popular fruit in Japan?", "culture": "JP", "best": 1},
        "another noun": {"prompt": "What is the most popular sport in Thailand?", "responses": ("golf", "muay thai")},
        "the same words, another culture": {"culture": "JP", "prompt": train.prompt, "responses": ("golf", "sumo")},
        "another number": {"prompt": "What was the most popular fruit in Thailand in 1949?", "responses": ("a", "b")},
    }
    measured = [replace(train, id=name, group=name, **changes) for name, changes in others.items()]  # type: ignore[arg-type]
    assert kinds([train], measured) == {}
    emoji = replace(train, prompt="What does 🙏 mean here?")
    other = replace(train, id="x", group="x", prompt="What does 👍 mean here?", responses=("a", "b"))
    assert kinds([emoji], [other]) == {}
    copy = make_item(id="x", group="x", culture="JP", best=1)
    assert kinds([make_item()], [copy]) == {"x": "text"}


def test_equal_ids_or_groups_match_only_within_a_source() -> None:
    train = [make_item(), make_item(id="pairs/en/7", group="7"), make_item(id="pairs/rows.jsonl-3", group="p")]
    other = {"prompt": "Name a river near the capital, please.", "responses": ("Nile", "Rhine")}
    found = {
        "id": make_item(group="x", **other),
        "group": make_item(id="x", **other),
        "none, another source": make_item(source="theirs", **other),
        "none, a number": make_item(id="pairs/en/7", group="7", **other),
        "none, a row of a file": make_item(id="pairs/rows.jsonl-3", group="q", **other),
        "id, a number and another language": make_item(id="pairs/en/7", group="q", **other | {"language": "de"}),
    }
    for expected, item in found.items():
        by = expected.split(",")[0]
        assert kinds(train, [item]) == ({} if by == "none" else {item.id: by}), expected


def test_group_and_pairing_splits_have_no_unintended_overlap() -> None:
    for split in ("group", "pairing"):
        splits = load(data_section(source="culture_cards", split=split, languages=["en"]))
        train, test = list(splits.train), list(splits.test)
        assert kinds(train, test, pairing=["test"] if split == "pairing" else []) == {}
        if split == "pairing":
            assert set(kinds(train, test).values()) == {"group"}  # as a named set of the same source
            leaked = [*test[:3], replace(train[0], id="new")]
            expected = dict.fromkeys((item.id for item in test[:3]), "id") | {"new": "text"}
            assert kinds([*train, *test[:3]], leaked, pairing=["test"]) == expected
            graded = [make_item(id=mark, responses=(mark, "b", "20")) for mark in ("a+", "a*")]
            assert kinds(graded[:1], graded[1:], pairing=["test"]) == {}
            elsewhere = [replace(item, source="copied") for item in test]
            assert len(kinds(elsewhere, test, pairing=["test"])) == len(test)


def test_each_item_is_reported_once_by_its_strongest_match() -> None:
    train = [make_item(), make_item(id="th-2", best=1), make_item(id="th-3", source="theirs")]
    sets = {"a": [make_item(), make_item(id="x")], "b": [make_item(id="y", group="y", source="z")], "c": []}
    found = find_overlaps(train, sets)
    assert [(o.set, o.item.id, o.kind) for o in found] == [("a", "th-1", "id"), ("a", "x", "group"), ("b", "y", "text")]
    assert find_overlaps([], sets) == find_overlaps(train, {}) == find_overlaps([], {}) == []


def test_overlap_error_gives_counts_pairs_and_a_remedy() -> None:
    measured = [make_item(id=f"m{n}", group=f"m{n}") for n in range(6)]
    overlaps = find_overlaps([make_item()], {"carb": [make_item(), *measured]})
    with pytest.raises(DataError, match=r"eval\.leaks=report") as error:
        check_overlaps(overlaps, refuse=True)
    counts, same, *alike = [
        "carb: 7 items are training items too (1 by id, 6 by text)",
        "  carb 'th-1' is training item 'th-1' by id: How do people greet an elder?",
        *(f"  carb 'm{n}' is training item 'th-1' by text: How do people greet an elder?" for n in range(5)),
    ]
    assert str(error.value).splitlines()[:-1] == [counts, same, *alike[:4], "  and 2 more"]
    report = check_overlaps(overlaps, refuse=False)  # of items that may be on both sides, only what is not the same
    assert report.splitlines() == [counts, *alike, "  and 1 more"]
    assert check_overlaps([], refuse=True) == ""
