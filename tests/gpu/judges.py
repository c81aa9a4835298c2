"""vLLM outside training: judges of one evaluation after another, a served judge, speed and prefix cache."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any
from urllib.request import urlopen

import psutil
import torch
from benchmarks.judging import lengthened
from gpu.checks import PYTHON, Report, Scale
from gpu.models import policy_config, seconds, trained_judge
from transformers import AutoTokenizer
from warm import processes_in

from think_as_locals.config.checks import load_recipe
from think_as_locals.data import read
from think_as_locals.data.splits import select
from think_as_locals.engines import Chat, Sampling, vllm_engine
from think_as_locals.engines.vllm_engine import VLLMEngine
from think_as_locals.reward_models.judge import Judge, JudgeSettings
from think_as_locals.types import Item

DTYPES = {True: "float32", False: "bfloat16"}


def items(count: int) -> list[Item]:
    """Items of the quick start, in flip sets of four."""
    return select(tuple(read(load_recipe("recipes/quickstart.yaml").data, 0)), count)


def free_bytes(scale: Scale) -> int:
    return 0 if scale.toy else torch.cuda.mem_get_info()[0]


def report_end(scale: Scale, report: Report, took: float, free: int, task: str) -> None:
    report("exit", took, "")
    _, left = psutil.wait_procs(processes_in(scale.folder / task), timeout=5)
    report("orphans", len(left), ", ".join(process.name() for process in left))
    sleep(scale.pick(0, 2))  # the driver takes memory back a moment later
    report("memory", (free - free_bytes(scale)) / 1e9, "")


def evaluation(scale: Scale, report: Report) -> None:
    judge, free = trained_judge(scale), free_bytes(scale)
    asked = (f"path={judge}", "backend=vllm", f"dtype={DTYPES[scale.toy]}")
    words = [f"rms.{name}{word}" for name in ("one", "two") for word in ("=judge", *(f".{key}" for key in asked))]
    words += ["data=quickstart_cards", "eval.max_items=16", "eval.bootstrap_samples=200"]
    words += [f"run.dir={scale.folder}", "run.name=two"]
    process = start(scale, "run", "carb", *words)
    run = scale.folder / "two"
    while process.poll() is None and not (run / "leaderboard.html").is_file():
        sleep(0.1)
    with suppress(subprocess.TimeoutExpired):  # the number says so
        process.wait(60)
    if process.returncode:
        raise RuntimeError(f"tal run recipes/carb.yaml ended with status {process.returncode}")
    report("judged", sum((run / "carb" / f"{name}.json").is_file() for name in ("one", "two")), "")
    report_end(scale, report, time() - (run / "leaderboard.html").stat().st_mtime, free, "run")


def served(scale: Scale, report: Report) -> None:
    judge, free = trained_judge(scale), free_bytes(scale)
    process = start(scale, "serve", str(judge), "judge.backend=vllm", f"judge.dtype={DTYPES[scale.toy]}", "port=0")
    url = address(scale, process, 120)
    report("answers", float(json.loads(urlopen(f"{url}/health").read())["status"] == "ok"), url)  # noqa: S310
    process.send_signal(signal.SIGTERM)
    began = monotonic()
    with suppress(subprocess.TimeoutExpired):
        process.wait(60)
    report_end(scale, report, monotonic() - began, free, "serve")


def start(scale: Scale, task: str, *words: str) -> subprocess.Popen[bytes]:
    """Start a command of `tal` in a folder of its own, by which its processes are found."""
    (scale.folder / task).mkdir(exist_ok=True)
    with (scale.folder / f"{task}.out").open("w") as out:
        command = [PYTHON, "-m", "think_as_locals", task, *words]
        return subprocess.Popen(command, cwd=scale.folder / task, stdout=out, stderr=out)


def address(scale: Scale, process: subprocess.Popen[bytes], limit: float) -> str:
    """Where a served judge listens, once it says so."""
    until = monotonic() + limit
    while monotonic() < until and process.poll() is None:
        if found := re.search(r"running on (http://\S+)", (scale.folder / "serve.out").read_text()):
            return found[1]
        sleep(0.2)
    raise RuntimeError(f"no judge is served: {(scale.folder / 'serve.out').read_text()[-500:]}")


def engine_of(scale: Scale, path: Path, **settings: Any) -> VLLMEngine:
    """A vLLM with settings that an evaluation does not have."""
    vllm_engine.prepare()
    from vllm import LLM

    llm = LLM(model=str(path), dtype=DTYPES[scale.toy], enforce_eager=scale.toy, max_model_len=2048, **settings)
    return VLLMEngine(llm, Chat(AutoTokenizer.from_pretrained(path)))


def speed(scale: Scale, report: Report) -> None:
    """Completions of a 7B model, whose weights need not be anything."""
    folder = scale.folder / "shape"
    policy_config(scale, architectures=["Qwen2ForCausalLM"]).save_pretrained(folder)
    AutoTokenizer.from_pretrained(trained_judge(scale)).save_pretrained(folder)
    rates = {}
    length, count, tokens = scale.pick((16, 8, 4), (1024, 256, 256))
    prompts = [[5 + (7 * row + place) % 300 for place in range(length)] for row in range(count)]
    for at_once in (64, 256):
        with closing(engine_of(scale, folder, load_format="dummy", max_num_seqs=at_once)) as engine:
            took = seconds(scale, sampler(engine, prompts, tokens), 1)
            rates[at_once] = len(prompts) * tokens / took
    details = ", ".join(f"{at_once} at once: {rate:,.0f} tokens/s" for at_once, rate in rates.items())
    report("speed", rates[256] / rates[64], details)


def sampler(engine: VLLMEngine, prompts: Sequence[list[int]], tokens: int) -> Any:
    def sample() -> None:
        engine.llm.reset_prefix_cache()
        engine.sample_tokens(prompts, Sampling(max_completion_length=tokens))

    return sample


def prefix_cache(scale: Scale, report: Report) -> None:
    asked = lengthened(items(scale.pick(16, 256)), 60)
    rates = {}
    with closing(engine_of(scale, trained_judge(scale), disable_log_stats=False)) as engine:
        for prompt in ("rewardbench2", "rewardbench2_responses_first"):
            engine.llm.reset_prefix_cache()
            before = counts(engine)
            Judge(engine=engine, settings=JudgeSettings(prompt=prompt, max_completion_length=8)).judge(asked)
            hits, queries = (now - then for now, then in zip(counts(engine), before, strict=True))
            rates[prompt] = hits / max(queries, 1)
    report("rate", rates["rewardbench2_responses_first"], f"question first: {rates['rewardbench2']:.2f}")


def counts(engine: VLLMEngine) -> tuple[float, float]:
    """Tokens that the prefix cache had, and that were looked up."""
    found = {metric.name: metric.value for metric in engine.llm.get_metrics() if "prefix_cache" in metric.name}
    return found["vllm:prefix_cache_hits"], found["vllm:prefix_cache_queries"]


RUN = {"evaluation": evaluation, "served": served, "sampling": speed, "prefix_cache": prefix_cache}
