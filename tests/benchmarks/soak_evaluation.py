"""Evaluations that are killed and resumed: their results are byte-identical to those of an uninterrupted one."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

from rich.progress import Progress
from soak_runs import COLD_START, LIMIT_S, expect, start, wait

STAGES = ("carb", "probes")


def evaluation_kills(folder: Path, count: int, rng: random.Random) -> dict[str, Any]:
    """SIGKILLs over evaluations of a judge, an implicit reward model and a constant, and what became of them."""
    expect(wait(start(folder, "judge", [*COLD_START, "grpo.max_steps=1"]), LIMIT_S) == 0, folder, "judge")
    words = _words(folder / "judge" / "model")
    began = time.monotonic()
    expect(wait(start(folder, "evaluated", words, recipe="recipes/carb.yaml"), LIMIT_S) == 0, folder, "evaluated")
    whole = time.monotonic() - began
    reference = results(folder / "evaluated")
    result = {"kills": 0, "runs": 0, "did_not_go_on": 0, "different_results": 0, "repeated_answers": 0}
    with Progress() as progress:
        task = progress.add_task("evaluation SIGKILL", total=count)
        while True:
            name = f"evaluated-{result['runs']}"
            process = start(folder, name, words, recipe="recipes/carb.yaml")
            status = wait(process, rng.uniform(0.1, whole) if result["kills"] < count else LIMIT_S)
            if status is None:
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
                result["kills"] += 1
                progress.advance(task)
                continue
            result["runs"] += 1
            result["did_not_go_on"] += status != 0
            result["different_results"] += results(folder / name) != reference
            result["repeated_answers"] += duplicate_answers(folder / name)
            if result["kills"] >= count:
                return result


def _words(judge: Path) -> list[str]:
    return [
        *("data=quickstart_cards", "data.groups=[idiom_heavy_rain,gift_taboo]", "data.sets_per_group=6"),
        *("data.languages=[en]", "eval.probes=true", "eval.bootstrap_samples=200", "eval.max_items=40"),
        *("rms.mine=judge", f"rms.mine.path={judge}", "rms.mine.chunk_size=8", "rms.mine.max_completion_length=16"),
        *("rms.policy=implicit", f"rms.policy.path={judge}", "rms.policy.reference=null"),
        "run.resume=auto",
    ]


def results(run: Path) -> dict[str, bytes]:
    """Every file of results."""
    files = [path for stage in STAGES for path in sorted((run / stage).glob("*"))]
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


def duplicate_answers(run: Path) -> int:
    """How many answers a journal holds twice."""
    journals = [path.read_bytes().splitlines() for path in (run / "journals").glob("*.jsonl")]
    return sum(len(lines) - len({line.split(b'"answer"')[0] for line in lines}) for lines in journals)
