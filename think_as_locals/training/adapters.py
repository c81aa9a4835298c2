"""An adapter's weights merged for an engine, with the base model as it was.

PEFT merges into the base weights and subtracts again afterwards, which leaves a rounding error behind at every weight
sync, large in half precision (huggingface/trl#6688). Here a layer merges into copies and gets its own tensors back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

Gather = Callable[[list[nn.Parameter]], AbstractContextManager[Any]]
"""Makes sharded parameters whole; every rank enters it with the same ones."""


def merged_parameters(model: PeftModel, gather: Gather) -> Iterator[tuple[str, Tensor]]:
    """Every weight of the base model with its adapter merged, under the base model's names, a layer at a time."""
    layers: dict[str, BaseTunerLayer] = {}
    for name, module in model.named_modules():  # outer layers first
        if isinstance(module, BaseTunerLayer) and not any(name.startswith(f"{outer}.") for outer in layers):
            layers[name] = module
    inside = {id(parameter) for layer in layers.values() for parameter in layer.parameters()}
    for name, parameter in model.named_parameters():
        if id(parameter) not in inside and (kept := _base_name(name, model.prefix)):
            with gather([parameter]):
                yield kept, parameter.data
    for place, layer in layers.items():
        with gather(list(layer.parameters())), _merged(layer):
            for name, parameter in layer.named_parameters(prefix=place):
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
    """What the base model calls a parameter; `None` for the adapter's own, and for those another one stands in for."""
    if adapter_prefix in name or "original_module" in name:
        return None
    name = name.removeprefix("base_model.model.").replace(".base_layer", "")
    return name.replace("modules_to_save.default.", "").replace("_checkpoint_wrapped_module.", "")
