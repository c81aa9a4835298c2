"""The gain in log-probability of the right verdict from a rubric, which the `criteria_gain` reward uses.

For question q, responses y, rubric z and right verdict j, R_appr of arXiv 2509.21798 is

    log pi(j | q, y, z) - log pi(j | q, y)

Both verdicts are forced in the judge's own format and their label is scored, by the policy itself or by the reference
model (the paper does not say which). All rubrics of a group, and the verdict without a rubric, continue the same
prompt, which a packed pass computes once; off policy, it also computes the old log-probabilities of the rollouts.

A rubric that names the response instead of a criterion gains too, in whatever code the policy finds. So with both
orders, a rubric's gain is the smaller one of both orders of the responses: what gains by a place in one loses by it in
the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import use_adapter

from think_as_locals.engines import Chat, Messages
from think_as_locals.engines.transformers_engine import evaluating, padded
from think_as_locals.judging.formats import forced_verdict
from think_as_locals.training.shared_prefix import SharedPrefixTrainer
from think_as_locals.types import LABELS


@dataclass(frozen=True, slots=True, kw_only=True)
class GainQuery:
    """A rollout whose rubric is to be scored."""

    row: int  # of the training data set
    prompt: Messages
    completion_ids: Sequence[int] | None = None  # if its old log-probabilities may be wanted, too
    rubric: str | None  # its `rubric_span`; None where there is nothing to score
    verdict: int  # the best response as presented


LogProbPair = tuple[float, float]
"""Log-probabilities of the right verdict, in nats: with the rubric, and without."""


class CriteriaGainScorer:
    """Scores the rubrics of rollouts with a trainer's policy or its reference model."""

    def __init__(self, trainer: SharedPrefixTrainer, chat: Chat, scorer: str, *, both_orders: bool = False) -> None:
        """With both orders, rows 2 k and 2 k + 1 of the training data are an item in either order."""
        self._trainer = trainer
        self._chat = chat
        self._scorer = scorer
        self._both_orders = both_orders

    def score(self, queries: Sequence[GainQuery]) -> list[LogProbPair | None]:
        """Return the log-probabilities for each query, or `None` without a rubric; all ranks call this together.

        They are at the trainer's temperature, like the distribution that rollouts are sampled from, and with both
        orders of the one in which the rubric gains less.
        """
        scores = self._score_all(queries)
        if self._both_orders:
            others = {row: self._trainer.train_dataset[row ^ 1] for row in {query.row for query in queries}}
            mirrored = [
                GainQuery(row=q.row ^ 1, prompt=o["prompt"], rubric=q.rubric, verdict=o["presented"].best)
                for q, o in ((query, others[query.row]) for query in queries)
            ]
            both = zip(scores, self._score_all(mirrored), strict=True)
            scores = [min(filter(None, two), key=lambda pair: pair[0] - pair[1], default=None) for two in both]
        return scores

    def _score_all(self, queries: Sequence[GainQuery]) -> list[LogProbPair | None]:
        """Score queries in batches of a micro-step's rows."""
        messages = {query.row: query.prompt for query in queries}
        prompts = dict(zip(messages, self._chat.encode(list(messages.values())), strict=True))
        scores: list[LogProbPair | None] = []
        with self._model() as model, evaluating(model), torch.no_grad():
            size = self._trainer.args.per_device_train_batch_size
            for start in range(0, len(queries), size):
                scores += self._score_batch(model, queries[start : start + size], prompts)
        return scores

    def _score_batch(
        self, model: nn.Module, queries: Sequence[GainQuery], prompts: dict[int, list[int]]
    ) -> list[LogProbPair | None]:
        """Score in one pass each prompt's verdict alone, each rollout's rubric and, if wanted, the rollouts."""
        tokenizer, branches = self._chat.tokenizer, list[tuple[int, str, list[int]]]()  # query, kind, tokens
        old = self._trainer.old_log_probs
        for i, query in enumerate(queries):
            if i == 0 or query.row != queries[i - 1].row:
                branches.append((i, "alone", force(tokenizer, "", query.verdict)))
            if query.rubric is not None:
                branches.append((i, "rubric", force(tokenizer, query.rubric, query.verdict)))
            if old is not None and query.completion_ids is not None:
                branches.append((i, "rollout", list(query.completion_ids)))
        before, before_mask = padded([prompts[queries[i].row] for i, *_ in branches], "left")
        after, after_mask = padded([ids for *_, ids in branches], "right")
        device = self._trainer.accelerator.device
        ids, mask = torch.cat([before, after], 1).to(device), torch.cat([before_mask, after_mask], 1).to(device)
        log_probs, _, _ = self._trainer._get_per_token_logps_and_entropies(model, ids, mask, after.shape[1])
        if old is not None and (rollouts := [n for n, (_, kind, _) in enumerate(branches) if kind == "rollout"]):
            old.append(log_probs[rollouts])
        labels = log_probs.gather(1, torch.tensor([[len(ids) - 1] for *_, ids in branches], device=log_probs.device))
        found = {(i, kind): value for (i, kind, _), [value] in zip(branches, labels.tolist(), strict=True)}
        scores: list[LogProbPair | None] = []
        alone = math.nan
        for i in range(len(queries)):
            alone = found.get((i, "alone"), alone)
            scores.append((found[i, "rubric"], alone) if (i, "rubric") in found else None)
        return scores

    @contextmanager
    def _model(self) -> Iterator[nn.Module]:
        """Yield the scoring model, set up as in TRL's own passes without gradients."""
        trainer = self._trainer
        with disable_gradient_checkpointing(trainer.model, trainer.args.gradient_checkpointing_kwargs):
            if self._scorer == "policy":
                yield trainer.model
            elif trainer.ref_model is not None:
                yield trainer.ref_model
            else:
                adapted: Any = trainer.accelerator.unwrap_model(trainer.model)
                with use_adapter(adapted, adapter_name="ref" if "ref" in adapted.peft_config else None):
                    yield trainer.model


def force(tokenizer: PreTrainedTokenizerBase, rubric: str, verdict: int) -> list[int]:
    """Return the tokens of a rubric and the verdict forced after it, up to and including the label's."""
    text = rubric + forced_verdict(verdict, rubric)
    label = text.rindex(f"{LABELS[verdict]}</verdict>")
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    through = next(i for i, (_, end) in enumerate(encoded["offset_mapping"]) if end > label)
    ids: list[int] = encoded["input_ids"]
    return ids[: through + 1]
