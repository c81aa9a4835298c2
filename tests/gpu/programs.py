"""Complete programs from the command line: doctor, the quick start, ways to shard."""

from __future__ import annotations

import json
import shutil
from functools import partial

import torch
from gpu.checks import Report, Scale, run_program
from safetensors.torch import load_file

from think_as_locals.config.launch import read_launch
from think_as_locals.machine.doctor import examine

QUICK = [  # a judge that need not be good
    "data.groups=[idiom_heavy_rain,gift_taboo]",
    "data.sets_per_group=12",
    "model.scratch.num_hidden_layers=2",
    "sft.max_steps=2",
    "sft.warmup_steps=0",
    "grpo.max_completion_length=32",
    "grpo.per_device_train_batch_size=16",
    "grpo.save_steps=1",
    "eval.every_steps=1",
    "eval.max_items=4",
    "eval.bootstrap_samples=200",
]


def machine(scale: Scale, report: Report) -> None:
    findings = examine(None, read_launch("single"))
    faults = [finding.found for finding in findings if finding.fault]
    shown = [finding.found for finding in findings if finding.what in ("versions", "GPU")]
    report("faults", len(faults), "; ".join(faults or shown))


def quick_start(scale: Scale, report: Report) -> None:
    words = [*scale.pick([*QUICK, "grpo.max_steps=2"], []), f"run.dir={scale.folder}", "run.name=quickstart"]
    run_program(["-m", "think_as_locals", "run", "recipes/quickstart.yaml", *words], 240)
    run = scale.folder / "quickstart"
    there = [run / "report.html", run / "model" / "model.safetensors", run / "model" / "tal_judge.json"]
    report("done", sum(path.is_file() for path in there), ", ".join(path.name for path in there))
    accuracies = {
        int(path.stem.partition("-")[2]): json.loads(path.read_text())["accuracy"]
        for path in (run / "carb").glob("step-*.json")
    }
    first, last = (100 * accuracies[step] for step in (0, max(accuracies)))
    report("gain", last - first, f"Best-of-4: {first:.1f} % before GRPO, {last:.1f} % after")


def sharded(scale: Scale, report: Report, way: str) -> None:
    """Two steps of one rank under a file of launch/, and the same from the checkpoint after the first."""
    name = f"{scale.pick('cpu', 'gpu8')}_{way}"
    engine = "vllm_colocate" if way == "fsdp2" else "transformers"  # FSDP's ranks cannot sample by themselves
    dtype = scale.pick("float32", "bfloat16")
    overrides = [*QUICK, "grpo.max_steps=2", f"model.dtype={dtype}", f"rollout={engine}", f"run.dir={scale.folder}"]
    launched = ["-m", "accelerate.commands.launch", "--config_file", f"launch/{name}.yaml"]
    launched += ["--num_processes", "1", "recipes/quickstart.yaml", *overrides]
    launched += [f"run.name={name}", "run.resume=auto"]
    run = scale.folder / name
    run_program(launched, 120)
    expected = ["carb/step-0.json", "carb/step-2.json", "checkpoints/step-1", "model/model.safetensors"]
    workers = json.loads((run / "workers.json").read_text())
    engaged = f"{workers['kind']}, ZeRO stage {workers['zero_stage']}, on {workers['device']}"
    report("steps", sum((run / path).exists() for path in expected), engaged)
    whole = load_file(run / "model" / "model.safetensors")
    wanted = getattr(torch, dtype)
    report("dtype", sum(tensor.dtype == wanted for tensor in whole.values()) / len(whole), dtype)
    shutil.rmtree(run / "model")  # as after a kill behind the first step
    for path in (run / "carb").glob("step-2.*"):
        path.unlink()
    run_program(launched, 120)
    start, resumed = (load_file(run / path / "model.safetensors") for path in ("cold_start/model", "model"))
    report("resume", distance(resumed, whole) / distance(whole, start), "of the way from the cold start")


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return sum(float((tensor.float() - other[name].float()).norm()) ** 2 for name, tensor in one.items()) ** 0.5


RUN = {
    "machine": machine,
    "quick_start": quick_start,
    **{way: partial(sharded, way=way) for way in ("ddp", "zero2", "zero3", "fsdp2")},
}
