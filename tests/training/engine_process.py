"""Checks of the real engines, in processes of their own: vLLM changes thread and rank settings of its process.

torchrun --nproc_per_node N engine_process.py colocate FOLDER
torchrun --nproc_per_node N engine_process.py serve FOLDER PORT         kills the server at last
"""

from __future__ import annotations

import faulthandler
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from peft import LoraConfig, get_peft_model

from think_as_locals.engines import Sampling, sample_all, vllm_engine
from think_as_locals.engines.transformers_engine import TransformersEngine
from think_as_locals.engines.vllm_server import VLLMServer
from think_as_locals.judging import Component
from think_as_locals.training import rollouts, served_engine
from think_as_locals.training.adapters import save_adapter
from think_as_locals.training.grpo import policy_engine
from think_as_locals.training.rollouts import ColocatedGeneration
from think_as_locals.training.weight_transfer import NCCLTransfer, WeightFiles

sys.path.insert(0, str(Path(__file__).parents[1]))
from training.small_grpo import ends_with, tiny_trainer

from think_as_locals.types import ServerError

STALE = "differ from the policy's by"
GREEDY = Sampling(max_completion_length=8)
WIDE = [  # the narrowest that vLLM has an attention kernel for on CPU
    "model.scratch.hidden_size=64",
    "model.scratch.num_hidden_layers=2",
    "prompt=listwise",  # longer than a block of the prefix cache, in words of few letters
    "model.scratch.num_phrases=0",
    "reward.both_orders=true",
    "grpo.learning_rate=0.01",
    "grpo.warmup_steps=0",
    "grpo.max_completion_length=24",
]


def change(model: torch.nn.Module, scale: float = 0.1) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and "layernorm" not in name:
                parameter.add_(scale * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))


def unchanged(before: dict[str, torch.Tensor], now: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, now[name]) for name, value in before.items())


def size(tensors: dict[str, torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def same_on_all_ranks(value: Any) -> bool:
    """Whether a value is the same on all ranks."""
    return all(other == value for other in gather_object([value]))


@contextmanager
def warnings_of_syncs() -> Iterator[list[str]]:
    warned: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: warned.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger(rollouts.__name__).addHandler(handler)
    yield warned
    logging.getLogger(rollouts.__name__).removeHandler(handler)


def logs(trainer: Any) -> list[dict[str, float]]:
    return [log for log in trainer.state.log_history if "reward" in log]


def train(folder: Path, *overrides: str) -> Any:
    """Train with an engine that has the policy's weights in every step."""
    varied: dict[str, Component] = {"structure": lambda judgement, *_: len(judgement.completion) % 7 / 7}
    trainer = tiny_trainer(folder, *WIDE, *overrides, **varied)
    trainer.train()
    for log in logs(trainer):
        assert log["rollout/sync_check_difference"] < 1e-4
        assert log["sampling/sampling_logp_difference/max"] < 1e-4
        assert log["rollout/prefix_cache_hit_rate"] > 0.3  # two rollouts of a prompt at least
    return trainer


def check_syncs(trainer: Any, reason: str, **lora: Any) -> None:
    """A sync that leaves out a tensor, and one of an adapter that the engine cannot apply, for this reason."""
    engine = trainer.vllm_generation
    change(trainer.model)
    send = engine._iter_named_params
    engine._iter_named_params = lambda: ((n, p) for n, p in send() if "embed_tokens" not in n)
    left_out = ends_with(engine.sync_weights)
    assert STALE in left_out
    assert same_on_all_ranks(left_out)
    engine._iter_named_params = send
    torch.manual_seed(0)  # an adapter that is not the same on all ranks ends the run as well
    base = {name: parameter.clone() for name, parameter in trainer.model.named_parameters()}
    engine.model = get_peft_model(trainer.model, LoraConfig(**lora, target_modules=["q_proj", "down_proj"]))
    change(engine.model)
    with warnings_of_syncs() as warned:
        engine.sync_weights()
        engine.sync_weights()
    assert len(warned) == int(trainer.accelerator.is_main_process)  # logged once, by one rank
    assert all(reason in warning for warning in warned)
    assert engine._sent == size(base)
    assert unchanged(base, dict(engine.model.unload().named_parameters()))


def check_transfer(trainer: Any) -> None:
    """Weights by vLLM's own transfer: errors without a group, in a new group, and in the same once more."""
    from training import tcp_transfer  # noqa: F401

    engine, connected = trainer.vllm_generation, list[bool]()
    if trainer.accelerator.is_main_process:
        server = engine._server
        assert server.world_size() == 1
        with pytest.raises(ServerError, match="Invalid init_info"):
            server.init_weight_transfer_engine({"unknown": 1})
        server.start_weight_update()
        assert server.state()["updating"]
        with pytest.raises(ServerError, match="NCCL weight transfer not initialized"):
            server.update_weights({"names": ["w"], "dtype_names": ["float32"], "shapes": [[1]]})
        assert not server.state()["updating"]
    connect = engine._nccl._connect
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_HOST_IP", "127.0.0.1")
        patch.setattr(served_engine, "nccl_unsupported_reason", lambda _: None)
        patch.setattr(engine._nccl, "_connect", lambda: connected.append(True) or connect())
        for _ in range(2):
            change(trainer.model)
            engine.sync_weights()
    assert connected == [True]
    assert max(trainer._metrics["train"]["rollout/sync_check_difference"]) < 1e-4
    assert engine._sent == size(dict(trainer.model.named_parameters()))


def check_adapter(folder: Path, *overrides: str, base_first: bool) -> tuple[Any, list[list[int]], int]:
    """An adapter travels alone, what is sampled follows it, and no block of the prefix cache outlives a sync.

    Returns the trainer, the last sample, and the size of base and adapter together.
    """
    with warnings_of_syncs() as warned:
        trainer = train(folder, "lora=rank16", *overrides)
    assert warned == []
    engine, named = trainer.vllm_generation, dict(trainer.model.named_parameters())
    base = {name: parameter.clone() for name, parameter in named.items() if "lora_" not in name}
    alone = size(named) - size(base)
    synced = [log["rollout/synced_megabytes"] for log in logs(trainer)]
    assert (synced[0], synced[-1]) == pytest.approx(((size(named) if base_first else alone) / 1e6, alone / 1e6))
    # No other request begins so, and in a batch of two the second would find the first's: one rank asks a server.
    asks = trainer.accelerator.is_main_process or isinstance(engine, ColocatedGeneration)
    prompts = [engine._check_prompts[0][::-1]] if asks else []

    def sample() -> tuple[float, list[list[int]]]:
        """How many tokens the prefix cache had, and the sample."""
        before = engine._prefix_cache()[0]
        found = engine._sample(prompts, 1, None)[1]
        return engine._prefix_cache()[0] - before, found

    engine.temperature = 0.0
    (first, before), (again, _) = sample(), sample()
    change(trainer.model, 0.3)  # by so much that greedy samples change, whatever the server has sampled before
    engine.sync_weights()
    assert engine._sent == alone < size(base)
    changed, after = sample()
    if asks:
        assert before != after
        assert (first, changed) == (0, 0)
        assert again >= 128
    conversations = trainer.train_dataset[:4]["prompt"]
    reference = sample_all(TransformersEngine(trainer.model, trainer.chat, 4), conversations, GREEDY)
    with policy_engine(trainer, 4) as vllm:
        evaluated = sample_all(vllm, conversations, GREEDY)
    assert [one.token_ids for one in evaluated] == [one.token_ids for one in reference]
    assert unchanged(base, named)
    return trainer, after, size(named)


def colocate(folder: Path) -> None:
    trainer = train(folder, "rollout=vllm_colocate")
    scheduler = trainer.vllm_generation.llm.llm_engine.vllm_config.scheduler_config
    assert scheduler.max_num_seqs == vllm_engine.AT_ONCE  # evaluations have more items than a step
    engine, size_of_base = trainer.vllm_generation, size(dict(trainer.model.named_parameters()))
    NCCLTransfer(engine._iter_named_params, None, rank=1).send("w", connect=True)  # as a rank that gathers alone
    assert engine._sent == size_of_base  # the weights count once, although names and shapes are asked for first
    check_syncs(trainer, "its rank is 4, the engine was started for ranks up to 0", r=4)
    del trainer, engine
    check_adapter(folder, "rollout=vllm_colocate", base_first=False)


def check_withheld(folder: Path, *where: str) -> None:
    """Updates of 1e-6 that do not arrive, in half precision: log-probabilities do not tell, tensors do."""
    for kind, lora in (("weights", []), ("adapter", ["lora=rank16"])):
        trainer = tiny_trainer(folder, *WIDE, "model.dtype=bfloat16", *where, *lora)
        engine = trainer.vllm_generation
        with pytest.MonkeyPatch.context() as patch:
            withhold_updates(patch)
            first = ends_with(engine.sync_weights)
            change(trainer.model, 1e-6)
            message = ends_with(engine.sync_weights)
        assert first == ""
        assert ("lora_B" in message) == (kind == "adapter")
        assert "after a weight sync" in message
        assert "expected the same bits" in message
        assert same_on_all_ranks(message)
        assert engine._compare(engine._check_completions()) < engine._config.rollout.tolerance.half
        assert ends_with(engine.sync_weights) == ""


def withhold_updates(patch: pytest.MonkeyPatch) -> None:
    """Have every sync send the tensors of the first one within this context."""
    first: dict[str, torch.Tensor] = {}
    add, save = WeightFiles.add, save_adapter

    def stale(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        return {n: first.setdefault(n, t.detach().clone()) for n, t in tensors}

    patch.setattr(WeightFiles, "add", lambda files, *tensor: add(files, *next(iter(stale([tensor]).items()))))
    for module in (rollouts, served_engine):
        patch.setattr(module, "save_adapter", lambda model, own, folder: save(model, stale(own.items()), folder))


def load_start(server: VLLMServer, start: str) -> None:
    """Give a server the weights that it was started with, as a restart does."""
    server.load_weights([Path(start, "model.safetensors")], start)


def restarts(server: VLLMServer, start: str, times: int) -> Callable[[Iterable[Path], str], None]:
    """Loads weights into a server that is started anew right after, so many times."""
    load, left = server.load_weights, [times]

    def load_weights(files: Iterable[Path], name: str) -> None:
        load(files, name)
        if left[0] > 0:
            left[0] -= 1
            load([Path(start, "model.safetensors")], start)

    return load_weights


def check_faults_of_a_sync(trainer: Any, start: str) -> None:
    """What becomes of a server that restarts meanwhile, of a folder that it cannot see, of a disk that hangs."""
    engine, main = trainer.vllm_generation, trainer.accelerator.is_main_process
    server = engine._server if main else None
    for times, expected in ((1, ""), (3, "came back with other weights 3 times while it took new weights")):
        if main:
            server.load_weights = restarts(server, start, times)
        message = ends_with(engine.sync_weights)
        assert expected in message if expected else message == ""
        if main:
            del server.load_weights
    unseen = ends_with(lambda: engine.on_main(lambda: server.load_weights([Path(f"{start}-unseen")], "unseen")))
    assert "/update_weights" in unseen
    assert "rollout.weights_dir" in unseen
    timeout, grace = engine._timeout_s, served_engine._GRACE_S
    engine._timeout_s, served_engine._GRACE_S = 0.5, 0.5
    stuck = ends_with(lambda: engine.on_main(lambda: time.sleep(30)))
    assert "TimeoutError: took longer than 1 s" in stuck
    assert "rollout.timeout_s" in stuck
    engine._timeout_s, served_engine._GRACE_S = timeout, grace


def check_without_syncs(trainer: Any) -> None:
    """What shows that a batch is stale, whatever is done against it: fine in the first step, not once it is ahead."""
    engine = trainer.vllm_generation
    engine.sync_weights()
    engine.sync_weights = lambda: None
    trainer.train()
    del engine.sync_weights
    current, stale = (log["sampling/sampling_logp_difference/max"] for log in logs(trainer))
    assert current < 1e-4
    assert stale > 1e-2


def listener(port: int) -> psutil.Process:
    """The process that listens at a port."""
    ports = psutil.net_connections("tcp4")
    return next(psutil.Process(one.pid) for one in ports if one.laddr.port == port and one.status == psutil.CONN_LISTEN)


def serve(folder: Path, port: str) -> None:
    url = f"http://127.0.0.1:{port}"
    where = ["rollout=vllm_server", f"rollout.url={url}", "rollout.timeout_s=400"]
    for left in ("mine/sync-killed", "another/sync-used"):
        (folder / "shared" / left).mkdir(parents=True, exist_ok=True)
    (folder / "environment.json").write_text('{"id": "mine"}')
    trainer = train(folder, *where, f"rollout.weights_dir={folder / 'shared'}")
    check_without_syncs(trainer)
    check_transfer(trainer)
    engine, main = trainer.vllm_generation, trainer.accelerator.is_main_process
    for headers in ({}, {"Authorization": "Bearer another"}):
        assert httpx.post(f"{url}/collective_rpc", json={"method": "tal_state"}, headers=headers).status_code == 401
    assert [httpx.get(f"{url}/{route}").status_code for route in ("metrics", "health")] == [401, 200]
    left_behind = [path.relative_to(folder / "shared").as_posix() for path in folder.glob("shared/*/*")]
    assert left_behind == ["another/sync-used"]
    trainer.accelerator.wait_for_everyone()  # the main process is about to synchronise
    check_syncs(trainer, "its rank is 32, the engine was started for ranks up to 16", r=32)
    check_forgotten_adapter(folder, *where)
    check_withheld(folder, *where, "rollout.dtype=float32")
    engine.model = trainer.model
    check_faults_of_a_sync(trainer, str(folder / "model"))
    engine.sync_weights()
    prompts, greedy = engine._check_prompts, {"temperature": 0.0, "max_tokens": 8}
    policy = [c.token_ids for c in engine.complete(prompts, **greedy)]
    assert same_on_all_ranks(policy)
    if main:  # as after a restart, it has other weights than those of the last sync
        load_start(engine._server, str(folder / "model"))
        restarted = engine._server.complete(prompts, str(folder / "model"), **greedy)
        assert [c.token_ids for c in restarted] != policy
    # What it samples with other weights is not used: it gets the policy's, and samples again.
    assert [c.token_ids for c in engine.complete(prompts, **greedy)] == policy
    process = listener(int(port)) if main else None
    if process is not None:
        engine._server._timeout = 4.0
        process.suspend()
    started = time.monotonic()
    hangs = ends_with(lambda: engine.complete(prompts, max_tokens=4))
    assert time.monotonic() - started < 10
    if process is not None:
        process.kill()
    for message, kind in ((hangs, "ReadTimeout"), (ends_with(trainer.train), "ConnectError")):
        assert f"the vLLM server at {url}" in message
        assert "Start it with launch/vllm_server.sh" in message
        assert kind in message


def check_forgotten_adapter(folder: Path, *where: str) -> None:
    """Adapters, and a server that has neither adapter nor base any more, as after a restart."""
    trainer, sampled, base_and_adapter = check_adapter(folder, *where, base_first=True)
    engine = trainer.vllm_generation
    if trainer.accelerator.is_main_process:
        another = VLLMServer(engine._server.url, 60)
        another._send("POST", "/v1/unload_lora_adapter", json={"lora_name": engine._server._adapter["model"]})
        load_start(another, str(folder / "model"))
    resampled = engine._sample([engine._check_prompts[0][::-1]], 1, None)[1]
    assert resampled == gather_object(sampled)  # by one rank
    assert engine._sent == base_and_adapter
    assert not list(engine._weights.iterdir())


if __name__ == "__main__":
    task, folder, *arguments = sys.argv[1:]
    faulthandler.dump_traceback_later(500, exit=True)  # a rank that waits for ever says where
    PartialState(cpu=True)
    {"colocate": colocate, "serve": serve}[task](Path(folder), *arguments)
