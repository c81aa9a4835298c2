"""The types that all layers share: frozen dataclasses, no torch.

source row -> Item -> messages -> Rollout -> Judgement -> RewardBreakdown -> advantage -> update
                                                 +-> ScoredItem -> metrics -> report
"""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal

LABELS = "ABCDEFGH"
"""The labels of responses in a prompt; an item has at most this many."""

# fmt: off
DataSource = Literal[
    "culture_cards", "opinion_cards", "blend", "jsonl", "rows", "carb", "carb_open", "care", "crisp_rm",
    "globalopinionqa", "helpsteer3", "include", "m_rewardbench", "prism", "rewardbench2",
]
# fmt: on
"""The sources of items; `data` reads them."""

VALIDATION, TEST = "validation", "test"
"""The sets of a run's own held-out items: one chooses the best checkpoint, the other is reported."""

RewardName = Literal["correctness", "criteria_gain", "structure", "rubric_quality", "consistency", "length"]
"""The reward components that come with the package; `judging.rewards` computes them."""

GRAMMAR_PROMPTS = ("listwise", "compact", "compact_rubric", "listwise_responses_first", "compact_responses_first")
"""The prompts that ask for our grammar."""

PUBLISHED_PROMPTS = ("rewardbench2", "rewardbench2_responses_first", "rm_r1")
"""Other people's prompts that ask for a verdict; they do not mention culture."""

VERDICT_PROMPTS = ("compact_analysis", "verdict_only", *PUBLISHED_PROMPTS)
"""The prompts that ask for a verdict in another format: a judge can be trained with them; a rubric is not rewarded."""

RATING_PROMPTS = ("rewardbench2_ratings",)
"""The prompts that ask for a rating of a single response."""

CultureShown = Literal["stated", "inferred", "hidden"]
"""Whether a prompt names the culture, asks the judge to infer it from the question, or does not mention it."""

RubricLanguage = Literal["item", "en", "any"]
"""The language of the rubric that a prompt asks for and a reward expects: the item's, English, or any."""

ProtocolKind = Literal["listwise", "pairwise", "round_robin", "pointwise"]
"""Which responses of an item a judge sees together; `reward_models.protocols` turns its judgements into scores."""

MAX_ORDERS: dict[ProtocolKind, int] = {"listwise": len(LABELS), "pairwise": 2, "round_robin": 2, "pointwise": 1}
"""In how many orders at most a protocol presents responses."""

Convention = Literal["strict", "rewardbench2"]
"""How verdicts are parsed and how a parse failure counts: our way, or that of RewardBench 2 (arXiv 2506.01937)."""

TooLong = Literal["error", "exclude", "wrong"]
"""What to do with items that are longer than a reward model takes."""


_SHORT, _LONGEST = reprlib.Repr(), 200  # characters; its own bounds multiply where lists hold lists
_SHORT.maxstring = _SHORT.maxother = 60
_LINE = 1_500  # characters of a message; ours, which list what is available, have fewer


def shown(value: object) -> str:
    """Return the text of a value for a message: short, and encodable as UTF-8."""
    try:
        return cut(_SHORT.repr(value).encode(errors="backslashreplace").decode(), _LONGEST)
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        return f"a {type(value).__name__} too long to write"


def cut(text: str, longest: int = _LONGEST) -> str:
    """Return a text, or if it is long its beginning and its length."""
    return text if len(text) <= longest else f"{text[:longest]} ... ({len(text):,} characters)"


def first_of(names: Iterable[str], most: int, between: str = ", ") -> str:
    """Return the first of some names, and how many more there are: `a, b and 7 more`."""
    names = list(names)
    more = f"{between.lstrip(',')}and {len(names) - most:,} more" if len(names) > most else ""
    return between.join(names[:most]) + more


class ThinkAsLocalsError(Exception):
    """Base of all errors that this package raises on purpose; the message names a remedy.

    Long lines are cut: a message may echo a key, a path or the message of another library.
    """

    def __str__(self) -> str:
        return "\n".join(cut(line, _LINE) for line in super().__str__().split("\n"))


class DataError(ThinkAsLocalsError, ValueError):
    """An error in the data: the message names the file and row, or the item."""


class TooLongError(DataError):
    """Some prompts are longer than the model takes, or its server's content filter refuses them.

    `indices` are the positions of all of these in the list of all prompts, `refused` those of the latter.
    """

    def __init__(self, message: str, indices: Sequence[int], refused: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.indices = tuple(indices)
        self.refused = frozenset(refused)


class DataWarning(UserWarning):
    """Part of the data is left out or not read."""


class TrainingWarning(UserWarning):
    """Training goes on, but probably not as intended."""


class ConfigError(ThinkAsLocalsError, ValueError):
    """An error in a recipe or its overrides."""


class PreflightError(ThinkAsLocalsError, RuntimeError):
    """This machine lacks something that a recipe needs."""


class ServerError(ThinkAsLocalsError, RuntimeError):
    """A completion server is unreachable, does not answer, or serves something else."""


class ModelError(ThinkAsLocalsError, RuntimeError):
    """A model is of the wrong kind, or its scores are not finite."""


class TrainingError(ThinkAsLocalsError, RuntimeError):
    """Training cannot continue: the message names the fault, its step, its saved batch and a remedy."""


class FileError(ThinkAsLocalsError):
    """A file cannot be written; the message says how to fix that and continue the run."""


class RunStoppedError(ThinkAsLocalsError):
    """A signal stopped a run, which has saved what it needs to continue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A prompt, N responses (2 to 8) and which of them is the best. A preference pair is an Item with N = 2.

    Args:
        id: Stable and unique within a data set.
        prompt: What the user asked.
        responses: Candidate answers, distinct and not blank.
        best: Index of the best response.
        culture: ISO 3166 code where one exists; `None` where the row has no culture.
        language: BCP-47 tag of the prompt.
        domain: E.g. `commonsense`, `value`, `safety`, `linguistic`.
        group: Question group: items that ask the same question across cultures and languages.
        source: Name of the data set.
        origins: The culture that each response is true of; empty if the source does not say.
        turns: Of a prompt that is a conversation, the role and the content of each, whose text `prompt` is; none are
            kept of a prompt with another text, as after an edit.

    Raises:
        DataError: a field is invalid; the message names the item.

    Example:
        >>> item = Item(id="th-1", prompt="How do people greet an elder?", responses=("With a bow.", "With a wai."),
        ...             best=1, culture="TH", language="en", domain="value", group="greeting", source="mine")
        >>> item.responses[item.best]
        'With a wai.'
    """

    id: str
    prompt: str
    responses: tuple[str, ...]
    best: int
    culture: str | None
    language: str
    domain: str
    group: str
    source: str
    origins: tuple[str, ...] = ()
    turns: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)  # the prompt says it too

    def __post_init__(self) -> None:
        for name in ("responses", "origins", "turns"):
            value = getattr(self, name)
            if type(value) not in (list, tuple) and (isinstance(value, str | bytes) or not isinstance(value, Sequence)):
                raise DataError(f"item {self.id!r}: {name} must be a sequence of texts, got {shown(value)}")
            object.__setattr__(self, name, tuple(value))
        for fault in self._faults():
            raise DataError(f"item {self.id!r}: {fault}")
        if self.turns and join_turns(self.turns) != self.prompt:
            object.__setattr__(self, "turns", ())
        for name in ("culture", "language", "domain", "source"):  # of which a million items have a few
            if type(value := getattr(self, name)) is str:
                object.__setattr__(self, name, sys.intern(value))

    @property
    def messages(self) -> list[dict[str, str]]:
        """The prompt as chat messages: its turns, or if it has none, one of the user."""
        turns = self.turns or (("user", self.prompt),)
        return [{"role": role, "content": content} for role, content in turns]

    def __hash__(self) -> int:
        return hash((self.id, self.prompt))  # most items differ in these; all fields take four times as long

    def _faults(self) -> list[str]:
        n, faults = len(self.responses), []
        texts = [self.id, self.prompt, self.language, self.domain, self.group, self.source]
        texts += (*self.responses, *self.origins)
        if not are_texts(texts):
            names = ("id", "prompt", "language", "domain", "group", "source")
            lists = ((name, range(len(getattr(self, name)))) for name in ("responses", "origins"))
            places = (*names, *(f"{name}[{i}]" for name, indices in lists for i in indices))
            named = zip(places, texts, strict=True)
            faults += [f"{place} must be a non-blank string, got {shown(t)}" for place, t in named if not is_text(t)]
        if self.culture is not None and not is_text(self.culture):
            faults.append(
                f"culture must be a non-blank string or None, got {shown(self.culture)} (quote codes in YAML)"
            )
        if not 2 <= n <= len(LABELS):
            faults.append(f"expected 2 to {len(LABELS)} responses, got {n}")
        if not faults and len(set(self.responses)) != n:
            faults.append("responses must be distinct: two of them are the same text")
        if isinstance(self.best, bool) or not isinstance(self.best, int) or not 0 <= self.best < n:
            faults.append(f"best must be an index from 0 to {n - 1}, got {shown(self.best)}")
        if self.origins and len(self.origins) != n:
            faults.append(f"origins must be empty or name a culture per response: got {len(self.origins)} for {n}")
        if not all(len(turn) == 2 and all(isinstance(part, str) for part in turn) for turn in self.turns):
            faults.append(f"turns must be pairs of a role and a text, got {shown(self.turns)}")
        return faults


def join_turns(turns: Iterable[Sequence[str]]) -> str:
    """Return the text of (role, text) pairs: that of a single turn, or each with its role before it."""
    turns = list(turns)
    return turns[0][1] if len(turns) == 1 else "\n\n".join(f"{role}: {text}" for role, text in turns)


ITEM_FIELDS = tuple(field.name for field in fields(Item) if field.compare)


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A completion to train on, and the order in which its writer saw the item's responses."""

    item: Item
    order: tuple[int, ...]  # indices of the item's responses
    completion: str

    @property
    def presented(self) -> tuple[str, ...]:
        """The responses that the completion calls A, B, ..."""
        return tuple(self.item.responses[i] for i in self.order)


def reorder_responses(item: Item, order: Sequence[int]) -> Item:
    """Return the item with its responses, `best` and `origins` in another order: `responses[order[0]]` comes first."""
    responses, origins = (tuple(texts[i] for i in order) if texts else () for texts in (item.responses, item.origins))
    return replace(item, responses=responses, best=order.index(item.best), origins=origins)


def is_text(value: object) -> bool:
    """Return whether a value is a non-blank string that UTF-8 can encode, without lone surrogates."""
    return are_texts((value,))


def are_texts(values: Sequence[object]) -> bool:
    """Return whether all values are texts, see `is_text`."""
    try:
        "".join(values).encode()  # type: ignore[arg-type]
        return all(map(str.strip, values))  # type: ignore[arg-type]
    except (TypeError, UnicodeEncodeError):
        return False


@dataclass(frozen=True, slots=True)
class Criterion:
    """One line of a rubric; the weights of a rubric sum to 100."""

    weight: int
    name: str
    description: str


@dataclass(frozen=True, slots=True)
class Rubric:
    """The weighted criteria that a judge writes before its analysis."""

    criteria: tuple[Criterion, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A parsed completion of a judge.

    Args:
        verdict: Index of the chosen response; `None` if it is missing or could be forged (`judging.formats.VOIDING`).
            If `order` is set it is an index of the responses as given to `Judge.judge`, otherwise of those in the
            prompt (A is 0).
        rubric: The criteria, if the rubric section could be parsed.
        analysis: The text between rubric and verdict, if any.
        issues: Names of the grammar's rules that the completion breaks.
        completion: The completion itself.
        rating: The rating of a single response, if one was asked for and could be parsed.
        order: Indices of the given responses in the order in which the judge saw them: the first is its A. Rubric and
            analysis use these labels.
    """

    verdict: int | None
    rubric: Rubric | None
    analysis: str | None
    issues: tuple[str, ...]
    completion: str
    rating: float | None = None
    order: tuple[int, ...] | None = None

    @property
    def label(self) -> str | None:
        """The label of the chosen response in the prompt."""
        if self.verdict is None:
            return None
        return LABELS[self.verdict if self.order is None else self.order.index(self.verdict)]


@dataclass(frozen=True, slots=True)
class RewardBreakdown:
    """The named components of a reward, before weighting.

    Example:
        >>> RewardBreakdown({"correctness": 1.0, "structure": 0.5}).total({"correctness": 1.0, "structure": 0.2})
        1.1
    """

    parts: Mapping[str, float]

    def total(self, weights: Mapping[str, float]) -> float:
        """Return the weighted sum of the parts.

        Raises:
            KeyError: a weight names a part that was not computed.
        """
        return float(sum(weight * self.parts[name] for name, weight in weights.items()))


_STOPS = frozenset({"stop", "eos", "eos_token", "end_turn", "end_of_turn", "end_of_text", "stop_sequence"})
_STOPS |= {"stop_token", "stop_string", "complete", "completed", "finish_reason_stop"}


def is_stop(finish_reason: str | None) -> bool:
    """Return whether a completion ended by itself, by any server's name for it; a length limit or a filter cut it."""
    return finish_reason is not None and finish_reason.lower().rpartition(".")[2] in _STOPS


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """A sampled completion, with its token ids and the reason why it ended."""

    text: str  # without the tokenizer's special tokens
    token_ids: tuple[int, ...] = ()  # empty from a server that returns none
    prompt_tokens: int = 0  # length of the prompt; 0 from a server
    finish_reason: str  # `is_stop` if it ended by itself; with any other reason (`length`, ...) it has no verdict
    label_log_probs: Mapping[str, float] = field(default_factory=dict)  # at the position of the verdict; may be empty
