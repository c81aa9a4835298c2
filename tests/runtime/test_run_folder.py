"""Run folders: created atomically, locked, resumed only with the same settings, and rewound to a step."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path

import pytest
from items import make_item

from think_as_locals.config.checks import load_recipe
from think_as_locals.config.run_schema import RunConfig
from think_as_locals.evaluation import carb
from think_as_locals.runtime import run_folder
from think_as_locals.runtime.run_folder import (
    RunFolder,
    keep_digest,
    lock_run_dir,
    open_run,
    refuse_links,
    resumable,
    rewind,
)
from think_as_locals.types import TEST, ConfigError, DataError, FileError, RunStoppedError, join_turns


def config(folder: Path, *overrides: str, resume: str = "auto") -> RunConfig:
    settings = [f"run.dir={folder}", "run.name=mine", f"run.resume={resume}", *overrides]
    return load_recipe("recipes/quickstart.yaml", settings)


def test_interrupted_creation_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "write_text", die)
        with pytest.raises(KeyboardInterrupt):
            open_run(config(tmp_path))
    assert not (tmp_path / "mine").exists()
    run = open_run(config(tmp_path))
    assert {path.name for path in run.path.iterdir()} == {"config.yaml", "environment.json"}
    identity = run.read_id()
    assert open_run(config(tmp_path)).path == run.path
    assert run.read_id() == identity
    with pytest.raises(ConfigError, match=r"mine exists: choose another run\.name, or continue it"):
        open_run(config(tmp_path, resume="never"))


def test_folder_that_is_not_a_run_is_left_untouched(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="is not the folder of a run"):
        open_run(config(tmp_path, resume="never"))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize(
    ("error", "ends_with", "message"),
    [
        (KeyboardInterrupt(), RunStoppedError, "was asked to stop, and what it has is kept: repeat the command with"),
        (OSError(errno.ENOSPC, "full", "a"), FileError, "a: full: free the disk; then repeat the command with"),
        (OSError(errno.EROFS, "ro", "a"), FileError, "choose a folder that can be written to (of runs: run.dir); then"),
        (FileNotFoundError(errno.ENOENT, "none", "a"), FileNotFoundError, "none"),
        (DataError("row 3"), DataError, "row 3"),
    ],
)
def test_stop_and_disk_errors_name_the_resume_command(
    tmp_path: Path, error: BaseException, ends_with: type[BaseException], message: str
) -> None:
    with pytest.raises(ends_with) as caught, resumable(tmp_path):
        raise error
    assert message in str(caught.value)
    continued = f"repeat the command with run.name={tmp_path.name} run.resume=auto"
    assert (continued in str(caught.value)) == (ends_with in (RunStoppedError, FileError))


def test_run_folder_cannot_be_locked_twice(tmp_path: Path) -> None:
    with lock_run_dir(tmp_path), pytest.raises(ConfigError, match="in use by another"), lock_run_dir(tmp_path):
        pass
    with lock_run_dir(tmp_path):
        pass


def test_resume_allows_another_server_but_rejects_other_changes(tmp_path: Path) -> None:
    run = open_run(config(tmp_path, "grpo.top_p=0.9"))
    moved = config(tmp_path, "grpo.top_p=0.9", "rollout.url=http://127.0.0.1:9", "reward.timeout_s=9.0")
    assert open_run(moved).path == run.path
    with pytest.raises(ConfigError) as error:
        open_run(config(tmp_path, "grpo.beta=0.5", "lora=rank16", "reward.max_fault_share=0.5"))
    message = str(error.value)
    assert "grpo.beta (0.0 then, 0.5 now), grpo.learning_rate (0.0002 then, 0.002 now), grpo.top_p (0.9 then" in message
    assert "not set now), lora (None then, not set now)" in message
    assert "lora.r (not set then, 16 now)" in message
    assert "reward.max_fault_share (0.05 then, 0.5 now): give the same" in message


def test_rewind_drops_later_records_and_a_truncated_line(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    logged = [("sft", 4), ("grpo", 1), ("grpo", 2), ("grpo", 3)]
    lines = [json.dumps({"stage": stage, "step": step}) for stage, step in logged]
    summary = json.dumps({"stage": "grpo", "step": 2, "train_runtime": 1.0})  # of a stage that stopped
    run.metrics.write_text("\n".join([*lines, summary]) + '\n{"stage": "grpo", "st')
    measured = [run.evaluation(name, step) for name in ("test", "validation") for step in (0, 3)]
    tables = [path.with_suffix(".parquet") for path in measured]
    for path in (run.completions(2), run.completions(3), *measured, *tables, run.result("carb", "mine")):
        path.parent.mkdir(exist_ok=True, parents=True)
        path.touch()
    rewind(run, "grpo", 2)
    assert run.metrics.read_text() == "\n".join(lines[:3]) + "\n"
    left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*/*") if path.is_file())
    kept = [f"{folder}/step-0.{kind}" for folder in ("carb", "eval/validation") for kind in ("json", "parquet")]
    assert left == sorted([*kept, "carb/mine.json", "completions/step-000002.parquet"])
    assert list(run.evaluated_steps("validation")) == [0]
    assert run.evaluated_sets() == ["test", "validation"]
    rewind(run, "sft", 2)
    assert run.metrics.read_text() == "\n".join(lines[1:3]) + "\n"


def test_best_step_and_findings_are_the_last_ones(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for name, accuracies in (("test", (0.1, 0.2, 0.3, 0.99)), ("validation", (0.5, 0.9, 0.9, 0.8))):
        assert carb.best_step(run) is None
        for step, accuracy in zip((0, 10, 20, 30), accuracies, strict=True):
            path = run.evaluation(name, step)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"step": step, "accuracy": accuracy}))
    assert carb.best_step(run) == 20
    # The last measurement of a training; of what also measures in between, its own summary.
    run = RunFolder(tmp_path / "other")
    found = [run.evaluation(TEST, step) for step in (2, 10)]
    found += [run.path / f"{name}.json" for name in ("yield", "leaderboard", "scpo", "sweep")]
    for path in found:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        assert run.findings == path


@pytest.mark.parametrize(
    "link", [".lock", "journals/mine.jsonl", "checkpoints", "metrics.jsonl", "wandb", "carb/wandb"]
)
def test_continued_folder_with_a_link_is_refused_before_anything_is_written(tmp_path: Path, link: str) -> None:
    run = open_run(config(tmp_path))
    victim = tmp_path / "victim"
    victim.write_text("years of work")
    (run.path / link).parent.mkdir(exist_ok=True)
    (run.path / link).symlink_to(victim)
    with pytest.raises(ConfigError, match=r"is a link, and none is followed"):
        open_run(config(tmp_path))
    assert victim.read_text() == "years of work"


def test_links_that_wandb_makes_in_a_run_or_a_job_of_a_sweep_are_no_fault(tmp_path: Path) -> None:
    for folder in (tmp_path / "wandb", tmp_path / "job" / "wandb" / "latest-run"):
        folder.mkdir(parents=True)
        (folder / "debug.log").symlink_to(tmp_path)
    refuse_links(tmp_path)


def test_data_that_changed_since_the_start_are_refused(tmp_path: Path) -> None:
    turns = (("user", "A riddle?"), ("assistant", "Ask."), ("user", "Who?"))
    items = [make_item(id="1", prompt=join_turns(turns), turns=turns), make_item(id="2")]
    for same in (items, list(items)):
        keep_digest(tmp_path / "items.sha256", same)
    asked, one_turn = make_item(id="2", prompt="Another?"), replace(items[0], turns=())
    for others in (items[:1], items[::-1], [items[0], asked], [one_turn, items[1]]):
        with pytest.raises(ConfigError, match=r"the data differ from those that .* was started with"):
            keep_digest(tmp_path / "items.sha256", others)
