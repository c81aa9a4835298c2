"""Several processes: results equal those of one process, saved models load, and faulty launches are rejected."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env
from conftest import QUICK, ROOT, SMALL, command, launch
from safetensors.torch import load_file
from training import spread
from training.scripted_vllm import serving
from training.small_grpo import tiny_trainer

from think_as_locals import Judge
from think_as_locals.config.checks import load_recipe
from think_as_locals.config.launch import read_launch
from think_as_locals.runtime import ranks as workers
from think_as_locals.types import ConfigError

LAUNCH_FILES = sorted((ROOT / "launch").glob("*.yaml"))
PATH = os.pathsep.join(filter(None, [str(ROOT / "tests"), str(ROOT), os.environ.get("PYTHONPATH")]))
LAUNCH_PREFIXES = ("ACCELERATE_", "FSDP_", "MASTER_", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
DEEPSPEED, FSDP = {"ACCELERATE_USE_DEEPSPEED": "true"}, {"ACCELERATE_USE_FSDP": "true"}
EIGHT = {"WORLD_SIZE": "8"}


@pytest.fixture
def unlaunched(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment that no launcher has touched, on a machine without a GPU."""
    for name in list(os.environ):
        if name.startswith(LAUNCH_PREFIXES):
            monkeypatch.delenv(name)
    with_gpus(monkeypatch, 0)
    return monkeypatch


def with_gpus(patch: pytest.MonkeyPatch, count: int) -> None:
    patch.setattr(workers, "num_gpus", lambda: count)


def environment_of(file: Path) -> dict[str, str]:
    """What accelerate tells the processes of a launch file."""
    address = ["--machine_rank", "0", "--main_process_ip", "localhost", "--main_process_port", "0"]
    args = launch_command_parser().parse_args(["--config_file", str(file), *address, "recipes/quickstart.yaml"])
    args, _, _ = _validate_launch_command(args)
    if args.use_deepspeed:
        args.deepspeed_fields_from_accelerate_config = ""
        return {**prepare_deepspeed_cmd_env(args)[1], "WORLD_SIZE": str(args.num_processes)}
    if args.multi_gpu or args.use_fsdp:
        return {**prepare_multi_gpu_env(args), "WORLD_SIZE": str(args.num_processes)}
    return {"ACCELERATE_MIXED_PRECISION": args.mixed_precision}


# --- launch files ---


@pytest.mark.parametrize("file", LAUNCH_FILES, ids=lambda file: file.stem)
def test_launch_file_is_documented_and_valid_without_hyperparameters(
    file: Path, unlaunched: pytest.MonkeyPatch
) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert len(text.splitlines()) <= 40
    assert not {"gradient_accumulation_steps", "gradient_clipping"} & set(
        yaml.safe_load(text).get("deepspeed_config", {})
    )
    environment = environment_of(file)
    for name, value in environment.items():
        if name.startswith(LAUNCH_PREFIXES):
            unlaunched.setenv(name, value)
    on_gpu = environment["ACCELERATE_MIXED_PRECISION"] == "bf16"
    if on_gpu:
        with_gpus(unlaunched, 8)
    assert workers.launch_faults(load_recipe(f"recipes/{'tal_grpo' if on_gpu else 'quickstart'}.yaml")) == []


@pytest.mark.parametrize("file", LAUNCH_FILES, ids=lambda file: file.stem)
def test_take_up_launch_sets_the_environment_that_accelerate_sets(file: Path, unlaunched: pytest.MonkeyPatch) -> None:
    expected = environment_of(file)
    unlaunched.setattr(os, "environ", {"WORLD_SIZE": "8", "ACCELERATE_MIXED_PRECISION": "no"})
    said = workers.apply_launch(file.stem)
    taken = {name: value for name, value in os.environ.items() if name != "WORLD_SIZE"}
    assert taken == {name: expected[name] for name in taken}
    sharded = [name for name in expected if name.startswith(("ACCELERATE_USE_", "FSDP_VERSION")) or "ZERO" in name]
    assert set(sharded) <= taken.keys()
    assert workers.current_launch().zero_stage == read_launch(file).zero_stage
    assert said is not None
    assert f"launch: 8 processes, without settings from the launcher; run.launch={file.stem}" in said


@pytest.mark.parametrize(
    ("name", "environment", "said"),
    [
        ("single", {}, None),
        ("gpu8_zero3", {}, "one process; run.launch=gpu8_zero3 has 8, and as many times the rows a step"),
        ("gpu8_zero3", {"WORLD_SIZE": "1"}, "one process; run.launch=gpu8_zero3 has 8"),
        ("gpu8_zero3", EIGHT | DEEPSPEED, "(DeepSpeed); run.launch=gpu8_zero3 is not needed"),
        ("gpu8_fsdp2", EIGHT | FSDP, "(FSDP); run.launch=gpu8_fsdp2 is not needed"),
        ("gpu8_zero3", EIGHT | {"ACCELERATE_MIXED_PRECISION": "bf16"}, "(bf16); run.launch=gpu8_zero3 is not needed"),
    ],
)
def test_launcher_environment_takes_precedence_over_run_launch(
    unlaunched: pytest.MonkeyPatch, name: str, environment: dict[str, str], said: str | None
) -> None:
    unlaunched.setattr(os, "environ", {**environment})
    found = workers.apply_launch(name)
    assert found is None if said is None else said in str(found)
    assert os.environ == environment


# --- launches that would do less than they say ---


@pytest.mark.slow
def test_launch_fails_if_only_one_of_two_processes_starts(tmp_path: Path, warm_python: str) -> None:
    flags = ["--cpu", "--config_file", "launch/cpu_zero3.yaml"]  # as with --num_processes 2 and no --multi_gpu
    words = ["launch", *flags, "recipes/quickstart.yaml", f"run.dir={tmp_path}"]
    done = launch(warm_python, command("accelerate"), *words)
    assert done.returncode != 0
    assert "accelerate was asked for them and started one; add --multi_gpu" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("environment", "gpus", "recipe", "message"),
    [
        ({"ACCELERATE_MIXED_PRECISION": "bf16"}, 0, "quickstart", "--mixed_precision no"),
        (DEEPSPEED | {"ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}, 0, "quickstart", "zero3_save_16bit_model"),
        (DEEPSPEED, 0, "tal_grpo", "model.dtype=float32"),
        (FSDP | {"FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT"}, 0, "quickstart", "launch/cpu_zero3.yaml"),
        (FSDP | {"FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT"}, 0, "quickstart", "FULL_STATE_DICT"),
        (FSDP, 0, "quickstart", "rollout=transformers"),
        (EIGHT | {"LOCAL_WORLD_SIZE": "8"}, 4, "quickstart", "torch sees 4"),
        ({}, 8, "quickstart", "tal launch RECIPE --num_processes 8"),
    ],
)
def test_launch_faults_name_the_unsupported_setting(
    unlaunched: pytest.MonkeyPatch, environment: dict[str, str], gpus: int, recipe: str, message: str
) -> None:
    if gpus:
        with_gpus(unlaunched, gpus)
    for name, value in environment.items():
        unlaunched.setenv(name, value)
    assert message in "\n".join(workers.launch_faults(load_recipe(f"recipes/{recipe}.yaml")))


def test_deepspeed_config_file_says_the_stage_and_must_gather_weights_on_save(
    unlaunched: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file, launched = tmp_path / "zero.json", tmp_path / "mine.yaml"
    own = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": str(file), "zero_stage": 3}}
    launched.write_text(yaml.safe_dump(own), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"zero\.json: cannot be read as a DeepSpeed configuration: .*No such file"):
        read_launch(launched)
    unlaunched.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    unlaunched.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(file))
    unlaunched.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "3")  # in place of "auto" alone
    key = "stage3_gather_16bit_weights_on_model_save"
    for stage, saves, faults in ((3, False, 1), (3, True, 0), (2, False, 0), ("auto", False, 1), ("auto", "auto", 1)):
        file.write_text(json.dumps({"zero_optimization": {"stage": stage, key: saves}}), encoding="utf-8")
        assert len(workers.launch_faults(load_recipe("recipes/quickstart.yaml"))) == faults
        expected = 3 if stage == "auto" else stage
        assert workers.current_launch().zero_stage == read_launch(launched).zero_stage == expected


# --- how long they wait for one another ---


@pytest.mark.parametrize(
    ("overrides", "seconds"),
    [
        ([], 1800),
        (["grpo.ddp_timeout=7200"], 7200),
        (["rollout.timeout_s=4000.0"], 1800),
        (spread.SLOW_SERVER, 4060),
        ([*spread.SLOW_SERVER, "grpo.ddp_timeout=7200"], 7200),
    ],
)
def test_rank_timeout_exceeds_the_server_timeout(overrides: list[str], seconds: float) -> None:
    assert workers.rank_timeout_s(load_recipe("recipes/quickstart.yaml", overrides)) == seconds


# --- what they compute and save ---


@pytest.mark.slow
def test_run_launch_zero3_shards_training_and_saves_a_plain_model(tmp_path: Path, warm_python: str) -> None:
    overrides = ["sft.gradient_checkpointing=true", "grpo.gradient_checkpointing=true", "grpo.max_steps=3"]
    (tmp_path / "own.py").write_text("def brief(judgement, item):\n    return 1 / (1 + len(judgement.completion))\n")
    rewards = ["reward=full", "prompt=compact_rubric", "grpo.save_steps=100", "grpo.num_iterations=2"]
    rewards += [f"reward.own.brief={tmp_path}/own.py:brief", "reward.weights.brief=0.5"]
    uneven = ["eval.every_steps=100", "eval.max_items=17", "eval.batch_size=8"]  # two batches on rank 0, one on rank 1
    done = launch(
        *[warm_python, command("torchrun"), "--nproc_per_node", "2", "recipes/quickstart.yaml"],
        *[*SMALL, *QUICK, *overrides, *rewards, *uneven, f"run.dir={tmp_path}", "run.name=zero3"],
        "run.launch=cpu_zero3",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("without settings from the launcher; run.launch=cpu_zero3: DEEPSPEED stage 3") == 1
    run = tmp_path / "zero3"
    spread_over = json.loads((run / "workers.json").read_text())
    assert (spread_over["kind"], spread_over["zero_stage"], len(spread_over["ranks"])) == ("DEEPSPEED", 3, 2)
    for rank in spread_over["ranks"]:
        assert rank["parameters"] == rank["optimized"] == pytest.approx(spread_over["parameters"] / 2, rel=0.01)
    logs = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert {"sft", "grpo"} == {log["stage"] for log in logs}
    rewarded = [log for log in logs if "rewards/criteria_gain/mean" in log]
    assert {name for name in rewarded[0] if name.startswith("rewards/") and name.endswith("/mean")} >= {
        f"rewards/{name}/mean"
        for name in ("correctness", "structure", "rubric_quality", "consistency", "length", "brief")
    }
    assert "prefixes are not shared" not in done.stderr
    for step in (0, 3):
        assert json.loads((run / "carb" / f"step-{step}.json").read_text())["n"] == 17
    model = Judge.load(str(run / "model")).engine.model
    assert sum(p.numel() for p in model.parameters()) == spread_over["parameters"]


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory, warm_python: str) -> tuple[Path, dict[str, Any]]:
    """What two processes made of the same rollouts in every way."""
    folder = tmp_path_factory.mktemp("ways")
    tiny_trainer(folder)  # makes the model
    launcher = [warm_python, command("accelerate"), "launch", "--config_file", "launch/cpu_zero2.yaml"]
    with serving(folder / "model") as server:
        words = ["tests/training/spread.py", str(folder), server.url]
        done = launch(*launcher, *words, PYTHONPATH=PATH, VLLM_API_KEY="secret")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {size for _, size in server.served} == {8, 1, 3}  # of both ranks; in evaluations 1 item, 3 pairs of another
    return folder, json.loads((folder / "results.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [[], spread.LORA], ids=["full", "LoRA"])
def test_two_processes_match_the_curves_of_one_process(ways: tuple[Path, dict[str, Any]], overrides: list[str]) -> None:
    folder, results = ways
    trainer = spread.make(folder, *overrides)
    trainer.train()
    expected = torch.tensor(spread.curve(trainer))
    assert len(expected) == 6
    assert expected[2:, 0].abs().min() > 0.01
    cases = [case for case in spread.WAYS if ("lora" in case) == bool(overrides)]
    curves = {case: results[case]["curve"] for case in cases}
    curves["fsdp2"] = (results["fsdp2"]["lora"] if overrides else results["fsdp2"])["curve"]
    for case, curve in curves.items():
        difference = (torch.tensor(curve) - expected).abs().max(0).values
        assert (difference < 1e-4).all(), f"{case}: {difference}"
    assert cases == (["lora_zero2", "lora_zero3"] if overrides else ["ddp", "zero2", "zero3"])


@pytest.mark.slow
def test_every_sharding_way_shares_prefixes_and_saves_the_policy(ways: tuple[Path, dict[str, Any]]) -> None:
    folder, results = ways
    assert results["ranks wait"] == [4060, 4060]
    for case, (stage, _) in spread.WAYS.items():
        assert results[case]["unshared"] is None
        assert results[case]["difference"] <= (1e-5 if "lora" in case else 0), case
        spread_over = json.loads((folder / f"{case}.json").read_text())
        assert spread_over["zero_stage"] == (int(stage) if stage else None)
        whole, here = spread_over["parameters"], spread_over["ranks"][0]
        assert here["parameters"] == (whole / 2 if stage == "3" else whole)
        assert here["optimized"] <= (whole / 2 if stage else whole)
    assert (folder / "lora_zero2" / "adapter" / "adapter_model.safetensors").is_file()
    assert (folder / "lora_zero2" / "model" / "model.safetensors").is_file()


@pytest.mark.slow
def test_fsdp2_shares_prefixes_resumes_saves_dtype_and_syncs(ways: tuple[Path, dict[str, Any]]) -> None:
    found = ways[1]["fsdp2"]
    assert found["unshared"] is None
    assert (found["resumed"], found["same weights"]) == (True, True)
    assert (found["dtypes"], found["saved"]) == (["bfloat16", "torch.bfloat16"], True)
    assert found["gradients"] == ["DTensor torch.float32"]  # of this rank, from the first micro-step on
    assert found["logits"] == "torch.float32"
    assert found["lora"]["difference"] < 1e-5
    for synced in (found["synced"], found["lora"]["synced"]):
        assert len(synced) == 3
        assert max(synced) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("case", ["fsdp2", *spread.AHEAD])
def test_sampling_ahead_works_on_two_ranks_under_every_sharding(ways: tuple[Path, dict[str, Any]], case: str) -> None:
    found, unmoved = ways[1][case]["ahead"], case == "lora_zero3"
    ages = [0, 1, 2, 3] if case == "ddp" else [0, 1, 1, 1]
    assert [log["rollout/staleness"] for log in found["whole"]] == ages
    apart = [log["sampling/sampling_logp_difference/max"] for log in found["whole"]]
    assert [difference > 1e-3 for difference in apart] == [age > 0 and not unmoved for age in ages]
    assert max(apart) < 1e-4 or not unmoved
    assert found["resumed"] == found["whole"]
    here, there = found["judged"]
    assert here == there  # on both ranks
    assert [len(each) for each in here] == [1, 1, 1]
    assert "the model takes" in here[1][0]
    assert found["fault"] == ["item 'x': no prompt"] * 2


@pytest.mark.slow
def test_faults_on_one_rank_end_both_ranks_only_above_the_limit(ways: tuple[Path, dict[str, Any]]) -> None:
    first, second = ways[1]["faults"]
    assert first == second
    assert first["few"] == [2.0, 0.0]
    failed = "step 1: on rank 1 the rewards of more than 10.0% of the last 20 rollouts failed"
    assert first["many"].startswith(failed)
    assert "ZeroDivisionError" in first["many"]
    assert first["hangs"].startswith(failed)
    assert "TimeoutError" in first["hangs"]
    assert first["nan"].startswith("step 1: reward not finite on rank 1")
    assert first["loss"].startswith("step 1: loss not finite on rank 1")


@pytest.mark.slow
def test_pairs_of_a_group_on_two_ranks_are_rewarded_together(ways: tuple[Path, dict[str, Any]]) -> None:
    right, wrong = ({"correctness": sign, "consistency": both, "structure": 1} for sign, both in ((1, 1), (-1, 0)))
    assert ways[1]["pairs"] == [[[right, wrong], 0.5], [[right, {**right, "consistency": 0}], 0.5]]


@pytest.mark.slow
@pytest.mark.parametrize("case", spread.STOPPED)
def test_resumed_sharded_run_is_bit_identical(ways: tuple[Path, dict[str, Any]], case: str) -> None:
    run, logged = ways[0] / f"{case}_stopped", ways[1][case]["stopped"]
    assert logged["whole"] == logged["resumed"]
    assert [log["step"] for log in logged["whole"]] == [1, 2, 3, 4, 5, 6]
    (checkpoint,) = (run / "checkpoints").glob("step-*")
    assert all(json.loads((checkpoint / f"rank-{rank}.json").read_text())["rollouts"] for rank in (0, 1))
    adapter = "adapter/adapter_model.safetensors"
    trained = adapter if "lora" in case else "model/model.safetensors"
    for file in {"model/model.safetensors", trained}:
        assert (run / "whole" / file).read_bytes() == (run / "resumed" / file).read_bytes()
    then, now = load_file(checkpoint / Path(trained).name), load_file(run / "whole" / trained)
    assert then.keys() == now.keys()
    assert sum(not torch.equal(then[name], now[name]) for name in now) > 0.5 * len(now)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["fsdp2", "ddp", "zero2", "zero3"])
def test_code_in_a_sharded_checkpoint_is_not_executed(ways: tuple[Path, dict[str, Any]], case: str) -> None:
    found = ways[1][case]["checkpoint"]
    assert found["ran"] == dict.fromkeys(found["pickles"], False)  # no pickle is loaded otherwise than by torch
    assert {"scheduler.pt", "rng_state_0.pth", "rng_state_1.pth"} < found["ran"].keys()


@pytest.mark.slow
def test_checkpoint_of_another_sharding_is_rejected(ways: tuple[Path, dict[str, Any]]) -> None:
    before, said = "2 x MULTI_CPU", {case: ways[1][case]["another launch"] for case in spread.WAYS}
    for stage in (2, 3):
        now = f"2 x DEEPSPEED stage {stage}"
        assert f"is from a launch of {before}, this one is {now}: launch as then" in said.pop(f"zero{stage}")
        before = now
    assert said == {"ddp": "", "lora_zero2": "", "lora_zero3": ""}


@pytest.mark.slow
def test_tensor_parallel_ranks_judge_the_same_items(ways: tuple[Path, dict[str, Any]]) -> None:
    found = ways[1]["tensor parallel"]
    first, second = found["given"]
    assert (first == second, len(first)) == (True, 5)
    assert found["counts"] == {f"item-{number}": 1 for number in range(5)}


@pytest.mark.slow
def test_deepspeed_run_ends_before_using_a_non_finite_gradient(ways: tuple[Path, dict[str, Any]]) -> None:
    for case in ("zero2", "zero3"):
        message, unchanged = ways[1][case]["poisoned"]
        assert "step 1: gradient not finite" in message
        assert unchanged
