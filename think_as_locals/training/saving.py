"""A trained judge as a plain safetensors directory, whatever its weights were spread over."""

from __future__ import annotations

from pathlib import Path

from peft import PeftModel
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer

from think_as_locals.schema import RunConfig


def save_model(trainer: GRPOTrainer, config: RunConfig, base: str, folder: Path) -> None:
    """Write `folder/model`, and where LoRA trained it `folder/adapter` too; all ranks call this together.

    Args:
        trainer: Has trained.
        config: Its run.
        base: The model it began with: what the adapter is merged into, as no rank may hold the weights whole.
        folder: The run's.
    """
    if config.lora is None:
        trainer.save_model(str(folder / "model"))
        return
    trainer.save_model(str(folder / "adapter"))
    if not trainer.accelerator.is_main_process:
        return
    plugin = trainer.accelerator.state.deepspeed_plugin
    if plugin is not None and plugin.zero3_init_flag:
        # This rank loads alone: the weights must not be sharded over all of them.
        with plugin.zero3_init_context_manager(enable=False):
            _merge(trainer, config, base, folder)
    else:
        _merge(trainer, config, base, folder)


def _merge(trainer: GRPOTrainer, config: RunConfig, base: str, folder: Path) -> None:
    weights = AutoModelForCausalLM.from_pretrained(base, revision=config.model.revision, dtype=config.model.dtype)
    PeftModel.from_pretrained(weights, str(folder / "adapter")).merge_and_unload().save_pretrained(folder / "model")
    trainer.processing_class.save_pretrained(folder / "model")
