"""TRL settings, the order of rows, and base models without chat defaults."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from conftest import ROOT
from engines.test_engine import REFUSES
from hypothesis import given
from hypothesis import strategies as st
from reward_models.tiny import a_tokenizer, an_item, write_model
from torch.utils.data import BatchSampler
from training.small_grpo import TINY, chance, settings, tiny_trainer
from transformers import AutoConfig, AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM, Qwen3ForCausalLM
from trl.trainer.utils import RepeatSampler

from think_as_locals.config.checks import load_recipe
from think_as_locals.config.launch import Launch
from think_as_locals.run import start
from think_as_locals.runtime.run_folder import RunFolder, StageFolder
from think_as_locals.train import steps_of
from think_as_locals.training.checkpoints import Checkpoints, save_model
from think_as_locals.training.grpo import BothOrdersSampler, JudgeTrainer, PromptDataset, load_chat, trl_arguments
from think_as_locals.types import ConfigError, Item

EPOCHS = ["grpo.max_steps=-1"]


def test_prompt_works_without_system_role_or_generation_config(tmp_path: Path) -> None:
    tokenizer = a_tokenizer()
    tokenizer.chat_template = REFUSES  # a system role
    path = write_model(tmp_path, Qwen3ForCausalLM, 0, tokenizer)
    (tmp_path / "generation_config.json").unlink()
    config = load_recipe(ROOT / "recipes" / "quickstart.yaml", ["prompt=listwise"])
    chat = load_chat(config, path)
    items = Items([an_item(1)])
    ((message,),) = PromptDataset(config, items, ["mine"], chat)[:]["prompt"]
    assert message["role"] == "user"
    assert chat.text([message], add_generation_prompt=False).startswith("<|user|>")
    assert not items.pickled


class Items(list[Item]):
    """Notes that they are pickled, which takes minutes where there are many."""

    pickled = False

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        self.pickled = True
        return list, (list(self),)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("grpo.num_generations=7", r"grpo.*: generation_batch_size \(128\) must be divisible by num_gen"),
        # What TRL takes, to train on nothing.
        ("grpo.per_device_train_batch_size=512", "grpo.*: .* for 64 prompts at a time .* items, 28:"),
    ],
)
def test_invalid_trl_settings_are_rejected_before_run_folder_exists(
    tmp_path: Path, override: str, message: str
) -> None:
    data = ["data.groups=[gift_taboo]", "data.sets_per_group=8"]
    with pytest.raises(ConfigError, match=f"TRL does not take this configuration:\n  - {message}"):
        start("recipes/quickstart.yaml", [*data, f"run.dir={tmp_path}", override])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "overrides",
    [
        ["grpo.per_device_train_batch_size=20"],  # 3 times 5 of 16 prompts
        ["grpo.per_device_train_batch_size=20", "grpo.num_train_epochs=2.5"],
        ["grpo.num_iterations=3", "grpo.gradient_accumulation_steps=2"],
        ["grpo.steps_per_generation=3", "grpo.gradient_accumulation_steps=2"],
        ["grpo.generation_batch_size=24", "grpo.num_train_epochs=2"],
    ],
)
def test_planned_steps_are_those_of_trl(tmp_path: Path, overrides: list[str]) -> None:
    trainer, (config, items) = tiny_trainer(tmp_path, *EPOCHS, *overrides), settings(*EPOCHS, *overrides)
    *_, steps = trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())
    assert steps_of(config, Launch("NO", 0, 1), len(items)) == steps


def test_bfloat16_model_updates_most_weights_at_a_small_learning_rate(tmp_path: Path) -> None:
    overrides = ["rollout=transformers", "model.dtype=bfloat16", "grpo.learning_rate=1.0e-6", "grpo.warmup_steps=0"]
    trainer = tiny_trainer(tmp_path, *overrides, structure=chance)
    before = {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}
    trainer.train()
    moved = [(parameter != before[name]).float().mean() for name, parameter in trainer.model.named_parameters()]
    assert min(moved) > 0.9  # in bfloat16 itself 2 % of them moved in 20 steps
    assert trainer.unshared_reason is None
    model = load_recipe("recipes/quickstart.yaml", ["model.dtype=bfloat16"]).model
    save_model(trainer, "", model, StageFolder(tmp_path / "saved"), AutoModelForCausalLM.from_pretrained)
    assert AutoConfig.from_pretrained(tmp_path / "saved" / "model").dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("overrides", "launch", "grpo", "sft"),
    [
        ([], None, "float32", "float32"),
        (["lora=rank16"], None, "bfloat16", "float32"),  # a cold start trains all weights
        ([], "ACCELERATE_USE_DEEPSPEED", "bfloat16", "bfloat16"),
        ([], "ACCELERATE_USE_FSDP", "bfloat16", "bfloat16"),
    ],
)
def test_weights_load_in_float32_unless_lora_or_launcher_keeps_them(
    monkeypatch: pytest.MonkeyPatch, overrides: list[str], launch: str | None, grpo: str, sft: str
) -> None:
    if launch:
        monkeypatch.setenv(launch, "true")
    config = load_recipe("recipes/quickstart.yaml", ["model.dtype=bfloat16", *overrides])
    assert config.sft is not None
    for section, expected in ((config.grpo, grpo), (config.sft, sft)):
        arguments = trl_arguments(config, section, Path("nowhere"))
        assert (arguments["model_init_kwargs"]["dtype"], arguments["bf16"]) == (expected, True)


@given(st.integers(1, 12), st.sampled_from([2, 4, 6]), st.integers(1, 4), st.integers(1, 3), st.integers(0, 99))
def test_items_follow_the_order_of_trl_repeat_sampler(
    items: int, group: int, window: int, repeat: int, seed: int
) -> None:
    same = {"batch_size": window, "repeat_count": repeat, "seed": seed}
    ours = BothOrdersSampler(2 * items, num_generations=group, **same)
    theirs = RepeatSampler(range(items), mini_repeat_count=group, **same)
    assert len(ours) == len(theirs)
    for _ in range(2):  # epochs
        rows, expected = list(ours), list(theirs)
        assert [row // 2 for row in rows] == expected
        assert len(rows) == len(ours)
        for place in range(0, len(rows), group):
            assert Counter(row % 2 for row in rows[place : place + group]) == {0: group // 2, 1: group // 2}


@pytest.mark.parametrize("processes", [2, 4])
def test_order_gathered_over_processes_matches_the_sampler(processes: int) -> None:
    group, per_process, steps = 8, 4, 2  # a group lies on two processes
    local = per_process * steps

    def sampler() -> BothOrdersSampler:
        return BothOrdersSampler(64, group, batch_size=local * processes // group, repeat_count=steps, seed=3)

    batches = [BatchSampler(sampler(), local, drop_last=False) for _ in range(processes)]
    shards = [list(BatchSamplerShard(batches[rank], processes, rank)) for rank in range(processes)]
    gathered = [row for turn in zip(*shards, strict=True) for part in turn for row in part]
    assert gathered == list(sampler())


@pytest.mark.slow
def test_both_orders_train_in_one_group(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, "reward=j1", "grpo.per_device_train_batch_size=8")
    trainer.train()
    logs = [log for log in trainer.state.log_history if "reward" in log]
    assert len(logs) == 2
    names = {"rewards/consistency/mean", "consistent_accuracy", "verdict/A", "verdict/D", "reward_faults"}
    assert names <= logs[0].keys()
    rows = trainer.rewards.take_rows()
    assert len(rows) == 16
    for first in range(0, 16, 4):
        group = rows[first : first + 4]
        assert len({row["id"] for row in group}) == 1
        slots = ["ABCD".index(row["best_label"]) for row in group]
        assert slots[0] == slots[1] == 3 - slots[2] == 3 - slots[3]


def test_rollouts_ignore_the_generation_config_of_the_model(tmp_path: Path) -> None:
    found = []
    for own in ({}, {"suppress_tokens": list(range(50, 250)), "no_repeat_ngram_size": 1, "min_new_tokens": 6}):
        trainer = tiny_trainer(tmp_path, "rollout=transformers")
        for name, value in own.items():
            setattr(trainer.model.generation_config, name, value)
        torch.manual_seed(1)
        found.append(trainer._generate_single_turn([[5, 6, 7]] * 4, None, {}, 4)[0])
        assert trainer.model.generation_config.min_new_tokens == own.get("min_new_tokens")
    assert found[0] == found[1]


def test_completions_logged_by_trl_go_to_its_table_and_not_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = tiny_trainer(tmp_path, "grpo.log_completions=true")
    trainer.train()
    assert list(tmp_path.rglob("completions_*.parquet"))
    assert "Completion" not in capsys.readouterr().out


def test_rollouts_and_gains_are_computed_without_dropout_and_losses_with(tmp_path: Path) -> None:
    overrides = ["rollout=transformers", "prompt=compact_rubric", "reward=paper"]
    trainer = tiny_trainer(tmp_path, *overrides, "grpo.max_steps=1", correctness=chance)
    modes: list[tuple[bool, bool]] = []
    trainer.model.register_forward_pre_hook(lambda model, _: modes.append((model.training, torch.is_grad_enabled())))
    trainer.train()
    assert set(modes) == {(False, False), (True, True)}


@pytest.mark.parametrize(("layer", "reason"), [("embed_tokens", "adapts the embeddings"), ("lm_head", "lm_head's own")])
def test_adapter_of_tied_embeddings_or_of_the_head_is_rejected(tmp_path: Path, layer: str, reason: str) -> None:
    tiny_trainer(tmp_path)  # makes the model
    model, checkpoints = str(tmp_path / "model"), Checkpoints(tmp_path / "checkpoints", 1)
    words = [f"model.path={model}", "model.scratch=null", "trainer=grpo", "rollout=transformers"]
    words += ["lora=rank16", f"lora.target_modules=[q_proj,{layer}]"]
    recipe, items = "recipes/quickstart.yaml", settings()[1]
    with pytest.raises(ConfigError, match=rf"lora\.target_modules: .*{reason}"):
        JudgeTrainer(load_recipe(recipe, [*TINY, *words]), model, items, RunFolder(tmp_path), checkpoints)


def test_soft_caps_of_attention_are_trained_with_though_sdpa_drops_them(tmp_path: Path) -> None:
    vocabulary = len(tiny_trainer(tmp_path).processing_class)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    more = {"num_key_value_heads": 1, "head_dim": 16, "query_pre_attn_scalar": 16, "initializer_range": 1.0}
    config = Gemma2Config(vocab_size=vocabulary, attn_logit_softcapping=1.0, **sizes, **more)
    Gemma2ForCausalLM(config).save_pretrained(tmp_path / "model")
    trainer, ids = tiny_trainer(tmp_path), torch.arange(5, 25)[None]
    found = trainer.model(input_ids=ids).logits
    capped, uncapped = (
        Gemma2ForCausalLM.from_pretrained(tmp_path / "model", attn_logit_softcapping=cap, attn_implementation="eager")(
            input_ids=ids
        ).logits
        for cap in (1.0, None)
    )
    assert trainer.unshared_reason is None
    torch.testing.assert_close(found, capped, atol=1e-4, rtol=1e-4)
    assert (uncapped - capped).abs().max() > 0.1
