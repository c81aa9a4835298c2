"""A check that an engine has the policy's weights: both score the same few completions, and have to agree.

The engine completes the first prompts of the data set greedily and returns the log-probabilities of the likeliest
tokens at every position. A stale or missing tensor, another model or another type of weights shows there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from think_as_locals.config.schema import ToleranceSection
from think_as_locals.engines.vllm_server import SampledTokens
from think_as_locals.types import TrainingError

PROMPTS, TOKENS, LIKELIEST = 4, 8, 20
"""How many prompts, tokens of each completion, and token ids per position; vLLM returns at most 20 unless told."""


class SyncCheck:
    """Compares an engine with the policy after a weight sync; all ranks call it together."""

    def __init__(
        self, prompts: Sequence[list[int]], tolerance: ToleranceSection, full_precision: bool, accelerator: Accelerator
    ) -> None:
        self.prompts = list(prompts)
        self._limit = tolerance.full if full_precision else tolerance.half
        self._key = f"rollout.tolerance.{'full' if full_precision else 'half'}"
        self._full_precision = full_precision
        self._accelerator = accelerator

    def compare(self, model: nn.Module, completions: Sequence[SampledTokens]) -> float:
        """Return the worst rank's difference, in nats: the largest in full precision, the mean in half precision."""
        likeliest = [[sorted(p.items(), key=lambda one: one[1])[-LIKELIEST:] for p in c.likeliest] for c in completions]
        ids, theirs = torch.tensor(likeliest, dtype=torch.float64).unbind(-1)
        ours = self._policy(model, [c.token_ids for c in completions]).gather(-1, ids.long())
        apart = (ours - theirs).abs().nan_to_num(nan=torch.inf)
        size, worst = apart.max() if self._full_precision else apart.mean(), int(apart.argmax())
        found: list[tuple[float, float, float]] = gather_object(
            [(float(size), float(ours.flatten()[worst]), float(theirs.flatten()[worst]))]
        )
        rank = max(range(len(found)), key=lambda rank: found[rank][0])
        difference, policys, engines = found[rank]
        if difference > self._limit:
            raise TrainingError(
                f"after a weight sync vLLM's log-probabilities differ from the policy's by {difference:.2g} on rank "
                f"{rank}, expected at most {self._limit:g} ({self._key}); worst token: {policys:.4f} by the policy, "
                f"{engines:.4f} by vLLM. Its weights are stale, of another model or of another type (rollout.dtype): "
                "nothing was sampled with them. Only where none of that holds, raise the tolerance"
            )
        return difference

    @torch.no_grad()
    def _policy(self, model: nn.Module, completions: list[list[int]]) -> Tensor:
        """Return the policy's log-probabilities of all tokens at every position, (prompts, TOKENS, vocabulary)."""
        rows = [torch.tensor(p + c[:-1]) for p, c in zip(self.prompts, completions, strict=True)]
        ids = pad_sequence(rows, batch_first=True, padding_side="left").to(self._accelerator.device)
        ones = [torch.ones_like(row) for row in rows]
        mask = pad_sequence(ones, batch_first=True, padding_side="left").to(ids.device)
        was_training = model.training
        model.eval()
        try:
            with self._accelerator.autocast():
                wanted = {"logits_to_keep": len(completions[0]), "use_cache": False}
                logits = model(input_ids=ids, attention_mask=mask, **wanted).logits
        finally:
            model.train(was_training)
        log_probs: Tensor = logits.float().log_softmax(-1).cpu()
        return log_probs
