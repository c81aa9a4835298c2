"""An adapter for an engine: by itself if the engine can apply it, else merged; the base weights never change.

PEFT merges into the base weights and subtracts again, which leaves a rounding error behind at every sync
(huggingface/trl#6688). Here the sum of a weight and its adapter's change is a tensor of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from peft import PeftModel, get_peft_model_state_dict
from peft.tuners import lora
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from think_as_locals.engines.vllm_engine import AdapterLimits

Gather = Callable[[list[nn.Parameter]], AbstractContextManager[Any]]
"""A context in which sharded parameters are whole; every rank enters it with the same ones."""


def lora_unsupported_reason(model: PeftModel, limits: AdapterLimits | None = None) -> str | None:
    """Return why vLLM, which takes plain LoRA on linear layers, cannot apply this adapter, or `None`."""
    rank = model.active_peft_config.r
    layers = {name: module for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)}
    for name, layer in layers.items():
        if type(layer) is not lora.Linear or layer is model.get_output_embeddings():
            kind = type(layer.get_base_layer()).__name__
            return f"it adapts {name} ({kind}), expected linear layers below the LM head"
    if limits and rank > limits["rank"]:
        more = f"(a server: --enable-lora --max-lora-rank {rank} or more)"
        return f"its rank is {rank}, the engine was started for ranks up to {limits['rank']} {more}"
    unknown = {name.rpartition(".")[2] for name in layers}.difference(limits["modules"]) if limits else ()
    return f"the engine has no layers {', '.join(sorted(unknown))}" if unknown else None


def adapter_tensors(model: PeftModel, gather: Gather) -> dict[str, Tensor]:
    """Return the adapter's own tensors on the CPU, under the names by which PEFT saves them."""
    own = {name: parameter for name, parameter in model.named_parameters() if model.prefix in name}
    with gather(list(own.values())):
        copies = {name: parameter.detach().to("cpu", copy=True).contiguous() for name, parameter in own.items()}
    tensors: dict[str, Tensor] = get_peft_model_state_dict(model, copies, save_embedding_layers=False)
    return tensors


def applied_tensors(model: PeftModel, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Return an adapter's tensors as vLLM applies them: in the engine's type, with B scaled."""
    scaling = model.active_peft_config.lora_alpha / model.active_peft_config.r
    cast = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    return {name: tensor * scaling if ".lora_B." in name else tensor for name, tensor in cast.items()}


def save_adapter(model: PeftModel, tensors: Mapping[str, Tensor], folder: str) -> None:
    """Write an adapter into a folder, as PEFT and vLLM load it."""
    safetensors.torch.save_file(dict(tensors), Path(folder, SAFETENSORS_WEIGHTS_NAME), metadata={"format": "pt"})
    model.active_peft_config.save_pretrained(folder)


def base_parameters(model: PeftModel, gather: Gather, *, merged: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight of the base model under its name there, without the adapter or with it merged."""
    layers: list[Any] = [each for each in model.modules() if isinstance(each, BaseTunerLayer)] if merged else []
    adapted = {}
    for each in layers:
        weight = each.get_param() if isinstance(each, lora.ParamWrapper) else each.get_base_layer().weight
        adapted[id(weight)] = each
    for name, parameter in model.named_parameters():
        if model.prefix in name:
            continue
        layer: Any = adapted.get(id(parameter))
        with gather([parameter] if layer is None else list(layer.parameters())):
            weight = parameter.data
            if layer is not None:
                weight = (weight + layer.get_delta_weight(model.active_adapter).detach()).to(weight.dtype)
            whole = weight.full_tensor() if isinstance(weight, DTensor) else weight  # of FSDP2's shards
            yield name.removeprefix("base_model.model.").replace(".base_layer", ""), whole
