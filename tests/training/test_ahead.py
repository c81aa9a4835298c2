"""Batches sampled ahead: used in order, once each, with known weights, also after a resume."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Any
from uuid import uuid4

import pytest
import torch
from conftest import ROOT
from loopback import Received
from training.scripted_vllm import ScriptedVLLM, samples, serving
from training.small_grpo import chance, ends_with, figures, tiny_trainer
from transformers import TrainerCallback

from think_as_locals.config.checks import load_recipe
from think_as_locals.engines import Sampling, vllm_server
from think_as_locals.engines.transformers_engine import TransformersEngine
from think_as_locals.runtime.run_folder import open_run
from think_as_locals.training import ahead as sampling_ahead
from think_as_locals.training import served_engine
from think_as_locals.training.grpo import JudgeTrainer, policy_engine
from think_as_locals.training.served_engine import Sampled, ServedGeneration

pytestmark = pytest.mark.filterwarnings("ignore::think_as_locals.types.TrainingWarning")

GREEDY = Sampling(max_completion_length=6)
STEPS = 10  # of which eight are an epoch
SETTINGS = ["grpo.per_device_train_batch_size=8", "grpo.warmup_steps=0", "grpo.learning_rate=0.01"]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedVLLM]:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    monkeypatch.setattr(vllm_server, "_PAUSE", 0.05)
    tiny_trainer(tmp_path)  # makes the model
    with serving(tmp_path / "model") as scripted:
        yield scripted


def make_trainer(server: ScriptedVLLM, folder: Path, ahead: int, *overrides: str) -> JudgeTrainer:
    where = ["rollout=vllm_server", f"rollout.url={server.url}", f"rollout.ahead={ahead}", "rollout.timeout_s=20"]
    steps = [f"grpo.max_steps={STEPS}", "grpo.save_steps=5", f"grpo.save_total_limit={STEPS}"]
    server.restart()
    server.served.clear()
    return tiny_trainer(folder, *SETTINGS, *where, *steps, *overrides, correctness=chance)


def logged(trainer: JudgeTrainer, name: str) -> list[Any]:
    return [log[name] for log in trainer.state.log_history if name in log]


def test_batches_are_used_once_within_the_allowed_staleness(server: ScriptedVLLM, tmp_path: Path) -> None:
    used = []
    for ahead, staleness in ((0, []), (1, [0, *[1] * 9]), (3, [0, *[1, 2, 3] * 3])):
        trainer = make_trainer(server, tmp_path, ahead)
        trainer.train()
        assert logged(trainer, "rollout/staleness") == staleness
        assert [size for _, size in server.served] == [8] * STEPS  # nothing is sampled twice, or beyond the end
        used.append([row["id"] for row in trainer.rewards.take_rows()])
        differences = logged(trainer, "sampling/sampling_logp_difference/max")
        if not ahead:
            assert max(differences) < 1e-4
            continue
        syncs = list(dict.fromkeys(weights for weights, _ in server.served))
        assert len(syncs) == len({number - age for number, age in enumerate(staleness)})
        # Log-probabilities of a batch, other than the first, are those of the weights that sampled it.
        assert [difference > 1e-3 for difference in differences] == [age > 0 for age in staleness]
    assert used[0] == used[1] == used[2]


def test_batches_of_one_optimizer_step_share_weights_across_an_epoch_end(server: ScriptedVLLM, tmp_path: Path) -> None:
    each_micro_step = ["grpo.gradient_accumulation_steps=3", "grpo.steps_per_generation=1"]
    trainer = make_trainer(server, tmp_path, 1, *each_micro_step, "grpo.max_steps=5")
    trainer.train()
    assert [size for _, size in server.served] == [8] * 14  # 3 + 3 + 2 are an epoch
    syncs = [sum(weights == each for weights, _ in server.served) for each in dict(server.served)]
    assert syncs == [4, 3, 2, 3, 2]  # the first batch of a step was sampled before it


def test_batch_with_other_prompts_than_the_data_loader_ends_the_run(
    server: ScriptedVLLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(server, tmp_path, 1)
    monkeypatch.setattr(sampling_ahead, "_prompts_digest", lambda prompts: uuid4().hex)
    assert "generation batch 1 was sampled for other prompts than those that" in ends_with(trainer.train)


def test_resumed_run_may_sample_ahead_or_not(server: ScriptedVLLM, tmp_path: Path) -> None:
    server_side = ["rollout=vllm_server", f"rollout.url={server.url}"]
    recipe = partial(load_recipe, ROOT / "recipes/quickstart.yaml")
    for before, after in ((1, 0), (0, 1)):
        folder = tmp_path / str(before)
        names = [*server_side, f"run.dir={folder}", "run.name=run", "run.resume=auto"]
        for ahead in (before, after):
            open_run(recipe([*names, f"rollout.ahead={ahead}"]))
        make_trainer(server, folder, before).train()
        resumed = make_trainer(server, folder, after)
        resumed.train_from(folder / "checkpoints/step-5")
        assert resumed.state.global_step == STEPS


RESUME_CASES = {  # overrides, and the steps whose checkpoints are continued
    "one batch a step, past an epoch": (["rollout.ahead=1"], (8,)),
    "several steps a batch, both orders, KL, rubrics scored": (
        ["rollout.ahead=2", "grpo.steps_per_generation=2", "grpo.beta=0.1", "reward=full", "prompt=compact_rubric"],
        (4,),
    ),
    "an adapter": (["rollout.ahead=1", "lora=rank16"], (3,)),
}


@pytest.mark.slow
@pytest.mark.parametrize(("overrides", "steps"), RESUME_CASES.values(), ids=RESUME_CASES)
def test_resumed_run_matches_an_uninterrupted_run(
    server: ScriptedVLLM, tmp_path: Path, overrides: list[str], steps: tuple[int, ...]
) -> None:
    whole = make_trainer(server, tmp_path, 1, "grpo.save_steps=1", *overrides)
    whole.train()
    weights = whole.model.state_dict()
    for step in steps:
        resumed = make_trainer(server, tmp_path, 1, *overrides)
        resumed._save_checkpoint = lambda *_: None  # they are there already
        resumed.train_from(tmp_path / "checkpoints" / f"step-{step}")
        assert all(torch.equal(value, weights[name]) for name, value in resumed.model.state_dict().items()), step
        compared = [[without_syncs(log) for log in figures(trainer)] for trainer in (resumed, whole)]
        assert compared[0] == compared[1], step


def without_syncs(log: dict[str, Any]) -> dict[str, Any]:
    """What is logged of a step, but for what a process that has just connected sends to the server first."""
    return {name: value for name, value in log.items() if name != "rollout/synced_megabytes"}


def loads(request: Received) -> bool:
    return request.path == "/update_weights"


def test_evaluation_waits_for_sampling_and_uses_policy_weights(server: ScriptedVLLM, tmp_path: Path) -> None:
    trainer = make_trainer(server, tmp_path, 1)
    overlapping, sampling = [], [0]
    complete = server._complete

    def watched(**body: Any) -> Any:
        sampling[0] += 1
        try:
            return complete(**body)
        finally:
            sampling[0] -= 1

    server._complete = watched  # type: ignore[method-assign]
    server.before = lambda request: bool(overlapping.append(sampling[0])) if loads(request) else False
    evaluated: list[Any] = []

    class Evaluation(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            with policy_engine(trainer, 8) as engine:
                evaluated.append(engine.sample_tokens(trainer.vllm_generation._check_prompts, GREEDY))

    trainer.add_callback(Evaluation())
    trainer.train()
    assert logged(trainer, "rollout/staleness") == [0, *[1] * 9]
    assert len(evaluated) == STEPS
    own = TransformersEngine(trainer.model, trainer.chat, 8)
    assert evaluated[-1] == own.sample_tokens(trainer.vllm_generation._check_prompts, GREEDY)
    assert not any(overlapping)  # no weights change while it samples
    assert len(overlapping) == 1 + STEPS  # the batch after an evaluation needs no sync of its own


def test_batch_is_resampled_after_a_server_restart(
    server: ScriptedVLLM, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(server, tmp_path, 2)
    seen = []

    def restarts(request: Received) -> bool:
        seen.extend([request] if samples(request) else [])
        if restart := samples(request) and len(seen) == 4:
            server.restart()
        return restart

    server.before = restarts
    trainer.train()
    # The fourth batch was in flight; it and what was to follow with the same weights are sampled anew.
    assert logged(trainer, "rollout/staleness") == [0, 1, 2, 0, *[1, 2] * 3]
    assert [size for _, size in server.served] == [8] * STEPS
    assert server._start not in {weights for weights, _ in server.served}
    warned = [record.getMessage() for record in caplog.records if "is sampled again" in record.getMessage()]
    assert len(warned) == 2  # of the two batches
    assert all(f"the vLLM server at {server.url} holds {server._start}, expected" in each for each in warned)


def test_dead_server_ends_the_run_and_its_checkpoint_resumes_elsewhere(
    server: ScriptedVLLM, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = make_trainer(server, tmp_path, 1)
    whole.train()
    ids = [row["id"] for row in whole.rewards.take_rows()]
    trainer = make_trainer(server, tmp_path / "other", 1, "grpo.save_steps=1", "rollout.timeout_s=6")
    server.before = lambda request: samples(request) and len(server.served) >= 4
    message = ends_with(trainer.train)
    assert f"the vLLM server at {server.url}" in message
    assert "a checkpoint without what the server was sampling" in caplog.text
    server.before = lambda request: False
    resumed = make_trainer(server, tmp_path / "other", 1)
    resumed.train_from(resumed.checkpoints.latest())
    assert logged(resumed, "rollout/staleness") == [0, 1, 1, 1, 0, 1, 1, 1, 1, 1]  # those of the checkpoint first
    assert [row["id"] for row in resumed.rewards.take_rows()] == ids[8 * 4 :]


@pytest.mark.parametrize(("stops", "limit"), [(False, 0.6), (True, 0.3)])
def test_checkpoint_waits_no_longer_for_several_batches_than_for_one(
    server: ScriptedVLLM,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    stops: bool,
    limit: float,
) -> None:
    trainer = make_trainer(server, tmp_path, 3, "grpo.vllm_importance_sampling_correction=false")
    assert "rollout.ahead=3: nothing corrects for batches of older weights" in caplog.text
    monkeypatch.setattr(ServedGeneration, "limit_s", 0.6)
    monkeypatch.setattr(sampling_ahead, "_STOPPING_S", 0.3)  # for one after a signal
    trainer.control.should_training_stop = stops
    batches = [sampling_ahead._Batch(number, 0, "") for number in range(1, 4)]  # the last of which never ends
    trainer._ahead._batches.extend(batches)
    for seconds, batch in zip((0.1, 0.7), batches, strict=False):
        Timer(seconds, batch.sampled.set_result, [Sampled([], (0.0, 0.0))]).start()
    began = time.monotonic()
    assert [each["number"] for each in trainer._ahead.state()] == [1]
    assert limit <= time.monotonic() - began < limit + 0.25
    assert "a checkpoint without what the server was sampling (TimeoutError: ): it is sampled again" in caplog.text


def test_servers_tensors_must_be_those_sent(server: ScriptedVLLM, tmp_path: Path) -> None:
    trainer = make_trainer(server, tmp_path, 1)
    server._model.load_state_dict = lambda *_, **__: None  # it keeps the weights of the start
    assert f"in the vLLM server at {server.url}" in ends_with(trainer.train)


def test_nccl_connects_first_and_after_a_restart(
    server: ScriptedVLLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_trainer(server, tmp_path, 1).vllm_generation
    monkeypatch.setattr(served_engine, "nccl_unsupported_reason", lambda state: None)
    assert engine._choose_transfer() == (True, True)
    server.connected, engine._nccl._engine = True, object()
    assert engine._choose_transfer() == (True, False)
    server.connected = False
    assert engine._choose_transfer() == (True, True)
