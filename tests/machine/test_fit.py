"""Fitting a run to GPUs: settings chosen for colocated vLLM, and the suggested command if a run does not fit."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from conftest import ROOT, SMALL
from machine.test_memory import a_model
from reward_models.tiny import write_language_model

from think_as_locals.config.checks import load_recipe
from think_as_locals.config.launch import Launch
from think_as_locals.config.schema import RunConfig
from think_as_locals.judging import render
from think_as_locals.machine import memory
from think_as_locals.machine.memory import TENSOR_PARALLEL, fitted, fitting_command, longest_sequence, memory_faults
from think_as_locals.run import load_data
from think_as_locals.training.grpo import count_prompt_tokens, load_chat
from think_as_locals.types import PreflightError

RECIPE = str(ROOT / "recipes" / "tal_grpo.yaml")
H100 = 85e9


def on(patch: pytest.MonkeyPatch, launch: Launch, gpu: float | None = H100) -> None:
    """A launch on GPUs of so many bytes."""
    patch.setattr(memory, "current_launch", lambda: launch)
    patch.setattr(memory, "gpu_bytes", lambda: gpu)
    patch.setattr(memory, "num_gpus", lambda: launch.processes)


def test_data_parallel_7b_is_rejected_with_a_fitting_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = [f"model.path={a_model(tmp_path)}", "seed=3"]
    run = load_recipe(RECIPE, words)
    on(monkeypatch, Launch("MULTI_GPU", 0, 8))
    (fault,) = memory_faults(run, RECIPE, words)
    assert "each of 8 processes needs about" in fault
    assert fault.endswith(f"accelerate launch --config_file launch/gpu8_zero2.yaml {RECIPE} {' '.join(words)}")
    on(monkeypatch, Launch("DEEPSPEED", 3, 8))
    assert memory_faults(run, RECIPE, words) == []


@pytest.mark.parametrize(
    ("gpus", "gpu", "launch", "more"),
    [
        (1, H100, ["single"], ["lora=rank16"]),
        (4, H100, ["gpu8_zero3", "--num_processes", "4"], []),
        (8, 56e9, ["gpu8_zero3"], []),
        (8, 48e9, ["nodes_zero3"], []),
        (8, 40e9, ["nodes_zero3"], [f"{TENSOR_PARALLEL}=2"]),
        (8, 141e9, ["gpu8_zero2"], []),
        (2, 48e9, ["gpu8_zero2", "--num_processes", "2"], ["lora=rank16"]),
    ],
    ids=str,
)
def test_fitting_command_uses_the_least_sharding_that_fits(
    tmp_path: Path, gpus: int, gpu: float, launch: list[str], more: list[str]
) -> None:
    words = [f"model.path={a_model(tmp_path)}"]
    file, *number = launch
    expected = ["accelerate", "launch", "--config_file", f"launch/{file}.yaml", *number, RECIPE, *words, *more]
    given = [*words, "rollout.gpu_memory_utilization=0.1"]
    assert fitting_command(load_recipe(RECIPE, given), RECIPE, given, gpu, gpus) == " ".join(expected)
    assert fitting_command(load_recipe(RECIPE, words), RECIPE, words, 10e9, gpus) is None


def fitting(folder: Path, *overrides: str) -> tuple[RunConfig, list[str]]:
    path = write_language_model(folder, 0)
    words = [*SMALL, "model.scratch=null", "sft=null", f"model.path={path}", "rollout=vllm_colocate", *overrides]
    return load_recipe("recipes/quickstart.yaml", words), words


def test_max_model_length_fits_the_longest_prompt_and_a_completion(tmp_path: Path) -> None:
    run, words = fitting(tmp_path)
    data = load_data(run)
    chosen = fitted(run, partial(longest_sequence, run, data), "quickstart", words).rollout
    prompts = [
        len(ids)
        for items in (data.train, *(each.items for each in data.sets.values()))
        for ids in load_chat(run, str(run.model.path)).encode(
            [render(item, run.prompt.template, run.seed) for item in items]
        )
    ]
    assert count_prompt_tokens(run, "no tokenizer is loaded", data, data.train) == prompts[: len(data.train)]
    positions = memory.count(run).positions
    length = chosen.max_model_length
    assert length is not None
    assert max(prompts) + run.grpo.max_completion_length < length <= positions
    assert length < max(prompts) + run.grpo.max_completion_length + 64 + 256 or length == positions
    assert chosen.gpu_memory_utilization is None  # there is no GPU
    set_by_hand, words = fitting(tmp_path, "rollout.max_model_length=77")
    assert fitted(set_by_hand, partial(longest_sequence, set_by_hand, data), "quickstart", words) == set_by_hand
    elsewhere, words = fitting(tmp_path, "rollout=transformers")
    assert fitted(elsewhere, partial(longest_sequence, elsewhere, data), "quickstart", words) == elsewhere


def test_gpu_memory_utilization_is_chosen_or_the_run_rejected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run, words = fitting(tmp_path)
    data = load_data(run)
    on(monkeypatch, Launch("NO", 0, 1), 10e9)
    share = fitted(run, partial(longest_sequence, run, data), "quickstart", words).rollout.gpu_memory_utilization
    assert share is not None
    assert 0.2 <= share < memory.USABLE
    on(monkeypatch, Launch("NO", 0, 1), 1.5e9)
    with pytest.raises(
        PreflightError, match=r"needs about 2 GB, a GPU has 2.*no file of launch/ fits.*sequences of \d+"
    ):
        fitted(run, partial(longest_sequence, run, data), "quickstart", words)
