"""`tal doctor`: what it reports about a machine and a recipe on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import QUICK, SMALL, Tal

from think_as_locals.config.checks import load_config
from think_as_locals.machine.doctor import missing_for
from think_as_locals.runtime import gpus


@pytest.mark.parametrize("recipe", ["quickstart", "scpo_quickstart"])
def test_doctor_finds_no_fault_for_a_runnable_recipe(tal: Tal, tmp_path: Path, recipe: str) -> None:
    overrides = [*SMALL, *QUICK] if recipe == "quickstart" else []
    status, output, _ = tal("doctor", f"recipes/{recipe}.yaml", *overrides, f"run.dir={tmp_path}")
    assert (status, "MISSING" in output) == (0, False), output
    expected = ("torch 2.", "trl 1.16", "cores", "GB free where runs go", "weights", "optimizer", "activations")
    assert [part for part in expected if part not in output] == []
    assert ("global RM" in output) == (recipe == "scpo_quickstart")


def test_doctor_marks_missing_requirements_and_exits_with_1(tal: Tal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    words = ["doctor", "recipes/tal_grpo.yaml", "rollout=transformers", "model.path=nobody/nothing"]
    shown, as_json = (tal(*words, "--launch", "gpu8_zero3", *more) for more in ([], ["--json"]))
    assert shown.status == as_json.status == 1
    missing = [line for line in shown.out.splitlines() if line.startswith("MISSING")]
    assert any("nobody/nothing: neither a directory" in line for line in missing)
    faults = [finding for finding in json.loads(as_json.out)["findings"] if finding["fault"]]
    assert [line.split()[1:3] for line in missing] == [f"{each['what']} {each['found']}".split()[:2] for each in faults]


def test_doctor_shows_which_credentials_are_there_and_none_of_them(
    tal: Tal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("HF_TOKEN", "HF_TOKEN_PATH", "WANDB_API_KEY", "VLLM_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("VLLM_API_KEY", "planted")
    assert "W&B absent, vLLM server present" in tal("doctor").out
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password planted\n")
    (tmp_path / ".netrc").chmod(0o600)
    shown = tal("doctor")
    assert "W&B present" in shown.out
    assert "planted" not in shown.out + shown.err


def test_driver_that_torch_cannot_use_is_reported_in_the_words_of_torch(
    tal: Tal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (file := tmp_path / "version").touch()  # a container, to which the driver was given and no program
    monkeypatch.setattr(gpus, "_DRIVERS", (file,))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fault = "torch sees no CUDA device, though there is a driver: "

    def init() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old\n(found version 12080).")

    monkeypatch.setattr("torch.cuda.init", init)
    shown = tal("doctor")
    assert shown.status == 1
    assert f"{fault}The NVIDIA driver on your system is too old (found version 12080)" in shown.out
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert any(fault in each for each in missing_for(load_config("recipes/tal_grpo.yaml")))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "torch sees no CUDA device: CUDA_VISIBLE_DEVICES='' hides them all" in tal("doctor").out
