"""Fields of TRL's configurations that our schema does not type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from config.messages import GRPO, PRISM, QUICKSTART, SCPO, faults, message
from conftest import PLANTED

from think_as_locals.config.checks import load_config, load_recipe


def named(recipe: Path, key: str, value: Any) -> str:
    """Return the line of the message about a key that is set to a value."""
    (line,) = (line for line in faults({key: value}, recipe).splitlines() if line.startswith(f"  - {key}: "))
    return line.removeprefix(f"  - {key}: ")


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("grpo.push_to_hub", True, "drop it: TRL would upload its whole folder"),
        ("grpo.log_completions_hub_repo", "me/mine", "drop it: TRL would upload its whole folder"),
        ("grpo.trust_remote_code", True, "drop it: code that comes with a model is not run"),
        ("grpo.enable_jit_checkpoint", True, "drop it: SIGTERM saves and stops as it is"),
        ("grpo.vllm_mode", "server", "set rollout instead"),
        ("grpo.vllm_gpu_memory_utilization", 0.9, "set rollout.gpu_memory_utilization instead"),
        ("grpo.vllm_server_base_url", "http://there:8000", "set rollout.url instead"),
        ("grpo.resume_from_checkpoint", "runs/other/checkpoints/step-3", "set run.resume instead"),
        ("grpo.eval_strategy", "steps", "set eval.* instead"),
        ("grpo.remove_unused_columns", True, "set data.* (the rewards need its columns) instead"),
        ("grpo.hub_token", PLANTED["HF_TOKEN"], "set HF_TOKEN in the environment"),
        *(
            (f"{section}.{field}", True, "drop it: TRL would upload its whole folder, for all to see; `tal push` sends")
            for section in ("grpo", "sft")
            for field in ("push_to_hub", "hub_model_id", "hub_always_push")
        ),
        ("sft.max_length", 512, "set data (no demonstration is cut) instead"),
        ("global_rm.max_length", 9, "set scpo.max_length instead"),
        ("global_rm.num_train_epochs", 3.0, "set max_steps of this section instead"),
        ("global_rm.ddp_timeout", 9, "set scpo.ddp_timeout instead"),
    ],
)
def test_a_field_that_another_key_decides_or_that_does_harm_is_refused(key: str, value: Any, expected: str) -> None:
    found = named(SCPO if key.startswith("global_rm") else QUICKSTART, key, value)
    assert found.startswith(expected)
    assert PLANTED["HF_TOKEN"] not in found


@pytest.mark.parametrize("section", ["scpo", "global_rm"])
@pytest.mark.parametrize(
    ("field", "instead"),
    [
        (
            "report_to",
            "nothing (many trainings in one process have no tracker: metrics.jsonl and scpo.json have it all",
        ),
        ("output_dir", "run.dir and run.name"),
        ("seed", "seed and scpo.seeds"),
        ("data_seed", "seed and scpo.seeds"),
        ("bf16", "model.dtype"),
        ("disable_dropout", "mode.dropout"),
        ("save_only_model", "save_steps of this section"),
        ("dataloader_drop_last", "per_device_train_batch_size of this section (every batch is full"),
        ("pad_to_multiple_of", "per_device_train_batch_size of this section"),
        ("train_sampling_strategy", "per_device_train_batch_size of this section"),
        ("chat_template_path", "model (its texts are read as it was made for)"),
        ("pad_token", "model ("),
        ("deepspeed", "a --config_file of accelerate launch"),
    ],
)
def test_scpo_decides_the_same_fields_by_other_keys(section: str, field: str, instead: str) -> None:
    assert named(SCPO, f"{section}.{field}", "x").startswith(f"set {instead}")


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("grpo.loss_type", "gspo", "expected 'grpo', 'bnpo', 'dr_grpo', 'dapo', 'luspo', 'cispo', 'sapo' or 'vespo'"),
        ("grpo.importance_sampling_level", "word", "expected token or sequence"),
        ("grpo.scale_rewards", "max", "expected group or batch or none"),
        ("grpo.multi_objective_aggregation", "sum", "expected sum_then_normalize or normalize_then_sum"),
        ("grpo.vllm_importance_sampling_mode", "mask", "expected token_truncate or token_mask or"),
        ("grpo.num_iterations", 0, "expected at least 1"),
        ("grpo.steps_per_generation", 0, "expected at least 1"),
        ("grpo.epsilon", -0.1, "expected at least 0"),
        ("grpo.max_steps", 0, "expected at least 1, or -1 for as many as grpo.num_train_epochs takes"),
        ("grpo.num_generation", 4, "no such field of TRL's GRPOConfig; did you mean 'num_generations'?"),
        ("grpo.packing", True, "no such field of TRL's GRPOConfig"),
        ("sft.num_generations", 4, "no such field of TRL's SFTConfig"),
        ("sft.max_steps", -1, "greater than 0"),
        ("grpo.top_p", "high", "expected"),
        ("grpo.max_grad_norm", True, "expected"),
        ("grpo.steps_per_generation", 1.5, "expected"),
        ("grpo.mask_truncated_completions", "maybe", "expected"),
    ],
)
def test_an_unknown_field_or_value_is_named(key: str, value: Any, expected: str) -> None:
    found = named(QUICKSTART, key, value)
    assert expected in found
    assert found.startswith(("no such field", f"got {value!r}, "))


def test_fields_that_conf_does_not_name_can_be_set() -> None:
    loaded = load_recipe(GRPO, ["grpo.top_p=0.9", "grpo.epsilon=0.1", "grpo.scale_rewards=batch"])
    assert loaded.grpo.model_extra == {"top_p": 0.9, "epsilon": 0.1, "scale_rewards": "batch"}
    scpo = load_config(SCPO, ["scpo.center_rewards_coefficient=0.01", "global_rm.weight_decay=0.1"])
    assert scpo.scpo.model_extra == {"center_rewards_coefficient": 0.01}
    assert scpo.global_rm.model_extra == {"weight_decay": 0.1}


def test_faults_of_our_keys_and_of_trls_are_listed_in_one_message() -> None:
    found = message(QUICKSTART, "seed=-1", "grpo.num_generation=4", "sft.learning_rat=0.1")
    assert found.count("\n  - ") == 3
    found = message(SCPO, "scpo.max_steps=0", "scpo.report_to=[wandb]", "mode.ties=none", "seed=-1")
    assert found.count("\n  - ") == 4
    assert message(PRISM, "seed=-1").count("\n  - ") == 1
