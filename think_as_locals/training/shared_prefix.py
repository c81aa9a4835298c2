"""A GRPOTrainer that computes what a group's rollouts share once: TRL's loss, several times faster for long prompts.

TRL repeats a group's prompt for each of its G rollouts, in every forward and backward pass, and pads all rows to the
longest of the generation batch. `SharedPrefixTrainer` overrides three of its methods, none of which holds its loss:

- `_prepare_inputs` keeps groups together in micro-batches and trims their padding;
- `_get_per_token_logps_and_entropies`, which every pass (old, reference, loss) asks, packs what it computes;
- `_compute_loss` notes which rollouts carry no gradient, so that they are left out of the pass.

On policy, the old log-probabilities by which TRL corrects for vLLM's are those of the loss: no pass of their own.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from trl import GRPOTrainer

from think_as_locals.training import importance, packing
from think_as_locals.training.micro_batches import micro_batches

_logger = logging.getLogger(__name__)

_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}
_HALF_PRECISION_TOLERANCE = 5e-2
"""Largest difference of log-probabilities between the two paths; in half precision the largest mean difference."""


class SharedPrefixTrainer(GRPOTrainer):
    """TRL's GRPOTrainer with packed groups; takes the same arguments.

    Where a model or setting is not supported, or the first group's log-probabilities differ from TRL's own, it computes
    as TRL does and says why, once. Source of the idea: prefix grouping (arXiv 2506.05433).

    Attributes:
        unshared_reason: Why prefixes are not shared; `None` where they are.
        prices_rubrics: Whether a pass between sampling and loss scores rubrics anyway: off policy, it is then to
            hand over the rollouts' log-probabilities as well, by `take_old_log_probs`.
    """

    _buffered_inputs: list[dict[str, Any]] | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prices_rubrics = False
        self._old_log_probs: list[Tensor] | None = None
        self._inputs: dict[str, Any] | None = None
        self._gradient_rows: list[bool] | None = None
        self._skip_pass = False
        self._checked = False
        models = [self.accelerator.unwrap_model(model) for model in (self.model, self.ref_model) if model is not None]
        bare = [model.get_base_model() if hasattr(model, "get_base_model") else model for model in models]
        self.unshared_reason = next((reason for model in bare if (reason := unsupported(model, self))), None)
        if self.unshared_reason is not None:
            self._say(self.unshared_reason)
            return
        for model in bare:
            packing.prepare(model)

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """The micro-batch of this step: neighbouring rows of a generation batch, without the padding of the others."""
        if not self.model.training or self._is_vlm:
            return super()._prepare_inputs(generation_batch)
        parts = self.args.steps_per_generation
        if self._step % (parts * self.num_iterations) == 0 or self._buffered_inputs is None:
            elsewhere = importance.waits(self) or (self.prices_rubrics and not importance.on_policy(self))
            self._skip_pass = elsewhere and self.unshared_reason is None
            self._old_log_probs = [] if self._skip_pass else None
            batch = self._generate_and_score_completions(generation_batch)
            if self._old_log_probs is not None:
                importance.put_off(self, batch, self._old_log_probs)
                self._old_log_probs = None
            self._buffered_inputs = micro_batches(batch, parts)
        return self._buffered_inputs[self._step % parts]

    @property
    def wants_old_log_probs(self) -> bool:
        """Whether the pass that prices rubrics is to compute the rollouts' log-probabilities too."""
        return self._old_log_probs is not None and not importance.on_policy(self)

    def take_old_log_probs(self, log_probs: Tensor) -> None:
        """Take those of the next rollouts, (rows, tokens)."""
        if self._old_log_probs is not None:
            self._old_log_probs.append(log_probs)

    def _compute_loss(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        """TRL's loss; where nothing but the advantage can move the policy, rows whose advantage is 0 need no pass."""
        exact = (
            self.beta == 0.0
            and not self._entropy_bonus_enabled
            and self.top_entropy_quantile >= 1.0
            and inputs["advantages"].dim() == 1
        )
        self._gradient_rows = (inputs["advantages"] != 0).tolist() if exact else None
        self._inputs = inputs = dict(inputs)
        try:
            loss: Tensor = super()._compute_loss(model, inputs)
            return loss
        finally:
            self._inputs = self._gradient_rows = None

    def _get_per_token_logps_and_entropies(
        self,
        model: nn.Module,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        **images: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Log-probabilities and entropies of the completions, (B, C) each; 0 where there is no token to score."""

        def dense(rows: slice) -> Any:
            return super(SharedPrefixTrainer, self)._get_per_token_logps_and_entropies(
                model,
                input_ids[rows],
                attention_mask[rows],
                logits_to_keep,
                batch_size,
                compute_entropy,
                compute_aux_loss,
                **images,
            )

        if self._skip_pass:  # the first pass after sampling is that of the old log-probabilities
            self._skip_pass = False
            return torch.full((len(input_ids), logits_to_keep), torch.nan, device=input_ids.device), None, None
        if self.unshared_reason is None and not self._checked:
            self._check(model, input_ids, attention_mask, logits_to_keep, dense)
        if self.unshared_reason is not None:
            logps, entropies, aux_loss = dense(slice(None))
            self._make_up(logps, None)
            return logps, entropies, aux_loss
        size = batch_size or len(input_ids)
        chunks = [
            self._packed_log_probs(model, input_ids[i : i + size], attention_mask[i : i + size], logits_to_keep)
            for i in range(0, len(input_ids), size)
        ]
        logps, entropies = (torch.cat(parts) for parts in zip(*chunks, strict=True))
        self._make_up(logps, self._gradient_rows)
        return logps, entropies if compute_entropy else None, None

    def _make_up(self, logps: Tensor, computed: list[bool] | None) -> None:
        """In the pass of the loss: what the correction for vLLM's log-probabilities waited for."""
        if self._inputs is not None and "importance_sampling_ratio" not in self._inputs and importance.waits(self):
            importance.make_up(self, self._inputs, logps, computed)

    def _packed_log_probs(self, model: nn.Module, ids: Tensor, mask: Tensor, num_labels: int) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies (B, C) of rows of B x (P+C) tokens, in one pass of one packed row."""
        seen = mask.bool()
        wanted = self._gradient_rows or [True] * len(ids)
        prompts = [row[real] for row, real in zip(ids[:, :-num_labels], seen[:, :-num_labels], strict=True)]
        completions = [
            row[real] if want else row[:0]
            for row, real, want in zip(ids[:, -num_labels:], seen[:, -num_labels:], wanted, strict=True)
        ]
        idle = not any(len(completion) for completion in completions)
        if (
            idle
        ):  # a pass over one token, weighted by 0, keeps this rank in step with those that have something to compute
            prompts = completions = [ids[0, -1:]]
        packed = packing.pack(prompts, completions)
        with self.accelerator.autocast():
            values, entropy = packing.log_probs(model, packed)
        shape = (len(ids), num_labels)
        if idle:
            unknown = 0.0 if self._gradient_rows is None else torch.nan
            return 0 * values.expand(shape), values.new_full(shape, unknown)
        at = (packed.rows, packed.columns)
        logps = values.new_zeros(shape).index_put(at, values)
        if entropy is None:
            return logps, torch.zeros_like(logps)
        # TRL logs the mean entropy: rows without a pass take that of the others; NaN, above, is left out of its log.
        return logps, entropy.mean().detach().expand(shape).index_put(at, entropy)

    def _check(self, model: nn.Module, ids: Tensor, mask: Tensor, num_labels: int, dense: Any) -> None:
        """Compare the first rows with TRL's own path, on all ranks; where they differ, share no prefixes."""
        rows = slice(0, min(len(ids), self.num_generations))
        gradient_rows, self._gradient_rows = self._gradient_rows, None
        with torch.no_grad():
            expected = dense(rows)[0]
            got, _ = self._packed_log_probs(model, ids[rows], mask[rows], num_labels)
        self._gradient_rows = gradient_rows
        scored = mask[rows, -num_labels:].bool()
        difference = (got - expected)[scored].abs().float()
        full_precision = self.accelerator.mixed_precision == "no"
        exact = _TOLERANCE.get(next(model.parameters()).dtype) if full_precision else None
        compared = difference.numel()
        size = (difference.mean() if exact is None else difference.max()) if compared else difference.new_zeros(())
        found = self.accelerator.gather(torch.stack([size, size.new_tensor(compared)])[None])
        worst, self._checked = float(found[:, 0].max()), bool(found[:, 1].any())
        if not worst <= (exact or _HALF_PRECISION_TOLERANCE):
            self.unshared_reason = f"log-probabilities differ by {worst:.1e} from those of separate rows"
            self._say(self.unshared_reason)

    def _say(self, reason: str) -> None:
        if self.accelerator.is_main_process:
            _logger.warning("prefixes are not shared, updates take as long as TRL's: %s", reason)


def unsupported(model: PreTrainedModel, trainer: GRPOTrainer) -> str | None:
    """Why a model cannot take packed rows, or `None`."""
    config: PretrainedConfig = model.config.get_text_config()
    kernel = config._attn_implementation
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    layers = set(getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"])
    if kernel not in packing.SUPPORTED_KERNELS:
        known = ", ".join(packing.SUPPORTED_KERNELS)
        return f"model.attn_implementation is {kernel}; supported: {known}"
    if trainer._is_vlm:
        return "the model reads images"
    if len(set(getattr(model, "hf_device_map", {}).values())) > 1:
        return "the model lies on several devices"
    if layers - {"full_attention", "sliding_attention"}:
        return f"the model has layers of {', '.join(sorted(layers - {'full_attention'}))}"
    if "sliding_attention" in layers and window is not None and window < config.max_position_embeddings:
        return f"the model attends within a sliding window of {window} tokens"
    if any("sinks" in name.rpartition(".")[2] for name, _ in model.named_parameters()):
        return "the model has attention sinks"
    if dropout := getattr(config, "attention_dropout", 0.0):
        return f"the model drops out attention (attention_dropout={dropout})"
    if trainer.aux_loss_enabled:
        return "the router's auxiliary loss counts padding; set grpo.router_aux_loss_coef=0"
    return None
