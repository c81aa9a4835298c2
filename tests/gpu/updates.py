"""Updates of a 7B model with an adapter beside TRL's own and the estimates of memory, and what small updates move."""

from __future__ import annotations

from argparse import Namespace
from functools import cached_property, partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from benchmarks.update import Case, UpdateBenchmark, measure
from gpu.checks import Report, Scale
from gpu.models import policy_config, random_model
from peft import LoraConfig
from training.small_grpo import chance, tiny_trainer

from think_as_locals.config.checks import load_recipe
from think_as_locals.config.launch import read_launch
from think_as_locals.config.schema import RunConfig
from think_as_locals.machine import hours, memory

LORA = "lora=rank16"
STEPS = 20
GENERATIONS = 8


class AdapterUpdateBenchmark(UpdateBenchmark):
    """The benchmark's trainers with an adapter of rank 16 on a random 7B model."""

    def __init__(self, scale: Scale, prompt: int, completion: int, variants: tuple[str, ...], folder: Path) -> None:
        self._scale = scale
        self.adapter = LoraConfig(**adapter_section(), task_type="CAUSAL_LM")
        case = Case(f"P {prompt}, C {completion}", (prompt,), (completion,) * 2, 2.0, True, variants=variants)
        sizes = {"shrink": scale.pick(32, 1), "vocabulary": scale.pick(16_384, 152_064)}
        super().__init__(case, Namespace(generations=GENERATIONS, **sizes), folder)

    @cached_property
    def config(self) -> Any:
        """The model's configuration."""
        ids = {"eos_token_id": self.tokenizer.eos_token_id, "pad_token_id": self.tokenizer.pad_token_id}
        return policy_config(self._scale, **ids, vocab_size=self.arguments.vocabulary)

    def _make_model(self) -> None:
        self.config.save_pretrained(self.folder)

    def _model(self) -> Any:
        return random_model(self._scale, self.config, self._scale.pick(torch.float32, torch.bfloat16))


def adapter_section() -> dict[str, Any]:
    config = load_recipe("recipes/quickstart.yaml", [LORA])
    assert config.lora is not None
    return config.lora.model_dump()


def update(scale: Scale, report: Report, prompt: int) -> None:
    bench = AdapterUpdateBenchmark(scale, prompt, 512, ("trl", "shared"), scale.folder / f"update-{prompt}")
    result = measure(bench, scale.pick(1, 3))
    seconds = {name: median(times) for name, times in result["seconds"].items()}
    tokens = bench.prompts[0] + GENERATIONS * bench.completions[0]
    details = f"{seconds['shared']:.2f} s, {tokens / seconds['shared']:,.0f} tokens/s, TRL {seconds['trl']:.2f} s"
    report("speed", result["median"]["shared"], details)
    trainer = bench.trainers["shared"]
    if trainer.unshared_reason:
        raise RuntimeError(f"prefixes were not shared: {trainer.unshared_reason}")
    card, speed = hours.speed_of("" if scale.toy else torch.cuda.get_device_name())
    passes = 2 * (1 + 1 + 1)  # forward, once more for checkpointing, gradients of activations
    operations = passes * sum(parameter.numel() for parameter in trainer.model.parameters()) * tokens
    share = operations / (seconds["shared"] * speed.operations)
    report("mfu", share, f"of the {speed.operations / 1e12:.0f} TFLOP/s of {card}, recomputation counted")


def doctor_memory(scale: Scale, report: Report) -> None:
    bench = AdapterUpdateBenchmark(scale, memory.PROMPT_TOKENS, 512, ("shared",), scale.folder / "doctor")
    trainer = bench.trainers["shared"]
    for _ in range(2):
        bench.update("shared")
        trainer.optimizer.step()
    peak = 0 if scale.toy else torch.cuda.max_memory_allocated()
    config = doctor_config(scale, bench.completions[0])
    parts = memory.estimate(config, read_launch("single"), memory.count(config))
    estimate = sum(parts.values())
    report("peak", abs(100 * (peak / estimate - 1)), f"{peak / 1e9:.2f} GB, doctor says {estimate / 1e9:.2f}")


def doctor_config(scale: Scale, completion: int) -> RunConfig:
    """The run of which doctor estimates the memory."""
    words = [f"model.path={scale.folder / 'doctor'}", f"model.dtype={scale.pick('float32', 'bfloat16')}"]
    words += [LORA, "rollout=transformers", "grpo.beta=0", f"grpo.num_generations={GENERATIONS}"]
    words += ["grpo.cast_lm_head_to_fp32=false"]  # as the benchmark's trainers
    words += [f"grpo.max_completion_length={completion}", f"grpo.per_device_train_batch_size={GENERATIONS}"]
    return load_recipe("recipes/tal_grpo.yaml", words)


def weights(scale: Scale, report: Report) -> None:
    """What 20 steps move in weights that are held in bfloat16, in float32, and by adapters."""
    report("bf16", 100 * train(scale, "bf16", "grpo.learning_rate=1e-6")[0], "")
    moved, sent = train(scale, "fp32", "grpo.learning_rate=1e-6")
    report("fp32", 100 * moved, f"as the engine gets them, in bfloat16: {100 * sent:.1f} %")
    distances = {rate: adapter_distance(scale, rate) for rate in ("1e-6", "1e-5")}
    details = ", ".join(f"{rate}: {distance:.1e}" for rate, distance in distances.items())
    report("lora", distances["1e-5"] / distances["1e-6"], f"|change| / |weights| at {details}")


def small_trainer(scale: Scale, name: str, *overrides: str) -> Any:
    folder = scale.folder / f"weights-{name}"
    folder.mkdir(exist_ok=True)
    words = ["model.dtype=bfloat16", f"grpo.max_steps={STEPS}", "grpo.warmup_steps=0", "grpo.save_steps=1000"]
    return tiny_trainer(folder, *words, *overrides, structure=chance)


def train(scale: Scale, name: str, *overrides: str) -> tuple[float, float]:
    """Shares of the weights that are not what they were: exactly, and once rounded to bfloat16."""
    trainer = small_trainer(scale, name, *overrides)
    if name == "bf16":
        trainer.model.to(torch.bfloat16)
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    trainer.train()
    pairs = [*zip(before, (p.detach() for p in trainer.model.parameters()), strict=True)]
    count = sum(old.numel() for old in before)
    moved = sum(int((old != new).sum()) for old, new in pairs)
    sent = sum(int((old.bfloat16() != new.bfloat16()).sum()) for old, new in pairs)
    return moved / count, sent / count


def adapter_distance(scale: Scale, rate: str) -> float:
    """How far an adapter moves the weights it adapts, relative to their size."""
    trainer = small_trainer(scale, f"lora-{rate}", LORA, f"grpo.learning_rate={rate}")
    trainer.train()
    layers = [module for module in trainer.model.modules() if hasattr(module, "get_delta_weight")]
    change, size = (
        sum(float(tensor.float().norm()) ** 2 for tensor in tensors) ** 0.5
        for tensors in (
            [layer.get_delta_weight("default") for layer in layers],
            [layer.get_base_layer().weight for layer in layers],
        )
    )
    return change / size


RUN = {
    "update_1k": partial(update, prompt=1024),
    "update_4k": partial(update, prompt=4096),
    "doctor_memory": doctor_memory,
    "weights": weights,
}
