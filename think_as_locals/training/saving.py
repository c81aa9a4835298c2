"""A trained judge as a plain safetensors directory, whatever its weights were spread over."""

from __future__ import annotations

from pathlib import Path

from peft import PeftModel
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer

from think_as_locals.schema import RunConfig


def save_model(trainer: GRPOTrainer, config: RunConfig, base: str, adapter: Path, folder: str) -> None:
    """Write the judge into a folder; all ranks call this together.

    Args:
        trainer: Has trained it.
        config: Its run.
        base: The model it began with.
        adapter: Where LoRA's adapter goes by itself, where the run has one; the folder gets it merged into the base.
        folder: Where the judge goes.
    """
    if config.lora is None:
        trainer.save_model(folder)
        return
    trainer.save_model(str(adapter))
    if not trainer.accelerator.is_main_process:
        return
    plugin = trainer.accelerator.state.deepspeed_plugin
    if plugin is None:
        _merge(config, base, adapter, folder)
    else:  # this rank loads the base alone: ZeRO-3 must not shard it over all of them
        with plugin.zero3_init_context_manager(enable=False):
            _merge(config, base, adapter, folder)
    trainer.processing_class.save_pretrained(folder)


def _merge(config: RunConfig, base: str, adapter: Path, folder: str) -> None:
    """The adapter's file has all that was trained: no rank need hold the policy's weights whole."""
    weights = AutoModelForCausalLM.from_pretrained(base, revision=config.model.revision, dtype=config.model.dtype)
    PeftModel.from_pretrained(weights, str(adapter)).merge_and_unload().save_pretrained(folder)
