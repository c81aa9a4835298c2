"""Launch files: accelerate's configurations, those of launch/ and a user's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from think_as_locals.config.compose import ASSETS, nearest, reason
from think_as_locals.types import ConfigError, shown


@dataclass(frozen=True, slots=True)
class Launch:
    """An accelerate configuration."""

    kind: str  # as accelerate calls it: NO, MULTI_GPU, DEEPSPEED, FSDP
    zero_stage: int  # DeepSpeed's; 3 for FSDP2, which shards the same; 0 for none
    processes: int  # on all machines
    machines: int = 1
    name: str = ""  # of its file
    variables: Mapping[str, str] = field(default_factory=dict)  # of the environment: what it tells each process


def find_launch(name: str | Path | None) -> Path:
    """Return the path of an accelerate configuration: one of launch/ by its name, a file, or the default."""
    name = "single" if name is None else name  # a recipe that names none has one process
    known = sorted(path.stem for path in (ASSETS / "launch").glob("*.yaml"))
    path = ASSETS / "launch" / f"{name}.yaml" if str(name) in known else Path(name).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"no launch file {shown(name)}{nearest(name, known)}; available: {', '.join(known)}, or a file"
        )
    return path.resolve()


def read_launch(name: str | Path | None) -> Launch:
    """Read an accelerate configuration, found as by `find_launch`."""
    path = find_launch(name)
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read as an accelerate configuration: {reason(error)}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected an accelerate configuration, a mapping, got {type(values).__name__}")
    kind = str(values.get("distributed_type", "NO"))
    deepspeed = values.get("deepspeed_config") or {}
    own = zero_settings(deepspeed.get("deepspeed_config_file"))
    stages = {"DEEPSPEED": own.get("stage", deepspeed.get("zero_stage", 0)), "FSDP": 3}
    processes, machines = int(values.get("num_processes", 1)), int(values.get("num_machines", 1))
    return Launch(kind, int(stages.get(kind, 0)), processes, machines, path.stem, _variables(kind, values))


def zero_settings(file: str | None) -> dict[str, Any]:
    """Return the section about ZeRO of a DeepSpeed file, if there is one, without a stage that accelerate fills in."""
    if file in (None, "none"):
        return {}
    try:
        settings = json.loads(Path(str(file)).read_text(encoding="utf-8")).get("zero_optimization", {})
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read as a DeepSpeed configuration: {reason(error)}") from error
    return {name: value for name, value in settings.items() if (name, value) != ("stage", "auto")}


# Keys of `deepspeed_config` and the variables by which accelerate passes them on.
_DEEPSPEED = {
    "zero_stage": "DEEPSPEED_ZERO_STAGE",
    "zero3_init_flag": "DEEPSPEED_ZERO3_INIT",
    "zero3_save_16bit_model": "DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
    "offload_optimizer_device": "DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
    "offload_param_device": "DEEPSPEED_OFFLOAD_PARAM_DEVICE",
    "deepspeed_config_file": "DEEPSPEED_CONFIG_FILE",
    "gradient_clipping": "GRADIENT_CLIPPING",
}


def _variables(kind: str, values: Mapping[str, Any]) -> dict[str, str]:
    """Return what `accelerate launch` puts into the environment of each process for a configuration."""
    found = {"ACCELERATE_MIXED_PRECISION": values.get("mixed_precision", "no")}
    if kind == "DEEPSPEED":
        given = values.get("deepspeed_config") or {}
        found |= {f"ACCELERATE_{name}": given[key] for key, name in _DEEPSPEED.items() if key in given}
        found["ACCELERATE_USE_DEEPSPEED"] = True
    elif kind == "FSDP":
        own = values.get("fsdp_config") or {}
        found |= {key.upper(): value for key, value in own.items() if key.startswith("fsdp_")}
        found["ACCELERATE_USE_FSDP"] = True
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in found.items()}
