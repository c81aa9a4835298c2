"""Updates of a 7B model with an adapter beside TRL's own, and what small updates move."""

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

    def _model(self, variant: str) -> Any:
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


RUN = {"update_1k": partial(update, prompt=1024), "update_4k": partial(update, prompt=4096), "weights": weights}
