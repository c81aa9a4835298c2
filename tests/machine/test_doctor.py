"""`tal doctor`: what it reports about a machine, a recipe on it, and the formats in which a model answers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from conftest import QUICK, SMALL, Tal
from items import RUBRIC, make_item
from reward_models.scripted import Scripted, shown_in
from rich.console import Console

from think_as_locals.config.checks import load_config
from think_as_locals.engines import Messages
from think_as_locals.judging import write
from think_as_locals.machine import model_check
from think_as_locals.machine.doctor import missing_for
from think_as_locals.machine.model_check import format_findings, judge_with, query_model
from think_as_locals.reward_models.judge import SETTINGS_FILE, Judge, JudgeSettings
from think_as_locals.runtime import gpus
from think_as_locals.runtime.output import shorten_repeats


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


# --- a model ---


def judge_with_format_errors(messages: Messages) -> str:
    """The right verdict, in a form that depends on the question."""
    text = write(RUBRIC, "Weighed.", shown_in(messages).index("yes"))
    number = messages[-1]["content"].partition("Question ")[2][0]
    return {"0": text, "1": f"Well.\n{text}", "2": text.replace("<verdict>", "<verdict> "), "3": "I cannot say."}[
        number
    ]


def test_check_format_counts_broken_rules() -> None:
    items = [make_item(id=str(i), prompt=f"Question {i}?", responses=("no", "yes"), best=1) for i in range(4)]
    judge = Judge(engine=Scripted(judge_with_format_errors), settings=JudgeSettings(prompt="listwise"))
    scored = judge_with(judge, "compact", items, Console(quiet=True))
    found = [finding.found for finding in format_findings("compact", scored)]
    assert found[:2] == [
        "of 4 judgements with prompt compact, 2 are in the format",
        "1 have no verdict, 3 have the right one",
    ]
    assert "  1 of 4 break verdict_label: the verdict has to be one of the labels on offer" in found


def test_doctor_checks_the_format_of_a_trained_judge(small_run: Path, tal: Tal) -> None:
    status, printed, _ = tal("doctor", "--model", str(small_run / "model"))
    assert status == 0
    assert "of 20 judgements with prompt compact" in printed
    assert "knows only questions like those it was trained on" in printed
    asked = f"tal judge {small_run / 'model'} {small_run / 'examples.jsonl'}"
    assert asked.replace(" ", "") in "".join(printed.split())
    assert "it wrote, for example: " in printed


def test_a_model_without_a_format_is_asked_with_several_prompts_and_told_of_the_cold_start(
    small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The small judge without its settings knows `compact` alone; it stands for a model that is no judge yet."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(model_check, "_MAX_TOKENS", model_check._MAX_TOKENS // 8)  # it never stops
    model = tmp_path / "model"
    shutil.copytree(small_run / "model", model, ignore=shutil.ignore_patterns(SETTINGS_FILE))
    found = query_model(str(model), "transformers", None, Console(stderr=True))
    texts = [finding.found for finding in found]
    asked = [text.partition("prompt ")[2].partition(",")[0] for text in texts if text.startswith("of 4 judgements")]
    assert sorted(asked) == ["listwise", "rewardbench2", "rm_r1"]
    assert f"tal run pretrained model.path={model}" in texts[-1]
    assert texts[-1].startswith(f"prompt={asked[0]} does best")
    assert "prompt listwise: 4 judgements of up to 64 tokens" in capsys.readouterr().err


def test_repetition_is_shortened() -> None:
    assert shorten_repeats("Verdict " + "A: " * 700 + "end") == "Verdict A:[700 times] end"
    assert shorten_repeats("a a a b") == "a a a b"
