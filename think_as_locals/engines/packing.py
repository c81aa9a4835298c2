"""Packing rows with the same prompt into one row that has the prompt once, and the attention for such a row.

Rollouts of a group, prompt `p q r` and completions `a b` and `c d e`, become

    tokens     p q | r a | r c d
    positions  0 1 | 2 3 | 2 3 4
    labels     . . | a b | c d e

Every branch begins with the prompt's last token, which predicts the first token of its completion, and attends only to
the trunk (the prompt without that token) and itself. So log-probabilities and gradients are those of separate rows, up
to rounding, while the number of tokens falls from G(P+C) to P+GC. For a classifier, `pack_rows` makes a trunk of the
rows' common prefix, and only the last token of each branch is scored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from itertools import groupby, takewhile
from typing import Any, cast

import torch
from accelerate.utils import extract_model_from_parallel
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.integrations.sdpa_attention import repeat_kv
from transformers.modeling_flash_attention_utils import FLASH_ATTN_KERNEL_FALLBACK
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

SUPPORTED_KERNELS = ("sdpa", "flash_attention_2", "flash_attention_3")
# What transformers turns the last two into if flash-attn is not installed but `kernels` is.
_FROM_HUB = {FLASH_ATTN_KERNEL_FALLBACK[name] for name in SUPPORTED_KERNELS if name in FLASH_ATTN_KERNEL_FALLBACK}
ARGUMENT = "shared_prefix"
"""The keyword argument of the model with the packed row; it is passed on to the attention of every layer."""

_SCORE_TOLERANCE = 1e-4  # of scores in full precision, relative to the largest
# In half precision, in which the mere shape of a batch changes results (log-probabilities of a 7B by .04 nats), this is
# how many times the mean error of separate rows, compared with float32, that of packed rows may be.
_MAX_ERROR_RATIO = 2.0
_NEGLIGIBLE = 1e-6


@dataclass(frozen=True, slots=True)
class Group:
    """The place of a group in a packed row."""

    trunk: slice
    branches: slice  # one after the other
    num_branches: int
    longest: int  # tokens of the longest branch
    scatter: Tensor | None  # index of each branch token in the padded block (num_branches x longest), if any is padded


@dataclass(frozen=True, slots=True)
class Packed:
    """One row of L tokens for a model."""

    tokens: Tensor  # (1, L)
    positions: Tensor  # of each token in its own sequence, (1, L)
    scored: Tensor  # indices of the L' tokens whose outputs are used
    groups: tuple[Group, ...]

    @property
    def inputs(self) -> dict[str, Any]:
        """Keyword arguments of a model."""
        # By its four dimensions it tells transformers not to make a mask: our attention needs none.
        mask = self.tokens.new_ones(1, 1, 1, 1)
        return {"input_ids": self.tokens, "position_ids": self.positions, "attention_mask": mask, ARGUMENT: self}


@dataclass(frozen=True, slots=True)
class PackedCompletions(Packed):
    """One row whose branch tokens predict the tokens of completions."""

    labels: Tensor  # the predicted tokens, (1, L')
    rows: Tensor  # the row of each label ...
    columns: Tensor  # ... and its index in the completion


def pack(prompts: Sequence[Tensor], completions: Sequence[Tensor]) -> PackedCompletions:
    """Pack completions; consecutive ones with equal prompts share a trunk."""
    wanted = [row for row, completion in enumerate(completions) if len(completion)]
    if not wanted or any(not len(prompts[row]) for row in wanted):
        raise ValueError("nothing to pack: expected at least one completion, and a prompt before each")
    parts = []
    for _, neighbours in groupby(wanted, key=lambda row: prompts[row].tolist()):
        members = list(neighbours)
        prompt = prompts[members[0]]
        parts.append((prompt[:-1], [torch.cat([prompt[-1:], completions[row][:-1]]) for row in members]))
    tokens, positions, groups = _lay_out(parts)
    device = tokens.device
    return PackedCompletions(
        tokens=tokens,
        positions=positions,
        scored=torch.cat([torch.arange(group.branches.start, group.branches.stop) for group in groups]).to(device),
        groups=groups,
        labels=torch.cat([completions[row] for row in wanted])[None],
        rows=torch.cat([torch.full((len(completions[row]),), row) for row in wanted]).to(device),
        columns=torch.cat([torch.arange(len(completions[row])) for row in wanted]).to(device),
    )


def pack_rows(groups: Sequence[Sequence[list[int]]], device: torch.device) -> Packed:
    """Pack rows, with the common prefix of each group as its trunk; the last token of each row is scored."""
    parts = []
    for rows in groups:
        common = takewhile(lambda tokens: len(set(tokens)) == 1, zip(*(row[:-1] for row in rows), strict=False))
        shared = len(list(common))
        branches = [torch.tensor(row[shared:], device=device) for row in rows]
        parts.append((torch.tensor(rows[0][:shared], dtype=torch.long, device=device), branches))
    tokens, positions, packed_groups = _lay_out(parts)
    ends = [
        group.branches.start + sum(map(len, branches[: i + 1])) - 1
        for group, (_, branches) in zip(packed_groups, parts, strict=True)
        for i in range(len(branches))
    ]
    return Packed(tokens=tokens, positions=positions, scored=torch.tensor(ends, device=device), groups=packed_groups)


def _lay_out(parts: Sequence[tuple[Tensor, Sequence[Tensor]]]) -> tuple[Tensor, Tensor, tuple[Group, ...]]:
    """Return tokens (1, L), positions (1, L) and places of groups, each a trunk and its branches."""
    tokens: list[Tensor] = []
    positions: list[Tensor] = []
    groups: list[Group] = []
    device = parts[0][0].device
    for prefix, branches in parts:
        trunk, lengths = len(prefix), [len(branch) for branch in branches]
        start, longest = groups[-1].branches.stop if groups else 0, max(lengths)
        tokens += [prefix, *branches]
        positions += [torch.arange(trunk), *(torch.arange(trunk, trunk + length) for length in lengths)]
        indices = [torch.arange(i * longest, i * longest + length) for i, length in enumerate(lengths)]
        groups.append(
            Group(
                trunk=slice(start, start + trunk),
                branches=slice(start + trunk, start + trunk + sum(lengths)),
                num_branches=len(lengths),
                longest=longest,
                scatter=None if min(lengths) == longest else torch.cat(indices).to(device),
            )
        )
    return torch.cat(tokens)[None], torch.cat(positions).to(device)[None], tuple(groups)


def log_probs(model: nn.Module, packed: PackedCompletions) -> tuple[Tensor, Tensor | None]:
    """Return the log-probabilities of the labels and, if the model's head computes them, entropies, (L',) each."""
    outputs = model(**packed.inputs, shift_labels=packed.labels, fused_lm_head=True)
    return outputs.log_probs[0], None if outputs.entropy is None else outputs.entropy[0]


def unsupported_reason(model: PreTrainedModel) -> str | None:
    """Return why a model cannot take packed rows, or `None`."""
    config: PretrainedConfig = model.config.get_text_config()
    kernel = config._attn_implementation
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    layers = set(getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"])
    if kernel not in SUPPORTED_KERNELS and re.split("[@:]", kernel)[0] not in _FROM_HUB:  # a revision may follow
        return f"model.attn_implementation is {kernel}; supported: {', '.join(SUPPORTED_KERNELS)}"
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
    return None


def dropout_reason(model: nn.Module) -> str | None:
    """Return why rows of a model that trains with dropout cannot share a prompt, or `None`."""
    rate = max((module.p for module in model.modules() if isinstance(module, nn.Dropout)), default=0.0)
    return f"dropout ({rate:g}) would be the same for all rows of a prompt" if rate else None


def pass_positions(model: PreTrainedModel) -> None:
    """Have a model count positions from the first token that is not padding, as when it samples.

    Rotary positions are relative, so that padding on the left changes nothing; learned ones (GPT-2) are not, and
    neither transformers' forward nor TRL counts them so. Where positions are given, they stay.
    """
    rotary = any(getattr(model.config.get_text_config(), f"rope_{name}", None) for name in ("parameters", "theta"))
    if rotary or "position_ids" not in signature(model.forward).parameters:
        return

    def count(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        mask = kwargs.get("attention_mask")
        if mask is None or mask.dim() != 2 or kwargs.get("position_ids") is not None:
            return args, kwargs
        return args, {**kwargs, "position_ids": (mask.long().cumsum(1) - 1).clamp(min=0)}

    model.register_forward_pre_hook(count, with_kwargs=True)


def prepare(model: PreTrainedModel) -> None:
    """Prepare a model for packed rows; ordinary rows are computed as before."""
    name = model.config._attn_implementation
    kernel = ALL_ATTENTION_FUNCTIONS[name]
    if not isinstance(kernel, PackedAttention):
        AttentionInterface.register(name, PackedAttention(name, kernel))
    if _keep_scored not in model.base_model._forward_hooks.values():
        model.base_model.register_forward_hook(_keep_scored, with_kwargs=True)


def prepare_classifier(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Prepare a classifier with one label for packed rows and `scores`; return why it cannot take them, or `None`."""
    names = signature(model.forward).parameters.keys() & set(tokenizer.model_input_names)
    directions = {module.is_causal for module in model.modules() if hasattr(module, "is_causal")}
    if directions != {True}:
        return "tokens see those that follow them, so that the prompt depends on its response"
    if more := names - {"input_ids", "attention_mask"}:
        return f"the model also reads {', '.join(sorted(more))}"
    if reason := unsupported_reason(model):
        return reason
    if not hasattr(model, "score"):
        return f"the head of {type(model).__name__} has another name than `score`"
    prepare(model)
    separate_forward = model.forward

    @wraps(separate_forward)
    def forward(*args: Any, **kwargs: Any) -> Any:
        packed: Packed | None = kwargs.get(ARGUMENT)
        if packed is None:
            return separate_forward(*args, **kwargs)
        # The usual head uses only one token of each row.
        return SequenceClassifierOutput(logits=model.score(model.base_model(**packed.inputs).last_hidden_state[0]))

    model.forward = forward
    return None


def scores(model: nn.Module, packed: Packed) -> Tensor:
    """Return the scores (rows,) of packed rows by a prepared classifier, which may be wrapped."""
    return model(**packed.inputs).logits[:, 0]  # type: ignore[no-any-return]


_HALF = (torch.bfloat16, torch.float16)
_PROMOTED = {  # functions of which float32 activations need float32 weights
    *(nn.functional.embedding, nn.functional.linear, nn.functional.layer_norm, nn.functional.rms_norm),
    *(nn.functional.scaled_dot_product_attention, nn.functional.conv1d),
    *(torch.matmul, torch.bmm, torch.addmm, Tensor.matmul, Tensor.__matmul__),
}


@contextmanager
def computing_in_float32(model: Any) -> Iterator[None]:
    """Have a model compute in float32, whatever the type of its weights and their sharding; no weight is changed."""
    autocast, plain = model.__dict__.get("forward"), model.__dict__.get("_original_forward")  # accelerate's
    device, backends = next(model.parameters()).device.type, cast("Any", torch.backends)
    precision = backends.fp32_precision
    if plain is not None:
        model.forward = plain
    backends.fp32_precision = "ieee"  # not TF32
    try:
        with torch.autocast(device, enabled=False), _Promoting():
            yield
    finally:
        backends.fp32_precision = precision
        if plain is not None:
            model.forward = autocast


class _Promoting(TorchFunctionMode):
    """Passes float32 copies of half-precision tensors to functions that use weights, one function at a time."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _PROMOTED:
            args, kwargs = tree_map_only(Tensor, lambda t: t.float() if t.dtype in _HALF else t, (args, kwargs))
        elif func is Tensor.to and any(
            wanted is half for wanted in (*args[1:2], kwargs.get("dtype")) for half in _HALF
        ):
            return args[0]  # PEFT rounds activations to the type of an adapter
        return func(*args, **kwargs)


def scores_differ(model: nn.Module, pad_id: int | None, device: torch.device, *, full_precision: bool) -> str | None:
    """Return how much the scores of packed and separate rows differ, if by more than rounding, or `None`."""
    known = [token for token in range(5, 24) if token != pad_id]
    ends = [[], *(known[start : start + length] for length in (1, 2, 4, 7) for start in range(4))]
    rows = [known[:16] + end for end in ends]

    def separately() -> Tensor:
        return torch.stack([model(input_ids=torch.tensor([row], device=device)).logits[0, 0] for row in rows]).float()

    with torch.no_grad():
        expected = separately()
        found = scores(model, pack_rows([rows], device)).float()
        if not full_precision:
            with computing_in_float32(extract_model_from_parallel(model)):
                true = separately()
            ours, theirs = (float((values - true).abs().mean()) for values in (found, expected))
            return worse_than_separate("scores", ours, theirs)
    difference = float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-9))
    return None if difference <= _SCORE_TOLERANCE else f"scores differ by {difference:.1e} from those of separate rows"


def worse_than_separate(results: str, ours: float, theirs: float) -> str | None:
    """Return how much greater the mean error of packed rows is, if by more than rounding, or `None`."""
    if ours <= _MAX_ERROR_RATIO * theirs + _NEGLIGIBLE:
        return None
    return (
        f"{results} differ by {ours:.1e} from float32's in the mean, those of separate rows by {theirs:.1e}: "
        f"more than {_MAX_ERROR_RATIO:g} times as much"
    )


def _keep_scored(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
    """Pass only the scored positions on to the LM head."""
    if (packed := kwargs.get(ARGUMENT)) is not None:
        output.last_hidden_state = output.last_hidden_state[:, packed.scored]
    return output


class PackedAttention:
    """An attention kernel of transformers that also computes packed rows."""

    def __init__(self, name: str, kernel: Callable[..., tuple[Tensor, Tensor | None]]) -> None:
        self._name = name
        self._kernel = kernel

    def __call__(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Return a layer's attention (1, L, H, D), given query (1, H, L, D), key and value (1, H_kv, L, D)."""
        packed: Packed | None = kwargs.pop(ARGUMENT, None)
        if packed is None:
            return self._kernel(module, query, key, value, attention_mask, **kwargs)
        # Tensors have their positions already, by which flash attention would find the starts of sequences.
        kwargs.pop("position_ids", None)
        if torch.is_autocast_enabled(query.device.type):
            dtype = torch.get_autocast_dtype(query.device.type)
            query, key, value = (tensor.to(dtype) for tensor in (query, key, value))
        outputs = []
        for group in packed.groups:
            if module.layer_idx == module.config.num_hidden_layers - 1:  # nothing reads what the trunk attends to
                shape = (1, group.trunk.stop - group.trunk.start, query.shape[1], value.shape[3])
                outputs.append(query.new_zeros(shape))
            elif group.trunk.start != group.trunk.stop:
                trunk = (tensor[:, :, group.trunk] for tensor in (query, key, value))
                outputs.append(self._kernel(module, *trunk, None, **kwargs)[0])
            outputs.append(self._branches(module, query, key, value, group, kwargs))
        return torch.cat(outputs, dim=1), None

    def _branches(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, group: Group, kwargs: dict[str, Any]
    ) -> Tensor:
        """Return the attention of branches to the trunk and, causally, to themselves: a mask aligned to the end."""
        q, k, v = (_unpack(tensor[0, :, group.branches], group) for tensor in (query, key, value))
        k, v = (
            torch.cat([whole[:, :, group.trunk].expand(group.num_branches, -1, -1, -1), own], dim=2)
            for whole, own in ((key, k), (value, v))
        )
        if self._name == "sdpa":
            grouped = q.shape[1] != k.shape[1]
            if grouped and not _grouped_heads_are_fast(q):
                k, v = (repeat_kv(tensor, q.shape[1] // k.shape[1]) for tensor in (k, v))
                grouped = False
            # The kernel's own flag would align to the beginning.
            mask = causal_lower_right(q.shape[2], k.shape[2])
            output = nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, scale=kwargs.get("scaling"), enable_gqa=grouped
            ).transpose(1, 2)
        else:
            output = self._kernel(module, q, k, v, None, **kwargs)[0]
        flat = output.reshape(1, group.num_branches * group.longest, *output.shape[2:])
        return flat if group.scatter is None else flat[:, group.scatter]


def _grouped_heads_are_fast(query: Tensor) -> bool:
    """Return whether SDPA has a fast kernel for fewer key heads than query heads, which does not store all scores."""
    return query.device.type == "cpu" or (query.dtype != torch.float32 and query.shape[-1] <= 256)


def _unpack(tokens: Tensor, group: Group) -> Tensor:
    """Reshape (H, branch tokens, D) to (branches, H, longest, D), padded at the end, where no branch attends to it."""
    heads, _, width = tokens.shape
    if group.scatter is not None:
        block = tokens.new_zeros(heads, group.num_branches * group.longest, width)
        tokens = block.index_copy(1, group.scatter, tokens)
    return tokens.view(heads, group.num_branches, group.longest, width).transpose(0, 1)
