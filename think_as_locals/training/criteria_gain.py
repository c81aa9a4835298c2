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
    completion_ids: Sequence[int]
    rubric: str | None  # its `rubric_span`, a prefix of its text; None where there is nothing to score
    verdict: int  # the best response as presented
    mirrored: tuple[Messages, int] | None = None  # prompt and verdict with the responses in the other order


LogProbPair = tuple[float, float]
"""Log-probabilities of the right verdict, in nats: with the rubric, and without."""


class CriteriaGainScorer:
    """Scores the rubrics of rollouts with a trainer's policy or its reference model."""

    def __init__(self, trainer: SharedPrefixTrainer, chat: Chat, scorer: str) -> None:
        self._trainer = trainer
        self._chat = chat
        self._scorer = scorer

    def score(self, queries: Sequence[GainQuery]) -> list[LogProbPair | None]:
        """Return the log-probabilities for each query, or `None` without a rubric; all ranks call this together.

        They are at the trainer's temperature, like the distribution that rollouts are sampled from, and of the order of
        responses in which the rubric gains less.
        """
        messages = {(query.row, False): query.prompt for query in queries}
        messages |= {(query.row, True): query.mirrored[0] for query in queries if query.mirrored}
        prompts = dict(zip(messages, self._chat.encode(list(messages.values())), strict=True))
        scores: list[LogProbPair | None] = []
        with self._model() as model, evaluating(model), torch.no_grad():
            size = self._trainer.args.per_device_train_batch_size
            for start in range(0, len(queries), size):
                scores += self._score_batch(model, queries[start : start + size], prompts)
        return scores

    def _score_batch(
        self, model: nn.Module, queries: Sequence[GainQuery], prompts: dict[tuple[int, bool], list[int]]
    ) -> list[LogProbPair | None]:
        """Score in one pass each prompt's verdict alone, each rollout's rubric and, if wanted, the rollouts."""
        tokenizer = self._chat.tokenizer
        branches = dict[tuple[int, bool, str], list[int]]()  # by the query, whether mirrored, and the kind
        alone = dict[tuple[int, bool], tuple[int, bool, str]]()  # of each prompt
        for mirrored in (False, True):
            for i, query in enumerate(queries):
                if mirrored and not query.mirrored:
                    continue
                verdict = query.mirrored[1] if mirrored and query.mirrored else query.verdict
                if (query.row, mirrored) not in alone:
                    alone[query.row, mirrored] = i, mirrored, "alone"
                    branches[i, mirrored, "alone"] = force(tokenizer, "", verdict)
                if query.rubric is not None:
                    branches[i, mirrored, "rubric"] = force(tokenizer, query.rubric, verdict)
                if self._trainer.wants_old_log_probs and not mirrored:
                    branches[i, mirrored, "rollout"] = list(query.completion_ids)
        before, before_mask = padded([prompts[queries[i].row, mirrored] for i, mirrored, _ in branches], "left")
        after, after_mask = padded(list(branches.values()), "right")
        device = self._trainer.accelerator.device
        ids, mask = torch.cat([before, after], 1).to(device), torch.cat([before_mask, after_mask], 1).to(device)
        log_probs, _, _ = self._trainer._get_per_token_logps_and_entropies(model, ids, mask, after.shape[1])
        if rollouts := [index for index, (_, _, kind) in enumerate(branches) if kind == "rollout"]:
            self._trainer.add_old_log_probs(log_probs[rollouts])
        last = torch.tensor([[len(ids) - 1] for ids in branches.values()], device=log_probs.device)
        found = dict(zip(branches, log_probs.gather(1, last)[:, 0].tolist(), strict=True))
        scores: list[LogProbPair | None] = []
        for i, query in enumerate(queries):
            orders = [order for order in (False, True) if (i, order, "rubric") in found]
            pairs = [(found[i, order, "rubric"], found[alone[query.row, order]]) for order in orders]
            scores.append(min(pairs, key=lambda pair: pair[0] - pair[1], default=None))
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
