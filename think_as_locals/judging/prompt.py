"""Render an item as chat messages: untrusted text is neutralised, then inserted into templates in one pass."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from itertools import cycle, pairwise, product
from string import Template
from typing import get_args

from babel import Locale

from think_as_locals.judging.formats import SECTIONS, prompt_format
from think_as_locals.types import LABELS, CultureShown, Item, RubricLanguage, reorder_responses

RESERVED = (*SECTIONS, "question", "response")
"""Tags that structure prompts and completions: untrusted text may not contain them."""

# The forms of control tokens, in a text as read: lower-case, and `｜` is `|`.
_FORMS = {
    # Of most families, such as <|im_start|> and <｜User｜>; Gemma's <|turn> and <turn|>.
    "<|...|>": re.compile(r"<\|[^<>|\n]++\|?>|<[^<>|\s]++\|>"),
    "[|...|]": re.compile(r"\[\|[^\[\]|\n]++\|\]"),  # EXAONE
    "<...1>": re.compile(r"<(?:unused|extra_id_|reserved_|placeholder)[a-z_]*+[0-9]++>"),  # Gemma's, T5's
    "[CAPS]": re.compile(r"\[/?[a-z][a-z0-9_]++\]"),  # Mistral's [INST] and [TOOL_CALLS], BERT's
}
CHAT_TOKENS: tuple[str, ...] = (
    *_FORMS,
    *("<think>", "</think>", "<s>", "</s>", "<<SYS>>", "<</SYS>>"),  # Qwen, Llama 2
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),  # Qwen, GLM
    *("[gMASK]", "<sop>", "<eop>"),  # GLM
    *("<bos>", "<eos>", "<pad>", "<unk>", "<start_of_turn>", "<end_of_turn>"),  # Gemma
)
"""Control tokens of common chat formats, most as forms, neutralised if the judge's tokenizer is not known."""

# Possessive quantifiers keep these linear. <response_A> is a tag, <responses> and `x<response_time` are none.
_TAG_START = rf"\s*+/?\s*+(?:{'|'.join(RESERVED)})(?:_[a-z0-9]|[0-9])?\b"
_RESERVED_TAG = re.compile(rf"<({_TAG_START}[^<>]*+)>", re.IGNORECASE)
RESERVED_OPENING = re.compile(rf"<(?={_TAG_START})", re.IGNORECASE)
_SUBDIVISION = re.compile("[A-Z]{2}-[A-Z0-9]{1,3}")  # a code of ISO 3166-2
_ENGLISH = {"ID-JB": "West Java"}  # for BLEnD; ISO 3166-2 has names in the region's own language
_BREAK = " "  # breaks special tokens: BERT's normaliser removes invisible characters
# Control and invisible characters: some normalisers read them as spaces, others remove them, all of a kind alike.
_SPACE_OR_NOTHING = ("\x0b", "\x0c\x85", "\x1c\x1d\x1e\x1f", "\u200b\u200c\u200d\u200e\u200f\ufeff\ufffd")
_TONE_MARKS = "\u1cf2\u1cf3"  # letters since Unicode 12, marks to older tokenizers
_RESPONSES_FIRST = "_responses_first"  # templates whose question stands last
_SHARED = ("grammar.txt", "unknown_culture.txt", *(f"rubric_language_{each}.txt" for each in get_args(RubricLanguage)))


def prompt_digest(prompt: str) -> str:
    """Return the SHA-256 of all texts of a prompt, which identifies its wording."""
    return hashlib.sha256(json.dumps(prompt_texts(prompt), sort_keys=True).encode()).hexdigest()


def prompt_texts(prompt: str) -> dict[str, str]:
    """Return all texts of a prompt by name; an UnknownPromptError lists the known prompts."""
    parts = {name: template.template for name, template in _templates(prompt).items()}
    return parts | {name: _text(name) for name in _SHARED}


def render(
    item: Item,
    prompt: str = "listwise",
    seed: int = 0,
    special_tokens: Iterable[str] = (),
    reverse: bool = False,
    culture: CultureShown = "stated",
    rubric_language: RubricLanguage = "item",
) -> list[dict[str, str]]:
    """Return the chat messages that ask a judge about an item, its responses shuffled and labelled A, B, ...

    Args:
        item: The item to judge.
        prompt: Name of the template: a folder of `judging/prompts`.
        seed: Determines the order of responses, together with their texts (`shuffle_responses`).
        special_tokens: The tokenizer's special tokens, to be neutralised in untrusted text.
        reverse: Whether to present the responses in reverse order.
        culture: Whether the prompt names the item's culture, asks to infer it, or does not mention it.
        rubric_language: The language of the rubric that the prompt asks for; compact prompts do not ask for one.

    Raises:
        UnknownPromptError: no such template; the message lists the known ones.

    Example:
        >>> item = Item(id="1", prompt="Breakfast?", responses=("Rice.", "Toast."), best=0, culture="JP", language="en",
        ...             domain="commonsense", group="breakfast", source="mine")
        >>> [message["role"] for message in render(item)]
        ['system', 'user']
    """
    presented = shuffle_responses(item, seed, reverse).responses
    return render_presented(item, presented, prompt, special_tokens, culture, rubric_language)


def render_presented(
    item: Item,
    presented: Sequence[str],
    prompt: str = "listwise",
    special_tokens: Iterable[str] = (),
    culture: CultureShown = "stated",
    rubric_language: RubricLanguage = "item",
) -> list[dict[str, str]]:
    """Return the chat messages that ask about one to eight responses, labelled in the given order."""
    templates = _templates(prompt)
    untrusted = (*special_tokens, *prompt_format(prompt).reserved_marks)
    responses = "\n".join(
        templates["response"].substitute(label=label, response=neutralise(response, untrusted))
        for label, response in zip(LABELS, presented, strict=False)
    )
    language = "en" if rubric_language == "en" else item.language.partition("-")[0]
    example = templates.get(f"example_{language}") or templates.get("example_en")
    values = {
        "culture": neutralise(culture_name(item.culture if culture == "stated" else None), untrusted),
        "question": neutralise(item.prompt, untrusted),
        "responses": responses,
        "labels": ", ".join(LABELS[: len(presented)]),
        "grammar": _text("grammar.txt"),
        "rubric_language": _text(f"rubric_language_{rubric_language}.txt"),
        "example": example.template if example else "",
    }
    roles = {role: templates[role] for role in ("system", "user") if role in templates}
    if culture == "hidden":
        roles = {role: templates.get(f"{role}_hidden", template) for role, template in roles.items()}
    return [{"role": role, "content": template.substitute(values)} for role, template in roles.items()]


def hint(label: str) -> str:
    """Return the end of a prompt that tells a teacher the label of the best response."""
    return Template(_text("hint.txt")).substitute(label=label)


@lru_cache(maxsize=64)  # the items of a flip set share their responses
def neutralise(text: str, special_tokens: tuple[str, ...] = ()) -> str:
    """Return untrusted text with guillemets instead of angle brackets in reserved tags, and spaces in special tokens.

    Both are found in any form that a tokenizer's normaliser may map to them, such as `＜ＶＥＲＤＩＣＴ＞`.
    """
    readings, marks = list(_readings(text)), dict[int, str]()
    for read, positions in readings:
        # Whole tags first, then tags that are nested or never closed.
        closed = [index for tag in _RESERVED_TAG.finditer(read) for index in (tag.start(), tag.end() - 1)]
        marks |= dict(zip([positions[index] for index in closed], cycle("‹›"), strict=False))
        marks |= {positions[tag.start()]: "‹" for tag in RESERVED_OPENING.finditer(read)}
    if marks:
        text = "".join([marks.get(index, character) for index, character in enumerate(text)])
        readings = list(_readings(text))
    return _broken(text, readings, special_tokens)


def break_tokens(text: str, special_tokens: Iterable[str]) -> str:
    """Break only the special tokens in untrusted text."""
    return _broken(text, _readings(text), special_tokens)


def _broken(text: str, readings: Iterable[tuple[str, Sequence[int]]], special_tokens: Iterable[str]) -> str:
    # Tokens may overlap: every occurrence is broken, not only those that a scan from the left finds.
    cuts: set[int] = set()
    special_tokens = tuple(special_tokens)
    tokens = _tokens_as_read(special_tokens)
    for read, positions in readings:
        for name, form in ((n, f) for n in _FORMS if n in special_tokens for f in _FORMS[n].finditer(read)):
            start, end = positions[form.start()], positions[form.end() - 1] + 1
            if name != "[CAPS]" or unicodedata.normalize("NFKC", text[start:end]).isupper():  # of whatever width
                cuts.add(start + 1)
        for token in tokens:
            start = read.find(token)
            while start >= 0:
                cuts.add(positions[start] + 1)
                start = read.find(token, start + 1)
    edges = [0, *sorted(cuts), len(text)]
    return _BREAK.join(text[start:end] for start, end in pairwise(edges))


@cache
def _tokens_as_read(special_tokens: tuple[str, ...]) -> list[str]:
    given = (special for special in special_tokens if special not in _FORMS)
    return [token for special in given if len(token := next(_readings(special))[0]) > 1]


def _readings(text: str) -> Iterator[tuple[str, Sequence[int]]]:
    """Yield a text in the forms that tokenizers may normalise it to, with the original position of each character."""
    kinds = [("", " ") if not set(kind).isdisjoint(text) else ("",) for kind in _SPACE_OR_NOTHING]
    for chosen in product(*kinds):
        instead = {c: form for kind, form in zip(_SPACE_OR_NOTHING, chosen, strict=True) for c in kind}
        forms = {c: instead[c] if c in instead else _character_as_read(c) for c in set(text)}
        read = text.translate({ord(c): form for c, form in forms.items() if form != c})
        one_to_one = {1}.issuperset(map(len, forms.values()))
        yield read, range(len(text)) if one_to_one else [i for i, c in enumerate(text) for _ in forms[c]]


@lru_cache(maxsize=10_000)
def _character_as_read(character: str) -> str:
    """Return a character after all common normalisations: compatible forms, no case, accents or controls.

    DeBERTa reads full-width `［ＳＥＰ］` as `[SEP]`; BERT also `[sép]`, and one with a control character inside.
    """
    if character.isspace() or character == "▁":  # a space in the tokens of Unigram and Llama
        return " "
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", character).lower())
    return "".join(c for c in plain if c not in _TONE_MARKS and unicodedata.category(c)[0] not in "CM")


@cache
def culture_name(code: str | None) -> str:
    """Return the name of a culture: `Thailand` for `TH`, `Quebec (Canada)` for `CA-QC`; a free name is its own."""
    if code is None:
        return _text("unknown_culture.txt")
    countries = Locale("en").territories
    if _SUBDIVISION.fullmatch(code):
        import pycountry  # loads its tables

        if region := pycountry.subdivisions.get(code=code):
            # Some have a second name in brackets: `Catalunya [Cataluña]`.
            return f"{_ENGLISH.get(code, region.name.partition(' [')[0])} ({countries[code[:2]]})"
    return str(countries.get(code, code))


@cache
def _templates(prompt: str) -> dict[str, Template]:
    """Return the texts of a prompt by name; `NAME_responses_first` inherits those of `NAME`."""
    prompt_format(prompt)  # an UnknownPromptError
    entries = (
        (folder, entry.name)
        for folder in (prompt.removesuffix(_RESPONSES_FIRST), prompt)
        for entry in files(__package__).joinpath("prompts", folder).iterdir()
    )
    return {name.removesuffix(".txt"): Template(_text(folder, name)) for folder, name in entries}


@cache
def _text(*path: str) -> str:
    return files(__package__).joinpath("prompts", *path).read_text(encoding="utf-8").strip("\n")


def shuffle_responses(item: Item, seed: int = 0, reverse: bool = False) -> Item:
    """Return the item as presented to a judge, its responses in an order that depends only on `seed` and their texts.

    Responses are sorted by a hash of the seed, the set of all responses and their own text. So the position says
    nothing about the answer, and the order in a data set does not matter (order-equivariance is exact). The items of a
    flip set, which share their responses, are presented in the same order, so that a judge that ignores the culture
    scores exactly 1/N. `reverse` reverses the order, which swaps two responses.
    """
    return reorder_responses(item, shuffled_order(item.responses, seed, reverse))


def shuffled_order(responses: Sequence[str], seed: int, reverse: bool = False) -> list[int]:
    """Return the indices of responses in the order in which `shuffle_responses` presents them."""
    # Lengths keep ("ab", "c") apart from ("a", "bc").
    together = _text_digest("".join([f"{len(part)}:{part}" for part in (str(seed), *sorted(responses))]))
    digests = [_text_digest(f"{len(together)}:{together}{len(text)}:{text}") for text in responses]
    return sorted(range(len(responses)), key=digests.__getitem__, reverse=reverse)


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
