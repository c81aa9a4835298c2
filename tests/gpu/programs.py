"""Whole programs as a person starts them: doctor, the quick start, ways to shard, SCPO over many legs."""

from __future__ import annotations

import gc
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from gpu.checks import Report, Scale
from gpu.models import run_program
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, DebertaV2Config, LlamaConfig

from think_as_locals.config.checks import load_config
from think_as_locals.config.compose import find_launch, read_launch
from think_as_locals.config.scpo_schema import ScpoConfig
from think_as_locals.data import read
from think_as_locals.machine.doctor import examine
from think_as_locals.reward_models.scratch import train_tokenizer
from think_as_locals.run import start
from think_as_locals.scpo.trainer import VariantTrainer

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
MODELS = {"deberta": "deberta_v3_rm", "llama": "tulu3_8b_rm"}


def machine(scale: Scale, report: Report) -> None:
    findings = examine(None, read_launch(find_launch("single")))
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


def make_reward_model(scale: Scale, shape: str, folder: Path, config: ScpoConfig) -> None:
    """A scalar reward model of random weights in the shape of a published one."""
    texts = [text for item in read(config.data, 0) for text in (item.prompt, *item.responses)]
    tokenizer = train_tokenizer(texts, 400, 0)
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "num_labels": 1}
    small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2}
    if shape == "deberta":  # deberta-v3-base
        positions = {"relative_attention": True, "position_buckets": 256, "pos_att_type": ["p2c", "c2p"]}
        shape_of = {"vocab_size": scale.pick(len(tokenizer), 128_100), "norm_rel_ebd": "layer_norm", **positions}
        base = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
        architecture: Any = DebertaV2Config(**ids, **shape_of, **scale.pick(small, base))
    else:  # Llama 3.1 8B, two of its 32 layers
        wide = {"hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 2, "num_attention_heads": 32}
        shape_of = {"vocab_size": scale.pick(len(tokenizer), 128_256), "num_key_value_heads": scale.pick(1, 8)}
        architecture = LlamaConfig(**ids, **shape_of, **scale.pick(small, wide))
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(architecture, dtype=torch.float32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def legs(scale: Scale, report: Report, shape: str) -> None:
    """Ten countries after one another, and what is allocated when each is done."""
    folder = scale.folder / f"rm-{shape}"
    words = [f"model={MODELS[shape]}", f"model.path={folder}", "model.revision=null", "model.requires_gpu=false"]
    words += ["global_rm=none", "scpo.variants=[full]", "scpo.seeds=[0]", "scpo.max_steps=2", "scpo.keep_models=[]"]
    words += ["data.groups=[street_snack]", "scpo.batch_size=4", "scpo.per_device_train_batch_size=4"]
    words += ["eval.bootstrap_samples=200", f"run.dir={scale.folder}", f"run.name=scpo-{shape}"]
    if shape == "llama":
        words += ["lora=rank16", f"model.dtype={scale.pick('float32', 'bfloat16')}"]
    recipe = "recipes/scpo_quickstart.yaml"
    config = load_config(recipe, words)
    assert isinstance(config, ScpoConfig)
    make_reward_model(scale, shape, folder, config)
    allocated: list[float] = []
    train_variant = VariantTrainer.train_variant

    def measured(trainer: VariantTrainer, *arguments: Any) -> Any:
        gc.collect()
        now = psutil.Process().memory_info().rss if scale.toy else torch.cuda.memory_allocated()
        allocated.append(now / 1e6)
        return train_variant(trainer, *arguments)

    VariantTrainer.train_variant = measured  # type: ignore[method-assign]
    start(recipe, words)
    report("legs", len(allocated), shape)
    growth = allocated[-1] - allocated[1]
    report(
        "flat", 100 * growth / allocated[1], f"{allocated[1]:,.0f} MB before the second leg, {growth:+,.0f} MB since"
    )


RUN = {
    "machine": machine,
    "quick_start": quick_start,
    **{way: partial(sharded, way=way) for way in ("ddp", "zero2", "zero3", "fsdp2")},
    **{f"scpo_{shape}": partial(legs, shape=shape) for shape in ("deberta", "llama")},
}
