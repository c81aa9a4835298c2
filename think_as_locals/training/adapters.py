"""An adapter for an engine: by itself if the engine can apply it, else merged; the base weights never change.

PEFT merges into the base weights and subtracts again, which leaves a rounding error behind at every sync
(huggingface/trl#6688). Here a layer merges into copies and its own tensors are restored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from peft import LoraConfig, PeftModel, get_peft_model_state_dict
from peft.tuners import lora
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from torch import Tensor, nn

from think_as_locals.engines.vllm_engine import AdapterLimits

Gather = Callable[[list[nn.Parameter]], AbstractContextManager[Any]]
"""A context in which sharded parameters are whole; every rank enters it with the same ones."""

# Fields of PEFT's configuration that vLLM reads or that do not affect the weights. vLLM silently ignores some others
# (alpha_pattern), and some initialisations (PiSSA) change the base weights.
_UNDERSTOOD = {
    *("r", "lora_alpha", "use_rslora", "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),
    *("lora_dropout", "peft_type", "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision"),
    "inference_mode",
}


def lora_unsupported_reason(model: PeftModel, limits: AdapterLimits | None = None) -> str | None:
    """Return why vLLM, which takes plain LoRA on linear layers, cannot apply this adapter, or `None`."""
    config, plain = model.active_peft_config, LoraConfig()
    if not isinstance(config, LoraConfig):
        return f"vLLM knows no adapter of type {config.peft_type.value}"
    settings = {field.name: getattr(config, field.name) for field in fields(config) if field.name not in _UNDERSTOOD}
    if odd := [f"{name}={value!r}" for name, value in settings.items() if value != getattr(plain, name)]:
        return f"vLLM knows no adapter with {', '.join(odd)}"
    layers = {name: module for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)}
    for name, layer in layers.items():
        if type(layer) is not lora.Linear or layer is model.get_output_embeddings():
            kind = type(layer.get_base_layer()).__name__
            return f"it adapts {name} ({kind}), expected linear layers below the LM head"
    if limits and config.r > limits["rank"]:
        more = f"(a server: --enable-lora --max-lora-rank {config.r} or more)"
        return f"its rank is {config.r}, the engine was started for ranks up to {limits['rank']} {more}"
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
    config = model.active_peft_config
    scaling = config.lora_alpha / (math.sqrt(config.r) if config.use_rslora else config.r)
    cast = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    return {name: tensor * scaling if ".lora_B." in name else tensor for name, tensor in cast.items()}


def save_adapter(model: PeftModel, tensors: Mapping[str, Tensor], folder: str) -> None:
    """Write an adapter into a folder, as PEFT and vLLM load it."""
    safetensors.torch.save_file(dict(tensors), Path(folder, SAFETENSORS_WEIGHTS_NAME), metadata={"format": "pt"})
    model.active_peft_config.save_pretrained(folder)


def base_parameters(model: PeftModel, gather: Gather, without: Collection[int] = ()) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight of the base model without the adapter, except those with the given `id`s."""
    for name, parameter in model.named_parameters():
        if id(parameter) not in without and (kept := _base_name(name, model.prefix)):
            with gather([parameter]):
                yield kept, parameter.data


def merged_parameters(model: PeftModel, gather: Gather) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight of the base model with its adapter merged, layer by layer, under the base model's names."""
    layers: dict[str, BaseTunerLayer] = {}
    for name, module in model.named_modules():  # outer layers first
        if isinstance(module, BaseTunerLayer) and not any(name.startswith(f"{outer}.") for outer in layers):
            layers[name] = module
    inside = {id(parameter) for layer in layers.values() for parameter in layer.parameters()}
    yield from base_parameters(model, gather, inside)
    for layer_name, layer in layers.items():
        with gather(list(layer.parameters())), _merged(layer):
            for name, parameter in layer.named_parameters(prefix=layer_name):
                if kept := _base_name(name, model.prefix):
                    yield kept, parameter.data


@contextmanager
def _merged(layer: BaseTunerLayer) -> Iterator[None]:
    own = [(parameter, parameter.data) for parameter in layer.parameters()]
    nested = [module for module in layer.modules() if isinstance(module, BaseTunerLayer)]
    for parameter, data in own:
        parameter.data = data.clone()
    try:
        for module in nested:
            module.merge()
        yield
    finally:
        for module in nested:
            module.unmerge()
        for parameter, data in own:
            parameter.data = data


def _base_name(name: str, adapter_prefix: str) -> str | None:
    """Return a parameter's name in the base model; `None` for the adapter's own and for those it replaces."""
    if adapter_prefix in name or "original_module" in name:
        return None
    name = name.removeprefix("base_model.model.").replace(".base_layer", "")
    return name.replace("modules_to_save.default.", "").replace("_checkpoint_wrapped_module.", "")
