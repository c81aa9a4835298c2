"""Engines that hold a model in this process, by the name of their backend."""

from __future__ import annotations

from collections.abc import Mapping
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
) -> Engine:
    """Load a chat model from a directory or the Hub; what other backends need is not imported."""
    common: dict[str, Any] = {"dtype": dtype, "template_kwargs": template_kwargs, "revision": revision}
    if backend == "transformers":
        from think_as_locals.engines.transformers_engine import TransformersEngine

        return TransformersEngine.load(path, batch_size=batch_size, **common)
    if backend == "vllm":
        from think_as_locals.engines.vllm_engine import VLLMEngine

        return VLLMEngine.load(path, **common)
    raise ConfigError(f"no backend {backend!r}; available: transformers, vllm")
