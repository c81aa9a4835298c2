"""Engines that hold a model in this process, by the name of their backend."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from think_as_locals.engines.engine import Engine
from think_as_locals.types import ConfigError

Backend = Literal["transformers", "vllm"]


def load_engine(
    path: str,
    backend: Backend,
    *,
    dtype: str,
    template_kwargs: Mapping[str, Any],
    batch_size: int,
    revision: str | None = None,
    vllm: Mapping[str, Any] = MappingProxyType({}),
) -> Engine:
    """Load a chat model from a directory or the Hub; what other backends need is not imported.

    `vllm` has options by their names in conf/rm/shared/vllm.yaml; a ConfigError with another backend.
    """
    common: dict[str, Any] = {"dtype": dtype, "template_kwargs": template_kwargs, "revision": revision}
    if vllm and backend != "vllm":
        raise ConfigError(f"{', '.join(vllm)}: got with backend={backend}, but only vllm reads them")
    if backend == "transformers":
        from think_as_locals.engines.transformers_engine import TransformersEngine

        return TransformersEngine.load(path, batch_size=batch_size, **common)
    if backend == "vllm":
        from think_as_locals.engines.vllm_engine import VLLMEngine

        return VLLMEngine.load(path, **common, **vllm)
    raise ConfigError(f"no backend {backend!r}; available: transformers, vllm")
