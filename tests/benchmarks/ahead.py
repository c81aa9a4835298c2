"""What sampling ahead saves: a vLLM server on one core and a trainer on another, with `rollout.ahead` 0 and 1.

Sampling and update of a step take about as long here. A step with ahead=1 should take as long as the longer of the two,
with ahead=0 it takes their sum, and the time of a weight sync in both.

With `--learning`: what stale rollouts cost. The quick start's judge of each seed after its cold start, trained
through a server with `rollout.ahead` 0, 1 and 4, and 4 without importance weights; accuracy on the same test items.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}

from rich.console import Console
from rich.table import Table
from soak_server import Server
from transformers import TrainerCallback

from think_as_locals.config.checks import load_recipe
from think_as_locals.data import load
from think_as_locals.judging import render
from think_as_locals.reward_models.scratch import make_judge
from think_as_locals.runtime.files import write_json
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.training.checkpoints import Checkpoints
from think_as_locals.training.grpo import JudgeTrainer
from think_as_locals.training.served_engine import ServedGeneration

SETTINGS = [
    "rollout=vllm_server",
    "prompt=listwise",
    "model.scratch.hidden_size=256",
    "model.scratch.intermediate_size=512",
    "grpo.num_generations=8",
    "grpo.per_device_train_batch_size=32",
    "grpo.max_completion_length=64",
    "grpo.generation_kwargs={min_tokens: 64}",  # whatever it learns
    "grpo.beta=0.001",
    "grpo.gradient_checkpointing=true",  # so that the update takes about as long as sampling
]
WARM_UP = 2  # steps that do not count
ARMS = {
    "ahead=0": [],
    "ahead=1": ["rollout.ahead=1"],
    "ahead=4": ["rollout.ahead=4"],
    "ahead=4, no importance weights": ["rollout.ahead=4", "grpo.vllm_importance_sampling_correction=false"],
}
LIMITS = {"against the longer of sampling and update": 1.2, "against ahead=0": 0.65}


class Clock(TrainerCallback):
    """Seconds of each step, and of parts of it."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = defaultdict(list)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._began = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.spent["step"].append(time.perf_counter() - self._began)

    def timed(self, part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return work(*arguments)
            finally:
                self.spent[part].append(time.perf_counter() - began)

        return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--learning", action="store_true", help="compare accuracy after training with stale rollouts")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="of --learning")
    parser.add_argument("--steps", type=int, help="12, of --learning 30")
    parser.add_argument("--overrides", nargs="*", default=[], help="of --learning, to try the script")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    os.environ["VLLM_API_KEY"] = secrets.token_hex(16)
    if arguments.learning:
        found = {s: compare_learning(s, arguments.steps or 30, arguments.overrides) for s in arguments.seeds}
        write_json(arguments.out / "ahead_learning.json", {str(seed): of_seed for seed, of_seed in found.items()})
        return
    server_core, trainer_core = sorted(os.sched_getaffinity(0))[:2]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_model(folder)
        os.sched_setaffinity(0, {server_core})  # the server inherits it
        server = Server(model, folder / "server.log")
        os.sched_setaffinity(0, {trainer_core})
        try:
            server.wait()
            spent = {ahead: measure(folder, model, server.url, ahead, arguments.steps or 12) for ahead in (0, 1)}
        finally:
            server.kill()
    report(spent, arguments.out / "ahead.json")


def make_model(folder: Path) -> Path:
    """A judge with random weights."""
    config = load_recipe("recipes/quickstart.yaml", SETTINGS)
    assert config.model.scratch is not None
    items = load(config.data, config.seed).train[:64]
    texts = [message["content"] for item in items for message in render(item, config.prompt.template)]
    make_judge(folder / "model", texts, config.model.scratch, config.seed)
    return folder / "model"


def measure(folder: Path, model: Path, url: str, ahead: int, steps: int) -> dict[str, float]:
    """Median seconds of a step and its parts."""
    words = [f"rollout.url={url}", f"rollout.ahead={ahead}", f"grpo.max_steps={steps}", "grpo.save_steps=1000"]
    config = load_recipe("recipes/quickstart.yaml", [*SETTINGS, *words])
    items = load(config.data, config.seed).train
    run = RunFolder(folder / f"ahead-{ahead}")
    trainer = JudgeTrainer(config, str(model), items, run, Checkpoints(run.checkpoints, 1))
    clock, engine = Clock(), trainer.vllm_generation
    trainer.add_callback(clock)
    for part, method in (("sampling", "_current"), ("weights", "_send_weights")):
        setattr(engine, method, clock.timed(part, getattr(engine, method)))
    trainer.train()
    assert isinstance(engine, ServedGeneration)
    return {part: statistics.median(seconds[WARM_UP:-1]) for part, seconds in clock.spent.items()}


def report(spent: dict[int, dict[str, float]], out: Path) -> None:
    """Print and write what was measured, and the two ratios."""
    now, ahead = spent[0], spent[1]
    update = now["step"] - now["sampling"]  # with rewards and the weight sync
    ratios = dict(zip(LIMITS, (ahead["step"] / max(now["sampling"], update), ahead["step"] / now["step"]), strict=True))
    table = Table("", "ahead=0", "ahead=1", title="Seconds of a step (medians)")
    for part in now:
        table.add_row(part, f"{now[part]:.2f}", f"{ahead[part]:.2f}")
    for name, ratio in ratios.items():
        table.add_row(f"ratio {name}", "", f"{ratio:.2f} (at most {LIMITS[name]})")
    Console().print(table)
    write_json(out, {"seconds": {str(key): value for key, value in spent.items()}, "update": update, "ratios": ratios})


def cold_started(folder: str, overrides: list[str]) -> Path:
    """The quick start's judge before GRPO."""
    first = ["run.name=judge", "grpo.max_steps=1", "eval.max_items=2", "eval.every_steps=100"]
    run_quickstart(folder, [*overrides, *first])
    return Path(folder) / "judge" / "cold_start" / "model"


def run_quickstart(folder: str, overrides: list[str]) -> None:
    """As a user does."""
    run = [sys.executable, "-m", "think_as_locals", "run", "recipes/quickstart.yaml", f"run.dir={folder}"]
    subprocess.run([*run, *overrides], check=True, stdout=subprocess.DEVNULL)


def compare_learning(seed: int, steps: int, overrides: list[str]) -> dict[str, Any]:
    """Print and return accuracy before and after each of ARMS, and the staleness of its batches."""
    found: dict[str, Any] = {}
    table = Table("", "before", "after", "95 % interval", "staleness", title=f"seed {seed}")
    with tempfile.TemporaryDirectory() as name:
        model = cold_started(name, [*overrides, f"seed={seed}"])
        server = Server(model, Path(name) / "server.log")
        words = [word for word in overrides if not word.startswith(("sft.", "model.scratch."))]
        words += [f"seed={seed}", "sft=null", "model.scratch=null", f"model.path={model}"]
        words += ["rollout=vllm_server", f"rollout.url={server.url}", f"grpo.max_steps={steps}"]
        try:
            server.wait()
            for number, (arm, its) in enumerate(ARMS.items()):
                run_quickstart(name, [*words, *its, f"run.name=arm-{number}", f"eval.every_steps={steps}"])
                run = Path(name) / f"arm-{number}"
                before, after = (json.loads((run / f"carb/step-{step}.json").read_text()) for step in (0, steps))
                lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
                stale = [line["rollout/staleness"] for line in lines if "rollout/staleness" in line]
                staleness = statistics.mean(stale) if stale else 0.0
                found[arm] = {"before": before["accuracy"], "staleness": staleness}
                found[arm] |= {key: after[key] for key in ("accuracy", "ci95", "n")}
                low, high = after["ci95"]
                interval, shares = f"[{low:.1%}, {high:.1%}]", (before["accuracy"], after["accuracy"])
                table.add_row(arm, *(f"{share:.1%}" for share in shares), interval, f"{staleness:.1f}")
        finally:
            server.kill()
    Console().print(table)
    return found


if __name__ == "__main__":
    main()
