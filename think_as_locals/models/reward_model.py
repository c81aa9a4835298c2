"""One protocol for every kind of reward model: what it is asked about an item, and what its answers come to.

    Item -> Request, Request, ... -> answers (plain JSON, kept in a journal) -> Prediction, ...

A kind says which responses of an item it wants to see together (all of them, two, one), answers such requests in
batches, and reads its own answers. Everything else, order, journal, statistics, is the same for all kinds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from think_as_locals.models.prediction import Prediction
from think_as_locals.types import Item

Answer = dict[str, Any]
"""What a reward model said to one request, as plain JSON that only its own kind reads."""

Keep = Callable[[int, Answer], None]
"""Where an answer goes as soon as it is there: the request's place among those asked, and the answer."""


@dataclass(frozen=True, slots=True)
class Request:
    """One question to a reward model.

    Args:
        item: What it is about.
        order: Indices into the item's responses: which ones are shown, and in what order. All of them for a listwise
            judgement, two for a pairwise one, one to be rated or scored.

    Example:
        >>> item = Item(id="1", prompt="?", responses=("x", "y", "z"), best=0, culture="TH", language="en",
        ...             domain="value", group="g", source="mine")
        >>> Request(item, (2, 0)).responses
        ('z', 'x')
    """

    item: Item
    order: tuple[int, ...]

    @property
    def responses(self) -> tuple[str, ...]:
        """The responses as shown."""
        return tuple(self.item.responses[i] for i in self.order)


class RewardModel(Protocol):
    """Items -> predictions, by way of requests and answers."""

    @property
    def identity(self) -> dict[str, Any]:
        """Plain JSON that decides its answers (weights, prompt, protocol, dtype): answers of another are not reused."""
        ...

    @property
    def chunk_size(self) -> int | None:
        """How many requests are answered together, in one call of `ask`; `None` where each stands for itself.

        With a chunk size, requests are always answered in the same company, so that a run that was killed and goes on
        computes the same bits. Without (a server elsewhere) just those are asked that have no answer yet.
        """
        ...

    def requests(self, item: Item) -> list[Request]:
        """What it has to be asked to judge an item."""
        ...

    def sort_key(self, request: Request) -> str:
        """Requests that are neighbours by this are cheaper together: they begin alike, or are as long."""
        ...

    def ask(self, requests: Sequence[Request], keep: Keep) -> None:
        """Answer requests, in whatever order they get done.

        Args:
            requests: A chunk of them.
            keep: Called once for each request.
        """
        ...

    def predictions(self, item: Item, answers: Sequence[Answer]) -> list[Prediction]:
        """What its answers to `requests(item)`, in that order, come to: one, or one for each order that was shown."""
        ...

    def score_requests(self, item: Item) -> list[Request]:
        """What it has to be asked to score responses in the item's own order; nothing where it gives no scores."""
        ...

    def scores(self, item: Item, answers: Sequence[Answer]) -> tuple[float, ...]:
        """What its answers to `score_requests(item)` say of each response; NaN where they say nothing."""
        ...


def weights(path: str, commit: str | None) -> dict[str, Any]:
    """What tells a model's weights from others, for `RewardModel.identity`.

    Args:
        path: Directory or Hub id.
        commit: Of the Hub, where it is known. Of a directory the names, sizes and times of its files count, not where
            it lies: the folder of a run may be moved, with the models in it.
    """
    folder = Path(path)
    if not folder.is_dir():
        return {"path": path, "commit": commit}
    states = {file.name: file.stat() for file in sorted(folder.iterdir()) if file.is_file()}
    listed = [(name, state.st_size, state.st_mtime_ns) for name, state in states.items()]
    return {"files": hashlib.sha256(repr(listed).encode()).hexdigest()}
