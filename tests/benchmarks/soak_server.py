"""A vLLM server that is killed at random moments while a run samples from it: no batch may be stale, no wait too long.

A supervisor starts the server again after every death, on the same port and with the weights that it was first started
with, and the run goes on from its checkpoint whenever it ends with an error. Whether a batch was stale is asked of the
policy, not of what is to prevent it: TRL logs for each step how far log-probabilities of its sampled tokens are from
those of the policy. In full precision they agree within 1e-4 where the engine is up to date; that a batch one step old
stands out is measured too, by a run that leaves out every second weight sync.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from typing import Any

import httpx
import vllm
from rich.progress import Progress
from soak_runs import COLD_START, LIMIT_S, expect, logged, start, wait

from think_as_locals.training.served_engine import ServedGeneration

WIDTH = "model.scratch.hidden_size=64"  # the narrowest that vLLM has an attention kernel for on CPU
STEPS = 10
WORDS = [
    "rollout=vllm_server",
    "model.scratch=null",
    "sft=null",
    f"grpo.max_steps={STEPS}",
    "grpo.learning_rate=0.003",  # so that weights of one step before give clearly other log-probabilities
    "eval.every_steps=100",
]
PHASES = ("sampling", "syncing", "idle")
LIMITS_S = (15, 240)  # rollout.timeout_s: the run ends before the server is back, or waits for it
SLACK_S = 20
STALE = 1e-3
DIFFERENCE = "sampling/sampling_logp_difference/max"


class Server:
    """A vLLM server of a judge, which is started again when it is dead.

    Args:
        model: The judge, as it is before training.
        log: Where its output goes.
    """

    def __init__(self, model: Path, log: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        settings = {"PORT": str(port), "PYTHON": sys.executable, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
        self._environment = {**os.environ, **settings}
        self._words = ["launch/vllm_server.sh", str(model), "--dtype", "float32", "--enforce-eager"]
        self._log = log
        self._start()

    def _start(self) -> None:
        self.up_since, self._looked = math.inf, 0.0
        with self._log.open("a") as log:
            where = {"env": self._environment, "stdout": log, "stderr": log, "start_new_session": True}
            self._process = subprocess.Popen(self._words, **where)

    def is_up(self) -> bool:
        """Whether it answers, which is looked at until it does; where it is dead, it is started again."""
        if self._process.poll() is not None:
            self._start()
        if self.up_since == math.inf and time.monotonic() > self._looked + 0.3:
            self._looked = time.monotonic()
            with suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/health", timeout=1).is_success:
                    self.up_since = self._looked
        return self.up_since < math.inf

    def wait(self) -> None:
        """Until it is up."""
        end = time.monotonic() + LIMIT_S
        while not self.is_up():
            if time.monotonic() > end:
                raise SystemExit(f"the server does not start:\n{self._log.read_text()}")
            time.sleep(0.1)

    def kill(self) -> None:
        """All of its processes, at once."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def serve_judge(folder: Path) -> tuple[Path, Server]:
    """A judge that has had its cold start, and a server of it that is starting."""
    os.environ["VLLM_API_KEY"] = secrets.token_hex(16)
    made = start(folder, "judge", [*COLD_START, WIDTH, "grpo.max_steps=1", "eval.every_steps=100"])
    expect(wait(made, LIMIT_S) == 0, folder, "judge")
    model = folder / "judge" / "cold_start" / "model"
    return model, Server(model, folder / "server.log")


def server_kills(folder: Path, count: int, rng: random.Random) -> dict[str, Any]:
    """SIGKILLs of the server of runs that are started again until they end, and what became of them."""
    model, server = serve_judge(folder)
    words = [*WORDS, f"model.path={model}", f"rollout.url={server.url}"]
    try:
        server.wait()
        return {"vllm": vllm.__version__, **_control(folder, words), **_Soak(folder, words, server, rng).kill(count)}
    finally:
        server.kill()


def _control(folder: Path, words: list[str]) -> dict[str, Any]:
    """A run that leaves out every second sync: the batches that are one step old have to be seen."""
    process = start(folder, "control", words, first=_skip_every_second_sync)
    expect(wait(process, LIMIT_S) == 0, folder, "control")
    differences = [line[DIFFERENCE] for line in logged(folder / "control")]
    stale, current = differences[1::2], differences[::2]  # the first step has the weights of the evaluation before
    missed = sum(d <= STALE for d in stale) + sum(d > STALE for d in current)
    return {"control_batches": len(stale), "control_missed": missed, "control_min_detectable_effect": min(stale)}


def _skip_every_second_sync() -> None:
    sync, calls = ServedGeneration.sync_weights, itertools.count()

    def sometimes(engine: ServedGeneration) -> None:
        if next(calls) % 2 == 0:
            sync(engine)

    ServedGeneration.sync_weights = sometimes


class _Soak:
    """Runs, one after the other, on a server that is killed."""

    def __init__(self, folder: Path, words: list[str], server: Server, rng: random.Random) -> None:
        self._folder, self._words, self._server, self._rng = folder, words, server, rng
        self._doing = folder / "doing"
        names = ["kills", *(f"while_{phase}" for phase in PHASES), "ended_with_an_error", "unclear_errors"]
        names += ["did_not_go_on", "hangs", "runs", "batches", "stale_batches", "largest_difference", "wrong_steps"]
        self._result: dict[str, Any] = dict.fromkeys(names, 0)

    def kill(self, count: int) -> dict[str, Any]:
        """Kill the server so often, then let the last run come to its end."""
        result, running, errors = self._result, False, 0
        with Progress() as progress:
            task = progress.add_task("server SIGKILL", total=count)
            while (result["kills"] < count or running) and not result["hangs"] and errors < 3:
                if not running:
                    self._server.wait()
                    self._start_run()
                    running = True
                status = wait(self._process, 2 * max(LIMITS_S), self._next_kill(result["kills"] < count))
                if status is not None:
                    running, errors = False, errors + 1 if status else 0
                    self._ended(status, errors)
                elif self._is_time:
                    self._kill_server()
                    errors = 0
                    progress.update(task, completed=result["kills"])
                else:
                    result["hangs"] += 1
                    os.kill(self._process, signal.SIGKILL)
                    os.waitpid(self._process, 0)
        return result

    def _start_run(self) -> None:
        self._doing.write_text("")
        self._limit, self._began = self._rng.choice(LIMITS_S), time.monotonic()
        words = [*self._words, f"rollout.timeout_s={self._limit}.0"]
        self._log = self._folder / f"robbed-{self._result['runs']}.log"
        self._log_size = self._log.stat().st_size if self._log.is_file() else 0
        self._process = start(self._folder, self._log.stem, words, first=partial(_record_phase, self._doing))

    def _next_kill(self, wanted: bool) -> Callable[[], bool]:
        """Whether it is time to kill the server, or to see that the run hangs."""
        phase, delay = self._rng.choice(PHASES), self._rng.uniform(0, 8)
        self._is_time = False

        def come() -> bool:
            if self._server.is_up() and wanted:
                late = time.monotonic() - max(self._server.up_since, self._began) > delay
                self._is_time = late and self._phase() == phase
            return self._is_time or self._hangs()

        return come

    def _phase(self) -> str:
        return self._doing.read_text() or "idle"

    def _hangs(self) -> bool:
        """Whether the run has waited for its server for longer than it may."""
        since = time.time() - self._doing.stat().st_mtime
        return self._phase() != "idle" and since > self._limit + SLACK_S

    def _kill_server(self) -> None:
        time.sleep(self._rng.uniform(0, 0.1))
        self._result[f"while_{self._phase()}"] += 1
        self._server.kill()
        self._result["kills"] += 1

    def _ended(self, status: int, errors: int) -> None:
        result = self._result
        if status:
            message = self._log.read_text()[self._log_size :]
            result["ended_with_an_error"] += 1
            result["unclear_errors"] += f"the vLLM server at {self._server.url}" not in message
            result["did_not_go_on"] += errors > 1  # nobody has touched the server since the last one
            return
        lines = [line for line in logged(self._folder / self._log.stem) if line["stage"] == "grpo"]
        differences = [line[DIFFERENCE] for line in lines]
        result["runs"] += 1
        result["batches"] += len(lines)
        result["stale_batches"] += sum(not difference <= STALE for difference in differences)
        result["largest_difference"] = max(result["largest_difference"], *differences)
        result["wrong_steps"] += [line["step"] for line in lines] != list(range(1, STEPS + 1))


def _record_phase(doing: Path) -> None:
    """Let a file say what the run is asking its server for."""

    def announced(work: Callable[..., Any], phase: str) -> Callable[..., Any]:
        @wraps(work)
        def announce(*arguments: Any) -> Any:
            doing.write_text(phase)
            try:
                return work(*arguments)
            finally:
                doing.write_text("")

        return announce

    ServedGeneration._load = announced(ServedGeneration._load, "syncing")
    ServedGeneration._current = announced(ServedGeneration._current, "sampling")
