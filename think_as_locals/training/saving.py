"""A trained model as a plain safetensors directory, whatever its weights were spread over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import Trainer
from transformers.integrations import deepspeed

from think_as_locals.schema import ModelSection
from think_as_locals.workers import shards


def save_model(
    trainer: Trainer, base: str, settings: ModelSection, adapter: Path | None, folder: str, kind: Any
) -> None:
    """Write what was trained into a folder, in the type that its run says; all ranks call this together.

    Args:
        trainer: Has trained it, and trains no more.
        base: The model it began with.
        settings: The `model` section of its run.
        adapter: Where LoRA's adapter goes by itself (the folder gets it merged into the base); `None` where all weights
            were trained.
        folder: Where it goes.
        kind: The `AutoModelFor...` that it is.
    """
    if adapter is None:
        if not shards():
            trainer.model.to(getattr(torch, settings.dtype))  # it may have learnt in float32
        trainer.save_model(folder)
        return
    trainer.save_model(str(adapter))
    if not trainer.accelerator.is_main_process:
        return
    with unsharded():  # this rank loads the base alone
        weights = kind.from_pretrained(base, revision=settings.revision, dtype=settings.dtype)
        # The adapter's file has all that was trained: no rank need hold the policy's weights whole.
        PeftModel.from_pretrained(weights, str(adapter)).merge_and_unload().save_pretrained(folder)
    trainer.processing_class.save_pretrained(folder)


@contextmanager
def unsharded() -> Iterator[None]:
    """Models load whole, also under ZeRO-3, where loading waits for all ranks: transformers asks this one reference."""
    held = deepspeed._hf_deepspeed_config_weak_ref
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = held
