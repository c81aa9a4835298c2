"""What the engine tests measure, in processes of their own: vLLM changes thread and rank settings of its process.

torchrun --nproc_per_node N engine_process.py colocate FOLDER
torchrun --nproc_per_node N engine_process.py serve FOLDER PORT SERVER_PID    kills the server in the end
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import torch
from accelerate import PartialState
from peft import LoraConfig, get_peft_model

from think_as_locals.generation import vllm_engine
from think_as_locals.judging import COMPONENTS, Component
from think_as_locals.training import rollouts
from think_as_locals.training.engines import ColocatedEngine
from think_as_locals.types import TrainingError

sys.path.insert(0, str(Path(__file__).parents[1]))
from training.small_grpo import tiny_trainer

WIDE = [  # the narrowest that vLLM has an attention kernel for on CPU
    "model.scratch.hidden_size=64",
    "model.scratch.num_hidden_layers=2",
    "prompt=listwise",  # longer than a block of the prefix cache, in words of few letters
    "model.scratch.num_phrases=0",
    "reward.both_orders=true",
    "grpo.learning_rate=0.01",
    "grpo.max_completion_length=24",
]


def ends_with(work: Callable[[], Any]) -> str:
    try:
        work()
    except TrainingError as error:
        return str(error)
    return ""


def change(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and "layernorm" not in name:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))


def syncs(trainer: Any) -> dict[str, Any]:
    """A sync that leaves out a tensor, and syncs of an adapter."""
    engine = trainer.vllm_generation
    change(trainer.model)
    send = engine._iter_named_params
    engine._iter_named_params = lambda: ((n, p) for n, p in send() if "embed_tokens" not in n)
    said = {"left out": ends_with(engine.sync_weights)}
    engine._iter_named_params = send
    torch.manual_seed(0)  # an adapter that is not the same on all ranks ends the run as well
    base = {name: parameter.clone() for name, parameter in trainer.model.named_parameters()}
    engine.model = get_peft_model(
        trainer.model, LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    )
    said["adapter"] = ends_with(engine.sync_weights)
    kept = dict(engine.model.unload().named_parameters())
    return {**said, "base kept": all(torch.equal(base[name], kept[name]) for name in base)}


def train(folder: Path, *overrides: str) -> tuple[Any, dict[str, Any]]:
    varied: dict[str, Component] = {**COMPONENTS, "structure": lambda judgement, *_: len(judgement.text) % 7 / 7}
    trainer, _ = tiny_trainer(folder, *WIDE, *overrides, components=varied)
    trainer.train()
    return trainer, {"logs": [log for log in trainer.state.log_history if "reward" in log]}


def colocate(folder: Path) -> dict[str, Any]:
    trainer, said = train(folder, "rollout=vllm_colocate")
    return {**said, **syncs(trainer)}


def packed(folder: Path) -> dict[str, Any]:
    """vLLM as it comes: it packs weights, and `reload_weights` then leaves a tied LM head as it was, silently."""
    import vllm._custom_ops

    vllm_engine.keep_weights_plain = lambda: setattr(vllm._custom_ops, "_supports_onednn", True)

    class Reloading(ColocatedEngine):
        def _send_weights(self) -> None:
            self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": list(self._iter_named_params())})

    rollouts.ColocatedEngine = Reloading
    trainer, _ = tiny_trainer(folder, *WIDE, "rollout=vllm_colocate")
    first = ends_with(trainer.vllm_generation.sync_weights)
    change(trainer.model)
    return {"first": first, "second": ends_with(trainer.vllm_generation.sync_weights)}


def serve(folder: Path, port: str, server: str) -> dict[str, Any]:
    where = ["rollout=vllm_server", f"rollout.url=http://127.0.0.1:{port}", "rollout.timeout_s=400"]
    trainer, said = train(folder, *where)
    engine = trainer.vllm_generation
    prompts = [list(ids) for ids in engine._probe.prompts]
    said["unlocked"] = [
        httpx.post(f"{engine._settings.url}/collective_rpc", json={"method": "tal_state"}, headers=key).status_code
        for key in ({}, {"Authorization": "Bearer another"})
    ] + [httpx.get(f"{engine._settings.url}/{route}").status_code for route in ("metrics", "health")]
    said["left behind"] = [path.name for path in engine._settings.weights.iterdir()]
    said |= syncs(trainer)
    engine.model = trainer.model
    engine.sync_weights()
    greedy = {"temperature": 0.0, "max_tokens": 8}
    said["policy"] = [c.token_ids for c in engine.complete(prompts, **greedy)]
    if (
        trainer.accelerator.is_main_process
    ):  # as after a restart, the server has other weights than those of the last sync
        engine._server.load_weights(str(folder / "model"))
        said["restarted"] = [c.token_ids for c in engine._server.complete(prompts, **greedy)]
    said["resampled"] = [c.token_ids for c in engine.complete(prompts, **greedy)]
    if trainer.accelerator.is_main_process:
        engine._server._timeout = 4.0
        os.kill(int(server), signal.SIGSTOP)
    started = time.monotonic()
    said["hangs"] = ends_with(lambda: engine.complete(prompts, max_tokens=4))
    said["waited"] = time.monotonic() - started
    if trainer.accelerator.is_main_process:
        os.killpg(int(server), signal.SIGKILL)
    said["killed"] = ends_with(trainer.train)
    return said


if __name__ == "__main__":
    task, folder, *arguments = sys.argv[1:]
    faulthandler.dump_traceback_later(500, exit=True)  # a rank that waits for ever says where
    PartialState(cpu=True)
    said = {"colocate": colocate, "packed": packed, "serve": serve}[task](Path(folder), *arguments)
    (Path(folder) / f"{task}-{PartialState().process_index}.json").write_text(json.dumps(said))
