"""How much faster than TRL's and transformers' own code SFT and rollouts of a pretrained model are: `make bench`.

Both sides have the same weights, batch and random draws, and alternate after one of each that does not count. SFT is a
forward and backward pass of a micro-batch of the recipe, with LoRA; TRL's SFTTrainer computes logits for every token
where there is no GPU. Rollouts are of two prompts, eight each, as in a GRPO step; `generate` alone computes the prompt
of every row.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, set_seed
from trl import SFTTrainer

from think_as_locals.config.checks import load_recipe
from think_as_locals.data import read
from think_as_locals.engines import Chat
from think_as_locals.engines.transformers_engine import evaluating, neutral_generation, padded
from think_as_locals.judging import render
from think_as_locals.runtime.files import write_json
from think_as_locals.training.checkpoints import Checkpoints
from think_as_locals.training.cold_start import ColdStartTrainer, demonstrate

SETTINGS = [
    *("data=culture_cards", "data.path=null", "data.sets_per_group=4"),
    *("sft.per_device_train_batch_size=8", "sft.max_steps=1"),
]


def least_seconds(ways: dict[str, Callable[[], Any]], repetitions: int) -> dict[str, float]:
    """The least seconds of each way; they take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repetitions + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start)
    return {name: min(each[1:]) for name, each in seconds.items()}


def main() -> None:
    """Measure, print and write both ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=".venv/smollm2-135m", help="folder of a pretrained chat model")
    parser.add_argument("--dtype", default="float32", help="type of its weights")
    parser.add_argument("--repetitions", type=int, default=5, help="of each side")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"), help="folder of pretrained.json")
    arguments = parser.parse_args()
    config = load_recipe(
        "recipes/pretrained.yaml", [*SETTINGS, f"model.path={arguments.model}", f"model.dtype={arguments.dtype}"]
    )
    assert config.sft is not None
    items = list(read(config.data, config.seed))[:4]
    demonstrations = list(demonstrate(items, None, config.sft, config.seed, config.prompt.template))
    with tempfile.TemporaryDirectory() as folder:
        trainer = ColdStartTrainer(config, config.sft, arguments.model, demonstrations, Checkpoints(Path(folder), 1))
    batch = next(iter(trainer.get_train_dataloader()))
    model = trainer.model.train()

    def update(compute_loss: Callable[..., Any]) -> float:
        loss = compute_loss(trainer, model, dict(batch))
        loss.backward()
        model.zero_grad()
        return float(loss)

    chat = Chat(trainer.processing_class, {})
    prompts = [
        row for row in chat.encode([render(item, config.prompt.template) for item in items[:2]]) for _ in range(8)
    ]
    ids, mask = padded(prompts, "left")
    settings = GenerationConfig(max_new_tokens=32, do_sample=True, top_k=0, pad_token_id=0)

    def rollouts() -> torch.Tensor:
        set_seed(0)
        with torch.inference_mode():
            return model.generate(ids, attention_mask=mask, generation_config=settings)

    def ours() -> torch.Tensor:
        with neutral_generation(model):
            return rollouts()

    def alone() -> torch.Tensor:
        with evaluating(model):
            return rollouts()

    results: dict[str, Any] = {"model": Path(arguments.model).name, "dtype": arguments.dtype}
    results["threads"] = torch.get_num_threads()
    compared: dict[str, tuple[tuple[int, ...], dict[str, Callable[[], Any]]]] = {
        "sft": (
            tuple(batch["input_ids"].shape),
            {"theirs": lambda: update(SFTTrainer.compute_loss), "ours": lambda: update(ColdStartTrainer.compute_loss)},
        ),
        "rollouts": (tuple(ids.shape), {"theirs": alone, "ours": ours}),
    }
    for name, (shape, ways) in compared.items():
        seconds = least_seconds(ways, arguments.repetitions)
        our, theirs = (torch.as_tensor(ways[side]()).double() for side in ("ours", "theirs"))
        results[name] = {**seconds, "ratio": seconds["theirs"] / seconds["ours"]}
        if name == "sft":
            results[name]["difference"] = float((our - theirs).abs())
        else:  # one that is rounded otherwise may draw another token, and goes on from there
            results[name]["equal rows"] = float((our == theirs).all(1).double().mean())
        print(f"{name} {shape}: " + ", ".join(f"{key} {value:.3g}" for key, value in results[name].items()))
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_json(arguments.out / "pretrained.json", results)


if __name__ == "__main__":
    main()
