"""Training a policy on a reward model: rewards, answer quality before and after training, resuming."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as parquet
import pytest
from conftest import Tal
from items import make_item
from reward_models.tiny import write_classifier
from safetensors.torch import load_file
from training.scripted_vllm import serving

from think_as_locals.data.load import read_candidates
from think_as_locals.data.sources import jsonl
from think_as_locals.reward_models.group import GroupReward
from think_as_locals.reward_models.scalar import ScalarRM
from think_as_locals.training.grpo import check_groups

ITEMS = [
    make_item(
        id=f"item-{i}",
        prompt=f"What do people do on day {i}?",
        responses=(f"rest on {i}", f"work on day {i}", f"dance {i}"),
        best=i % 3,
        culture=("TH", "JP")[i % 2],
        group=f"day-{i}",
    )
    for i in range(10)
]
SIZES = ["grpo.num_generations=4", "grpo.per_device_train_batch_size=4", "grpo.gradient_accumulation_steps=1"]
SIZES += ["grpo.max_completion_length=8", "grpo.learning_rate=0.001", "grpo.gradient_checkpointing=false"]
SIZES += ["grpo.max_steps=2", "grpo.save_steps=1", "grpo.beta=0", "eval.bootstrap_samples=50"]


def words(folder: Path, policy: Path) -> list[str]:
    """`tal run policy_grpo` with a tiny policy and a random reward model, which scores one of two tasks too."""
    if not (folder / "items.jsonl").exists():
        jsonl.write(ITEMS, folder / "items.jsonl")
        write_classifier(folder / "rm", max_position_embeddings=999)
    data = [
        f"{place}data{end}" for place in ("", "tasks.options.", "tasks.judged.") for end in ("=jsonl", ".path=PATH")
    ]
    rm = ["rm.path=RM", "tasks.judged.scorer.path=RM"]
    tasks = [
        f"tasks.{name}.{key}"
        for name in ("options", "judged")
        for key in ("num_candidates=2", "max_completion_length=8")
    ]
    model = [f"model.path={policy}", "model.revision=null", "model.requires_gpu=false", "model.dtype=float32"]
    given = ["run", "policy_grpo", *model, *data, *rm, *tasks, *SIZES, "rollout=transformers", f"run.dir={folder}"]
    return [word.replace("PATH", str(folder / "items.jsonl")).replace("RM", str(folder / "rm")) for word in given]


@pytest.fixture(scope="module")
def small(small_run: Path) -> Path:
    """Any chat model: a small judge."""
    return small_run / "model"


def test_policy_trains_on_rm_scores_and_reports_quality_gain(tal: Tal, small: Path, tmp_path: Path) -> None:
    done = tal(*words(tmp_path, small), "run.name=whole")
    assert done.status == 0, done.err
    run = tmp_path / "whole"

    # The reward is the reward model's score of each completion.
    rows = [row for path in sorted(run.glob("completions/*.parquet")) for row in parquet.read_table(path).to_pylist()]
    assert {row["step"] for row in rows} == {1, 2}
    assert len(rows) == 8
    reward = GroupReward(ScalarRM.load(str(tmp_path / "rm")))
    cultures, languages = (
        [next(getattr(item, key) for item in ITEMS if item.prompt == row["prompt"]) for row in rows]
        for key in ("culture", "language")
    )
    asked, answered = ([row[key] for row in rows] for key in ("prompt", "completion"))
    assert [row["reward"] for row in rows] == pytest.approx(
        reward.score(asked, answered, cultures, languages), rel=1e-4
    )
    trained, before = load_file(run / "model" / "model.safetensors"), load_file(small / "model.safetensors")
    assert any(not trained[name].equal(before[name]) for name in trained)

    # The table is that of the answers in its files: known ones by their letter, others by the scorer.
    found = json.loads((run / "policy.json").read_text())
    assert found["steps"] == 2
    answers: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in map(json.loads, (run / "answers.jsonl").read_text().splitlines()):
        answers[row["task"]].append(row)
    assert found["tasks"].keys() == answers.keys() == {"options", "judged"}
    for name, of_task in answers.items():
        part = found["tasks"][name]
        assert not {row["prompt"] for row in of_task} & {*asked}
        for when in ("before", "after"):
            qualities = [sum(row[when]["qualities"]) / 2 for row in of_task]
            assert part[when]["quality"] == pytest.approx(sum(qualities) / len(qualities))
            assert part[when]["n"] == len(of_task)
        gain = part["after"]["quality"] - part["before"]["quality"]
        assert part["gain"]["quality"] == pytest.approx(gain)
        assert part["gain"]["ci95"][0] <= gain <= part["gain"]["ci95"][1]
    for row in answers["judged"]:
        texts = [*row["before"]["answers"], *row["after"]["answers"]]
        worth = [*row["before"]["qualities"], *row["after"]["qualities"]]
        assert worth == pytest.approx(reward.score([row["prompt"]] * 4, texts), rel=1e-4)
    assert (run / "policy.md").read_text().count("| TH |") == 2

    # Before training it answers as `tal sample` has it answer.
    path = f"sample.data.path={tmp_path / 'items.jsonl'}"
    sample = ["sample=prompts", "sample.data=jsonl", path, "sample.items=test", f"sample.policy.path={small}"]
    sample += ["sample.num_candidates=2", "sample.max_completion_length=8", "sample.scorer=constant"]
    drawn = tal("sample", *sample, f"run.dir={tmp_path}", "run.name=drawn")
    assert drawn.status == 0, drawn.err
    candidates = read_candidates(tmp_path / "drawn" / "candidates.jsonl")
    assert [list(row.texts) for row in candidates] == [row["before"]["answers"] for row in answers["judged"]]

    # A run that was killed after its first step ends as one that was not.
    killed = tmp_path / "killed"
    shutil.copytree(run, killed)
    for path in ("model", "checkpoints"):
        shutil.rmtree(killed / path)
    shutil.copytree(run / "checkpoints" / "step-1", killed / "checkpoints" / "step-1")
    for path in ("policy.json", "policy.md", "answers.jsonl", "answers/step-2.jsonl"):
        (killed / path).unlink()
    again = tal(*words(tmp_path, small), "run.name=killed", "run.resume=auto", "--json")
    assert again.status == 0, again.err
    assert "grpo continues from step 1" in again.err
    resumed = load_file(killed / "model" / "model.safetensors")
    assert all(resumed[name].equal(trained[name]) for name in trained)
    assert json.loads(again.out) == found


def test_policy_with_sampling_ahead_resumes_after_a_kill(
    tal: Tal, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    run, model = tmp_path / "run", tmp_path / "run" / "model" / "model.safetensors"
    with serving(small) as server:
        given = [*words(tmp_path, small), "rollout=vllm_server", f"rollout.url={server.url}", "rollout.ahead=1"]
        given += ["rollout.timeout_s=20", "grpo.max_steps=4", "run.name=run"]
        done = tal(*given)
        assert done.status == 0, done.err
        ages = [json.loads(line).get("rollout/staleness") for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert [age for age in ages if age is not None] == [0, 1, 1, 1]
        tables = map(parquet.read_table, (run / "completions").glob("*.parquet"))
        prompts = Counter(row["prompt"] for table in tables for row in table.to_pylist())
        assert [*prompts.values()] == [4] * 4  # a group of each, and none twice
        whole = load_file(model)

        (checkpoint,) = (run / "checkpoints").glob("step-3")
        for path in (run / "checkpoints").glob("step-*"):
            if path != checkpoint:
                shutil.rmtree(path)
        shutil.rmtree(run / "model")
        (run / "policy.json").unlink()
        server.restart()
        again = tal(*given, "run.resume=auto")
        assert again.status == 0, again.err
        assert "grpo continues from step 3" in again.err
        assert all(value.equal(whole[name]) for name, value in load_file(model).items())


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("grpo.per_device_train_batch_size=2", "divisible by num_generations (4)"),
        ("tasks.judged.items=train", "eval.leaks=report"),
    ],
)
def test_invalid_batch_size_or_leaked_items_are_rejected_before_start(
    tal: Tal, small: Path, tmp_path: Path, override: str, expected: str
) -> None:
    done = tal(*words(tmp_path, small), override, "run.name=refused")
    assert done.status == 2
    assert expected in done.err
    assert not (tmp_path / "refused").exists()


def test_run_ends_at_first_step_if_no_comparison_parses(tal: Tal, small: Path, tmp_path: Path) -> None:
    given = words(tmp_path, small)  # as a judge, this model has learnt nothing
    done = tal(*given, "rm=judge", f"rm.path={small}", "rm.max_completion_length=4", "run.name=mute")
    assert done.status == 2
    assert re.search(r"step 1: none of 4 answers has a reward.* expected a judge that knows pairs", done.err)
    assert not (tmp_path / "mute" / "model").exists()


def test_group_must_fit_on_one_process() -> None:
    sizes = {"per_device_train_batch_size": 2, "steps_per_generation": 2}
    check_groups(SimpleNamespace(**sizes, num_generations=4))
    with pytest.raises(
        ValueError, match=r"a process samples 4 completions at a time .* a multiple of num_generations \(8\)"
    ):
        check_groups(SimpleNamespace(**sizes, num_generations=8))


def test_dry_run_describes_training_and_tasks(tal: Tal, small: Path, tmp_path: Path) -> None:
    given = words(tmp_path, small)
    done = tal(given[0], "--dry-run", *given[1:])  # for eight GPUs, as the recipe is launched
    assert "sampled for 8 prompts at a time (processes 8, times" in done.err
    assert "expected at most the number of training items, 7: lower one of them" in done.err
    done = tal(given[0], "--dry-run", *given[1:], "run.launch=null")
    assert done.status == 0, done.err
    assert all(
        text in done.out
        for text in ("2 steps, 4 completions per prompt", "task judged", "classifier", "2: before GRPO")
    )
