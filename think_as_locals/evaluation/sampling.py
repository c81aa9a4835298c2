"""Ask a chat model about items: load it, keep its completions in a journal, and count which of its tries are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pandas import DataFrame
from rich.progress import Progress

from think_as_locals.config.model_schema import PolicySection, PolicyServerSection
from think_as_locals.engines import Engine, Messages, Sampling
from think_as_locals.engines.chat_server import ChatServer
from think_as_locals.engines.engine import load_engine
from think_as_locals.evaluation.journal import Advance
from think_as_locals.evaluation.judgements import with_cultures
from think_as_locals.evaluation.statistics import accuracy
from think_as_locals.evaluation.tables import figure
from think_as_locals.reward_models.reward_model import Answered, Request, identify_weights
from think_as_locals.types import Item


@dataclass(frozen=True, slots=True)
class Sampler:
    """Answers requests by sampling a completion for each: answers have `text` and `finish_reason`."""

    engine: Engine
    sampling: Sampling
    chunk_size: int | None
    conversation: Callable[[Request], Messages]
    sort_key: Callable[[Request], str | tuple[int, str]]

    def query(self, requests: Sequence[Request]) -> Answered:
        """Sample a completion for each request, and yield its answer."""
        for index, rollout in self.engine.sample([self.conversation(each) for each in requests], self.sampling):
            yield index, {"text": rollout.text, "finish_reason": rollout.finish_reason}


def load_policy(policy: PolicySection | PolicyServerSection) -> tuple[Engine, dict[str, Any], int | None]:
    """Load a chat model; return the engine, what identifies the model, and the number of requests in a chunk."""
    if isinstance(policy, PolicyServerSection):
        engine = ChatServer(**policy.model_dump(exclude={"kind"}))
        return engine, {"url": policy.url, "name": policy.model, "fields": policy.fields}, None
    loaded: dict[str, Any] = {"dtype": policy.dtype or "auto", "backend": policy.backend}
    loaded |= {"quantization": policy.quantization} if policy.quantization else {}
    kwargs = dict(policy.chat_template_kwargs)
    local = load_engine(
        *(policy.path, policy.backend),
        dtype=loaded["dtype"],
        template_kwargs=kwargs,
        batch_size=policy.batch_size,
        revision=policy.revision,
        vllm=policy.vllm,
    )
    weights = identify_weights(policy.path, policy.revision)
    return local, {"name": policy.path, **weights, **loaded, "chat_template_kwargs": kwargs}, policy.chunk_size


def advance(bar: Progress, title: str) -> Advance:
    """Add a task to a progress bar, and return the function that advances it."""
    task = bar.add_task(title, total=None)
    return lambda more, total: bar.update(task, advance=more, total=total)


class YieldCounter:
    """Counts the outcomes of completions about items, and the items for which one is kept, by `marks` if given."""

    def __init__(self, items: Sequence[Item], outcomes: Sequence[str], marks: Sequence[str] = ()) -> None:
        self._items = {item.id: item for item in items}
        self._index_of = {name: index for index, name in enumerate(self._items)}
        self._outcomes, self._marks = tuple(outcomes), tuple(marks)
        self._counts: dict[str, Counter[str]] = {name: Counter() for name in self._items}
        self._kept: dict[str, str | None] = {}
        self.issues: Counter[str] = Counter()

    def index(self, name: str) -> int:
        """Return an item's index, given its id."""
        return self._index_of[name]

    def left(self) -> list[Item]:
        """Return the items about which nothing has been kept yet."""
        return [item for name, item in self._items.items() if name not in self._kept]

    def add(self, item: Item, outcome: str, issues: Iterable[str] = ()) -> None:
        """Count a completion and its faults."""
        self._counts[item.id][outcome] += 1
        self.issues.update(issues)

    def keep(self, items: Iterable[Item], mark: str | None = None) -> None:
        """Note that something about these items was kept."""
        self._kept |= dict.fromkeys((item.id for item in items), mark)

    def summary(self) -> dict[str, Any]:
        """Return counts, and the share of items about which something was kept, in all and by culture, as JSON."""
        found = with_cultures(list(self._items.values()), self._part, lambda item: item)
        return {**found, "broken": dict(self.issues.most_common())}

    def _part(self, items: Sequence[Item]) -> dict[str, Any]:
        kept = [float(item.id in self._kept) for item in items]
        found = accuracy(kept, [item.group for item in items]).as_dict("yield") if items else {"n": 0, "yield": None}
        counts = sum((self._counts[item.id] for item in items), Counter[str]())
        return {
            **found,
            "completions": counts.total(),
            **{outcome: counts[outcome] for outcome in self._outcomes},
            **{mark: sum(self._kept.get(item.id) == mark for item in items) for mark in self._marks},
        }


def yield_table(first: str, kept: str, parts: Mapping[str, Mapping[str, Any]], counted: Mapping[str, str]) -> DataFrame:
    """Return a table of yields, a row for each named summary; `counted` maps its counts to column headings."""
    rows = [
        {first: name, kept: figure(part, "yield", show_n=True)}
        | {heading: f"{part[key]:,}" for key, heading in counted.items()}
        for name, part in parts.items()
    ]
    return DataFrame(rows)
