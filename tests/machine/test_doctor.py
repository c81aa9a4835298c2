"""`tal doctor`: what it reports about a machine, a recipe on it, and a judge's format."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import QUICK, SMALL, Tal
from items import RUBRIC, make_item
from reward_models.scripted import Scripted, shown_in

from think_as_locals import cli
from think_as_locals.config.checks import load_config
from think_as_locals.config.launch import Launch
from think_as_locals.engines import Messages
from think_as_locals.judging import write
from think_as_locals.machine import doctor
from think_as_locals.machine.doctor import check_format, examine, missing_for
from think_as_locals.reward_models.judge import Judge, JudgeSettings
from think_as_locals.runtime import gpus

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
def test_doctor_finds_no_fault_for_a_runnable_recipe(
    run_doctor: Doctor, tmp_path: Path, recipe: str, overrides: list[str], parts: tuple[str, ...]
) -> None:
    status, output = run_doctor(f"recipes/{recipe}.yaml", *overrides, f"run.dir={tmp_path}")
    assert (status, "MISSING" in output) == (0, False), output
    assert [part for part in parts if part not in output] == []
    assert "vLLM" not in output.partition("M parameters")[2]


def test_doctor_marks_missing_requirements_and_exits_with_1(
    run_doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    words = ["recipes/tal_grpo.yaml", "rollout=transformers", "model.path=nobody/nothing"]
    status, output = run_doctor(*words, "--launch", "gpu8_zero3")
    assert status == 1
    missing = [line for line in output.splitlines() if line.startswith("MISSING")]
    assert any("nobody/nothing: neither a directory" in line for line in missing)
    assert "torch sees no CUDA device: models with requires_gpu cannot be trained here" in output
    assert "not known: nobody/nothing: its config.json is not on this machine" in output
    status, output = run_doctor(*words, "--launch", "gpu8_zero3", "--json")
    faults = [finding for finding in json.loads(output)["findings"] if finding["fault"]]
    assert status == 1
    assert [line.split()[1:3] for line in missing] == [f"{each['what']} {each['found']}".split()[:2] for each in faults]


def test_doctor_shows_no_secret(run_doctor: Doctor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HF_TOKEN", "WANDB_API_KEY", "VLLM_API_KEY"):
        monkeypatch.setenv(name, f"planted-{name}")
    words = ["recipes/quickstart.yaml", "rollout=vllm_server", f"run.dir={tmp_path}"]
    refused = run_doctor(*words, "rollout.url=http://me:planted-in-the-url@127.0.0.1:9")
    assert (refused[0], "planted" in refused[1]) == (2, False)
    status, output = run_doctor(*words, "rollout.url=http://127.0.0.1:9")
    assert status == 1
    assert "planted" not in output
    for of in ("Hugging Face", "W&B", "vLLM server"):
        assert f"{of}: present" in output
    assert "127.0.0.1:9 (rollout.url): nothing listens" in output


def test_missing_credentials_are_a_fault_only_if_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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


def test_driver_that_torch_cannot_use_is_reported_in_the_words_of_torch(
    run_doctor: Doctor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (file := tmp_path / "version").touch()  # a container, to which the driver was given and no program
    monkeypatch.setattr(gpus, "_DRIVERS", (file,))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fault = "torch sees no CUDA device, though there is a driver: "

    def init() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old\n(found version 12080).")

    monkeypatch.setattr("torch.cuda.init", init)
    status, output = run_doctor()
    assert status == 1
    assert f"{fault}The NVIDIA driver on your system is too old (found version 12080): models with" in output
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert any(fault in each for each in missing_for(load_config("recipes/tal_grpo.yaml")))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "torch sees no CUDA device: CUDA_VISIBLE_DEVICES='' hides them all" in run_doctor()[1]


def test_gpus_are_listed_by_torch_without_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "has_gpu", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr(
        "torch.cuda.get_device_properties", lambda _: SimpleNamespace(name="NVIDIA H100", total_memory=81559 * 2**20)
    )
    assert gpus.gpus() == ["NVIDIA H100, of 81559 MiB"] * 2
    monkeypatch.setattr(doctor, "gpu_fault", lambda: None)
    assert "`make gpu`" in [finding.found for finding in examine(None, ONE) if finding.what == "GPU"][-1]


def test_occupied_port_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(doctor, "_MAIN_PORT", port)
        assert [f.found for f in examine(None, ONE) if f.what == "ports"] == [f"{port} (several processes): taken"]


def test_unwritable_folder_is_a_disk_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    assert [finding.found for finding in examine(None, ONE) if finding.fault and finding.what == "disk"]


# --- tal doctor --model ---


def judge_with_format_errors(messages: Messages) -> str:
    """The right verdict, in a form that depends on the question."""
    text = write(RUBRIC, "Weighed.", shown_in(messages).index("yes"))
    number = messages[-1]["content"].partition("Question ")[2][0]
    return {"0": text, "1": f"Well.\n{text}", "2": text.replace("<verdict>", "<verdict> "), "3": "I cannot say."}[
        number
    ]


def test_check_format_counts_broken_rules() -> None:
    items = [make_item(id=str(i), prompt=f"Question {i}?", responses=("no", "yes"), best=1) for i in range(4)]
    judge = Judge(engine=Scripted(judge_with_format_errors), settings=JudgeSettings(prompt="compact"))
    found = [finding.found for finding in check_format(judge, items)]
    assert found[:2] == [
        "1 of 4 judgements keep the format of prompt compact, 3 have a verdict tag",
        "right: 1 strictly, 3 by the last verdict tag, of 4",
    ]
    assert "  2 of 4 break order: rubric, analysis, verdict, with nothing but white space around them" in found
    assert "  2 of 4 break verdict_label: the verdict has to be one of the labels on offer" in found
    assert "  1 of 4 break analysis_once: there has to be one <analysis>...</analysis>" in found


def test_doctor_checks_the_format_of_a_trained_judge(
    small_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", ["tal", "doctor", "--model", str(small_run / "model")])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    printed = capsys.readouterr().out
    assert not ended.value.code
    assert "of 20 judgements keep the format of prompt compact" in printed
    assert "by the last verdict tag, of 20" in printed
    assert "knows only questions like those it was trained on" in printed
    asked = f"tal judge {small_run / 'model'} {small_run / 'examples.jsonl'}"
    assert asked.replace(" ", "") in "".join(printed.split())


def test_unwritable_run_dir_is_reported_by_doctor_dry_run_and_run(
    tal: Tal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("think_as_locals.machine.doctor.os.access", lambda *_: False)  # whoever runs the test
    words = ["quickstart", f"run.dir={tmp_path}/runs"]
    expected = f"disk: {tmp_path} is not writable: set run.dir"
    found = json.loads(tal("doctor", *words, "--json").out)["findings"]
    assert [finding["what"] for finding in found if expected in finding["found"]] == ["disk"]
    assert ["lacking here", expected] in json.loads(tal("run", *words, "--dry-run", "--json").out)["plan"]
    done = tal("run", *words)
    assert (done.status, expected in done.err) == (2, True)
