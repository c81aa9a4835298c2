"""Rubric scores: compared with plain forward passes, and for good and bad rubrics."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from statistics import fmean
from unittest.mock import Mock

import pytest
import torch
from training.small_grpo import tiny_trainer

from think_as_locals.judging import write
from think_as_locals.judging.formats import forced_verdict
from think_as_locals.training.criteria_gain import CriteriaGainScorer, GainQuery, force
from think_as_locals.training.grpo import JudgeTrainer
from think_as_locals.types import LABELS, Criterion, Rubric


def rubric_of(*names: str) -> str:
    """A rubric as it stands in a completion, through its closing tag."""
    rubric = Rubric(tuple(Criterion(100 // len(names), name, f"It is {name}.") for name in names))
    return write(rubric, "x", 0).partition("</rubric>")[0] + "</rubric>"


def naive_log_prob(trainer: JudgeTrainer, prompt: str, rubric: str, verdict: int) -> float:
    """log pi(verdict | prompt, rubric) from one plain forward pass over one row."""
    tokenizer = trainer.processing_class
    before = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    after = tokenizer(rubric + forced_verdict(verdict, rubric), add_special_tokens=False)["input_ids"]
    label = next(n for n in range(1, len(after)) if f"{LABELS[verdict]}</verdict>" in tokenizer.decode(after[-n:]))
    with torch.no_grad():
        log_probs = trainer.model(input_ids=torch.tensor([before + after])).logits[0].log_softmax(-1)
    return float(log_probs[-label - 1, after[-label]])


def query(trainer: JudgeTrainer, row: int, rubric: str | None, verdict: int) -> GainQuery:
    prompt = trainer.train_dataset[row]["prompt"]
    return GainQuery(row=row, prompt=prompt, completion_ids=(), rubric=rubric, verdict=verdict)


@pytest.mark.parametrize("scorer", ["policy", "reference"])
def test_gain_scores_match_naive_forward_passes(tmp_path: Path, scorer: str) -> None:
    trainer = tiny_trainer(tmp_path, "reward=paper", f"reward.criteria_gain.scorer={scorer}", "grpo.beta=0.1")
    assert trainer.ref_model is not None
    if scorer == "reference":  # the policy moves on, the score does not
        torch.nn.init.normal_(trainer.model.lm_head.weight)
    rubrics = [rubric_of("custom", "place", "fit"), None, rubric_of("fit"), rubric_of("place", "custom"), None]
    rows, verdicts = [0, 0, 0, 3, 3], [1, 1, 1, 2, 2]
    scores = trainer._gain_scorer.score(list(map(partial(query, trainer), rows, rubrics, verdicts)))
    assert trainer.unshared_reason is None
    if scorer == "reference":
        trainer.model.load_state_dict(trainer.ref_model.state_dict())
    for score, row, rubric, verdict in zip(scores, rows, rubrics, verdicts, strict=True):
        if rubric is None:
            assert score is None
            continue
        prompt = trainer.chat.text(trainer.train_dataset[row]["prompt"], add_generation_prompt=True)
        expected = (naive_log_prob(trainer, prompt, rubric, verdict), naive_log_prob(trainer, prompt, "", verdict))
        assert score == pytest.approx(expected, abs=1e-5)


def test_rank_with_one_branch_takes_as_many_passes_as_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = tiny_trainer(tmp_path, "reward=paper", "grpo.max_tokens_per_micro_batch=1")
    without, scored = query(trainer, 0, None, 1), query(trainer, 0, rubric_of("custom"), 1)
    expected = trainer._gain_scorer.score([scored])
    assert trainer.unshared_reason is None
    monkeypatch.setattr(trainer.accelerator, "gather", lambda count: torch.cat([count, torch.tensor([5])]))
    passes = Mock(side_effect=trainer.model.forward)
    monkeypatch.setattr(trainer.model, "forward", passes)
    assert trainer._gain_scorer.score([without]) == [None]
    assert trainer._gain_scorer.score([scored]) == [pytest.approx(pair, abs=1e-5) for pair in expected]
    assert passes.call_count == 2 * 5


def test_gain_is_the_smaller_one_of_both_orders(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, "reward=paper", "reward.both_orders=true")
    rubrics = [rubric_of("custom", "place"), None, rubric_of("fit"), rubric_of("the second", "of both")]
    examples = [trainer.train_dataset[row] for row in (0, 1)]
    by_order = []
    for row, example in enumerate(examples):
        queries = [query(trainer, row, rubric, example["presented"].best) for rubric in rubrics]
        by_order.append((queries, CriteriaGainScorer(trainer, trainer.chat, "policy").score(queries)))
    (here, first), (there, second) = by_order
    assert first != second
    expected = [
        min(filter(None, two), key=lambda pair: pair[0] - pair[1], default=None)
        for two in zip(first, second, strict=True)
    ]
    for queries in (here, there):
        found = trainer._gain_scorer.score(queries)
        assert [pair is None for pair in found] == [False, True, False, False]
        for pair, smaller in zip(found, expected, strict=True):
            assert pair == (smaller and pytest.approx(smaller, abs=1e-5))


def test_the_last_forced_token_is_the_label(tmp_path: Path) -> None:
    tokenizer = tiny_trainer(tmp_path).processing_class
    for rubric in ("", rubric_of("custom")):
        ids = force(tokenizer, rubric, 1)
        assert tokenizer.decode(ids) == (rubric + forced_verdict(1, rubric)).removesuffix("</verdict>")
        assert tokenizer.decode(ids[-1]) == "B"


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ([0.1, 0.1, 0.9, 0.9], [0, 0, 0, 0]),  # they differ between the orders alone
        ([0.1, 0.3, 0.9, 0.7], [-math.sqrt(0.75), math.sqrt(0.75), math.sqrt(0.75), -math.sqrt(0.75)]),
        ([0.1, None, 0.9, 0.7], [0, 0, 1, -1]),  # a reward failed: one rollout of that order is left
    ],
)
def test_gain_advantages_are_computed_within_each_order(
    tmp_path: Path, gains: list[float | None], expected: list[float]
) -> None:
    paid = iter(gains)
    only = ["reward.weights={criteria_gain: 0.5}", "reward.both_orders=true", "reward.max_fault_share=0.5"]
    trainer = tiny_trainer(tmp_path, *only, "grpo.max_steps=1")
    trainer.rewards.own["criteria_gain"] = lambda *_: next(paid) or 1 / 0
    trainer.rewards.components["criteria_gain"] = lambda *_: 0.0
    trainer.train()
    assert list(trainer._logs["advantages"]) == pytest.approx(expected, abs=2e-3)
    (log,) = (log for log in trainer.state.log_history if "reward" in log)
    assert log["rewards/criteria_gain/mean"] == pytest.approx(fmean(gain for gain in gains if gain))


@pytest.mark.parametrize("beta", ["0", "0.05"])
def test_judge_trains_on_the_paper_reward(tmp_path: Path, beta: str) -> None:
    trainer = tiny_trainer(tmp_path, "reward=paper", f"grpo.beta={beta}", "grpo.max_completion_length=64")
    end = trainer.processing_class.eos_token_id
    text = rubric_of("custom", "place", "fit") + "\n<analysis>\nWeighed.\n</analysis>" + forced_verdict(0)
    ids = [*trainer.processing_class(text, add_special_tokens=False)["input_ids"], end]
    trainer._generate_single_turn = lambda prompt_ids, *_, **__: ([ids] * len(prompt_ids), None)
    trainer.train()
    paid = [row["reward/criteria_gain"] for row in trainer.rewards.take_rows()]
    assert len(paid) == 8
    assert all(-1 <= gain <= 1 for gain in paid)
    assert any(gain != -1 for gain in paid)


def test_rubric_scoring_pass_also_computes_old_log_probs_off_policy(tmp_path: Path) -> None:
    overrides = ["reward=paper", "grpo.max_completion_length=64", "grpo.num_iterations=2"]
    batches = []
    for shared in (True, False):
        trainer = tiny_trainer(tmp_path, *overrides)
        if not shared:
            trainer.unshared_reason = "this is the reference"
        texts = [rubric_of("custom", *more) + forced_verdict(0) for more in (["fit"], ["fit", "place"], [], ["place"])]
        ids = [trainer.processing_class(text, add_special_tokens=False)["input_ids"] for text in texts]
        trainer._generate_single_turn = lambda prompt_ids, *_, ids=ids, **__: (ids, None)
        passes = Mock(side_effect=trainer._get_per_token_logps_and_entropies)
        trainer._get_per_token_logps_and_entropies = passes
        trainer.model.train()
        torch.manual_seed(0)
        batches.append(trainer._prepare_inputs([trainer.train_dataset[0]] * 4))
        # TRL asks for the old ones first; then one verdict alone, four rubrics, and with shared prefixes four rollouts.
        assert [len(call.args[1]) for call in passes.call_args_list] == [4, 1 + 4 + 4 * shared]
    shared_batch, expected = batches
    assert shared_batch.keys() == expected.keys()
    for name, tensor in shared_batch.items():
        torch.testing.assert_close(tensor, expected[name], atol=1e-5, rtol=1e-5)
    assert shared_batch["old_per_token_logps"].abs().sum() > 0
