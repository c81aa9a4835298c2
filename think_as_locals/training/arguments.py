"""A section of the run's configuration -> TRL's arguments, with what every stage shares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trl import GRPOConfig, RewardConfig, SFTConfig

from think_as_locals.schema import RunConfig, SftSection, TrlSection
from think_as_locals.scpo_schema import ScpoConfig
from think_as_locals.types import ConfigError
from think_as_locals.workers import device_arguments, shards


def trl_arguments(config: RunConfig | ScpoConfig, section: TrlSection, output_dir: Path) -> dict[str, Any]:
    """Keyword arguments for GRPOConfig, SFTConfig or RewardConfig."""
    return {
        "output_dir": str(output_dir),
        "seed": config.seed,
        **device_arguments(),
        "bf16": config.model.dtype == "bfloat16",
        "disable_tqdm": True,  # the live view shows progress
        "save_strategy": "steps",
        "report_to": [],
        "project": "think-as-locals",  # how trackers call it: trackio, and as WANDB_PROJECT says W&B
        "run_name": config.run.name,
        "model_init_kwargs": {
            "dtype": _weights_dtype(config, section),
            "attn_implementation": config.model.attn_implementation,
            "revision": config.model.revision,
        },
        **section.model_dump(exclude=set(section.OURS)),
    }


def _weights_dtype(config: RunConfig | ScpoConfig, section: TrlSection) -> str:
    """What trained weights are held in; computed is in `model.dtype` all the same, by autocast.

    An update of 1e-6 is less than half of the last digit that bfloat16 has for nearly every weight: rounded away, the
    policy would stand still. DeepSpeed and FSDP have float32 copies, PEFT's adapters are float32.
    """
    adapter = config.lora is not None and not isinstance(section, SftSection)
    if config.model.dtype == "bfloat16" and not adapter and not shards():
        return "float32"
    return config.model.dtype


def check_arguments(config: RunConfig | ScpoConfig) -> None:
    """Have TRL look at all that it will be told, before a run has a folder or trains its first stage.

    What fits depends on the number of processes, so these have to have joined.

    Raises:
        ConfigError: TRL does not take it.
    """
    kinds = {"grpo": GRPOConfig, "sft": SFTConfig, "scpo": RewardConfig, "global_rm": RewardConfig}
    faults = []
    for name, kind in kinds.items():
        if (section := getattr(config, name, None)) is not None:
            try:
                kind(**trl_arguments(config, section, Path(config.run.dir)))  # it makes no folder
            except (ValueError, TypeError, ImportError) as error:
                faults.append(f"\n  - {name}.*: {error}")
    if faults:
        raise ConfigError(f"TRL does not take this configuration:{''.join(faults)}")
