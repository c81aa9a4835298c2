"""SharedPrefixTrainer against TRL's own path: same loss, same gradients, fewer tokens."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from datasets import Dataset
from engines.test_packed_passes import SIZES, VOCABULARY
from engines.test_shared_layers import family_config
from peft import LoraConfig
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer
from trl.trainer import grpo_trainer

from think_as_locals.engines import packed_passes, packing
from think_as_locals.reward_models.scratch import train_tokenizer
from think_as_locals.training.shared_prefix import SharedPrefixTrainer, micro_batches

LOSSES = ["grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo"]
G = 4
Make = Callable[..., SharedPrefixTrainer]
ADAPTER: dict[str, Any] = {"r": 4, "target_modules": "all-linear", "init_lora_weights": False}
LENGTHS = [5, 3, 6, 1, 2, 6, 4, 4]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(["which of these is done there"], 300, 0)


@pytest.fixture
def make(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> Make:
    """Makes trainers of a small model; keyword arguments are GRPOConfig's, `model_*` the model's."""

    def of(
        *, family: str = "qwen3", lora: bool = False, kernel: str = "sdpa", head: bool = False, **arguments: Any
    ) -> SharedPrefixTrainer:
        torch.manual_seed(0)
        dropout = arguments.pop("adapter_dropout", 0.0)
        of_model = {k.removeprefix("model_"): arguments.pop(k) for k in list(arguments) if k.startswith("model_")}
        ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
        sizes = {**SIZES, "vocab_size": len(tokenizer), "max_position_embeddings": 256}
        config = family_config(family, **{**sizes, **ends, **of_model})
        AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
        settings = {"gradient_checkpointing": False, "beta": 0.0, "max_completion_length": 6, "bf16": False}
        made = SharedPrefixTrainer(
            float32_head=head,
            model=str(tmp_path / "model"),  # a path: the reference model is loaded from it as well
            reward_funcs=lambda completion_ids, **_: [float(len(set(ids)) + ids[0] % 2) for ids in completion_ids],
            args=GRPOConfig(
                output_dir=str(tmp_path),
                use_cpu=True,
                model_init_kwargs={"attn_implementation": kernel, "dtype": "float32"},
                per_device_train_batch_size=8,
                num_generations=G,
                report_to=[],
                disable_tqdm=True,
                **{**settings, **arguments},
            ),
            train_dataset=Dataset.from_dict({"prompt": ["which is done", "these", "of there is", "is there"]}),
            processing_class=tokenizer,
            peft_config=LoraConfig(**ADAPTER, lora_dropout=dropout) if lora else None,
        )
        if made.args.gradient_checkpointing:  # as Trainer.train does
            made.model.gradient_checkpointing_enable(made.args.gradient_checkpointing_kwargs)
        # PEFT's random adapter makes logits so large that their rounding, which differs between CPUs, moves gradients.
        for name, parameter in made.model.named_parameters():
            if "lora_B" in name:
                parameter.data.mul_(0.1)
        return made

    return of


def batch(zero: bool = False) -> dict[str, Any]:
    """Two groups of G rollouts as TRL hands them over: ragged, padded, off policy."""
    generator = torch.Generator().manual_seed(3)

    def integers(*shape: int) -> Tensor:
        return torch.randint(0, VOCABULARY, shape, generator=generator)

    lengths = torch.tensor(LENGTHS)
    prompts = torch.stack([torch.arange(9) >= 9 - length for length in (9, 4) for _ in range(G)]).long()
    completions = (torch.arange(6) < lengths[:, None]).long()
    advantages = torch.randn(2 * G, generator=generator)
    if zero:
        advantages[: G + 1] = 0
    return {
        "prompt_ids": integers(2, 9).repeat_interleave(G, 0) * prompts,
        "prompt_mask": prompts,
        "completion_ids": integers(2 * G, 6) * completions,
        "completion_mask": completions,
        "advantages": advantages,
        "old_per_token_logps": -torch.rand(2 * G, 6, generator=generator) * 9 * completions,
        "ref_per_token_logps": -torch.rand(2 * G, 6, generator=generator) * 9 * completions,
        "num_items_in_batch": lengths.sum(),
    }


def loss_and_gradient(trainer: SharedPrefixTrainer, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    trainer.model.train()
    trainer.model.zero_grad()
    trainer.current_gradient_accumulation_steps = 1
    loss = trainer.compute_loss(trainer.model, dict(inputs))
    loss.backward()
    gradients = [p.grad for p in trainer.model.parameters() if p.grad is not None]
    return loss.detach(), torch.cat([gradient.flatten() for gradient in gradients])


def trl_loss_and_gradient(trainer: SharedPrefixTrainer, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The same as TRL computes it."""
    trainer.unshared_reason = "this is the reference"
    try:
        return loss_and_gradient(trainer, inputs)
    finally:
        trainer.unshared_reason = None


def assert_same(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], loss_type: str = "") -> None:
    """Losses and gradients differ by rounding alone."""
    torch.testing.assert_close(found[0], expected[0], atol=1e-5, rtol=1e-5)
    assert (found[1] - expected[1]).norm() <= 1e-5 * expected[1].norm(), loss_type


def logged(trainer: SharedPrefixTrainer) -> dict[str, float]:
    """The metrics of one micro-batch, each logged once, since the last call."""
    metrics = {name: value for name, [value] in trainer._metrics["train"].items()}
    trainer._metrics["train"].clear()
    return metrics


def assert_matches_trl(trainer: SharedPrefixTrainer, inputs: dict[str, Any]) -> Tensor:
    """Check loss, gradient and metrics against TRL's own; returns the gradient."""
    trainer._metrics["train"].clear()
    expected, metrics = trl_loss_and_gradient(trainer, inputs), logged(trainer)
    found = loss_and_gradient(trainer, inputs)
    assert trainer.unshared_reason is None
    assert_same(found, expected, trainer.loss_type)
    assert logged(trainer) == pytest.approx(metrics, rel=1e-4, abs=1e-5, nan_ok=True)
    return found[1]


def assert_falls_back(trainer: SharedPrefixTrainer, reason: str) -> None:
    """Check that the numbers are exactly TRL's, for this reason."""
    found = loss_and_gradient(trainer, batch())
    assert reason in str(trainer.unshared_reason)
    assert all(map(torch.equal, found, trl_loss_and_gradient(trainer, batch())))


@pytest.mark.parametrize(
    ("lora", "checkpointing", "beta"),
    [(False, False, 0.0), (False, True, 0.05), (True, False, 0.05), (True, True, 0.0)],
)
def test_loss_and_gradients_match_trl_for_every_loss_type(
    make: Make, lora: bool, checkpointing: bool, beta: float
) -> None:
    trainer = make(lora=lora, gradient_checkpointing=checkpointing, beta=beta)
    assert trainer.model.is_gradient_checkpointing == checkpointing
    for trainer.loss_type in LOSSES:
        assert assert_matches_trl(trainer, batch()).norm() > 0


@pytest.mark.parametrize(
    ("family", "kernel"), [("gemma3_text", "sdpa"), ("gpt_oss", "eager"), ("qwen3_5_text", "sdpa")]
)
@pytest.mark.parametrize("lora", [False, True])
def test_windows_sinks_and_states_match_trl_beside_left_padding(
    make: Make, family: str, kernel: str, lora: bool
) -> None:
    for checkpointing, zero in ((False, True), (True, False)):
        trainer = make(
            family=family,
            kernel=kernel,
            lora=lora,
            gradient_checkpointing=checkpointing,
            router_aux_loss_coef=0.0,
            model_initializer_range=0.1,
        )
        assert assert_matches_trl(trainer, batch(zero)).norm() > 0


@pytest.mark.parametrize("family", ["nemotron", "stablelm"])
def test_layers_that_do_not_take_packed_rows_fall_back_to_trl(make: Make, family: str) -> None:
    assert_falls_back(make(family=family), "do not take packed rows")


@pytest.mark.parametrize("max_tokens", [10, 18, 25, 60])
@pytest.mark.parametrize("beta", [0.0, 0.05])
def test_passes_of_few_tokens_add_up_to_the_micro_batch(make: Make, max_tokens: int, beta: float) -> None:
    trainer = make(beta=beta)
    loss_and_gradient(trainer, batch())  # its first pass compares itself with TRL's
    trainer._metrics["train"].clear()
    for trainer.loss_type in LOSSES:
        trainer._max_tokens = None
        expected, metrics = loss_and_gradient(trainer, batch()), logged(trainer)
        trainer._max_tokens = max_tokens
        assert_same(loss_and_gradient(trainer, batch()), expected, trainer.loss_type)
        assert logged(trainer) == pytest.approx(metrics, rel=1e-4, abs=1e-5)
        assert trainer.accelerator.sync_gradients


def test_ranks_gather_metrics_of_whole_micro_batches_alone(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make()
    loss_and_gradient(trainer, batch())
    trainer._max_tokens = 18  # passes of one to three rows, elsewhere of others
    gather = Mock(side_effect=trainer.accelerator.gather)
    monkeypatch.setattr(trainer.accelerator, "gather", gather)
    loss_and_gradient(trainer, batch())
    assert {len(call.args[0]) for call in gather.call_args_list} == {1, 2 * G}  # 1: the number of passes


@pytest.mark.parametrize("arguments", [{"entropy_coef": 0.01}, {"top_entropy_quantile": 0.5}, {"family": "mixtral"}])
def test_terms_of_all_tokens_are_those_of_a_whole_micro_batch(make: Make, arguments: dict[str, Any]) -> None:
    trainer = make(loss_type="dapo", **arguments)
    expected = loss_and_gradient(trainer, batch())
    trainer._max_tokens = 18
    assert_same(loss_and_gradient(trainer, batch()), expected)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_zero_advantage_rollouts_are_skipped_with_equal_gradients(
    make: Make, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    trainer = make(importance_sampling_level=level)
    loss_and_gradient(trainer, batch())  # past the first use, with its comparison
    passes = _record_passes(trainer, monkeypatch)
    for trainer.loss_type in LOSSES:
        assert_matches_trl(trainer, batch(zero=True))
        assert passes[-1] == 3 + 6 + 4 + 4  # the second group alone, without its first rollout
    before = trainer.num_updated_tokens
    loss_and_gradient(trainer, batch(zero=True))
    assert trainer.num_updated_tokens - before == passes[-1]


def test_gradient_is_zero_without_advantages_or_unmasked_tokens(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make()
    loss_and_gradient(trainer, batch())
    passes = _record_passes(trainer, monkeypatch)
    loss, gradient = loss_and_gradient(trainer, batch() | {"advantages": torch.zeros(2 * G)})
    assert loss == 0
    assert not gradient.any()
    assert len(gradient) == sum(p.numel() for p in trainer.model.parameters())  # other ranks wait for every one
    assert passes == [42, 1]  # the first without gradients, for the entropy
    trainer = make(entropy_coef=0.01)
    masked = batch() | {"completion_mask": torch.zeros(2 * G, 6, dtype=torch.long)}
    expected_loss, _ = trl_loss_and_gradient(trainer, masked)
    loss, gradient = loss_and_gradient(trainer, masked)
    assert loss == expected_loss == 0
    assert not gradient.any()
    loss_and_gradient(trainer, batch())  # the comparison waits for something to compare
    assert trainer._checked


@pytest.mark.parametrize("arguments", [{"beta": 0.1}, {"top_entropy_quantile": 0.5}, {"entropy_coef": 0.01}])
def test_zero_advantage_rollouts_count_with_kl_or_entropy_terms(make: Make, arguments: dict[str, float]) -> None:
    assert_matches_trl(make(**arguments), batch(zero=True))


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_training_matches_trl_step_by_step(make: Make, monkeypatch: pytest.MonkeyPatch, beta: float) -> None:
    arguments = {"max_steps": 4, "gradient_accumulation_steps": 2, "num_iterations": 3, "logging_steps": 1}
    ours, trls = (make(beta=beta, optim="sgd", learning_rate=1.0, **arguments) for _ in range(2))
    trls.unshared_reason = "this is the reference"
    monkeypatch.setattr(trls, "_prepare_inputs", partial(GRPOTrainer._prepare_inputs, trls))
    # TRL shuffles rows, ours groups of rows.
    monkeypatch.setattr(grpo_trainer, "shuffle_sequence_dict", lambda batch: micro_batches(batch, 1)[0])
    before = {name: parameter.detach().clone() for name, parameter in ours.model.named_parameters()}
    for trainer in (ours, trls):
        torch.manual_seed(5)
        assert trainer.train().global_step == 4
    assert ours.unshared_reason is None
    for name in ("loss", "reward", "entropy", *(["kl"] if beta else [])):
        values = [[log[name] for log in t.state.log_history if name in log] for t in (ours, trls)]
        assert len(values[0]) == (2 if name == "reward" else 4)
        assert values[0] == pytest.approx(values[1], abs=1e-5), name
    theirs = dict(trls.model.named_parameters())
    for name, parameter in ours.model.named_parameters():
        torch.testing.assert_close(parameter, theirs[name], atol=1e-6, rtol=1e-5)
    assert any((parameter - before[name]).abs().max() > 1e-3 for name, parameter in theirs.items())


@pytest.mark.parametrize(("differing", "scale"), [(0.1, "group"), (0.0, "group"), (0.0, "batch"), (0.0, "none")])
@pytest.mark.parametrize("failed", [None, 3])
def test_groups_of_equal_rewards_move_nothing_though_their_mean_is_rounded(
    make: Make, differing: float, scale: str, failed: int | None
) -> None:
    trainer = make(max_steps=1, gradient_accumulation_steps=2, generation_batch_size=16, scale_rewards=scale)
    trainer.num_generations = 8
    trainer.reward_funcs = [
        lambda prompts, **_: [
            None if i == failed else -0.8 if p == prompts[0] else -0.8 - differing * i for i, p in enumerate(prompts)
        ]
    ]
    for scored in (7, 8):
        assert (torch.full((scored,), -0.8) - torch.full((scored,), -0.8).nanmean()).all()
    before = {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}
    trainer.train()
    assert trainer.state.log_history[0]["frac_reward_zero_std"] == (0.5 if differing else 1)
    moved = any((parameter != before[name]).any() for name, parameter in trainer.model.named_parameters())
    assert (moved, trainer.num_updated_tokens > 2) == (bool(differing), bool(differing))


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
@pytest.mark.parametrize("loss_type", ["grpo", "vespo"])
@pytest.mark.parametrize(("equal", "max_tokens"), [(False, None), (True, None), (True, 12)])
def test_vllm_importance_sampling_needs_no_extra_pass(
    make: Make, monkeypatch: pytest.MonkeyPatch, mode: str, loss_type: str, equal: bool, max_tokens: int | None
) -> None:
    results = []
    for shared in (True, False):
        trainer = make(
            loss_type=loss_type,
            vllm_importance_sampling_mode=mode,
            vllm_importance_sampling_clip_min=0.6,
            vllm_importance_sampling_clip_max=1.5,
        )
        loss_and_gradient(trainer, batch())  # past the first use, with its comparison
        trainer.use_vllm = True
        trainer._max_tokens = max_tokens
        if not shared:
            trainer.unshared_reason, trainer._max_tokens = "this is the reference", None
        if equal:  # the first group has no advantage
            trainer.reward_funcs = [
                lambda completion_ids, **_: [0.0] * G + [float(ids[0]) for ids in completion_ids[G:]]
            ]
        monkeypatch.setattr(trainer, "_generate", _sampled)
        passes = _record_passes(trainer, monkeypatch)
        trainer._metrics["train"].clear()
        trainer._metrics["train"]["sampling/effective_sample_size"].append(0.25)  # of an earlier step
        torch.manual_seed(7)
        inputs = trainer._prepare_inputs([{"prompt": "these"}] * 2 * G)
        assert len(passes) == (0 if shared else 1)
        assert ("importance_sampling_ratio" in inputs) is not shared
        found = loss_and_gradient(trainer, inputs)
        metrics = {name: values for name, values in trainer._metrics["train"].items() if "sampling/" in name}
        assert len(metrics) == 6
        results.append((found, metrics))
    (found, metrics), (expected, expected_metrics) = results
    assert_same(found, expected)
    for name, values in metrics.items():
        assert values == pytest.approx(expected_metrics[name], rel=1e-4), name


def test_extreme_importance_weights_are_those_of_a_generation_batch(make: Make) -> None:
    truncated = {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": 9.0}
    trainer = make(gradient_accumulation_steps=2, **truncated)
    for trainer._step, sampled in enumerate((-2.0, -1.0, -0.5, -0.25)):  # two micro-batches of each
        inputs = {"completion_mask": torch.ones(2, 3), "sampling_per_token_logps": torch.full((2, 3), sampled)}
        trainer._apply_correction(inputs, torch.zeros(2, 3))
    metrics = trainer._metrics["train"]
    assert metrics["sampling/sampling_logp_difference/max"] == [2.0, 0.5]
    assert metrics["sampling/sampling_logp_difference/mean"] == [2.0, 1.0, 0.5, 0.25]
    assert metrics["sampling/importance_sampling_ratio/max"] == pytest.approx([math.exp(2), math.exp(0.5)])
    assert metrics["sampling/importance_sampling_ratio/min"] == pytest.approx([math.exp(1), math.exp(0.25)])


def test_infinite_importance_weight_is_masked(make: Make) -> None:
    trainer = make(vllm_importance_sampling_mode="sequence_mask")
    sampled = torch.tensor([[-60.0, -60.0], [0.0, 0.0]])
    inputs = {"completion_mask": torch.ones(2, 2), "sampling_per_token_logps": sampled}
    trainer._apply_correction(inputs, torch.zeros(2, 2))
    assert inputs["importance_sampling_ratio"].tolist() == [[0.0], [1.0]]


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([[1.0, 1.0], [9.0, 9.0], [1.0, 1.0]], 1.0),  # the second completion has no advantage
        ([[1.0, 2.0], [9.0, 9.0], [0.0, 9.0]], 3**2 / (3 * 5)),  # a single token of the third is its own
        ([[3.0], [9.0], [0.0]], 3**2 / (2 * 9)),
    ],
)
def test_effective_sample_size_ignores_zero_advantage_completions(
    make: Make, weights: list[list[float]], expected: float
) -> None:
    trainer = make()
    mask = torch.tensor([[1, 1], [1, 1], [1, 0]])
    inputs = {"importance_sampling_ratio": torch.tensor(weights), "completion_mask": mask}
    advantages = torch.tensor([0.5, 0.0, -0.5])
    trainer._log_effective_sample_size({**inputs, "advantages": advantages})
    trainer._log_effective_sample_size({**inputs, "advantages": advantages[:, None].expand(3, 2)})  # of tokens
    trainer._log_effective_sample_size({**inputs, "advantages": torch.zeros(3)})
    assert trainer._metrics["train"]["sampling/effective_sample_size"] == [pytest.approx(expected)] * 2


@pytest.mark.parametrize("lora", [False, True])
def test_float32_head_is_used_for_packed_and_plain_rows(make: Make, lora: bool) -> None:
    errors = []
    for cast in (True, False):
        trainer = make(lora=lora, bf16=True, head=cast, temperature=0.7)
        trainer.model.to(torch.bfloat16 if lora else torch.float32)
        bare = trainer.model.get_base_model() if lora else trainer.model
        hidden: list[Tensor] = []
        bare.model.register_forward_hook(lambda *given, hidden=hidden: hidden.append(given[-1].last_hidden_state))
        packed = packing.pack([torch.tensor([5, 6, 7])] * 2, [torch.tensor([8, 9, 10]), torch.tensor([11, 12])])
        with torch.no_grad(), trainer.accelerator.autocast():
            log_probs, _ = packed_passes.log_probs(trainer.model, packed)
            logits = trainer.model(input_ids=packed.tokens).logits
        of_packed, of_rows = (states.float() @ bare.lm_head.weight.detach().float().T for states in hidden)
        expected = (of_packed[0] / 0.7).log_softmax(-1).gather(-1, packed.labels.T)[:, 0]
        errors.append((float((log_probs - expected).abs().max()), float((logits - of_rows).abs().max())))
    (packed_error, error), (packed_half, half) = errors
    assert max(packed_error, error) < 2e-6
    assert min(packed_half, half) > 1e-4


def _sampled(prompts: list[str]) -> tuple[Any, ...]:
    """What TRL's `_generate` returns: eight rollouts of two prompts, a sampler's log-probabilities, one unknown."""
    generator = torch.Generator().manual_seed(11)
    completions = [torch.randint(5, VOCABULARY, (n,), generator=generator).tolist() for n in LENGTHS]
    sampled = [[-float(value) for value in 4 + torch.rand(len(ids), generator=generator)] for ids in completions]
    sampled[0][1] = None  # type: ignore[call-overload]
    rows = [[5, 6, 7, 8, 9][: 5 - 2 * (i // G)] for i in range(2 * G)]
    return rows, completions, None, ["text"] * 2 * G, sampled, {}, None, None


def test_dropout_is_a_reason_not_to_share_and_said_once(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "think_as_locals"):
        trainer = make(model_attention_dropout=0.1)
        loss_and_gradient(trainer, batch())
        loss_and_gradient(trainer, batch())
    messages = [record.message for record in caplog.records if "not shared" in record.message]
    assert ["dropout (0.1)" in message for message in messages] == [True]
    assert make(model_attention_dropout=0.1, disable_dropout=True).unshared_reason is None
    trainer = make(lora=True, adapter_dropout=0.1)
    assert trainer.unshared_reason == "dropout (0.1) would be the same for all rows of a prompt"


def test_model_that_misreads_packed_rows_falls_back_to_trl(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make()
    rotary = trainer.model.model.rotary_emb
    monkeypatch.setattr(rotary, "forward", lambda x, ids, f=rotary.forward: f(x, torch.arange(ids.shape[1])[None]))
    assert_falls_back(trainer, "differ by")


@torch.no_grad()
def log_probs(trainer: SharedPrefixTrainer, *, shared: bool) -> Tensor:
    """Log-probabilities of the batch's completions, packed or as TRL computes them."""
    rows = batch()
    ids, mask = (torch.cat([rows[f"prompt_{name}"], rows[f"completion_{name}"]], 1) for name in ("ids", "mask"))
    if shared:
        return trainer._packed_log_probs(trainer.model, ids, mask, 6, [True] * len(ids))[0]
    return GRPOTrainer._get_per_token_logps_and_entropies(trainer, trainer.model, ids, mask, 6)[0]


@pytest.mark.parametrize(("autocast", "dtype"), [(False, torch.bfloat16), (True, torch.float32)])
def test_half_precision_noise_is_tolerated_but_wrong_positions_are_not(
    make: Make, monkeypatch: pytest.MonkeyPatch, autocast: bool, dtype: torch.dtype
) -> None:
    """Logits of an untrained model hardly differ: made ten times as large, bfloat16 moves them by more than .05."""
    for wrong in (False, True):
        trainer = make(bf16=autocast)
        trainer.model.to(dtype)
        trainer.model.lm_head.weight.data.mul_(10)
        if wrong:  # positions of branches are off by one
            rotary = trainer.model.model.rotary_emb
            monkeypatch.setattr(
                rotary, "forward", lambda x, ids, f=rotary.forward: f(x, ids + (ids.diff(prepend=ids[:, :1]) < 0))
            )
        difference = log_probs(trainer, shared=True) - log_probs(trainer, shared=False)
        apart = difference[batch()["completion_mask"].bool()].abs().mean()
        loss_and_gradient(trainer, batch())
        assert (trainer.unshared_reason is not None) == wrong
        assert wrong or apart > 5e-2
    assert "differ by" in str(trainer.unshared_reason)


def _record_passes(trainer: SharedPrefixTrainer, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Token counts of the packed passes from now on."""
    passes: list[int] = []
    forward = trainer.model.forward
    monkeypatch.setattr(
        trainer.model, "forward", lambda **inputs: (passes.append(inputs["input_ids"].shape[1]), forward(**inputs))[1]
    )
    return passes


@pytest.mark.parametrize("shared", [True, False])
def test_learned_positions_are_counted_from_the_first_token(make: Make, shared: bool) -> None:
    still = dict.fromkeys(("model_resid_pdrop", "model_embd_pdrop", "model_attn_pdrop"), 0.0)
    trainer = make(family="gpt2", **still)
    assert trainer.unshared_reason is None
    rows, found = batch(), log_probs(trainer, shared=shared)
    for i, (length, number) in enumerate(zip(rows["prompt_mask"].sum(1), rows["completion_mask"].sum(1), strict=True)):
        prompt, completion = rows["prompt_ids"][i, 9 - length :], rows["completion_ids"][i, :number]
        with torch.no_grad():
            logits = trainer.model(input_ids=torch.cat([prompt, completion])[None]).logits[0, length - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, completion[:, None])[:, 0]
        torch.testing.assert_close(found[i, :number], expected, atol=1e-4, rtol=1e-4)
