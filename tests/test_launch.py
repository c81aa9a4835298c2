"""Every way to start a recipe, as the README says it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from conftest import SMALL, command, launch

from think_as_locals import Judge, cli
from think_as_locals.types import RunStoppedError

pytestmark = pytest.mark.slow

QUICK = [*SMALL, "sft.max_steps=2", "sft.warmup_steps=0", "grpo.max_steps=1", "eval.max_items=4"]


def _runs(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if (path / "report.html").is_file()]


def test_accelerate_launches_a_recipe_file(tmp_path: Path) -> None:
    done = launch(command("accelerate"), "launch", "recipes/quickstart.yaml", *QUICK, f"run.dir={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = _runs(tmp_path)
    assert run.name.startswith("quickstart-")
    assert "report" in done.stdout.splitlines()[-2]


@pytest.mark.parametrize(
    "launcher",
    [
        ["accelerate", "launch", "--multi_gpu", "--num_processes", "2"],
        ["accelerate", "launch", "--config_file", "launch/cpu_zero2.yaml"],
        ["torchrun", "--nproc_per_node", "2"],
    ],
    ids=["accelerate", "ZeRO-2 and LoRA", "torchrun"],
)
def test_two_processes_share_one_run(tmp_path: Path, launcher: list[str]) -> None:
    name, *flags = launcher
    lora = "launch/cpu_zero2.yaml" in flags
    overrides = [*QUICK, *(["lora=rank16"] if lora else [])]
    done = launch(command(name), *flags, "recipes/quickstart.yaml", *overrides, f"run.dir={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = _runs(tmp_path)
    reward = [line for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if "reward" in line]
    # Two processes of 16 completions each take twice as many tokens as the main one wrote rows.
    assert reward[0]["num_tokens"] > 16 * 2 * 20
    assert json.loads((run / "carb" / "step-1.json").read_text())["n"] == 4
    assert (run / "adapter" / "adapter_model.safetensors").is_file() == lora
    assert not [name for name, _ in Judge.load(str(run / "model")).engine.model.named_parameters() if "lora" in name]


def test_two_processes_train_on_every_reward_off_policy(tmp_path: Path) -> None:
    overrides = ["reward=full", "reward.length.cache=16", "grpo.num_iterations=2", "grpo.max_steps=2"]
    done = launch(
        command("accelerate"),
        *["launch", "--config_file", "launch/cpu_ddp.yaml", "recipes/quickstart.yaml", *QUICK, *overrides],
        f"run.dir={tmp_path}",
        OMP_NUM_THREADS="1",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = _runs(tmp_path)
    logs = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rewards = {name for log in logs for name in log if name.startswith("rewards/") and name.endswith("/mean")}
    assert len(rewards) == 6
    assert "prefixes are not shared" not in done.stderr


def test_a_recipe_that_cannot_run_here_says_what_is_missing_and_what_runs() -> None:
    done = launch(command("accelerate"), "launch", "recipes/tal_grpo.yaml", "grpo.beta=0.001", "seed=3")
    assert done.returncode != 0
    said = done.stderr.partition("tal: ")[2].partition("Traceback")[0]  # accelerate adds a traceback of its own
    assert said.startswith("this machine lacks what tal_grpo needs:")
    assert "a GPU" in said
    assert "Qwen/Qwen2.5-7B-Instruct" in said
    assert "Runs here: recipes/quickstart.yaml" in said


def test_that_answer_comes_before_torch_is_imported() -> None:
    code = (
        "import sys; from think_as_locals.cli import run; from think_as_locals.types import PreflightError\n"
        "try: run('recipes/tal_grpo.yaml', [])\n"
        "except PreflightError: sys.exit('torch' in sys.modules)"
    )
    assert launch(sys.executable, "-c", code).returncode == 0


def test_a_typo_ends_at_once_with_the_nearest_name() -> None:
    done = launch(command("tal"), "run", "recipes/quickstart.yaml", "data.splt=group")
    assert done.returncode == 2
    assert "did you mean 'data.split'?" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_fault_in_the_data_ends_a_run_before_it_has_a_folder(tmp_path: Path) -> None:
    rows = tmp_path / "items.jsonl"
    rows.write_text('{"id": "1"}\n', encoding="utf-8")
    where = ["data=jsonl", f"data.path={rows}", f"run.dir={tmp_path}", "run.name=mine"]
    done = launch(command("tal"), "run", "recipes/quickstart.yaml", *where)
    assert done.returncode == 2
    assert f"{rows}:1" in done.stderr
    assert not (tmp_path / "mine").exists()


def test_an_interrupted_run_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "run", interrupted)
    with pytest.raises(SystemExit) as stopped:
        cli.main("recipes/quickstart.yaml")
    assert stopped.value.code == 130
    assert capsys.readouterr().err == "tal: interrupted\n"


@pytest.mark.parametrize(
    ("fault", "status", "says"),
    [
        (OSError(28, "No space left on device", "metrics.jsonl"), 2, "free the disk, then go on with run.resume=auto"),
        (RunStoppedError("mine was asked to stop"), 75, "tal: mine was asked to stop"),
    ],
    ids=["full disk", "stopped"],
)
def test_what_ends_a_run_has_a_status_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fault: Exception, status: int, says: str
) -> None:
    def ends(*_: object) -> None:
        raise fault

    monkeypatch.setattr(cli, "run", ends)
    with pytest.raises(SystemExit) as stopped:
        cli.main("recipes/quickstart.yaml")
    assert stopped.value.code == status
    assert says in (said := capsys.readouterr().err)
    assert said.count("\n") == 1
