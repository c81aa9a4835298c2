"""Each response scored once by a scalar reward model, however many pairs it stands in; ranks share the work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from accelerate import PartialState
from accelerate.utils import gather_object

from think_as_locals.evaluation.journal import Journal, by_response
from think_as_locals.evaluation.measure import Measurement
from think_as_locals.models.reward_model import Request
from think_as_locals.models.scalar import ScalarRM
from think_as_locals.types import Item

Scores = dict[str, float]
"""`journal.content_key` of a prompt and a response -> what the response is worth."""


def response_requests(items: Sequence[Item]) -> list[Request]:
    """A request for every response there is, none twice, in an order that is not the items'."""
    return _each_once([Request(item, (i,)) for item in items for i in range(len(item.responses))])


def _each_once(requests: Sequence[Request]) -> list[Request]:
    """Of the requests for a response one, the same one whatever their order: so batches are the same."""
    last = sorted(requests, key=lambda request: (request.item.id, request.order))
    by_key = {by_response(request): request for request in last}
    return [by_key[key] for key in sorted(by_key)]


def fitting(rm: ScalarRM, requests: Sequence[Request]) -> list[Request]:
    """Those of requests that are not too long for a reward model."""
    rows = zip(requests, rm.rows(requests) if requests else (), strict=True)  # a rank may have none
    return [request for request, row in rows if len(row["input_ids"]) <= rm.max_length]


def response_scores(
    rm: ScalarRM, requests: Sequence[Request], folder: Path, advance: Callable[[int, int], None]
) -> Scores:
    """What responses are worth; all ranks call this together with the same requests and get the same scores.

    Args:
        rm: The reward model.
        requests: For a response each, in any order; of several for the same one, any. Those that are too long for it
            are left out, not cut.
        folder: Where each rank keeps what it has scored: a killed run goes on from there, and scores again what shares
            a chunk with what it had not; with dropout on it begins anew, for the rest would have other draws.
        advance: Told how many of how many are done.

    Raises:
        ConfigError: the folder holds scores of another reward model.
        ModelError: a score is not finite.
    """
    state = PartialState()
    mine = fitting(rm, _each_once(requests)[state.process_index :: state.num_processes])
    path = folder / f"rank-{state.process_index}.jsonl"
    if rm.model.training:
        path.unlink(missing_ok=True)
    with Journal(path, rm.identity, by_response) as journal:
        Measurement(rm, journal, advance).ask(mine)
        scored = [(by_response(request), float(journal[request]["score"])) for request in mine]
    return dict(gather_object(scored))
