"""Weight syncs into a colocated vLLM: what they miss, how long they take, and the importance weights that follow."""

from __future__ import annotations

import os
import subprocess
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from secrets import token_hex
from statistics import quantiles
from time import sleep
from typing import Any

import torch
from accelerate.utils.memory import clear_device_cache
from filelock import FileLock
from gpu.checks import OTHER_GPUS, PYTHON, Report, Scale
from gpu.models import free_port, policy_config, random_model, seconds, trained_judge
from safetensors.torch import load_file
from training.small_grpo import ends_with, tiny_trainer

from think_as_locals.engines.transformers_engine import padded
from think_as_locals.engines.vllm_server import VLLMServer
from think_as_locals.reward_models.scratch import train_tokenizer
from think_as_locals.runtime.processes import in_background
from think_as_locals.training.weight_transfer import WeightFiles
from think_as_locals.types import ServerError

WAYS = {"full": [], "lora": ["lora=rank16"], "sleep": ["grpo.vllm_enable_sleep_mode=true"]}
HEADS = {"bf16": ["grpo.cast_lm_head_to_fp32=false"], "fp32": ["grpo.cast_lm_head_to_fp32=true"]}
STEP = 1e-6
"""By how much an update moves each weight: Adam's first steps at this learning rate."""


def colocated(scale: Scale, name: str, model: Path, *overrides: str) -> Any:
    """A trainer of a model in bfloat16 that samples with vLLM."""
    folder = scale.folder / name
    folder.mkdir(exist_ok=True)
    if not (folder / "model").is_symlink():
        (folder / "model").symlink_to(model)
    os.environ["MASTER_PORT"] = free_port()
    words = ["rollout=vllm_colocate", "rollout.gpu_memory_utilization=0.4", "model.dtype=bfloat16", *overrides]
    return tiny_trainer(folder, *words)


def update(model: torch.nn.Module, number: int) -> None:
    """Move every trained weight by a step, up or down."""
    generator = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for parameter in filter(lambda each: each.requires_grad, model.parameters()):
            signs = torch.randint(0, 2, parameter.shape, generator=generator, dtype=torch.int8).mul_(2).sub_(1)
            parameter.add_(STEP * signs.to(parameter.device))


@contextmanager
def weight_updates_blocked(engine: Any) -> Iterator[None]:
    """Have vLLM keep the weights and the adapter that it has."""
    model = engine.llm.llm_engine.model_executor.driver_worker.model_runner.model
    engine.llm.llm_engine.add_lora, load = lambda request: True, model.load_weights
    model.load_weights = lambda weights: deque(weights, maxlen=0)
    yield
    del engine.llm.llm_engine.add_lora
    model.load_weights = load


def syncs(scale: Scale, report: Report, way: str) -> None:
    trainer = colocated(scale, f"syncs-{way}", trained_judge(scale), *WAYS[way])
    report_difference(scale, report, trainer)
    update(trainer.model, -1)
    with weight_updates_blocked(trainer.vllm_generation):
        message = ends_with(trainer.vllm_generation.sync_weights)
    report("caught", bool(message), message[:120])


def report_difference(scale: Scale, report: Report, trainer: Any) -> None:
    """Update and sync many times; report by how much the engine's log-probabilities differed from the policy's."""
    for number in range(scale.pick(5, 50)):
        update(trainer.model, number)
        trainer.vllm_generation.sync_weights()
    differences = trainer._metrics["train"]["rollout/sync_check_difference"]
    spread = ", ".join(f"{value:.1e}" for value in quantiles(differences, n=10)[::4])
    report("difference", max(differences), f"{len(differences)} syncs; 10 %, median, 90 %: {spread}")


def nccl(scale: Scale, report: Report) -> None:
    """Syncs to a vLLM server by NCCL."""
    with server(scale, judge := trained_judge(scale)) as words:
        report_difference(scale, report, colocated(scale, "syncs-nccl", judge, *words))


def importance(scale: Scale, report: Report, heads: str) -> None:
    """Weights pi(completion) / pi_vLLM(completion) of sampled completions, of which as many tokens are looked at."""
    from vllm import SamplingParams

    lengths = scale.pick((12, 24, 48), (300, 600, 2048))
    trainer = colocated(scale, f"importance-{heads}", trained_judge(scale), *HEADS[heads])
    engine, rows = trainer.vllm_generation, scale.pick(8, 64)
    engine.sync_weights()
    prompts = trainer.chat.encode(trainer.train_dataset[:8]["prompt"]) * (rows // 8)
    sampled = {"temperature": 1.0, "max_tokens": lengths[-1], "ignore_eos": True, "logprobs": 0, "detokenize": False}
    asked = [{"prompt_token_ids": ids} for ids in prompts]
    outputs = [o.outputs[0] for o in engine.llm.generate(asked, SamplingParams(**sampled), use_tqdm=False)]
    completions = [list(output.token_ids) for output in outputs]
    theirs = torch.tensor([[next(iter(p.values())).logprob for p in o.logprobs] for o in outputs])
    ids, mask = padded([prompt + own for prompt, own in zip(prompts, completions, strict=True)], "left")
    with torch.no_grad():
        ours = torch.cat(
            [
                trainer._get_per_token_logps_and_entropies(
                    trainer.model, *(part.to(scale.device) for part in each), lengths[-1]
                )[0]
                for each in zip(ids.split(4), mask.split(4), strict=True)
            ]
        )
    difference = ours.cpu().double() - theirs.double()
    report("rms", float(difference.pow(2).mean().sqrt()), f"{difference.numel():,} tokens")
    means, sizes = {}, {}
    for length in lengths:
        weights = difference[:, :length].sum(1).exp()
        means[length], sizes[length] = float(weights.mean()), float(weights.sum() ** 2 / weights.pow(2).sum() / rows)
    listed = "; ".join(f"{n} tokens: mean weight {means[n]:.2f}, effective size {sizes[n]:.2f}" for n in lengths)
    report("effective", sizes[lengths[0]], listed)


def model_7b(scale: Scale) -> Path:
    """The folder of a random 7B model, or of a toy, with a tokenizer."""
    folder = scale.folder / "7b"
    with FileLock(scale.folder / "7b.lock"):
        if not (folder / "tokenizer.json").is_file():
            tokenizer = train_tokenizer(["which of these is done there"], 300, 0)
            ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
            random_model(scale, policy_config(scale, **ids)).save_pretrained(folder)
            clear_device_cache(garbage_collection=True)
            tokenizer.save_pretrained(folder)
    return folder


def sync_seconds(scale: Scale, report: Report, way: str) -> None:
    """How long a sync of a 7B model takes: in place, by the adapter alone, and through files."""
    trainer = colocated(scale, f"seconds-{way}", model_7b(scale), *WAYS[way], "rollout.max_model_length=2048")
    engine = trainer.vllm_generation
    engine.sync_weights()
    report("seconds", seconds(scale, engine.sync_weights, 3), f"{engine._sent / 1e9:.2g} GB")
    if way != "full":
        return
    load = engine.llm.llm_engine.model_executor.driver_worker.model_runner.model.load_weights

    def through_files() -> None:
        files = WeightFiles(scale.folder / "weights", limit_s=120)
        loading = in_background(lambda: [load([*load_file(path).items()]) for path in files])
        for name, tensor in engine._iter_named_params():
            files.add(name, tensor)
        files.close()
        loading.result()

    report("files", seconds(scale, through_files, 1), "written, and loaded as they come")


def nccl_seconds(scale: Scale, report: Report) -> None:
    """How long a sync to a vLLM server on another GPU takes."""
    with server(scale, model_7b(scale)) as words:
        engine = colocated(scale, "seconds-nccl", model_7b(scale), *words).vllm_generation
        engine.sync_weights()  # connects
        report("seconds", seconds(scale, engine.sync_weights, 3), f"{engine._sent / 1e9:.2g} GB")


@contextmanager
def server(scale: Scale, model: Path) -> Iterator[list[str]]:
    """A vLLM server of a model, and the overrides by which a run uses it.

    It has another GPU, or if there is none this one: NCCL allows that to processes of two hosts.
    """
    other, port = os.environ.get(OTHER_GPUS, "").partition(",")[0], free_port()
    os.environ["VLLM_API_KEY"] = token_hex(16)
    where = {"PORT": port, "PYTHON": PYTHON, "CUDA_VISIBLE_DEVICES": other}
    if not other:
        os.environ |= {"NCCL_HOSTID": "trainer", "NCCL_SOCKET_IFNAME": "lo", "VLLM_HOST_IP": "127.0.0.1"}
        where |= {"NCCL_HOSTID": "server", "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "")}
    words = ["launch/vllm_server.sh", str(model), "--dtype", "bfloat16", "--enforce-eager", "--max-model-len", "2048"]
    process = subprocess.Popen([*words, "--gpu-memory-utilization", "0.4"], env={**os.environ, **where})
    client = VLLMServer(f"http://127.0.0.1:{port}", 3.0)
    try:
        while True:
            with suppress(ServerError):
                client.state()
                break
            if process.poll() is not None:
                raise RuntimeError(f"the vLLM server ended with status {process.returncode}")
            sleep(1)
        transfer = scale.pick("folder", "nccl")
        yield ["rollout=vllm_server", f"rollout.url={client.url}", f"rollout.transfer={transfer}"]
    finally:
        process.terminate()
        process.wait(30)


RUN = {
    "sync_nccl": nccl,
    "seconds_nccl": nccl_seconds,
    **{f"sync_{way}": partial(syncs, way=way) for way in WAYS},
    **{f"importance_{heads}": partial(importance, heads=heads) for heads in HEADS},
    **{f"seconds_{way}": partial(sync_seconds, way=way) for way in ("full", "lora")},
}
