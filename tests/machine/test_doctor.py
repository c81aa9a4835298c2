"""What `tal doctor` finds on a machine, and for a recipe on it."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import QUICK, SMALL

from think_as_locals import cli
from think_as_locals.config.checks import load_config
from think_as_locals.config.compose import Launch
from think_as_locals.machine import doctor
from think_as_locals.machine.doctor import examine

ONE = Launch("NO", 0, 1)


Doctor = Callable[..., tuple[int, str]]


@pytest.fixture
def run_doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Doctor:
    """Exit status and output of `tal doctor`."""

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr(sys, "argv", ["tal", "doctor", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0), "".join(capsys.readouterr())

    return run


TRAINED = ("torch 2.", "trl 1.16", "cores", "GB free where runs go", "weights:", "optimizer:", "in all")
STEERED = ("weights:", "optimizer:", "global RM: the weights once more", "both responses of a pair", "in all")


@pytest.mark.parametrize(
    ("recipe", "overrides", "parts"), [("quickstart", [*SMALL, *QUICK], TRAINED), ("scpo_quickstart", [], STEERED)]
)
def test_a_recipe_that_runs_here_lacks_nothing(
    run_doctor: Doctor, tmp_path: Path, recipe: str, overrides: list[str], parts: tuple[str, ...]
) -> None:
    status, output = run_doctor(f"recipes/{recipe}.yaml", *overrides, f"run.dir={tmp_path}")
    assert (status, "MISSING" in output) == (0, False), output
    assert [part for part in parts if part not in output] == []
    assert "vLLM" not in output.partition("M parameters")[2]


def test_what_a_recipe_lacks_is_marked_and_the_status_says_so(
    run_doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "gpus", list)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    words = ["recipes/tal_grpo.yaml", "rollout=transformers", "model.path=nobody/nothing"]
    status, output = run_doctor(*words, "--launch", "gpu8_zero3")
    assert status == 1
    missing = [line for line in output.splitlines() if line.startswith("MISSING")]
    assert any("nobody/nothing: neither a directory" in line for line in missing)
    assert "none that nvidia-smi sees" in output
    assert "not known: nobody/nothing: its config.json is not on this machine" in output
    status, output = run_doctor(*words, "--launch", "gpu8_zero3", "--json")
    faults = [finding for finding in json.loads(output)["findings"] if finding["fault"]]
    assert status == 1
    assert [line.split()[1:3] for line in missing] == [f"{each['what']} {each['found']}".split()[:2] for each in faults]


def test_no_secret_is_shown(run_doctor: Doctor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HF_TOKEN", "WANDB_API_KEY", "VLLM_API_KEY"):
        monkeypatch.setenv(name, f"planted-{name}")
    words = ["recipes/quickstart.yaml", "rollout=vllm_server", f"run.dir={tmp_path}"]
    refused = run_doctor(*words, "rollout.urls=['http://me:planted-in-the-url@127.0.0.1:9']")
    assert (refused[0], "planted" in refused[1]) == (2, False)
    status, output = run_doctor(*words, "rollout.urls=[http://127.0.0.1:9]")
    assert status == 1
    assert "planted" not in output
    for of in ("Hugging Face", "W&B", "vLLM server"):
        assert f"{of}: present" in output
    assert "127.0.0.1:9 (rollout.urls): nothing listens" in output


def test_absent_credentials_are_a_fault_only_where_they_are_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("HF_TOKEN", "HF_TOKEN_PATH", "WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    tracked = load_config("recipes/quickstart.yaml", ["grpo.report_to=[wandb]"])
    assert [finding for finding in examine(tracked, ONE) if finding.fault and finding.found.startswith("W&B: absent")]
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password planted\n")
    (tmp_path / ".netrc").chmod(0o600)
    found = examine(tracked, ONE)
    assert not [finding for finding in found if finding.fault]
    assert not [finding for finding in found if "planted" in finding.found]


def test_a_gpu_is_listed_with_its_memory_and_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\necho "NVIDIA H200, 143771 MiB, 4 MiB, 570.86"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert doctor.gpus() == ["NVIDIA H200, of 143771 MiB, used 4 MiB, driver 570.86"]


def test_a_port_that_is_taken_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(doctor, "_MAIN_PORT", port)
        assert [f.found for f in examine(None, ONE) if f.what == "ports"] == [f"{port} (several processes): taken"]


def test_a_folder_that_cannot_be_written_to_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    assert [finding.found for finding in examine(None, ONE) if finding.fault and finding.what == "disk"]
