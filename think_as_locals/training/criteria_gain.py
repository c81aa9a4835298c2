"""What a rubric does for the right verdict: the log-probabilities behind the `criteria_gain` reward.

For question q, responses y, rubric z and right verdict j, R_appr of arXiv 2509.21798 is

    log pi(j | q, y, z) - log pi(j | q, y)

Both verdicts are forced in the judge's own format, after the rubric and where the completion would begin; the label is
what is scored. The paper does not say who scores; here it is the policy itself, or the reference model. All rubrics of
a group and the verdict without one continue the same prompt, which a packed pass computes once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import use_adapter

from think_as_locals.generation import Chat
from think_as_locals.judging.grammar import forced_verdict
from think_as_locals.training.rewards import GainQuery
from think_as_locals.training.shared_prefix import SharedPrefixTrainer
from think_as_locals.types import LABELS


class RubricPricer:
    """Prices the rubrics of rollouts with a trainer's policy or its reference model.

    Args:
        trainer: The trainer; its data set's rows have the prompts.
        chat: Encodes them as every other part of the program does.
        scorer: `policy` or `reference` (TRL loads one where `beta` is above 0).
    """

    def __init__(self, trainer: SharedPrefixTrainer, chat: Chat, scorer: str) -> None:
        self._trainer = trainer
        self._chat = chat
        self._scorer = scorer

    def __call__(self, queries: Sequence[GainQuery]) -> list[tuple[float, float] | None]:
        """Log-probabilities, in nats, of the right verdict with each rubric and without; `None` where there is none."""
        prompts = self._prompts(queries)
        prices: list[tuple[float, float] | None] = []
        with self._model() as model, torch.no_grad():
            size = self._trainer.args.per_device_train_batch_size
            for start in range(0, len(queries), size):
                prices += self._price(model, queries[start : start + size], prompts)
        return prices

    def _price(
        self, model: nn.Module, queries: Sequence[GainQuery], prompts: dict[int, list[int]]
    ) -> list[tuple[float, float] | None]:
        branches: list[tuple[int, str]] = []  # query and rubric
        bare: list[int] = []  # for each query, the branch without a rubric: one for each prompt
        for i, query in enumerate(queries):
            if i == 0 or query.row != queries[i - 1].row:
                branches.append((i, ""))
                first = len(branches) - 1
            bare.append(first)
            if query.rubric is not None:
                branches.append((i, query.rubric))
        rows = [prompts[queries[i].row] for i, _ in branches]
        forced = [force(self._chat.tokenizer, rubric, queries[i].verdict) for i, rubric in branches]
        values = self._log_probs(model, rows, forced)
        priced = {i: value for (i, rubric), value in zip(branches, values, strict=True) if rubric}
        return [(priced[i], values[place]) if i in priced else None for i, place in enumerate(bare)]

    def _log_probs(self, model: nn.Module, prompts: list[list[int]], completions: list[list[int]]) -> list[float]:
        """Log-probability of each completion's last token."""
        device = self._trainer.accelerator.device
        before, before_mask = _padded(prompts, "left")
        after, after_mask = _padded(completions, "right")
        ids, mask = torch.cat([before, after], 1).to(device), torch.cat([before_mask, after_mask], 1).to(device)
        log_probs, _, _ = self._trainer._get_per_token_logps_and_entropies(model, ids, mask, after.shape[1])
        last = after_mask.sum(1, keepdim=True).to(device) - 1
        values: list[float] = log_probs.gather(1, last)[:, 0].tolist()
        return values

    def _prompts(self, queries: Sequence[GainQuery]) -> dict[int, list[int]]:
        rows = sorted({query.row for query in queries})
        messages = [self._trainer.train_dataset[row]["prompt"] for row in rows]
        return dict(zip(rows, self._chat.encode(messages), strict=True))

    @contextmanager
    def _model(self) -> Iterator[nn.Module]:
        """The scoring model, as TRL gets its log-probabilities from it."""
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
    r"""Tokens of a rubric and the verdict forced behind it, through the one that holds the label.

    Example:
        >>> # tokenizer.decode(force(tokenizer, "", 1))  ->  '\n<verdict>B'
    """
    text = rubric + forced_verdict(verdict, rubric)
    label = text.rindex(f"{LABELS[verdict]}</verdict>")
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    through = next(i for i, (_, end) in enumerate(encoded["offset_mapping"]) if end > label)
    ids: list[int] = encoded["input_ids"]
    return ids[: through + 1]


def _padded(rows: list[list[int]], side: str) -> tuple[Tensor, Tensor]:
    """Rows of token ids as one tensor, and 1 where there is a token."""
    tensors = [torch.tensor(row) for row in rows]
    ids = pad_sequence(tensors, batch_first=True, padding_side=side)
    return ids, pad_sequence([torch.ones_like(row) for row in tensors], batch_first=True, padding_side=side)
