"""Every way to start a recipe that the README describes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from conftest import QUICK, SMALL, Tal, command, launch

from think_as_locals import Judge
from think_as_locals.types import RunStoppedError

pytestmark = pytest.mark.slow


def test_two_processes_share_one_run_under_zero2_with_lora(tmp_path: Path, warm_python: str) -> None:
    recipe = tmp_path / "quickstart.yaml"
    recipe.write_text("defaults:\n  - /recipes/quickstart\n  - override /lora: rank16\n  - _self_\n")
    words = [str(recipe), "--config_file", "cpu_zero2", *SMALL, *QUICK, f"run.dir={tmp_path}"]
    done = launch(warm_python, command("tal"), "launch", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "prefixes are not shared" not in done.stderr
    (run,) = (path for path in tmp_path.iterdir() if (path / "report.html").is_file())
    assert run.name.startswith("quickstart-")
    logs = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    # Two processes of 16 completions each take twice as many tokens as the main one wrote rows.
    assert next(log["num_tokens"] for log in logs if "reward" in log) > 16 * 2 * 20
    assert json.loads((run / "carb" / "step-2.json").read_text())["n"] == 4
    assert (run / "adapter" / "adapter_model.safetensors").is_file()
    for name in ("tal_judge.json", "training_items.txt"):  # alone, it is asked as it was trained
        assert (run / "adapter" / name).read_bytes() == (run / "model" / name).read_bytes()
    assert not [name for name, _ in Judge.load(str(run / "model")).engine.model.named_parameters() if "lora" in name]


def test_recipe_needing_a_gpu_lists_missing_resources_before_torch_is_imported() -> None:
    code = "import sys; from think_as_locals.cli import main\ntry: main()\nfinally: assert 'torch' not in sys.modules"
    done = launch(sys.executable, "-c", code, "run", "tal_grpo", "grpo.beta=0.001", "seed=3")
    assert done.returncode == 2, done.stderr
    message = done.stderr.partition("tal: ")[2]
    assert message.startswith("this machine lacks what tal_grpo needs:")
    assert "a GPU" in message
    assert "Qwen/Qwen2.5-7B-Instruct" in message


@pytest.mark.parametrize(
    ("fault", "status", "expected"),
    [
        (OSError(30, "Read-only file system", "runs"), 2, "tal: runs: Read-only file system: choose a folder that can"),
        (RunStoppedError("mine was asked to stop"), 75, "tal: mine was asked to stop"),
        (KeyboardInterrupt(), 130, "tal: interrupted"),
    ],
    ids=["read-only", "stopped", "interrupted"],
)
def test_run_errors_give_an_exit_status_and_a_one_line_message(
    monkeypatch: pytest.MonkeyPatch, tal: Tal, tmp_path: Path, fault: BaseException, status: int, expected: str
) -> None:
    def ends(*_: object) -> None:
        raise fault

    monkeypatch.setattr("think_as_locals.run.start", ends)
    stopped = tmp_path / "stopped"
    stopped.write_text(other_rank := "what another rank has written, which must not be gone for a moment")
    monkeypatch.setenv("TAL_STOPPED", str(stopped))
    done = tal("run", "recipes/quickstart.yaml")
    assert done.status == status
    assert expected in done.err
    assert done.err.count("\n") == 1
    mine = "mine was asked to stop\n" if status == 75 else ""
    assert stopped.read_text() == mine + other_rank[len(mine) :]
