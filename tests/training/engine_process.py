"""What the engine tests measure, in processes of their own: vLLM changes thread and rank settings of its process.

torchrun --nproc_per_node N engine_process.py colocate FOLDER
torchrun --nproc_per_node N engine_process.py serve FOLDER PORT SERVER_PID    kills the server in the end
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import torch
from accelerate import PartialState
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config

from think_as_locals.engines import Sampling, sample_all, vllm_engine
from think_as_locals.engines.transformers_engine import TransformersEngine
from think_as_locals.engines.vllm_server import VLLMServer
from think_as_locals.judging import COMPONENTS, Component
from think_as_locals.training import rollouts
from think_as_locals.training.rollouts import ColocatedEngine, policy_engine

sys.path.insert(0, str(Path(__file__).parents[1]))
from training.small_grpo import ends_with, tiny_trainer

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


def syncs(trainer: Any, **lora: Any) -> dict[str, Any]:
    """A sync that leaves out a tensor, and one of an adapter that the engine cannot apply."""
    engine = trainer.vllm_generation
    change(trainer.model)
    send = engine._iter_named_params
    engine._iter_named_params = lambda: ((n, p) for n, p in send() if "embed_tokens" not in n)
    found = {"left out": ends_with(engine.sync_weights)}
    engine._iter_named_params = send
    torch.manual_seed(0)  # an adapter that is not the same on all ranks ends the run as well
    base = {name: parameter.clone() for name, parameter in trainer.model.named_parameters()}
    engine.model = get_peft_model(trainer.model, LoraConfig(**lora, target_modules=["q_proj", "down_proj"]))
    change(engine.model)
    with warnings_of("think_as_locals.training.rollouts") as found["merged"]:
        found["adapter"] = ends_with(engine.sync_weights)
        engine.sync_weights()
    found["whole"] = [engine._sent, sum(parameter.nbytes for parameter in base.values())]
    kept = dict(engine.model.unload().named_parameters())
    return {**found, "base kept": all(torch.equal(base[name], kept[name]) for name in base)}


@contextmanager
def warnings_of(name: str) -> Iterator[list[str]]:
    found: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger(name).addHandler(handler)
    yield found
    logging.getLogger(name).removeHandler(handler)


def adapters(folder: Path, *overrides: str) -> tuple[Any, dict[str, Any]]:
    """An adapter that the engine applies: what is sent, that samples follow it, and that the base stays."""
    with warnings_of("think_as_locals.training.rollouts") as warned:
        trainer, found = train(folder, "lora=rank16", *overrides)
    engine, main = trainer.vllm_generation, trainer.accelerator.is_main_process
    named = dict(trainer.model.named_parameters())
    base = {name: parameter.clone() for name, parameter in named.items() if "lora_" not in name}
    found["warned"] = warned
    found["bytes"] = [
        sum(named[name].nbytes for name in base),
        sum(named[n].nbytes for n in named.keys() - base.keys()),
    ]
    long = engine._check_prompts[0][::-1]  # no other request begins so
    # In a batch of two the second would find the first's.
    alone = [long] if main or isinstance(engine, ColocatedEngine) else []

    def sampled() -> list[list[int]]:
        found: list[list[int]] = engine._sample(alone, 1, None)[1]
        return found

    def hits() -> float:
        before = engine._prefix_cache()[0]
        sampled()
        return float(engine._prefix_cache()[0] - before)

    engine.temperature = 0.0
    found["hits"] = [hits(), hits()]
    found["samples"] = [sampled()]
    change(trainer.model, 0.3)  # by so much that greedy samples change, whatever the server has sampled before
    engine.sync_weights()
    found["alone"] = engine._sent
    found["hits"].append(hits())
    found["samples"].append(sampled())
    conversations = trainer.train_dataset[:4]["prompt"]
    with policy_engine(trainer, trainer.chat, 4) as vllm:
        found["evaluated"] = [one.token_ids for one in sample_all(vllm, conversations, GREEDY)]
    reference = sample_all(TransformersEngine(trainer.model, trainer.chat, 4), conversations, GREEDY)
    found["policy"] = [one.token_ids for one in reference]
    found["base kept"] = all(torch.equal(base[name], named[name]) for name in base)
    return trainer, found


def train(folder: Path, *overrides: str) -> tuple[Any, dict[str, Any]]:
    varied: dict[str, Component] = {**COMPONENTS, "structure": lambda judgement, *_: len(judgement.text) % 7 / 7}
    trainer = tiny_trainer(folder, *WIDE, *overrides, components=varied)
    trainer.train()
    return trainer, {"logs": [log for log in trainer.state.log_history if "reward" in log]}


def colocate(folder: Path) -> dict[str, Any]:
    trainer, found = train(folder, "rollout=vllm_colocate")
    found |= syncs(trainer, r=4, use_dora=True)
    del trainer
    _, found["lora"] = adapters(folder, "rollout=vllm_colocate")
    GPT2Config(architectures=["GPT2LMHeadModel"]).save_pretrained(folder / "gpt2")
    settings = {"model": str(folder / "gpt2"), "dtype": "float32", "enable_sleep_mode": False}
    found["unsupported"] = rollouts.vllm_merge_reason(settings, 16)
    found["stale LM head"] = stale_lm_head(folder)
    return found


def stale_lm_head(folder: Path) -> list[str]:
    """vLLM as it comes: it packs weights, and `reload_weights` then leaves a tied LM head as it was, silently."""
    import vllm._custom_ops

    vllm_engine.keep_weights_plain = lambda: setattr(vllm._custom_ops, "_supports_onednn", True)

    class Reloading(ColocatedEngine):
        def _send_weights(self) -> None:
            self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": list(self._iter_named_params())})

    rollouts.ColocatedEngine = Reloading
    trainer = tiny_trainer(folder, *WIDE, "rollout=vllm_colocate")
    first = ends_with(trainer.vllm_generation.sync_weights)
    change(trainer.model)
    return [first, ends_with(trainer.vllm_generation.sync_weights)]


def restarts(engine: Any, start: str, times: int) -> Callable[[str], None]:
    """Loads weights into a server that is started anew right after, so many times."""
    load, left = engine._server.load_weights, [times]

    def load_weights(path: str) -> None:
        load(path)
        if left[0] > 0:
            left[0] -= 1
            load(start)

    return load_weights


def faults_of_a_sync(trainer: Any, start: str) -> dict[str, str]:
    """What becomes of a server that restarts meanwhile, of a folder that it cannot see, of a disk that hangs."""
    engine, found = trainer.vllm_generation, {}
    for times, case in ((1, "restarts once"), (3, "restarts always")):
        if trainer.accelerator.is_main_process:
            load, engine._server.load_weights = engine._server.load_weights, restarts(engine, start, times)
        found[case] = ends_with(engine.sync_weights)
        if trainer.accelerator.is_main_process:
            engine._server.load_weights = load
    found["unseen"] = ends_with(lambda: engine._on_main(lambda: engine._server.load_weights(f"{start}-unseen")))
    timeout, grace = engine._timeout_s, rollouts._GRACE_S
    engine._timeout_s, rollouts._GRACE_S = 0.5, 0.5
    found["stuck"] = ends_with(lambda: engine._on_main(lambda: time.sleep(30)))
    engine._timeout_s, rollouts._GRACE_S = timeout, grace
    return found


def without_syncs(trainer: Any) -> list[float]:
    """By how much sampled log-probabilities differ from the policy's, in a first step and in one where it is ahead."""
    engine = trainer.vllm_generation
    engine.sync_weights()
    engine.sync_weights = lambda: None
    trainer.train()
    del engine.sync_weights
    logs = [log for log in trainer.state.log_history if "reward" in log]
    return [log["sampling/sampling_logp_difference/max"] for log in logs]


def serve(folder: Path, port: str, server: str) -> dict[str, Any]:
    where = ["rollout=vllm_server", f"rollout.url=http://127.0.0.1:{port}", "rollout.timeout_s=400"]
    for left in ("mine/sync-killed", "another/sync-used"):
        (folder / "shared" / left).mkdir(parents=True, exist_ok=True)
    (folder / "environment.json").write_text('{"id": "mine"}')
    trainer, found = train(folder, *where, f"rollout.weights_dir={folder / 'shared'}")
    found["not synced"] = without_syncs(trainer)
    engine = trainer.vllm_generation
    prompts = [list(ids) for ids in engine._check_prompts]
    found["unlocked"] = [
        httpx.post(f"{engine._url}/collective_rpc", json={"method": "tal_state"}, headers=key).status_code
        for key in ({}, {"Authorization": "Bearer another"})
    ] + [httpx.get(f"{engine._url}/{route}").status_code for route in ("metrics", "health")]
    found["left behind"] = sorted(str(path.relative_to(folder / "shared")) for path in folder.glob("shared/*/*"))
    trainer.accelerator.wait_for_everyone()  # the main process is about to synchronise
    found |= syncs(trainer, r=32)
    found["lora"] = forgotten_adapter(folder, *where)
    engine.model = trainer.model
    found |= faults_of_a_sync(trainer, str(folder / "model"))
    engine.sync_weights()
    greedy = {"temperature": 0.0, "max_tokens": 8}
    found["policy"] = [c.token_ids for c in engine.complete(prompts, **greedy)]
    if trainer.accelerator.is_main_process:  # as after a restart, it has other weights than those of the last sync
        engine._server.load_weights(str(folder / "model"))
        found["restarted"] = [c.token_ids for c in engine._server.complete(prompts, str(folder / "model"), **greedy)]
    found["resampled"] = [c.token_ids for c in engine.complete(prompts, **greedy)]
    if trainer.accelerator.is_main_process:
        engine._server._timeout = 4.0
        os.kill(int(server), signal.SIGSTOP)
    started = time.monotonic()
    found["hangs"] = ends_with(lambda: engine.complete(prompts, max_tokens=4))
    found["waited"] = time.monotonic() - started
    if trainer.accelerator.is_main_process:
        os.killpg(int(server), signal.SIGKILL)
    found["killed"] = ends_with(trainer.train)
    return found


def forgotten_adapter(folder: Path, *where: str) -> dict[str, Any]:
    """Adapters, and a server that has neither adapter nor base any more, as after a restart."""
    trainer, found = adapters(folder, *where)
    engine = trainer.vllm_generation
    if trainer.accelerator.is_main_process:
        another = VLLMServer(engine._url, 60)
        another._ask("POST", "/v1/unload_lora_adapter", json={"lora_name": engine._server._adapter["model"]})
        another.load_weights(str(folder / "model"))
    found["resampled"] = engine._sample([engine._check_prompts[0][::-1]], 1, None)[1]
    found["resent"] = engine._sent
    found["left behind"] = [path.name for path in engine._weights.iterdir()]
    return found


if __name__ == "__main__":
    task, folder, *arguments = sys.argv[1:]
    faulthandler.dump_traceback_later(500, exit=True)  # a rank that waits for ever says where
    PartialState(cpu=True)
    found = {"colocate": colocate, "serve": serve}[task](Path(folder), *arguments)
    (Path(folder) / f"{task}-{PartialState().process_index}.json").write_text(json.dumps(found))
