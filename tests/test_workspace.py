"""The folder of a run: whole or not there, and rewound to the step it goes on from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from think_as_locals import workspace
from think_as_locals.config import load_recipe
from think_as_locals.evaluation import carb
from think_as_locals.types import ConfigError


def test_a_process_that_dies_while_it_makes_the_folder_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_recipe("recipes/quickstart.yaml", [f"run.dir={tmp_path}", "run.name=mine", "run.resume=auto"])

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(workspace, "write_text", dies)
        with pytest.raises(KeyboardInterrupt):
            workspace.open_run(config)
    assert not (tmp_path / "mine").exists()
    folder = workspace.open_run(config)
    assert {path.name for path in folder.iterdir()} == {"config.yaml", "environment.json"}
    identity = json.loads((folder / "environment.json").read_text())["id"]
    assert workspace.open_run(config) == folder
    assert json.loads((folder / "environment.json").read_text())["id"] == identity


def test_a_folder_that_is_no_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    config = load_recipe("recipes/quickstart.yaml", [f"run.dir={tmp_path}", "run.name=mine"])
    with pytest.raises(ConfigError, match="is not the folder of a run"):
        workspace.open_run(config)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"


def test_two_processes_do_not_work_in_one_folder(tmp_path: Path) -> None:
    with workspace.alone(tmp_path), pytest.raises(ConfigError, match="worked on by another"), workspace.alone(tmp_path):
        pass
    with workspace.alone(tmp_path):
        pass


def test_a_run_may_go_on_with_its_server_elsewhere_but_not_with_other_rewards(tmp_path: Path) -> None:
    words = [f"run.dir={tmp_path}", "run.name=mine", "run.resume=auto"]
    folder = workspace.open_run(load_recipe("recipes/quickstart.yaml", words))
    moved = load_recipe("recipes/quickstart.yaml", [*words, "rollout.url=http://127.0.0.1:9", "reward.timeout_s=9.0"])
    assert workspace.open_run(moved) == folder
    with pytest.raises(ConfigError, match=r"another reward\.max_fault_share \(0\.05 then, 0\.5 now\): give the same"):
        workspace.open_run(load_recipe("recipes/quickstart.yaml", [*words, "reward.max_fault_share=0.5"]))


def test_it_is_said_which_settings_of_a_run_are_others_now(tmp_path: Path) -> None:
    words = [f"run.dir={tmp_path}", "run.name=mine", "run.resume=auto"]
    workspace.open_run(load_recipe("recipes/quickstart.yaml", [*words, "grpo.top_p=0.9"]))
    with pytest.raises(ConfigError) as error:
        workspace.open_run(load_recipe("recipes/quickstart.yaml", [*words, "grpo.beta=0.5", "lora=rank16"]))
    said = str(error.value)
    assert "grpo.beta (0.0 then, 0.5 now), grpo.top_p (0.9 then, not set now), lora (None then, not set now)" in said
    assert "lora.r (not set then, 16 now)" in said


@pytest.mark.parametrize("left", [b"", b"- seed", b"seed: [", b"\xff\xfe"])
def test_a_run_whose_settings_are_lost_is_not_continued(tmp_path: Path, left: bytes) -> None:
    config = load_recipe("recipes/quickstart.yaml", [f"run.dir={tmp_path}", "run.name=mine", "run.resume=auto"])
    (workspace.open_run(config) / "config.yaml").write_bytes(left)
    with pytest.raises(ConfigError, match=r"config\.yaml .*: put it back, or choose another run\.name"):
        workspace.open_run(config)


def test_rewinding_drops_what_came_after_and_half_a_line(tmp_path: Path) -> None:
    logged = [("sft", 4), ("grpo", 1), ("grpo", 2), ("grpo", 3)]
    lines = [json.dumps({"stage": stage, "step": step}) for stage, step in logged]
    summary = json.dumps({"stage": "grpo", "step": 2, "train_runtime": 1.0})  # of a stage that stopped
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, summary]) + '\n{"stage": "grpo", "st')
    for name in ("completions/step-000002.parquet", "completions/step-000003.parquet", "carb/step-0.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for suffix in ("json", "parquet"):
        (tmp_path / "carb" / f"step-3.{suffix}").touch()
    workspace.rewind(tmp_path, "grpo", 2)
    assert (tmp_path / "metrics.jsonl").read_text() == "\n".join(lines[:3]) + "\n"
    left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("step-*"))
    assert left == ["carb/step-0.json", "completions/step-000002.parquet"]
    workspace.rewind(tmp_path, "sft", 2)
    assert (tmp_path / "metrics.jsonl").read_text() == "\n".join(lines[1:3]) + "\n"


def test_the_best_step_is_the_last_of_the_most_accurate(tmp_path: Path) -> None:
    assert carb.best_step(tmp_path) is None
    for step, accuracy in ((0, 0.5), (10, 0.9), (20, 0.9), (30, 0.8)):
        (tmp_path / f"step-{step}.json").write_text(json.dumps({"step": step, "accuracy": accuracy}))
    assert carb.best_step(tmp_path) == 20
