"""The processes of a launch: their launcher's settings, and how they join.

Settings of `accelerate launch` that some library would silently ignore end the run here, before weights are loaded.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from think_as_locals.config.launch import Launch, read_launch, zero_settings
from think_as_locals.config.model_schema import TrainingConfig
from think_as_locals.config.scpo_schema import ScpoConfig
from think_as_locals.runtime.gpus import num_gpus
from think_as_locals.types import PreflightError

_MIXED_PRECISION = {"float32": "no", "bfloat16": "bf16"}
_AFTER_SERVER_S = 60.0  # ranks wait this much longer for the main process than it waits for the vLLM server


def apply_launch(name: str | None) -> str | None:
    """Apply the sharding of a launch file if the launcher configured none; return a line about the launch, or `None`.

    Every rank calls this before accelerate's state exists, which reads these environment variables.
    """
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if name is None:
        return None
    launch = read_launch(name)
    if started == 1:
        several = f"launch: one process; run.launch={name} has {launch.processes}, and as many times the rows a step"
        return several if launch.processes > 1 else None
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    configured = "DeepSpeed" if uses_deepspeed() else "FSDP" if shards() else precision
    if configured != "no":
        return f"launch: {started} processes, as the launcher says ({configured}); run.launch={name} is not needed"
    os.environ.update(launch.variables)
    sharding = f"{launch.kind} stage {launch.zero_stage}" if launch.zero_stage else launch.kind
    return f"launch: {started} processes, without settings from the launcher; run.launch={name}: {sharding}"


def current_launch() -> Launch:
    """Return the launch that this process belongs to, according to its environment."""
    environment = os.environ
    processes = int(environment.get("WORLD_SIZE", "1"))
    if uses_deepspeed():
        own = zero_settings(environment.get("ACCELERATE_DEEPSPEED_CONFIG_FILE"))
        kind, stage = "DEEPSPEED", int(own.get("stage", environment.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", 2)))
    else:
        kind, stage = ("FSDP", 3) if shards() else ("MULTI_GPU" if processes > 1 else "NO", 0)
    return Launch(kind, stage, processes, max(1, processes // int(environment.get("LOCAL_WORLD_SIZE", processes))))


def launch_faults(config: TrainingConfig) -> list[str]:
    """Return the settings of this launch that would silently have no effect, a sentence each."""
    environment, dtype, gpus, faults = os.environ, config.model.dtype, num_gpus(), list[str]()
    if "WORLD_SIZE" not in environment:
        if "ACCELERATE_DYNAMO_BACKEND" in environment and "MASTER_PORT" in environment:
            faults.append(
                "several processes: accelerate was asked for them and started one; add --multi_gpu (without a GPU as "
                "well), or give a --config_file from launch/ (for one process: unset MASTER_PORT)"
            )
        if gpus > 1:
            faults.append(
                f"a process for each GPU: this one sees {gpus}, and would split the model over them layer by layer; "
                f"start `tal launch RECIPE --num_processes {gpus} ...`, or set CUDA_VISIBLE_DEVICES=0 to use one"
            )
    precision = environment.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision not in ("no", _MIXED_PRECISION[dtype]):
        faults.append(
            f"one precision: the launch says {precision}, model.dtype {dtype}; launch with "
            f"--mixed_precision {_MIXED_PRECISION[dtype]}, or change model.dtype"
        )
    deepspeed, fsdp = uses_deepspeed(), _is_on("ACCELERATE_USE_FSDP")
    if fsdp and environment.get("FSDP_STATE_DICT_TYPE") != "FULL_STATE_DICT":
        faults.append("a saved model: FSDP saves one only with fsdp_state_dict_type: FULL_STATE_DICT")
    if fsdp and not isinstance(config, ScpoConfig) and config.rollout.backend == "transformers":
        faults.append("a sampler: FSDP's ranks cannot sample with rollout=transformers, they wait for one another")
    if gpus and (here := int(environment.get("LOCAL_WORLD_SIZE", "1"))) > gpus:
        faults.append(f"{here} GPUs: {here} processes were started here, torch sees {gpus}; set --num_processes")
    elif fsdp and not gpus:
        faults.append("a GPU: FSDP shards nothing without; launch with --config_file launch/cpu_zero3.yaml")
    elif deepspeed and not gpus and dtype != "float32":
        faults.append(f"a GPU: DeepSpeed without one needs model.dtype=float32, got {dtype}")
    return [*faults, *(_zero3_faults() if deepspeed else [])]


def _zero3_faults() -> list[str]:
    """Return a fault if ZeRO-3 would not save the model."""
    if current_launch().zero_stage != 3:
        return []
    file, key = os.environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE"), "stage3_gather_16bit_weights_on_model_save"
    saves, setting = (own := zero_settings(file)).get(key), f"{key} in {file}"
    if not own or saves == "auto":  # accelerate says it
        saves = _is_on("ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL")
        setting = "zero3_save_16bit_model in the launch configuration"
    return [] if saves else [f"ZeRO-3 would save no model.safetensors: set {setting} to true"]


def device_arguments() -> dict[str, Any]:
    """Return transformers' arguments for this machine; under DeepSpeed `use_cpu` would turn it off."""
    import torch

    if torch.cuda.is_available():
        return {"use_cpu": False}
    if uses_deepspeed():
        return {"use_cpu": False, "ddp_backend": "gloo", "dataloader_pin_memory": False}
    return {"use_cpu": True}


def join() -> None:
    """Join the other processes of this launch; raise a PreflightError if some are missing, or DeepSpeed is."""
    arguments = device_arguments()
    if uses_deepspeed() and not num_gpus():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        import deepspeed

        # This operator would have to be compiled first, and spins while processes wait for one another.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    from accelerate import PartialState
    from accelerate.utils import DistributedType

    state = PartialState(cpu=arguments["use_cpu"], backend=arguments.get("ddp_backend"))
    launched = int(os.environ["WORLD_SIZE"])
    if state.num_processes != launched:
        raise PreflightError(f"{launched} processes were launched, {state.num_processes} found one another")
    if uses_deepspeed() and state.distributed_type != DistributedType.DEEPSPEED:
        raise PreflightError(f"DeepSpeed was launched, accelerate made it {state.distributed_type.value}")


def set_rank_timeout(config: TrainingConfig) -> None:
    """Set how long a rank waits for the others in a collective; every rank calls this after `join`."""
    # transformers' `ddp_timeout` has no effect on a group that is open: NCCL's ten minutes are too short for vLLM.
    from torch.distributed import group

    if group.WORLD is not None:  # `None` for a single process
        group.WORLD.set_timeout(timedelta(seconds=rank_timeout_s(config)))


def rank_timeout_s(config: TrainingConfig) -> float:
    """Return the seconds that a rank waits for the others: until the main process has reported a failing server."""
    if isinstance(config, ScpoConfig):
        return config.scpo.ddp_timeout
    if config.rollout.backend != "vllm_server":
        return config.grpo.ddp_timeout
    return max(config.grpo.ddp_timeout, config.rollout.timeout_s + _AFTER_SERVER_S)


def uses_deepspeed() -> bool:
    """Return whether the launch asks for DeepSpeed."""
    return _is_on("ACCELERATE_USE_DEEPSPEED")


def shards() -> bool:
    """Return whether the launch asks for DeepSpeed or FSDP, which keep float32 copies of half-precision weights."""
    return uses_deepspeed() or _is_on("ACCELERATE_USE_FSDP")


def _is_on(name: str) -> bool:
    return os.environ.get(name, "").lower() in ("1", "true", "yes")
