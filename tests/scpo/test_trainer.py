"""The weighted loss, the order of pairs, and TRL's trainer optimising that loss on them."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from reward_models.tiny import ITEMS, break_packing, write_classifier
from safetensors.torch import load_file, save_file
from scpo import hand_worked
from transformers import AutoModelForSequenceClassification
from trl import RewardConfig, RewardTrainer

from think_as_locals.config.schema import LoraSection
from think_as_locals.reward_models.scalar import ScalarRM, TokenRow
from think_as_locals.scpo.results import response_requests
from think_as_locals.scpo.select import pair_weights
from think_as_locals.scpo.trainer import (
    ScpoTrainer,
    TokenPair,
    make_trainer,
    num_steps,
    pair_order,
    released_text,
    weighted_bradley_terry,
)
from think_as_locals.training.checkpoints import Checkpoints
from think_as_locals.training.grpo import trl_arguments

config = partial(hand_worked.config, "scpo.batch_size=2", "scpo.learning_rate=0.01", "scpo.logging_steps=1")


@pytest.mark.parametrize(
    ("pairs", "epochs", "batch", "most", "steps"),
    [(16, 3.0, 8, 1024, 6), (17, 3.0, 8, 1024, 7), (5, 1.0, 8, 1024, 1), (9, 0.5, 8, 1024, 1), (9000, 3.0, 8, 99, 99)],
)
def test_num_steps_is_capped_passes_or_exactly_max_steps(
    pairs: int, epochs: float, batch: int, most: int, steps: int
) -> None:
    scpo = config(f"scpo.max_steps={most}", f"scpo.num_train_epochs={epochs}", f"scpo.batch_size={batch}").scpo
    assert num_steps(scpo, pairs, exactly=False) == steps
    assert num_steps(scpo, pairs, exactly=True) == most


@pytest.mark.parametrize(
    ("batch", "most", "processes", "expected"),
    [
        *((16, 16, 1, (16, 1)), (16, 16, 2, (8, 1)), (16, 8, 1, (8, 2))),
        *((8, 8, 8, (1, 1)), (12, 5, 2, (3, 2)), (7, 4, 1, (1, 7))),
    ],
)
def test_global_batch_size_is_independent_of_process_count(
    batch: int, most: int, processes: int, expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = config(f"scpo.batch_size={batch}", f"scpo.per_device_train_batch_size={most}")
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    arguments = trl_arguments(run, run.scpo, tmp_path)
    pairs, steps = arguments["per_device_train_batch_size"], arguments["gradient_accumulation_steps"]
    assert (pairs, steps) == expected
    assert "batch_size" not in arguments


@given(st.integers(1, 40), st.integers(1, 200), st.integers(0, 9))
def test_pair_order_has_each_pair_once_per_pass_and_stable_prefix(pairs: int, count: int, seed: int) -> None:
    order = pair_order(pairs, count, seed)
    assert len(order) == count
    for start in range(0, count - pairs, pairs):
        assert sorted(order[start : start + pairs]) == list(range(pairs))
    assert len(set(order[-(count % pairs) :])) == count % pairs or not count % pairs
    assert pair_order(pairs, count + 7, seed)[:count] == order


# --- the loss ---

SCORE = st.floats(-1e4, 1e4, width=32)
TABLE = st.lists(st.tuples(SCORE, SCORE, SCORE, SCORE), min_size=1, max_size=12)


def in_double(rows: Sequence[tuple[float, ...]], beta: float) -> tuple[float, np.ndarray]:
    """The loss in 64 bits, -log sigmoid(m) as log(1 + exp(-m)) by logaddexp, and its gradient by its formula."""
    r_chosen, r_rejected, chosen, rejected = np.array(rows, dtype=np.float64).T
    weights = np.exp(np.minimum(r_chosen - r_rejected, 0) / beta)
    margin = chosen - rejected
    loss = float((weights * np.logaddexp(0, -margin)).mean())
    slope = -weights * np.exp(-np.logaddexp(0, margin)) / len(rows)  # of -w log sigmoid(m), by m
    return loss, np.stack([slope, -slope])


@given(TABLE)
def test_loss_and_gradients_are_finite_and_match_double_precision(rows: list[tuple[float, ...]]) -> None:
    r_chosen, r_rejected, chosen, rejected = torch.tensor(rows).unbind(1)
    weights = pair_weights(r_chosen, r_rejected, "scpo", 1.1, "temperature")
    scores = [chosen.clone().requires_grad_(), rejected.clone().requires_grad_()]
    loss = weighted_bradley_terry(*scores, weights)
    gradients = torch.stack(torch.autograd.grad(loss, scores))
    expected, expected_gradients = in_double(rows, 1.1)
    assert loss.item() == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert np.abs(gradients.numpy() - expected_gradients).max() <= 1e-6


# --- TRL's trainer ---


@pytest.fixture(scope="module")
def rm(tmp_path_factory: pytest.TempPathFactory) -> ScalarRM:
    return ScalarRM.load(write_classifier(tmp_path_factory.mktemp("rm"), initializer_range=0.05))


@pytest.fixture(scope="module")
def pairs(rm: ScalarRM) -> list[TokenPair]:
    requests = response_requests([item for item in ITEMS if len(item.responses) > 1])
    rows = rm.rows(requests)
    return list(zip(rows[::2], rows[1::2], strict=False))


LORA = LoraSection(r=4, lora_alpha=8, lora_dropout=0.0, target_modules="all-linear")
WEIGHTS = [1.0, 0.25, 0.5, 0.125, 1.0, 0.75, 0.3, 0.9, 1.0, 0.6, 0.2, 0.8, 0.45]


def trainer_of(
    rm: ScalarRM,
    pairs: Sequence[TokenPair],
    weights: Sequence[float],
    folder: Path,
    steps: int = 3,
    lora: LoraSection | None = None,
    dropout: bool = False,
    **settings: Any,
) -> ScpoTrainer:
    run = config("model.dtype=float32")
    arguments = trl_arguments(run, run.scpo, folder) | {"max_steps": steps} | settings
    options = {"checkpoints": Checkpoints(folder, 1), "lora": lora, "dropout": dropout}
    return make_trainer(rm, pairs, weights, arguments=arguments, **options)


def plain_scores(rm: ScalarRM, rows: Sequence[TokenRow]) -> torch.Tensor:
    """Scores of one row after the other, without any padding."""
    model = AutoModelForSequenceClassification.from_pretrained(rm.path)
    return torch.cat([model(input_ids=torch.tensor([row["input_ids"]])).logits[0] for row in rows])


def test_step_loss_is_the_weighted_loss_of_its_scores(rm: ScalarRM, pairs: list[TokenPair], tmp_path: Path) -> None:
    weights = WEIGHTS[: len(pairs)]
    trainer = trainer_of(rm, pairs, weights, tmp_path, learning_rate=1e-12)
    losses: list[torch.Tensor] = []
    compute = trainer.compute_loss
    trainer.compute_loss = lambda *args, **named: losses.append(compute(*args, **named)) or losses[-1]
    trainer.train()
    order = pair_order(len(pairs), 6, config().seed)
    for step, loss in enumerate(losses):
        numbers = order[2 * step : 2 * step + 2]
        chosen, rejected = (plain_scores(rm, [pairs[number][side] for number in numbers]) for side in (0, 1))
        expected = weighted_bradley_terry(chosen, rejected, torch.tensor([weights[number] for number in numbers]))
        assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
    assert len({round(loss.item(), 6) for loss in losses}) == 3


def test_head_of_another_name_is_the_one_that_is_trained(pairs: list[TokenPair], tmp_path: Path) -> None:
    file = Path(write_classifier(tmp_path / "rm", initializer_range=0.05)) / "model.safetensors"
    weights = load_file(file)
    weights["value_head.weight"] = head = weights.pop("score.weight")  # as OpenRLHF saves it
    save_file(weights, file, {"format": "pt"})
    trainer = trainer_of(ScalarRM.load(str(file.parent)), pairs, WEIGHTS[: len(pairs)], tmp_path)
    assert torch.equal(trainer.model.score.weight, head)


@pytest.mark.parametrize(
    "settings", [{}, {"center_rewards_coefficient": 0.1}, {"gradient_accumulation_steps": 2}], ids=str
)
def test_equal_weights_train_identically_to_trl_reward_trainer(
    rm: ScalarRM, pairs: list[TokenPair], tmp_path: Path, settings: dict[str, Any]
) -> None:
    ours = trainer_of(rm, pairs, [1.0] * len(pairs), tmp_path / "ours", **settings)
    ours.unshared_reason = "packed rows are equal to rounding only"
    ours.train()
    order = [row["pair"] for row in ours.train_dataset]
    rows = [{"chosen_ids": pairs[n][0]["input_ids"], "rejected_ids": pairs[n][1]["input_ids"]} for n in order]
    arguments = trl_arguments(config(), config().scpo, tmp_path / "trl") | {"max_steps": 3} | settings
    trl = RewardTrainer(
        rm.path,
        RewardConfig(**arguments, max_length=None, disable_dropout=True, train_sampling_strategy="sequential"),
        train_dataset=Dataset.from_list(rows),
        processing_class=rm.chat.tokenizer,
    )
    trl.train()
    expected = trl.model.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in ours.model.state_dict().items())
    timing = ("runtime", "per_second")
    for one, other in zip(ours.state.log_history, trl.state.log_history, strict=True):
        assert {name for name in one if not name.endswith(timing)} == {n for n in other if not n.endswith(timing)}
        assert all(one[name] == pytest.approx(other[name], rel=1e-6) for name in one if not name.endswith(timing))


def shared_pairs(seed: int, num_pairs: int = 3) -> list[TokenPair]:
    """Pairs of ragged rows, each with a prompt of its own; some responses are nearly or entirely the same."""
    rng = random.Random(seed)

    def tokens(shortest: int, longest: int) -> list[int]:
        return [rng.randint(10, 200) for _ in range(rng.randint(shortest, longest))]

    rows = []
    for _ in range(num_pairs):
        prompt, response = tokens(1, 30), tokens(1, 12)
        rows.append((prompt + response, prompt + (response if rng.random() < 0.2 else tokens(1, 12))))
    return [tuple({"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in pair) for pair in rows]


def loss_and_gradient(trainer: ScpoTrainer, numbers: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """With the numbers of tokens that the model is given in each of its passes."""
    read: list[int] = []
    hook = trainer.model.get_input_embeddings().register_forward_pre_hook(lambda _, ids: read.append(ids[0].numel()))
    trainer.model.train()
    trainer.model.zero_grad()
    loss = trainer.compute_loss(trainer.model, trainer.data_collator([{"pair": n} for n in numbers]))
    loss.backward()
    hook.remove()
    gradients = [p.grad for p in trainer.model.parameters() if p.grad is not None]
    return loss.detach(), torch.cat([gradient.flatten() for gradient in gradients]), read


@pytest.mark.parametrize(
    "changes", [{}, {"center_rewards_coefficient": 0.1}, {"gradient_checkpointing": True}, {"lora": LORA}], ids=str
)
def test_packed_loss_and_gradients_match_separate_rows(rm: ScalarRM, tmp_path: Path, changes: dict[str, Any]) -> None:
    pairs = [pair for seed in range(4) for pair in shared_pairs(seed)]
    trainer = trainer_of(rm, pairs, [1.0, 0.25, 0.5] * 4, tmp_path, **changes)
    for start in range(0, len(pairs), 3):
        numbers = [start, start + 1, start + 2]
        trainer.unshared_reason = None
        loss, gradient, _ = loss_and_gradient(trainer, numbers)
        assert trainer.unshared_reason is None
        trainer.unshared_reason = "this is the reference"
        expected_loss, expected, _ = loss_and_gradient(trainer, numbers)
        torch.testing.assert_close(loss, expected_loss, atol=1e-6, rtol=1e-6)
        assert expected.norm() > 0
        assert (gradient - expected).norm() <= 1e-5 * expected.norm()


def test_prompt_of_a_pair_is_processed_once(rm: ScalarRM, tmp_path: Path) -> None:
    prompt, ends = [*range(20, 60)], ([5, 6, 7], [6, 5])
    pair = tuple({"input_ids": prompt + end, "attention_mask": [1] * len(prompt + end)} for end in ends)
    trainer = trainer_of(rm, [pair, pair], [1.0, 1.0], tmp_path)
    assert loss_and_gradient(trainer, [0, 1])[2][-1] == 2 * (40 + 3 + 2)
    trainer.unshared_reason = "for comparison"
    assert loss_and_gradient(trainer, [0, 1])[2] == [4 * 43]


def test_dropout_trains_separate_rows_and_warns_once(
    rm: ScalarRM, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pairs = shared_pairs(0)
    eager = trl_arguments(config("model.attn_implementation=eager"), config().scpo, tmp_path)["model_init_kwargs"]
    assert trainer_of(rm, pairs, [1.0] * 3, tmp_path, model_init_kwargs=eager).unshared_reason is None
    lora = LORA.model_copy(update={"lora_dropout": 0.1})
    trainer = trainer_of(rm, pairs, [1.0] * 3, tmp_path, lora=lora, dropout=True)
    assert trainer.unshared_reason == "dropout (0.1) would be the same for all rows of a prompt"
    trainer.train()
    assert caplog.text.count("prompts are not shared") == 1


def test_score_mismatch_falls_back_to_separate_rows(
    rm: ScalarRM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_packing(monkeypatch)
    trainer = trainer_of(rm, shared_pairs(0), [1.0] * 3, tmp_path)
    _, _, read = loss_and_gradient(trainer, [0, 1, 2])
    assert re.match(r"scores differ by .*e.* from those of separate rows", str(trainer.unshared_reason))
    assert read[-1] == trainer.data_collator([{"pair": n} for n in range(3)])["input_ids"].numel()


@pytest.mark.parametrize("declared", ["none", "another than the tokenizer's", "the end of every text"])
def test_head_is_trained_and_scored_at_the_same_token(tmp_path: Path, declared: str, pairs: list[TokenPair]) -> None:
    end = pairs[0][0]["input_ids"][-1]
    pad_id = {"none": None, "another than the tokenizer's": 9, "the end of every text": end}[declared]
    rm = ScalarRM.load(write_classifier(tmp_path / "rm", pad_token_id=pad_id))
    assert rm.pad_id == pad_id
    assert all(row["input_ids"][-1] == end for pair in pairs for row in pair)
    trainer = trainer_of(rm, pairs, [1.0] * len(pairs), tmp_path / "trained", 1)
    trainer.train()
    numbers = pair_order(len(pairs), 2, config().seed)
    with torch.inference_mode():
        chosen, rejected = (rm._scores([pairs[number][side] for number in numbers]) for side in (0, 1))
    (log,) = (log for log in trainer.state.log_history if "loss" in log)
    assert log["loss"] == pytest.approx(weighted_bradley_terry(chosen, rejected, torch.ones(2)).item(), abs=1e-5)
    assert log["margin"] == pytest.approx((chosen - rejected).mean().item(), abs=1e-5)


def test_released_text_joins_prompt_and_response_and_truncates(rm: ScalarRM) -> None:
    tokenizer = rm.chat.tokenizer
    row = released_text(rm.chat, "What is it?", "Tea <|end|>", 512)
    assert tokenizer.decode(row["input_ids"]).startswith("What is it? [SEP] Tea ")
    assert tokenizer.eos_token_id not in row["input_ids"]  # what a text says is no control token
    assert row["attention_mask"] == [1] * len(row["input_ids"])
    assert len(released_text(rm.chat, "What is it?", "tea " * 900, 4096)["input_ids"]) == 512
    assert len(released_text(rm.chat, "What is it?", "tea " * 900, 256)["input_ids"]) == 256
