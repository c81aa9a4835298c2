"""A GRPOTrainer that computes the prompt of a group once: TRL's loss, several times faster for long prompts.

TRL repeats a group's prompt for each of its G rollouts in every pass, and pads all rows to the longest of the
generation batch. `SharedPrefixTrainer` overrides these of its methods, none of which holds its loss:

- `_generate_and_score_completions` leaves the old log-probabilities to the loss, where it can;
- `_prepare_inputs` keeps groups together in micro-batches and trims their padding;
- `compute_loss` takes a micro-batch in passes of `max_tokens_per_micro_batch`;
- `_get_per_token_logps_and_entropies`, which every pass (old, reference, loss) calls, packs what it computes;
- `_compute_loss` notes which rollouts carry no gradient, so that they are left out of the pass.

On policy, the old log-probabilities by which TRL corrects for vLLM's are those of the loss: no extra pass is needed.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PreTrainedModel
from trl import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head, nanmax, nanmin

from think_as_locals.engines import packed_passes, packing, shared_layers
from think_as_locals.engines.transformers_engine import bare_model
from think_as_locals.runtime.ranks import uses_deepspeed

_logger = logging.getLogger(__name__)


class SharedPrefixTrainer(GRPOTrainer):
    """TRL's GRPOTrainer with packed groups; takes the same arguments. Prefix grouping: arXiv 2506.05433.

    If a model or setting is not supported, or the first group's log-probabilities differ from TRL's own by more than
    rounding, it computes as TRL does, and `unshared_reason` says why. With
    `float32_head` the LM head computes in float32, even under autocast. With `scores_rubrics`, the policy scores
    rubrics between sampling and loss; off policy, that pass also adds the rollouts' old log-probabilities to
    `old_log_probs`. With `max_tokens`, a micro-batch is taken in passes of at most so many tokens, whose gradients
    add up to its own.
    """

    _buffered_inputs: list[dict[str, Any]] | None
    num_updated_tokens = 0
    """Tokens of all passes with gradients so far, a shared prompt's once."""

    def __init__(
        self,
        *args: Any,
        scores_rubrics: bool = False,
        float32_head: bool = False,
        max_tokens: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._scores_rubrics = scores_rubrics
        self._max_tokens = max_tokens
        self.old_log_probs: list[Tensor] | None = None
        self._inputs: dict[str, Any] | None = None
        self._gradient_rows: list[bool] | None = None
        self._of_passes: list[tuple[Tensor, Tensor]] = []  # log-probabilities and entropies of a micro-batch's passes
        self._skip_pass = False
        self._checked = False
        models = [self.accelerator.unwrap_model(model) for model in (self.model, self.ref_model) if model is not None]
        bare = list(map(bare_model, models))
        if float32_head:
            # TRL's `cast_lm_head_to_fp32` also converts the weights, which FSDP2 refuses beside others in bfloat16, and
            # fails with PEFT and tied embeddings.
            for model, outputs in zip(bare, (("log_probs", "entropy"), ("log_probs",)), strict=False):
                add_fused_lm_head(model, self.temperature, cast_lm_head_to_fp32=True, outputs=outputs)
            if type(head := bare[0].get_output_embeddings()) is nn.Linear:
                head.forward = _float32_forward(head)  # type: ignore[assignment, method-assign]
        for model in bare:
            packed_passes.pass_positions(model)
            if self.args.disable_dropout:
                packed_passes.disable_functional_dropout(model)
        self.unshared_reason: str | None = None
        if reasons := [reason for model in bare if (reason := _unsupported_reason(model, self))]:
            self._stop_sharing(reasons[0])
            return
        for model in bare:
            packed_passes.prepare(model)

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """Return the micro-batch of this step: whole groups of the generation batch, without common padding."""
        if not self.model.training or self._is_vlm:
            return super()._prepare_inputs(generation_batch)
        parts = self.args.steps_per_generation
        if self._step % (parts * self.num_iterations) == 0 or self._buffered_inputs is None:
            elsewhere = self._can_defer() or (self._scores_rubrics and not self._on_policy)
            self._skip_pass = deferred = elsewhere and self.unshared_reason is None
            self.old_log_probs = [] if deferred and not self._on_policy else None
            batch = self._generate_and_score_completions(generation_batch)
            if deferred:
                self._defer_correction(batch, self.old_log_probs)
            self.old_log_probs = None
            self._buffered_inputs = micro_batches(batch, parts)
        return self._buffered_inputs[self._step % parts]

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        """Return TRL's batch, with no advantage for groups of equal rewards, though their float32 mean is rounded."""
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if self.model.training and self.multi_objective_aggregation == "sum_then_normalize":
            groups = self.accelerator.gather(batch["advantages"]).view(-1, self.num_generations)
            # Of one sign, or 0 where a reward failed: other rewards lie on both sides of their mean.
            equal, size = (groups >= 0).all(1) | (groups <= 0).all(1), len(batch["advantages"])
            self._metrics["train"]["frac_reward_zero_std"][-1] = equal.float().mean().item()
            first = self.accelerator.process_index * size
            here = equal.repeat_interleave(self.num_generations)[first : first + size]
            batch["advantages"] = batch["advantages"].masked_fill(here, 0.0)
        return batch

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """Return the loss of a micro-batch; of several passes, the gradients of all but the last are there already."""
        parts = [slice(None)]
        # Terms of all tokens of a micro-batch together, whatever the loss is.
        together = self._entropy_bonus_enabled or self.top_entropy_quantile < 1.0 or self.aux_loss_enabled
        if self._max_tokens is not None and self.model.training and not together:
            masks = inputs["prompt_mask"], inputs["completion_mask"]
            parts = passes(inputs["prompt_ids"], *masks, self._max_tokens, self._most)
        losses = [torch.zeros((), device=self.accelerator.device)]
        for number, rows in enumerate(parts, 1):
            part, weight = self._part(inputs, rows) if len(parts) > 1 else (inputs, 1.0)
            with nullcontext() if number == len(parts) else self._no_sync(model):
                with self._alone() if len(parts) > 1 else nullcontext():
                    losses.append(weight * super().compute_loss(model, part, return_outputs, num_items_in_batch))
                if number < len(parts):
                    self.accelerator.backward(losses[-1], **{"scale_wrt_gas": False} if uses_deepspeed() else {})
                    losses[-1] = losses[-1].detach()
        if len(parts) > 1:
            with torch.no_grad():  # for the metrics, of what the passes computed
                super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        self._of_passes.clear()
        return torch.stack(losses).sum()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Log nothing, and gather nothing from other ranks, whose passes have other numbers of rows."""

        def keep(tensor: Tensor, **_: Any) -> Tensor:
            return tensor

        here = patch.multiple(self.accelerator, gather=keep, reduce=keep)
        with here, patch.dict(self._metrics, train=defaultdict(list)):
            yield

    @contextmanager
    def _no_sync(self, model: nn.Module) -> Iterator[None]:
        """Add gradients up without sending them to other ranks, as Trainer does between micro-batches."""
        state, syncs = self.accelerator.gradient_state, self.accelerator.sync_gradients
        state._set_sync_gradients(False)
        with nullcontext() if uses_deepspeed() else self.accelerator.no_sync(model):
            yield
        state._set_sync_gradients(syncs)

    def _most(self, count: int) -> int:
        """Return the largest count of all ranks."""
        counts = self.accelerator.gather(torch.tensor([count], device=self.accelerator.device))
        return int(counts.max())

    def _part(self, inputs: dict[str, Any], rows: slice) -> tuple[dict[str, Any], float]:
        """Return some rows of a micro-batch, and the weight of their loss in its own: TRL's means are over rows.

        `bnpo` is a mean over tokens; sums are already divided by the tokens of the whole generation batch.
        """
        part = rows_of(inputs, rows)
        if self.loss_type in ("dapo", "cispo", "vespo"):
            return part, 1.0
        if self.loss_type == "bnpo":
            tokens, every = (float(of["completion_mask"].sum()) for of in (part, inputs))
            return part, tokens / max(every, 1.0)
        return part, len(part["prompt_ids"]) / len(inputs["prompt_ids"])

    def _compute_loss(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        """Return TRL's loss; if only advantages move the policy, rows with advantage 0 are left out of the pass."""
        advantage_only = (
            self.beta == 0.0
            and not self._entropy_bonus_enabled
            and self.top_entropy_quantile >= 1.0
            and inputs["advantages"].dim() == 1
        )
        self._gradient_rows = (inputs["advantages"] != 0).tolist() if advantage_only else None
        self._inputs = inputs = dict(inputs)
        try:
            loss: Tensor = super()._compute_loss(model, inputs)
        finally:
            self._inputs = self._gradient_rows = None
        if "importance_sampling_ratio" in inputs:
            self._log_effective_sample_size(inputs)
        return loss

    def _log_effective_sample_size(self, inputs: dict[str, Any]) -> None:
        """Log (sum w)^2 / (n sum w^2) of the n importance weights of tokens, or completions, with an advantage."""
        weights, advantages = inputs["importance_sampling_ratio"], inputs["advantages"]  # (B, C) or (B, 1)
        rows = advantages if advantages.dim() == 2 else advantages[:, None]
        counted = inputs["completion_mask"].bool() & (rows != 0)
        weights = weights[counted] if weights.shape[1] > 1 else weights[counted.any(1), 0]
        sums = torch.stack([weights.new_tensor(weights.numel()), weights.sum(), weights.square().sum()])
        count, total, squares = self.accelerator.reduce(sums).tolist()
        if count:
            size = total**2 / (count * squares) if squares else 0.0
            self._metrics["train"]["sampling/effective_sample_size"].append(size)

    def _get_per_token_logps_and_entropies(
        self, model: nn.Module, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, **options: Any
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return log-probabilities and entropies of the completions, (B, C) each, with 0 for padding."""
        if self._skip_pass:  # the first pass after sampling is that of the old log-probabilities
            self._skip_pass = False
            return torch.full((len(input_ids), logits_to_keep), torch.nan, device=input_ids.device), None, None
        found: Any
        if self._of_passes and not torch.is_grad_enabled():
            found = (*map(torch.cat, zip(*self._of_passes, strict=True)), None)
        else:
            found = self._compute_log_probs(model, input_ids, attention_mask, logits_to_keep, **options)
        if self._inputs is not None:
            self._of_passes.append((found[0].detach(), found[1].detach()))
            if "importance_sampling_ratio" not in self._inputs and self._can_defer():
                self._apply_correction(self._inputs, found[0])
        return found  # type: ignore[no-any-return]

    def _compute_log_probs(
        self, model: nn.Module, ids: Tensor, mask: Tensor, num_labels: int, **options: Any
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the same for B x (P+C) tokens, of packed rows or as TRL does."""
        trls = super()._get_per_token_logps_and_entropies
        if self.unshared_reason is None and not self._checked:
            rows = (ids[: self.num_generations], mask[: self.num_generations], num_labels)
            with torch.no_grad():
                self._check(model, rows, lambda: trls(model, *rows, **options)[0])
        if self.unshared_reason is not None:
            self.num_updated_tokens += ids.numel() if torch.is_grad_enabled() else 0
            return trls(model, ids, mask, num_labels, **options)  # type: ignore[no-any-return]
        size, wanted, others = options.get("batch_size") or len(ids), self._gradient_rows or [True] * len(ids), None
        if self._gradient_rows and (self.accelerator.num_processes > 1 or not all(wanted)):
            with torch.no_grad():  # for metrics alone, which are of all rollouts
                others = self._packed_log_probs(model, ids, mask, num_labels, [not row for row in wanted])
        parts = [slice(i, i + size) for i in range(0, len(ids), size)]
        if self._max_tokens is not None and not torch.is_grad_enabled():
            masks = mask[:, :-num_labels], mask[:, -num_labels:]
            parts = passes(ids[:, :-num_labels], *masks, self._max_tokens, self._most)
        chunks = [self._packed_log_probs(model, ids[part], mask[part], num_labels, wanted[part]) for part in parts]
        logps, entropies = (torch.cat(each) for each in zip(*chunks, strict=True))
        if others is not None:
            logps, entropies = logps + others[0], entropies.detach() + others[1]
        return logps, entropies, None

    def _packed_log_probs(
        self, model: nn.Module, ids: Tensor, mask: Tensor, num_labels: int, wanted: Sequence[bool]
    ) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies (B, C) of the wanted rows, 0 of others; they are one packed row."""
        seen = mask.bool()
        prompts = [row[real] for row, real in zip(ids[:, :-num_labels], seen[:, :-num_labels], strict=True)]
        completions = [
            row[real] if want else row[:0]
            for row, real, want in zip(ids[:, -num_labels:], seen[:, -num_labels:], wanted, strict=True)
        ]
        # Without anything to compute, a pass over one token, weighted by 0, keeps this rank in step with the others.
        idle = not any(len(completion) for completion in completions)
        if idle:
            prompts = completions = [ids.new_zeros(1)]  # of any token, as there may be no row
        packed = packing.pack(prompts, completions)
        self.num_updated_tokens += packed.inputs["input_ids"].numel() if torch.is_grad_enabled() else 0
        with self.accelerator.autocast():
            values, entropy = packed_passes.log_probs(model, packed)
        shape = (len(ids), num_labels)
        if idle:
            return 0 * values.expand(shape), values.new_zeros(shape)
        at = (packed.rows, packed.columns)
        logps = values.new_zeros(shape).index_put(at, values)
        if entropy is None:
            return logps, torch.zeros_like(logps)
        return logps, torch.zeros_like(logps).index_put(at, entropy)

    def _check(self, model: nn.Module, rows: tuple[Tensor, Tensor, int], separate: Callable[[], Tensor]) -> None:
        """Compare the first group with TRL's own path, on all ranks; stop sharing if that is less exact or fails."""
        try:
            got, _ = self._packed_log_probs(model, *rows, [True] * len(rows[0]))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # of a layer that does not take packed rows: the same on all ranks
            self._stop_sharing(packed_passes.not_taken(error))
            return
        _, mask, num_labels = rows
        full_precision = self.accelerator.mixed_precision == "no"
        tolerance = packed_passes.FULL_PRECISION.get(next(model.parameters()).dtype) if full_precision else None
        apart = (got - separate())[mask[:, -num_labels:].bool()].abs().float()
        reasons = gather_object([(len(apart), packed_passes.difference_reason("log-probabilities", apart, tolerance))])
        self._checked = any(count for count, _ in reasons)
        if reason := next((reason for _, reason in reasons if reason), None):
            self._stop_sharing(reason)

    def _stop_sharing(self, reason: str) -> None:
        self.unshared_reason = reason
        if self.accelerator.is_main_process:
            _logger.warning("prefixes are not shared, updates take as long as TRL's: %s", reason)

    # TRL computes the policy's log-probabilities of vLLM's completions in a pass of their own, to weight them by
    # pi(token) / pi_vllm(token). On policy that pass equals the one of the loss, so the correction is deferred to it.

    @property
    def _on_policy(self) -> bool:
        """Whether every update uses rollouts of the very policy it updates."""
        window = self.args.steps_per_generation * self.num_iterations
        return bool(self.args.gradient_accumulation_steps % window == 0)

    def _can_defer(self) -> bool:
        """Return whether TRL would compute old log-probabilities only for this correction."""
        return bool(self.use_vllm and self.vllm_importance_sampling_correction and self._on_policy)

    def _defer_correction(self, batch: dict[str, Any], old: list[Tensor] | None) -> None:
        """Remove what TRL computed from log-probabilities of NaN from a generation batch and from its metrics."""
        for name in ("old_per_token_logps", "importance_sampling_ratio"):
            batch.pop(name, None)
        for name, values in self._metrics["train"].items():
            if name.startswith(("sampling/sampling_", "sampling/importance_")):
                values.pop()
        if old is None:
            return
        if not old:
            raise RuntimeError("off policy, scoring rubrics computes old log-probabilities, but it did not run")
        width = batch["completion_ids"].shape[1]
        batch["old_per_token_logps"] = torch.cat([pad(part, (0, width - part.shape[1])) for part in old])
        if self.use_vllm and self.vllm_importance_sampling_correction:
            self._apply_correction(batch, batch["old_per_token_logps"])

    def _apply_correction(self, inputs: dict[str, Any], log_probs: Tensor) -> None:
        """Add importance weights to a micro-batch, given log-probabilities (B, C)."""
        mask = (inputs["completion_mask"] * inputs.get("tool_mask", 1)).bool()
        difference = log_probs.detach() - inputs["sampling_per_token_logps"]  # NaN where vLLM could not score a token
        level, _, form = self.vllm_importance_sampling_mode.partition("_")
        exponent = difference.nan_to_num(nan=0.0) * mask
        ratio = (exponent.sum(-1, keepdim=True) if level == "sequence" else exponent).exp()  # (B, 1) or (B, C)
        low, high = self.vllm_importance_sampling_clip_min, self.vllm_importance_sampling_clip_max
        clipped = ratio if low is None and high is None else ratio.clamp(min=low, max=high)
        ratio = clipped if form == "truncate" else torch.where(clipped == ratio, ratio, 0.0)  # it may be infinite
        inputs["importance_sampling_ratio"] = ratio
        # TRL's own metrics of the correction, extremes those of a generation batch.
        tokens = difference[mask & ~difference.isnan()].abs()
        weights = ratio[:, 0] if ratio.shape[1] == 1 else ratio[mask]
        tokens, weights = (each if len(each) else each.new_full((1,), torch.nan) for each in (tokens, weights))
        for name, value, over_ranks in (
            ("sampling_logp_difference/mean", tokens.mean(), torch.nanmean),
            ("sampling_logp_difference/max", tokens.max(), nanmax),
            ("importance_sampling_ratio/min", weights.min(), nanmin),
            ("importance_sampling_ratio/mean", weights.mean(), torch.nanmean),
            ("importance_sampling_ratio/max", weights.max(), nanmax),
        ):
            found, values = self.accelerator.gather(value.reshape(1)), self._metrics["train"][f"sampling/{name}"]
            if values and over_ranks is not torch.nanmean and self._step % self.args.steps_per_generation:
                found = torch.cat([found, found.new_tensor([values.pop()])])  # of the micro-batches before
            values.append(over_ranks(found).item())


def _unsupported_reason(model: PreTrainedModel, trainer: GRPOTrainer) -> str | None:
    """Return why a model cannot take packed rows, or `None`."""
    if trainer._is_vlm:
        return "the model reads images"
    if reason := shared_layers.unsupported_reason(model):
        return reason
    if reason := packed_passes.dropout_reason(trainer.model):
        return reason
    if trainer.aux_loss_enabled:
        return "the router's auxiliary loss counts padding; set grpo.router_aux_loss_coef=0"
    return None


def _float32_forward(head: nn.Linear) -> Callable[[Tensor], Tensor]:
    """Return a head's forward in float32, even under autocast.

    A frozen head is converted once on a CPU, where it would take most of the time to decode a token.
    """
    converted: Tensor | None = None

    def forward(hidden: Tensor) -> Tensor:
        nonlocal converted
        weight = head.weight.float() if converted is None else converted
        if hidden.device.type == "cpu" and not head.weight.requires_grad:
            converted = weight
        with torch.autocast(hidden.device.type, enabled=False):
            return nn.functional.linear(hidden.float(), weight, None if head.bias is None else head.bias.float())

    return forward


# --- Parts of a generation batch: micro-batches of whole groups, and passes of at most so many tokens ---


def micro_batches(batch: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Split a generation batch into equal parts: groups in random order but whole, each part without common padding.

    `batch` is what TRL's `_generate_and_score_completions` returns: B rows, prompts padded left, completions right.
    """
    ids = batch["prompt_ids"]
    group = _groups(ids)
    order = torch.randperm(int(group[-1]) + 1)[group].argsort(stable=True).to(ids.device)
    prompts, completions = ids.shape[1], batch["completion_ids"].shape[1]
    parts = []
    for rows in order.chunk(count):
        part = rows_of(batch, rows)
        left = prompts - int(part["prompt_mask"].sum(1).max())
        right = max(2, int(part["completion_mask"].sum(1).max()))
        for key, value in part.items():
            if key.startswith("prompt_"):
                part[key] = value[:, left:]
            elif torch.is_tensor(value) and value.dim() == 2 and value.shape[1] == completions:
                part[key] = value[:, :right]
        parts.append(part)
    return parts


def passes(
    prompt_ids: Tensor, prompt_mask: Tensor, completion_mask: Tensor, max_tokens: int, agree: Callable[[int], int] = int
) -> list[slice]:
    """Split a micro-batch into parts of at most `max_tokens` tokens, a group's prompt counted once; return their rows.

    Groups stay whole unless one alone is larger: then each of its parts has the prompt. `agree` returns how many parts
    all ranks are to have, given how many this one needs; with fewer rows than that, some are empty.
    """
    prompts, completions = (mask.sum(1).tolist() for mask in (prompt_mask, completion_mask))
    group = _groups(prompt_ids)
    sizes = torch.zeros(int(group[-1]) + 1, dtype=torch.long).index_add(0, group, torch.tensor(completions)).tolist()
    starts, used = [0], 0
    for row, (number, prompt, completion) in enumerate(zip(group.tolist(), prompts, completions, strict=True)):
        begins = row == 0 or number != group[row - 1]
        whole = prompt + sizes[number]
        more = whole if begins and whole <= max_tokens else completion + prompt * begins
        if used and used + more > max_tokens:
            starts.append(row)
            used = 0 if begins else prompt
        used += completion + prompt * begins
    ends = [*starts[1:], len(prompts)]
    parts = [slice(start, end) for start, end in zip(starts, ends, strict=True)]
    for _ in range(agree(len(parts)) - len(parts)):
        at = max(range(len(parts)), key=lambda number: parts[number].stop - parts[number].start)
        start, end = parts[at].start, parts[at].stop
        parts[at : at + 1] = [slice(start, (start + end) // 2), slice((start + end) // 2, end)]
    return parts


def rows_of(batch: dict[str, Any], rows: Tensor | slice) -> dict[str, Any]:
    """Return some rows of a batch; what is not by row stays."""
    return {key: value[rows] if torch.is_tensor(value) and value.dim() else value for key, value in batch.items()}


def _groups(prompt_ids: Tensor) -> Tensor:
    """Return the number of each row's run of equal prompts (B,), on the CPU."""
    starts = torch.cat([prompt_ids.new_ones(1, dtype=torch.bool), (prompt_ids[1:] != prompt_ids[:-1]).any(1)])
    return starts.cumsum(0).cpu() - 1
