"""Runs that sample ahead, whose trainer or vLLM server is killed at random moments.

A run is started again until it ends. Then every optimizer step must have had the items of an undisturbed run, no batch
may have been older than allowed, and every batch must have been sampled with the weights that it is said to be from: a
witness in each run keeps the policy's weights and compares log-probabilities of sampled tokens with the server's.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import torch
from rich.progress import Progress
from soak_runs import expect, logged, start, wait
from soak_server import STALE, STEPS, WORDS, Server, serve_judge

from think_as_locals.engines.transformers_engine import padded
from think_as_locals.training.ahead import Prompts, SampledAhead

SERVER_TIMEOUT_S = 300  # rollout.timeout_s; a run that takes longer than twice that hangs


def ahead_kills(folder: Path, count: int, rng: random.Random) -> dict[str, Any]:
    """SIGKILLs of trainer or server, and what became of the runs."""
    folder = folder / "ahead"
    folder.mkdir()
    model, server = serve_judge(folder)
    words = [*WORDS, f"model.path={model}", f"rollout.url={server.url}", "rollout.ahead=1", "grpo.save_steps=1"]
    words += [f"rollout.timeout_s={SERVER_TIMEOUT_S}.0"]
    result = dict.fromkeys(("trainer_kills", "server_kills", "runs", "batches", "ended_with_an_error"), 0)
    result |= dict.fromkeys(("unclear_errors", "did_not_go_on", "hangs"), 0)
    result |= dict.fromkeys(("wrong_items", "wrong_steps", "too_old", "of_other_weights"), 0)
    errors = 0  # since the last kill
    try:
        server.wait()
        began = time.monotonic()
        expect(_run(folder, "undisturbed", words, server, float("inf"), rng)[0] == 0, folder, "undisturbed")
        expected, whole = items_of(folder / "undisturbed"), time.monotonic() - began
        with Progress() as progress:
            task = progress.add_task("ahead SIGKILL", total=count)
            while (killed := result["trainer_kills"] + result["server_kills"]) < count and not result["hangs"]:
                name = f"ahead-{result['runs']}"
                log = folder / f"{name}.log"
                size = log.stat().st_size if log.exists() else 0
                status, kind = _run(folder, name, words, server, rng.uniform(0.2, whole), rng)
                if kind:
                    errors = 0
                    result[f"{kind}_kills"] += 1
                    progress.update(task, completed=killed + 1)
                if status is None:
                    result["hangs"] += kind != "trainer"
                elif status:  # a start that finds no server ends; it is started again, with one
                    errors += 1
                    message = log.read_bytes()[size:].decode()
                    result["ended_with_an_error"] += 1
                    result["unclear_errors"] += server.url not in message
                    result["did_not_go_on"] += errors > 1  # nobody has touched the server since the last one
                else:
                    _record_outcome(folder / name, expected, result)
    finally:
        server.kill()
    return result


def _run(
    folder: Path, name: str, words: list[str], server: Server, delay: float, rng: random.Random
) -> tuple[int | None, str]:
    """Start or continue a run, and kill it or the server after so long: its status, and what was killed."""
    server.wait()  # it may have been killed as the last run ended
    process = start(folder, name, words, first=partial(witness, folder / f"{name}.jsonl"))
    moment, killed = time.monotonic() + delay, ""

    def is_time() -> bool:
        return server.is_up() and time.monotonic() > moment

    status = wait(process, 2 * SERVER_TIMEOUT_S, is_time)
    if status is None and is_time():
        killed = rng.choice(("trainer", "server"))
        if killed == "server":
            server.kill()
            status = wait(process, 2 * SERVER_TIMEOUT_S, lambda: is_time() and False)  # which starts it again
    if status is None:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    return status, killed


def items_of(run: Path) -> dict[int, list[str]]:
    """Which items each optimizer step had."""
    files = sorted((run / "completions").glob("*.parquet"))
    rows = [row for file in files for row in parquet.read_table(file, columns=["step", "id"]).to_pylist()]
    return {step: [row["id"] for row in rows if row["step"] == step] for step in sorted({row["step"] for row in rows})}


def _record_outcome(run: Path, expected: dict[int, list[str]], result: dict[str, Any]) -> None:
    lines = [line for line in logged(run) if line["stage"] == "grpo"]
    seen = [json.loads(line) for line in run.with_name(f"{run.name}.jsonl").read_text().splitlines()]
    result["runs"] += 1
    result["batches"] += len(lines)
    result["wrong_steps"] += [line["step"] for line in lines] != list(range(1, STEPS + 1))
    result["wrong_items"] += items_of(run) != expected
    result["too_old"] += sum(not 0 <= line["rollout/staleness"] <= 1 for line in lines)
    result["of_other_weights"] += sum(not difference <= STALE for difference in seen)


def witness(file: Path) -> None:
    """Have this process note, for each batch, how far its log-probabilities are from those of its weights."""
    take, begin = SampledAhead.take, SampledAhead._start

    def keep(ahead: SampledAhead, number: int) -> None:
        torch.save(ahead._trainer.model.state_dict(), file.with_suffix(f".{number}"))
        begin(ahead, number)

    def watched(ahead: SampledAhead, prompts: Prompts) -> Any:
        trainer = ahead._trainer
        completions, log_probs = take(ahead, prompts)
        number = trainer._step // ahead._window - int(trainer._metrics["train"]["rollout/staleness"][-1])
        current = {name: value.clone() for name, value in trainer.model.state_dict().items()}
        trainer.model.load_state_dict(torch.load(file.with_suffix(f".{number}"), weights_only=True))
        difference = max_log_prob_difference(trainer.model, prompts, completions, log_probs)
        trainer.model.load_state_dict(current)
        with file.open("a") as lines:
            lines.write(f"{difference}\n")
        return completions, log_probs

    SampledAhead.take, SampledAhead._start = watched, keep


@torch.no_grad()
def max_log_prob_difference(model: Any, prompts: Prompts, completions: Prompts, log_probs: list[list[Any]]) -> float:
    """The largest difference of log-probabilities."""
    differences = []
    for prompt, completion, theirs in zip(prompts, completions, log_probs, strict=True):
        ids, mask = padded([prompt + completion], "left")
        logits = model(input_ids=ids, attention_mask=mask).logits[0, len(prompt) - 1 : -1].float()
        ours = logits.log_softmax(-1).gather(-1, torch.tensor(completion)[:, None])[:, 0]
        differences.append(float((ours - torch.tensor(theirs)).abs().max()))
    return max(differences)
