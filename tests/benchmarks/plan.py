"""Planning for several nodes: costs of sampling, updates, weight syncs and evaluations, and idle times.

    python tests/benchmarks/plan.py                          # the tables of launch/nodes.md: estimated
    python tests/benchmarks/plan.py --check                  # against what `ahead.py` measured (plan.json)

`simulate` plays the steps of a trainer and a sampler from costs by token. Costs measured here reproduce the measured
steps of two processes; those of H100 are estimated from published figures by `think_as_locals/machine/hours.py`.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from rich.console import Console
from rich.table import Table

from think_as_locals.config.checks import load_recipe
from think_as_locals.config.launch import Launch
from think_as_locals.config.schema import RunConfig
from think_as_locals.machine import memory
from think_as_locals.machine.hours import BANDWIDTH, MEAN_COMPLETION, MFU, SPEEDS
from think_as_locals.machine.memory import PROMPT_TOKENS, USABLE, Counts, Layer

MEASURED = Path(__file__).with_name("plan.json")
STEPS = 40  # that are played

LONGEST, GENERATIONS = 2048, 8
PASSES = 12  # operations by parameter and token: forward 2, backward 4, checkpointing 2, reference 2, criteria_gain 2
SYNC_BYTES = {"NCCL": 10e9, "folder": 1e9}  # a second, assumed
JUDGEMENTS, STEPS_BETWEEN_EVALUATIONS = 8576, 50  # of CARB, and steps between evaluations
CARD = SPEEDS["H100"]
CARD_BYTES = 80e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of the parts of a step, of all processes that do a part together."""

    decode: float  # a pass of the sampler for one token of each running completion, without what depends on these
    decode_row: float  # the same, for each running completion
    update_token: float  # rewards and update, for each token of a completion and its share of the prompt
    sync: float  # weights to the sampler, and their check
    evaluation: float = 0.0  # one evaluation
    every: int = STEPS_BETWEEN_EVALUATIONS  # steps between two


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one step samples and learns from."""

    rows: int  # completions
    engines: int = 1  # samplers that share them
    slots: int = 10**9  # completions that one of them works on at once
    prompt_share: float = 0.0  # tokens of prompt for each completion: P / G
    longest: int = LONGEST
    mean: float = 1.0  # mean length, as a share of the longest; 1: all are as long


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSteps:
    """What became of the steps: means."""

    step: float  # seconds
    sampling: float
    update: float
    trainer_idle: float  # shares of a step
    sampler_idle: float
    evaluation: float  # share of all time


def lengths(batch: Batch, rng: random.Random) -> list[int]:
    """Lengths of a step's completions: geometric, cut at the longest."""
    if batch.mean == 1:
        return [batch.longest] * batch.rows
    mean = batch.mean * batch.longest
    return [min(batch.longest, 1 + int(rng.expovariate(1 / mean))) for _ in range(batch.rows)]


def sampling_seconds(costs: Costs, batch: Batch, of: list[int]) -> float:
    """Seconds until the slowest engine has sampled its completions: longest first, a new one where one ends."""
    slowest = 0.0
    for engine in range(batch.engines):
        waiting = sorted(of[engine :: batch.engines])
        running: list[int] = []  # tokens still to be sampled
        seconds = 0.0
        while waiting or running:
            while waiting and len(running) < batch.slots:
                running.append(waiting.pop())
            running.sort()
            passes = running[0]
            seconds += passes * (costs.decode + costs.decode_row * len(running))
            running = [left - passes for left in running if left > passes]
        slowest = max(slowest, seconds)
    return slowest


def simulate(costs: Costs, batch: Batch, ahead: int, steps: int = STEPS, seed: int = 0) -> SimulatedSteps:
    """Play steps as `training/ahead.py` does: weights are sent while nothing is being sampled, then N batches start."""
    rng = random.Random(seed)
    drawn = [lengths(batch, rng) for _ in range(steps)]
    sampled = [sampling_seconds(costs, batch, each) for each in drawn]
    updates = [costs.update_token * (sum(each) + batch.prompt_share * batch.rows) for each in drawn]
    now, ready = 0.0, list[float]()  # when the batches that were started are sampled
    for step in range(steps):
        if ready:
            now = max(now, ready.pop(0))
        else:
            now += costs.sync * (ahead > 0) + sampled[step]
        if not ready:
            now += costs.sync
            end = now
            for later in range(step + 1, min(step + 1 + ahead, steps)):
                end += sampled[later]
                ready.append(end)
        now += updates[step]
    step_seconds = now / steps
    return SimulatedSteps(
        step=step_seconds,
        sampling=sum(sampled) / steps,
        update=sum(updates) / steps,
        trainer_idle=1 - sum(updates) / now,
        sampler_idle=1 - sum(sampled) / now,
        evaluation=costs.evaluation / (costs.evaluation + costs.every * step_seconds),
    )


def check() -> list[tuple[str, float, float]]:
    """Seconds of steps with `rollout.ahead=1`, by case: measured, and played from costs measured with `ahead=0`."""
    found = []
    for case in json.loads(MEASURED.read_text(encoding="utf-8")):
        tokens = case["rows"] * case["tokens"]
        rest = case["step"] - case["sampling"] - case["weights"]
        costs = Costs(
            decode=0.0, decode_row=case["sampling"] / tokens, update_token=rest / tokens, sync=case["weights"]
        )
        batch = Batch(rows=case["rows"], longest=case["tokens"])
        assert math.isclose(simulate(costs, batch, 0).step, case["step"], rel_tol=1e-6)
        # A case whose completions grew longer in the second run says how long sampling took there.
        costs = replace(costs, decode_row=case.get("sampling_ahead", case["sampling"]) / tokens)
        found.append((case["name"], case["step_ahead"], simulate(costs, batch, 1).step))
    return found


# --- Estimates for a cluster of H100: eight in a node ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Sizes of a model, and how many GPUs sample with it together."""

    name: str
    parameters: float
    layers: int
    hidden: int
    intermediate: int
    cached: int  # numbers of keys and values for each token
    ranks: int  # of tensor parallelism


MODELS = (
    Model(name="7B", parameters=7.6e9, layers=28, hidden=3584, intermediate=18_944, cached=2 * 28 * 4 * 128, ranks=1),
    Model(name="32B", parameters=32.8e9, layers=64, hidden=5120, intermediate=27_648, cached=2 * 64 * 8 * 128, ranks=2),
    Model(name="70B", parameters=70.6e9, layers=80, hidden=8192, intermediate=29_568, cached=2 * 80 * 8 * 128, ranks=4),
)
PROMPTS = {1: 128, 8: 1024, 64: 1024}  # of a step, by nodes: more than a thousand at once is rarely of use


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A model on so many nodes, divided into trainers and samplers."""

    trainers: int
    samplers: int
    needed: float  # completion tokens a second for each trainer, so that it need not wait
    given: float  # by each sampler
    sync: dict[str, float]
    memory: float  # bytes for each trainer
    played: dict[int, SimulatedSteps]  # by `rollout.ahead`


def plan(model: Model, nodes: int) -> Plan | None:
    """The division of the nodes with the shortest step at `ahead=1`; `None` where no division fits the memory."""
    best: Plan | None = None
    for samplers in range(model.ranks, 8 * nodes, max(model.ranks, nodes)):
        found = _divided(model, 8 * nodes - samplers, samplers, PROMPTS[nodes])
        if found and (best is None or found.played[1].step < best.played[1].step):
            best = found
    return best


@cache
def recipe() -> RunConfig:
    """The recipe of a judge, whose micro-step is a group."""
    return load_recipe("recipes/tal_grpo.yaml", [f"grpo.max_completion_length={LONGEST}"])


def _divided(model: Model, trainers: int, samplers: int, prompts: int) -> Plan | None:
    engines = samplers // model.ranks
    mean, weights = MEAN_COMPLETION * LONGEST, 2 * model.parameters
    row_bytes = 2 * model.cached * (PROMPT_TOKENS + LONGEST / 2)
    slots = int((USABLE * CARD_BYTES * model.ranks - weights - 2e9 * model.ranks) / row_bytes)
    counts = Counts(
        parameters=round(model.parameters),
        trained=round(model.parameters),
        hidden_size=model.hidden,
        layers=model.layers,
        heads=model.hidden // 128,
        positions=LONGEST,
        cached=model.cached,
        layer=Layer(
            queries=model.hidden,
            keys=model.cached // (2 * model.layers),
            intermediate=model.intermediate,
            gated=True,
            normalizes_heads=False,
        ),
    )
    parts = memory.estimate(recipe(), Launch("DEEPSPEED", 3, trainers), counts)
    needed = 18 * model.parameters / trainers + parts["activations"]
    if slots < 1 or needed > USABLE * CARD_BYTES:
        return None
    bandwidth, share = BANDWIDTH * CARD.bandwidth * model.ranks, PROMPT_TOKENS / GENERATIONS
    token = PASSES * model.parameters / (MFU * CARD.operations)
    costs = Costs(
        decode=weights / bandwidth,
        decode_row=row_bytes / bandwidth,
        update_token=token / trainers,
        sync=weights / SYNC_BYTES["NCCL"],
        evaluation=math.ceil(JUDGEMENTS / (slots * engines)) * mean * (weights + slots * row_bytes) / bandwidth,
    )
    rows = prompts * GENERATIONS
    batch = Batch(rows=rows, engines=engines, slots=slots, prompt_share=share, mean=MEAN_COMPLETION)
    return Plan(
        trainers=trainers,
        samplers=samplers,
        needed=mean / ((mean + share) * token),
        given=slots / (costs.decode + slots * costs.decode_row) / model.ranks,
        sync={way: weights / speed for way, speed in SYNC_BYTES.items()},
        memory=needed,
        played={ahead: simulate(costs, batch, ahead, steps=8) for ahead in (0, 1)},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        table = Table("case", "measured, s", "played, s", "ratio", title="Steps with rollout.ahead=1")
        for name, measured, played in check():
            table.add_row(name, f"{measured:.2f}", f"{played:.2f}", f"{played / measured:.2f}")
        Console().print(table)
        return
    print(
        "| model | nodes | train + sample | needed, given | sync | GB | step | trainers, samplers idle | evaluation |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for model in MODELS:
        for nodes in PROMPTS:
            if (found := plan(model, nodes)) is None:
                print(f"| {model.name} | {nodes} | does not fit | | | | | | |")
                continue
            now, ahead = found.played[0], found.played[1]
            cells = [
                f"{found.trainers} + {found.samplers}",
                f"{found.needed:,.0f}, {found.given:,.0f}",
                ", ".join(f"{seconds:.1f}" for seconds in found.sync.values()),
                f"{found.memory / 1e9:.0f}",
                f"{now.step:.0f}, {ahead.step:.0f}",
                f"{ahead.trainer_idle:.0%}, {ahead.sampler_idle:.0%}",
                f"{ahead.evaluation:.0%}",
            ]
            print(f"| {model.name} | {nodes} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
