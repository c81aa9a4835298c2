"""Packed rows against separate ones: attention at the heads of a 7B model, and log-probabilities of the whole model."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

import torch
from gpu.checks import Report, Scale
from gpu.models import HEADS, peak_bytes, policy_config, random_model, seconds
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from trl.trainer.utils import add_fused_lm_head

from think_as_locals.engines import packed_passes, packing, shared_layers

GENERATIONS = 8
FUSED = ("flash_attention", "cudnn_attention")  # in names of torch's operators
UNFUSED = ("_scaled_dot_product_attention_math", "aten::softmax")


@dataclass(frozen=True)
class Rows:
    """A group of G rollouts: their layout as one packed row, and which packed token is where in separate rows."""

    packed: packing.PackedCompletions

    @cached_property
    def separate(self) -> Tensor:
        """Indices (G, P+C) of packed tokens, shorter rows padded with the first one."""
        (group,) = self.packed.groups
        trunk = torch.arange(group.trunk.start, group.trunk.stop)
        device = self.packed.tokens.device
        rows = [torch.cat([trunk, branch]).to(device) for branch in self.branches]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)

    @property
    def branches(self) -> list[Tensor]:
        """Indices of the packed tokens of each completion."""
        (group,) = self.packed.groups
        lengths = torch.bincount(self.packed.rows).tolist()
        return list(torch.arange(group.branches.start, group.branches.stop).split(lengths))


def make_rows(scale: Scale, prompt: int, completions: list[int], vocabulary: int) -> Rows:
    generator = torch.Generator().manual_seed(0)
    draw = partial(torch.randint, 5, vocabulary, generator=generator)
    tokens = draw((prompt,)).to(scale.device)
    return Rows(packing.pack([tokens] * len(completions), [draw((n,)).to(scale.device) for n in completions]))


def cases(scale: Scale) -> dict[str, tuple[int, list[int]]]:
    """Tokens of the prompt and of each completion, by name."""
    shrink = scale.pick(32, 1)
    ragged = random.Random(0).choices(range(64, 512), k=GENERATIONS)
    lengths = {
        "P 1k, C 512": (1024, [512] * GENERATIONS),
        "P 4k, C 2k": (4096, [2048] * GENERATIONS),
        "ragged": (1024, ragged),
    }
    return {name: (prompt // shrink, [n // shrink for n in each]) for name, (prompt, each) in lengths.items()}


class Attention:
    """One layer's attention of a group, by the package's code, by separate rows and in float64."""

    def __init__(self, scale: Scale, rows: Rows) -> None:
        self._scale, self._rows = scale, rows
        heads, key_heads, width = HEADS[scale.toy]
        torch.manual_seed(0)
        length = rows.packed.tokens.shape[1]
        make = partial(torch.randn, device=scale.device, dtype=torch.bfloat16)
        self.inputs = [make(1, n, length, width).requires_grad_() for n in (heads, key_heads, key_heads)]
        self._weights = make(1, heads, length, width)  # of the outputs in what gradients are of
        layer = SimpleNamespace(num_key_value_groups=heads // key_heads, is_causal=True, training=True)
        layer.layer_idx, layer.config = 0, SimpleNamespace(num_hidden_layers=2)  # not the last, which skips the trunk
        kernel = shared_layers.PackedAttention("sdpa", ALL_ATTENTION_FUNCTIONS["sdpa"])
        self._packed = partial(kernel, layer, attention_mask=None, **{packing.ARGUMENT: rows.packed})

    def packed(self) -> Tensor:
        query, key, value = self.inputs
        return self._packed(query=query, key=key, value=value)[0].transpose(1, 2)

    def separate(self) -> Tensor:
        """As every row by itself, and then each packed token's output from the last row that has it."""
        index = self._rows.separate
        query, key, value = (tensor[0][:, index].transpose(0, 1) for tensor in self.inputs)  # (G, H, P+C, D)
        output = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self._gathered(output)

    def _gathered(self, output: Tensor) -> Tensor:
        (group,) = self._rows.packed.groups
        trunk = group.trunk.stop
        own = [row[:, trunk : trunk + len(places)] for row, places in zip(output, self._rows.branches, strict=True)]
        return torch.cat([output[0, :, :trunk], *own], dim=1)[None]

    def backward(self, form: Callable[[], Tensor]) -> None:
        (form() * self._weights).sum().backward()

    def results(self, form: Callable[[], Tensor]) -> list[Tensor]:
        """The outputs, and the gradients of queries, keys and values."""
        for tensor in self.inputs:
            tensor.grad = None
        output = form()
        (output * self._weights).sum().backward()
        return [output.detach(), *(tensor.grad for tensor in self.inputs if tensor.grad is not None)]

    def exact(self) -> list[Tensor]:
        """The same in float64, one part of the row after the other."""
        (group,) = self._rows.packed.groups
        inputs = [tensor.detach().double().requires_grad_() for tensor in self.inputs]
        repeat = inputs[0].shape[1] // inputs[1].shape[1]
        trunk = torch.arange(group.trunk.start, group.trunk.stop)
        outputs = []
        for own, seen in [(trunk, trunk), *((branch, torch.cat([trunk, branch])) for branch in self._rows.branches)]:
            query, key, value = inputs[0][0, :, own], *(each[0, :, seen] for each in inputs[1:])
            key, value = (each.repeat_interleave(repeat, 0) for each in (key, value))
            scores = query @ key.transpose(1, 2) / query.shape[-1] ** 0.5
            hidden = torch.ones(scores.shape[1:], device=scores.device).triu(1 + len(seen) - len(own)).bool()
            output = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value
            (output * self._weights[0, :, own]).sum().backward()
            outputs.append(output.detach())
        return [torch.cat(outputs, 1)[None], *(tensor.grad for tensor in inputs if tensor.grad is not None)]


def kernels(scale: Scale, work: Callable[[], Any]) -> tuple[set[str], int]:
    """Which passes ran in fused kernels, and how many operators ran that write all scores to memory."""
    activities = [ProfilerActivity.CPU, *scale.pick([], [ProfilerActivity.CUDA])]
    with profile(activities=activities) as profiler:
        work()
    events = [event for event in profiler.key_averages() if event.key.startswith("aten::")]
    fused = [event.key for event in events if any(name in event.key for name in FUSED)]
    unfused = sum(event.count for event in events if any(name in event.key for name in UNFUSED))
    return {"backward" if "backward" in name else "forward" for name in fused}, unfused


def attention(scale: Scale, report: Report) -> None:
    layers = {name: Attention(scale, make_rows(scale, *lengths, 512)) for name, lengths in cases(scale).items()}
    report("error", *worst({name: error(layer) for name, layer in layers.items()}, max))
    found = [kernels(scale, partial(layer.backward, layer.packed)) for layer in layers.values()]
    fused = set.intersection(*(passes for passes, _ in found))
    report("fused", len(fused), ", ".join(sorted(fused)))
    report("math", sum(count for _, count in found), "")
    for key, measure in (("memory", peak_bytes), ("speed", seconds)):
        values = {}
        for name, layer in layers.items():
            ours, theirs = (measure(scale, partial(layer.backward, form)) for form in (layer.packed, layer.separate))
            values[name] = ours / max(theirs, 1) if key == "memory" else theirs / ours
        report(key, *worst(values, max if key == "memory" else min))


def error(layer: Attention) -> float:
    """How many times as far from float64 packed rows are as separate ones: outputs or gradients, which is more."""
    exact = layer.exact()
    ours, theirs = (
        [float((a.double() - b).norm()) for a, b in zip(layer.results(form), exact, strict=True)]
        for form in (layer.packed, layer.separate)
    )
    return max(a / b for a, b in zip(ours, theirs, strict=True))


def worst(values: dict[str, float], of: Callable[..., float]) -> tuple[float, str]:
    """The worst of some values, and all of them in words."""
    return of(values.values()), ", ".join(f"{name}: {value:.2f}" for name, value in values.items())


def log_probs(scale: Scale, report: Report) -> None:
    prompt, completions = cases(scale)["P 1k, C 512"]
    config = policy_config(scale)
    rows = make_rows(scale, prompt, completions, config.vocab_size)
    packed, model = rows.packed, random_model(scale, config).eval()
    packed_passes.prepare(model)
    add_fused_lm_head(model)

    def separate(size: int) -> Tensor:
        """Log-probabilities of the completions' tokens, of so many rows at a time."""
        found = []
        for some in packed.tokens[0][rows.separate].split(size):
            labels = packed.labels[0].view(len(completions), -1)[len(found) :][: len(some)]
            targets = torch.full_like(some, -100)
            targets[:, prompt - 1 :] = labels
            found += model(input_ids=some, shift_labels=targets, fused_lm_head=True).log_probs[:, prompt - 1 :]
        return torch.cat(found).double()

    with torch.no_grad():
        ours = packed_passes.log_probs(model, packed)[0].double()
        alone, together = separate(1), separate(len(completions))
        model.float()
        true = separate(1)
    errors = [(found - true).abs().mean() for found in (ours, together)]
    report("error", float(errors[0] / errors[1]), f"packed {errors[0]:.1e} nats, separate {errors[1]:.1e}")
    report("noise", float((alone - together).abs().mean()), f"P {prompt}, C {completions[0]}, in the mean")


RUN = {"attention": attention, "log_probs": log_probs}
