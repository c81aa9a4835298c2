"""What a run logs: CARB at steps, the live view, and trackers read back from their own files."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import wandb
from conftest import PLANTED
from rich.console import Console
from training.small_grpo import TINY, chance, tiny_trainer
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from think_as_locals.config.checks import load_recipe
from think_as_locals.machine import doctor
from think_as_locals.runtime.files import write_json
from think_as_locals.runtime.run_folder import RunFolder, rewind
from think_as_locals.training.checkpoints import StopSignals, step_of
from think_as_locals.training.logging import EvalCallback, LiveView, MetricsWriter, tracked


@pytest.mark.slow
def test_wandb_gets_name_project_configuration_and_metrics(small_run: Path) -> None:
    identity = RunFolder(small_run).read_id()  # under which a resumed run goes on
    of_sft, of_grpo = (
        next(small_run.parent.glob(f"wandb/offline-run-*/run-{identity}{part}.wandb")).read_bytes()
        for part in ("-sft", "")
    )
    expected = {"reward", "rewards/correctness/mean", "rewards/structure/mean", "parse_failure", "eval/test/accuracy"}
    named = ("\x0fthink-as-locals", "\x05small")  # texts of their own stand behind their length
    told = (*named, '"split":"pairing"', *(f"train/{name}" for name in expected))
    assert [text for text in told if text.encode() not in of_grpo] == []
    assert [name for name in ("loss", "learning_rate") if f"train/{name}".encode() not in of_sft] == []


@pytest.mark.slow
def test_tensorboard_and_trackio_match_metrics_jsonl(small_run: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    expected = {name: logged(small_run, name) for name in ("reward", "rewards/structure/mean", "eval/test/accuracy")}
    assert [step for step, _ in expected["eval/test/accuracy"]] == [0, 1, 2]
    events = EventAccumulator(str(small_run / "tensorboard"))
    events.Reload()
    with sqlite3.connect(Path(os.environ["TRACKIO_DIR"]) / "think-as-locals.db") as database:
        rows = database.execute("SELECT run_name, metrics FROM metrics ORDER BY id").fetchall()
    assert {run for run, _ in rows} == {"small", "small-sft"}
    of_trackio = [json.loads(metrics) for run, metrics in rows if run == "small"]
    for name, figures in expected.items():
        scalars = events.Scalars(f"train/{name}")
        steps, values = map(list, zip(*figures, strict=True))
        assert [event.step for event in scalars] == steps
        assert [event.value for event in scalars] == pytest.approx(values)
        assert [line[f"train/{name}"] for line in of_trackio if f"train/{name}" in line] == values


@pytest.mark.slow
def test_environment_secrets_appear_in_no_file(small_run: Path) -> None:
    folders = small_run.parent, Path(os.environ["TRACKIO_DIR"])
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert {"output.txt", "config.yaml", "report.html", "think-as-locals.db"} <= {path.name for path in files}
    for path in files:
        content = path.read_bytes()
        assert not [name for name, secret in PLANTED.items() if secret.encode() in content], path


@pytest.mark.slow
def test_missing_tracker_package_is_named_by_preflight(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = doctor.installed_version
    monkeypatch.setattr(doctor, "installed_version", lambda name: None if name == "trackio" else installed(name))
    (message,) = doctor.missing_for(load_recipe("recipes/quickstart.yaml", ["grpo.report_to=[wandb,trackio]"]))
    assert message == "package trackio: not installed; pip install 'think-as-locals[trackio]'"


@pytest.mark.slow
def test_resumed_run_continues_the_wandb_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("WANDB_DIR", raising=False)
    write_json(tmp_path / "environment.json", {"id": "the-run"})
    settings = ["grpo.report_to=[wandb]", "grpo.max_steps=3", "grpo.save_steps=1"]
    steps: list[list[int]] = []
    log = wandb.Run.log

    def noted(run: wandb.Run, data: dict[str, Any], *rest: Any, **more: Any) -> None:
        steps[-1] += [data["train/global_step"]] if "train/reward" in data else []
        log(run, data, *rest, **more)

    monkeypatch.setattr(wandb.Run, "log", noted)
    for stop_after in (1, 3):
        steps.append([])
        trainer = tiny_trainer(tmp_path, *settings)
        config = load_recipe("recipes/quickstart.yaml", [*TINY, *settings])
        trainer.add_callback(SignalAt(stop_after))
        with tracked(trainer, config, RunFolder(tmp_path)), StopSignals() as signals:
            trainer.add_callback(signals)
            trainer.train_from(trainer.checkpoints.latest())
        wandb.teardown()  # waits for the process that writes the file, as the end of a run's own process does
    assert len(list(tmp_path.glob("wandb/offline-run-*/run-the-run.wandb"))) == 2
    assert steps == [[1], [2, 3]]


class SignalAt(TrainerCallback):
    """Sends this process SIGUSR1 in a step."""

    def __init__(self, step: int | None) -> None:
        self._step = step

    def on_step_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.global_step + 1 == self._step:
            os.kill(os.getpid(), signal.SIGUSR1)


def trained(folder: Path, signal_at: int | None = None, stopped_at: int | None = None) -> list[int]:
    """Train four steps, or to the end of the one with the signal; return the steps at which CARB was evaluated.

    The signal may also come during the evaluation at a step.
    """
    settings = ["grpo.max_steps=4", "grpo.save_steps=100", "grpo.logging_steps=4"]
    trainer = tiny_trainer(folder, *settings, correctness=chance)
    evaluated: list[int] = []

    def evaluate(step: int) -> dict[str, float]:
        if step == stopped_at:
            os.kill(os.getpid(), signal.SIGUSR1)
            raise KeyboardInterrupt
        evaluated.append(step)
        (folder / "carb").mkdir(exist_ok=True)
        (folder / "carb" / f"step-{step}.json").touch()
        return {"eval/test/accuracy": step / 10}

    checkpoint = trainer.checkpoints.latest()
    rewind(RunFolder(folder), "grpo", step_of(checkpoint) if checkpoint else 0)
    with StopSignals() as signals:
        carb = EvalCallback(trainer, evaluate, RunFolder(folder), 2)
        for callback in (signals, SignalAt(signal_at), carb, MetricsWriter(folder / "metrics.jsonl", "grpo")):
            trainer.add_callback(callback)
        trainer.train_from(checkpoint)
        assert signals.stopped == (signal_at is not None or bool(stopped_at))
    return evaluated


def logged(folder: Path, name: str) -> list[tuple[int, float]]:
    """Steps at which a metric was logged, and its values."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line[name]) for line in lines if name in line and "train_runtime" not in line]


@pytest.mark.slow
def test_evaluation_missed_by_a_stop_is_logged_once_after_resume(tmp_path: Path) -> None:
    folder, undisturbed = tmp_path / "stopped", tmp_path / "undisturbed"
    assert trained(undisturbed) == [0, 2, 4]
    assert trained(folder, signal_at=2) == [0]
    assert logged(folder, "eval/test/accuracy") == [(0, 0.0)]
    assert trained(folder, signal_at=3) == [2]
    assert logged(folder, "eval/test/accuracy") == [(0, 0.0), (2, 0.2)]
    assert trained(folder) == [4]
    assert logged(folder, "eval/test/accuracy") == [(0, 0.0), (2, 0.2), (4, 0.4)]
    assert logged(undisturbed, "eval/test/accuracy") == [(0, 0.0), (2, 0.2), (4, 0.4)]  # where step 4 alone is logged
    # What the resumed run had yet to average was not given out with it.
    assert logged(folder, "reward") == logged(undisturbed, "reward")
    assert len(logged(folder, "reward")) == 1
    shutil.rmtree(folder / "checkpoints" / "step-3")  # as if killed right after what was made up for
    assert trained(folder) == [4]
    assert logged(folder, "eval/test/accuracy") == [(0, 0.0), (2, 0.2), (4, 0.4)]


@pytest.mark.slow
@pytest.mark.parametrize("step", [0, 2, 4])
def test_evaluation_stopped_by_a_signal_is_made_up_for(tmp_path: Path, step: int) -> None:
    if step == 2:
        assert trained(tmp_path, stopped_at=step) == [0]
    else:  # there is no checkpoint of this step
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path, stopped_at=step)
    assert trained(tmp_path) == list(range(step, 5, 2))
    assert logged(tmp_path, "eval/test/accuracy") == [(0, 0.0), (2, 0.2), (4, 0.4)]


LOGS = {
    "loss": 0.5,
    "reward": 0.25,
    "rewards/correctness/mean": 0.125,
    "rewards/structure/mean": 0.75,
    "rewards/own_words/mean": 0.5,
    "parse_failure": 0.04,
    "frac_reward_zero_std": 0.31,
    "completions/mean_length": 61.0,
    "num_tokens": 5000.0,
}
PANEL_TEXTS = ["+0.250", "own words", "+0.125", "0.750", "4.0%", "31.0%", "tokens/s", "left"]
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


def live_view_output(console: Console) -> str:
    """What is written while a stage of four steps trains for two of them."""
    view = LiveView(console, "GRPO")
    state = TrainerState(max_steps=4, is_world_process_zero=True)
    given = (TrainingArguments(report_to=[], use_cpu=True), state, TrainerControl())
    view.on_train_begin(*given)
    view.on_log(*given, logs={"eval/test/accuracy": 0.25, "epoch": 0.0})  # nothing of it is displayed here
    for step in (1, 2):
        state.global_step = step
        view.on_step_end(*given)
        view.on_log(*given, logs=LOGS | {"num_tokens": 5000.0 * step})
        console.print(f"test at step {step}")
    view.close()
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_live_view_of_a_terminal_has_a_bar_and_restores_the_cursor() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=30, color_system=None)
    written = live_view_output(console)
    assert written.rindex(HIDE) < written.rindex(SHOW)
    for part in (*PANEL_TEXTS[:6], "GRPO", "2/4"):
        assert part in written
    assert all(f"test at step {step}" in written for step in (1, 2))


def test_live_view_prints_plain_lines_without_a_terminal() -> None:
    written = live_view_output(Console(file=io.StringIO(), force_terminal=False, width=60))  # nor are lines broken
    assert "\x1b" not in written
    line = next(line for line in written.splitlines() if "  GRPO 1/4" in line)
    for part in PANEL_TEXTS[:6]:
        assert part in line


def test_tokens_per_second_of_a_resumed_run_are_those_since_then(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), force_terminal=False, width=60)
    view, now = LiveView(console, "GRPO"), [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    before = [{"num_tokens": 10_000.0, "step": 2}, {"eval/test/accuracy": 0.25, "step": 2}]
    state = TrainerState(max_steps=4, global_step=2, is_world_process_zero=True, log_history=before)
    given = (TrainingArguments(report_to=[], use_cpu=True), state, TrainerControl())
    view.on_train_begin(*given)
    state.global_step, now[0] = 3, 110.0
    view.on_log(*given, logs=LOGS | {"num_tokens": 15_000.0})
    assert "tokens/s 500" in console.file.getvalue()  # type: ignore[attr-defined]
