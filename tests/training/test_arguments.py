"""What TRL is told of a run: settings that it takes, and weights that can learn at its learning rate."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from training.small_grpo import chance, tiny_trainer
from transformers import AutoConfig, AutoModelForCausalLM

from think_as_locals.config import load_recipe
from think_as_locals.judging import COMPONENTS
from think_as_locals.schema import ModelSection
from think_as_locals.start import start
from think_as_locals.training.arguments import trl_arguments
from think_as_locals.training.saving import save_model
from think_as_locals.types import ConfigError


@pytest.mark.parametrize(
    ("recipe", "override", "said"),
    [
        ("quickstart", "grpo.num_generations=7", r"grpo.*: generation_batch_size \(128\) must be divisible by num_gen"),
        ("quickstart", "sft.lr_scheduler_type=linaer", "sft.*: linaer is not a valid SchedulerType"),
        ("quickstart", "grpo.lr_scheduler_type=reduce_lr_on_plateau", "grpo.*: .* requires an eval strategy"),
        ("scpo_quickstart", "scpo.optim=adam", "scpo.*: adam is not a valid OptimizerNames"),
    ],
)
def test_what_trl_does_not_take_ends_a_run_before_it_has_a_folder(
    tmp_path: Path, recipe: str, override: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=f"TRL does not take this configuration:\n  - {said}"):
        start(f"recipes/{recipe}.yaml", [f"run.dir={tmp_path}", override])
    assert not list(tmp_path.iterdir())


def test_in_half_precision_every_weight_learns_at_a_small_rate(tmp_path: Path) -> None:
    overrides = ["rollout=transformers", "model.dtype=bfloat16", "grpo.learning_rate=1.0e-6", "grpo.warmup_steps=0"]
    trainer, _ = tiny_trainer(tmp_path, *overrides, components={**COMPONENTS, "structure": chance})
    before = {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}
    trainer.train()
    moved = [(parameter != before[name]).float().mean() for name, parameter in trainer.model.named_parameters()]
    assert min(moved) > 0.9  # in bfloat16 itself 2 % of them moved in 20 steps
    assert trainer.unshared_reason is None
    save_model(trainer, "", _model("bfloat16"), None, str(tmp_path / "saved"), AutoModelForCausalLM)
    assert AutoConfig.from_pretrained(tmp_path / "saved").dtype is torch.bfloat16


def _model(dtype: str) -> ModelSection:
    return load_recipe("recipes/quickstart.yaml", [f"model.dtype={dtype}"]).model


@pytest.mark.parametrize(
    ("overrides", "launch", "grpo", "sft"),
    [
        ([], None, "float32", "float32"),
        (["lora=rank16"], None, "bfloat16", "float32"),  # a cold start trains all weights
        ([], "ACCELERATE_USE_DEEPSPEED", "bfloat16", "bfloat16"),
        ([], "ACCELERATE_USE_FSDP", "bfloat16", "bfloat16"),
    ],
)
def test_weights_are_float32_where_nothing_else_keeps_them_so(
    monkeypatch: pytest.MonkeyPatch, overrides: list[str], launch: str | None, grpo: str, sft: str
) -> None:
    if launch:
        monkeypatch.setenv(launch, "true")
    config = load_recipe("recipes/quickstart.yaml", ["model.dtype=bfloat16", *overrides])
    assert config.sft is not None
    for section, expected in ((config.grpo, grpo), (config.sft, sft)):
        arguments = trl_arguments(config, section, Path("nowhere"))
        assert (arguments["model_init_kwargs"]["dtype"], arguments["bf16"]) == (expected, True)
