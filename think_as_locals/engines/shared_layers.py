"""How the layers of a model compute packed rows: attention, and layers that carry a state from token to token."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right
from transformers import PretrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.modeling_flash_attention_utils import FLASH_ATTN_KERNEL_FALLBACK
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from think_as_locals.engines.packing import ARGUMENT, Group, Packed

KERNELS = ("sdpa", "eager", "flash_attention_2", "flash_attention_3")
"""The kernels of transformers that can compute packed rows."""

# What transformers turns the last two into if flash-attn is not installed but `kernels` is.
_FROM_HUB = {FLASH_ATTN_KERNEL_FALLBACK[name] for name in KERNELS if name in FLASH_ATTN_KERNEL_FALLBACK}
_EAGER = "eager_packed"  # as which eager attention is registered: transformers looks up no other than "eager" itself
_STATEFUL = {"linear_attention", "conv", "mamba", "hybrid"}
_STATELESS = {"full_attention", "sliding_attention", "attention", "moe", "mlp", "dense", "sparse"}


def unsupported_reason(model: PreTrainedModel) -> str | None:
    """Return why a model's layers cannot compute packed rows, or `None`."""
    config: PretrainedConfig = model.config.get_text_config()
    kernel, layers = config._attn_implementation, set(getattr(config, "layer_types", None) or ["full_attention"])
    if kernel not in (*KERNELS, _EAGER) and re.split("[@:]", kernel)[0] not in _FROM_HUB:  # a revision may follow
        return f"model.attn_implementation is {kernel}; supported: {', '.join(KERNELS)}"
    if len(set(getattr(model, "hf_device_map", {}).values())) > 1:
        return "the model lies on several devices"
    if unknown := layers - _STATELESS - _STATEFUL:
        return f"the model has layers of {', '.join(sorted(unknown))}"
    if layers & _STATEFUL and not _state_layers(model):
        return f"the layers of {', '.join(sorted(layers & _STATEFUL))} take no state"
    return None


def prepare(model: PreTrainedModel) -> None:
    """Prepare a model's layers for packed rows; ordinary rows are computed as before."""
    name = model.config._attn_implementation
    if name == "eager":
        AttentionInterface.register(_EAGER, PackedAttention("eager", _eager))
        AttentionMaskInterface.register(_EAGER, eager_mask)
        model.set_attn_implementation(_EAGER)
    elif not isinstance(kernel := ALL_ATTENTION_FUNCTIONS[name], PackedAttention):
        AttentionInterface.register(name, PackedAttention(name, kernel))
    with_state = _state_layers(model)
    for parent in list(model.modules()):
        for child in parent.children():
            if child in with_state and not isinstance(child.forward, PackedStates):
                child.forward = PackedStates(child)
                parent.register_forward_pre_hook(partial(_announce, child.forward), with_kwargs=True)


def _announce(states: PackedStates, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
    """Tell a layer which packed row comes; some families do not pass keyword arguments on to it."""
    states.packed = kwargs.get(ARGUMENT)


# --- Attention ---


class PackedAttention:
    """An attention kernel of transformers that also computes packed rows, with a sliding window if the layer has one.

    Soft caps and attention sinks are the kernel's own.
    """

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
        kinds = getattr(module.config, "layer_types", None)
        if kinds and kinds[module.layer_idx] == "sliding_attention" and not kwargs.get("sliding_window"):
            raise NotImplementedError(f"{type(module).__name__} has a sliding window that it does not pass on")
        if torch.is_autocast_enabled(query.device.type):
            dtype = torch.get_autocast_dtype(query.device.type)
            query, key, value = (tensor.to(dtype) for tensor in (query, key, value))
        outputs = []
        for group in packed.groups:
            if module.layer_idx == module.config.num_hidden_layers - 1:  # nothing reads what the trunk attends to
                shape = (1, group.trunk.stop - group.trunk.start, query.shape[1], value.shape[3])
                outputs.append(query.new_zeros(shape))
            elif group.trunk.start != group.trunk.stop:
                q, k, v = (tensor[:, :, group.trunk] for tensor in (query, key, value))
                outputs.append(self._attend(module, q, k, v, kwargs))
            outputs.append(self._branches(module, query, key, value, group, kwargs))
        return torch.cat(outputs, dim=1), None

    def _branches(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, group: Group, kwargs: dict[str, Any]
    ) -> Tensor:
        """Return the attention of branches to the trunk and, causally, to themselves."""
        q, k, v = (
            unpack(tensor[0, :, group.branches].transpose(0, 1), group).transpose(1, 2)
            for tensor in (query, key, value)
        )
        trunk, window = group.trunk, kwargs.get("sliding_window")
        if window:  # the rest is out of the sight of all branch tokens
            trunk = slice(max(trunk.start, trunk.stop - window + 1), trunk.stop)
        k, v = (
            torch.cat([whole[:, :, trunk].expand(group.num_branches, -1, -1, -1), own], dim=2)
            for whole, own in ((key, k), (value, v))
        )
        return repack(self._attend(module, q, k, v, kwargs), group)

    def _attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, kwargs: dict[str, Any]) -> Tensor:
        """Return causal attention (n, L, H, D) of queries to at least as many keys, aligned to the end of both."""
        window = kwargs.get("sliding_window")
        window = window if window and window < k.shape[2] else None
        if self._name == "eager":
            mask = torch.zeros(q.shape[2], k.shape[2], dtype=q.dtype, device=q.device)
            mask.masked_fill_(~_band(q, k, window), torch.finfo(q.dtype).min)
            return self._kernel(module, q, k, v, mask[None, None], **kwargs)[0]
        if self._name != "sdpa" or (window is None and q.shape[2] == k.shape[2]):
            return self._kernel(module, q, k, v, None, **kwargs)[0]
        grouped = q.shape[1] != k.shape[1]
        if grouped and not _grouped_heads_are_fast(q):
            k, v = (repeat_kv(tensor, q.shape[1] // k.shape[1]) for tensor in (k, v))
            grouped = False
        # The kernel's own flag would align to the beginning.
        mask = causal_lower_right(q.shape[2], k.shape[2]) if window is None else _band(q, k, window)
        return nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=kwargs.get("scaling"), enable_gqa=grouped
        ).transpose(1, 2)


def _band(q: Tensor, k: Tensor, window: int | None) -> Tensor:
    """Return which keys each query sees (L, K): those up to its own place, at most `window` of them."""
    places = torch.arange(k.shape[2], device=q.device)
    ahead = places - places[k.shape[2] - q.shape[2] :, None]
    return (ahead <= 0) & (ahead > -(window or k.shape[2] + 1))


def _eager(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    """Compute eager attention as the model's family does."""
    kernel = sys.modules[type(module).__module__].eager_attention_forward
    return kernel(module, *args, **kwargs)  # type: ignore[no-any-return]


def _grouped_heads_are_fast(query: Tensor) -> bool:
    """Return whether SDPA has a fast kernel for fewer key heads than query heads, which does not store all scores."""
    return query.device.type == "cpu" or (query.dtype != torch.float32 and query.shape[-1] <= 256)


def unpack(tokens: Tensor, group: Group) -> Tensor:
    """Reshape branch tokens (tokens, ...) to (branches, longest, ...), padded at the end, where nothing attends to."""
    if group.scatter is not None:
        block = tokens.new_zeros(group.num_branches * group.longest, *tokens.shape[1:])
        tokens = block.index_copy(0, group.scatter, tokens)
    return tokens.view(group.num_branches, group.longest, *tokens.shape[1:])


def repack(block: Tensor, group: Group) -> Tensor:
    """Reshape (branches, longest, ...) to (1, branch tokens, ...)."""
    flat = block.reshape(1, group.num_branches * group.longest, *block.shape[2:])
    return flat if group.scatter is None else flat[:, group.scatter]


# --- Layers with a state: short convolutions, Mamba, gated delta nets ---


def _state_layers(model: nn.Module) -> list[Any]:
    """Return the modules that hold a convolution over tokens and, in transformers, can go on from a cached state."""
    return [
        module
        for module in model.modules()
        if any(isinstance(child, nn.Conv1d) for child in module.children())
        and signature(module.forward).parameters.keys() & {"cache_params", "past_key_values"}
    ]


class PackedStates:
    """The forward pass of a layer with a state: once over the trunk, whose state is then the start of each branch.

    Mamba 1's scan in transformers starts from no state, so that such layers go over the trunk with each branch.
    """

    def __init__(self, layer: Any) -> None:
        self.packed: Packed | None = None
        self._forward = layer.forward
        self._takes_state = not hasattr(layer, "x_proj")
        names = signature(layer.forward).parameters
        self._cache = "cache_params" if "cache_params" in names else "past_key_values"
        self.__signature__ = signature(layer.forward)

    def __call__(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return a layer's output (1, L, D), given its input (1, L, D)."""
        if self.packed is None:
            return self._forward(hidden_states, *args, **kwargs)  # type: ignore[no-any-return]
        outputs = []
        for group in self.packed.groups:
            trunk = hidden_states[:, group.trunk]
            branches = unpack(hidden_states[0, group.branches], group)
            if group.longest == 1:  # transformers' path for one token changes the state in place
                branches = nn.functional.pad(branches, (0, 0, 0, 1))
            if self._takes_state:
                state = _State(group.num_branches)
                if trunk.shape[1]:
                    outputs.append(self._forward(trunk, **{self._cache: state}))
                computed = self._forward(branches, **{self._cache: state})
            else:
                rows = torch.cat([trunk.expand(group.num_branches, -1, -1), branches], dim=1)
                computed = self._forward(rows)
                outputs.append(computed[:1, : trunk.shape[1]])
                computed = computed[:, trunk.shape[1] :]
            outputs.append(repack(computed[:, : group.longest], group))
        return torch.cat(outputs, dim=1)


class _State:
    """What a layer keeps of the tokens before, as transformers' `Cache` holds it, but with its gradient.

    Of the trunk it keeps one row, which each of the branches gets.
    """

    record_past = True  # the convolution's inputs are joined, not updated in place

    def __init__(self, num_branches: int) -> None:
        self._rows = num_branches
        self.conv_states: dict[int, Tensor] = {}
        self.recurrent_states: dict[int, Tensor] = {}

    @property
    def layers(self) -> _State:
        return self

    def __getitem__(self, layer_idx: int) -> _State:
        return self

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        return bool(self.conv_states)

    # From transformers 5.23 on, layers ask for what they went on from before.

    def is_recording_past(self, layer_idx: int) -> bool:
        return self.record_past

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.conv_states.get(state_idx)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.recurrent_states.get(state_idx)

    def update_conv_state(
        self, inputs: Tensor, layer_idx: int, state_idx: int = 0, conv_kernel_size: int = 0, **_: Any
    ) -> Tensor:
        if state_idx in self.conv_states:
            return torch.cat([self.conv_states[state_idx], inputs], dim=-1)
        kept = inputs[..., -conv_kernel_size:]
        self.conv_states[state_idx] = kept.expand(self._rows, *kept.shape[1:])
        return inputs

    def update_recurrent_state(self, state: Tensor, layer_idx: int, state_idx: int = 0, **_: Any) -> Tensor:
        self.recurrent_states[state_idx] = state.expand(self._rows, *state.shape[1:])
        return state
