"""The checks of the kit: the claims of each with their limits, its requirements, and its deadline.

The check NAME of module M is `RUN["NAME"]` there: a function of a `Scale` and a `Report`, which it calls for each claim
as soon as it is measured. The comment above a limit says where it is from.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeVar

T = TypeVar("T")

PYTHON = os.environ.get("PYTHON_EXEC", sys.executable)
"""What starts Python, as torchrun has it."""
MARK = "TAL_TRUTH"
"""Variable of the environment by which all processes of a check are found."""
OTHER_GPUS = "TAL_OTHER_GPUS"
"""Variable with the GPUs beside the one that a check sees, as CUDA_VISIBLE_DEVICES has them."""

Need = Literal["a GPU", "two GPUs", "vLLM", "DeepSpeed"]
Report = Callable[[str, float, str], None]
"""Takes the key of a claim, the measured value, and details in words."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How large the models of a check are: toys on a CPU, or those of a 7B model on a GPU."""

    toy: bool
    folder: Path  # of files that checks share, such as a trained judge

    @property
    def device(self) -> str:
        """Where tensors go."""
        return "cpu" if self.toy else "cuda"

    def pick(self, toy: T, full: T) -> T:
        """Return the value for this scale."""
        return toy if self.toy else full


def run_program(words: list[str], timeout: float) -> None:
    """Run a Python program; RuntimeError where it fails, with its output in this process's."""
    done = subprocess.run([PYTHON, *words], capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode != 0:
        print(done.stdout, done.stderr)
        raise RuntimeError(f"status {done.returncode} of {' '.join(words)}")


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement that holds where one number is within a limit."""

    key: str
    text: str
    limit: float
    unit: str = ""
    at_least: bool = False
    on_gpu: bool = False  # toy models on a CPU are measured as well, but do not decide it

    @property
    def bound(self) -> str:
        """The limit in words."""
        return f"{'>=' if self.at_least else '<='} {self.number(self.limit)}"

    def number(self, value: float) -> str:
        """A value with its unit."""
        return f"{value:.3g} {self.unit}".rstrip()

    def holds(self, value: float) -> bool:
        """Whether a value is within the limit; NaN never is."""
        return value >= self.limit if self.at_least else value <= self.limit


@dataclass(frozen=True, slots=True)
class Check:
    """Claims that are measured together, in a process of their own."""

    name: str
    module: str
    seconds: int  # its deadline
    claims: tuple[Claim, ...]
    needs: tuple[Need, ...] = ()

    def lacks(self, gpus: int) -> str | None:
        """Return what a machine with so many GPUs lacks for it, or `None`."""
        there: dict[Need, bool] = {
            "a GPU": gpus >= 1,
            "two GPUs": gpus >= 2,
            "vLLM": find_spec("vllm") is not None,
            "DeepSpeed": find_spec("deepspeed") is not None,
        }
        missing = [need for need in self.needs if not there[need]]
        return f"needs {' and '.join(missing)}" if missing else None


def sharding(way: str, *needs: Need) -> Check:
    """One way to shard a run."""
    claims = (
        Claim("steps", "one rank evaluates, trains two steps and saves (files there)", 4, "files", at_least=True),
        Claim("dtype", "the model is saved in the run's type (share of tensors)", 1, at_least=True),
        # On a GPU kernels add in any order.
        Claim("resume", "a run that continues from its checkpoint ends with other weights", 0.1),
    )
    return Check(way, "programs", 150, claims, needs)


SYNCS: tuple[tuple[str, str, tuple[Need, ...]], ...] = (
    ("full", "all weights", ()),
    ("lora", "an adapter", ()),
    ("sleep", "all weights, with sleep mode", ("a GPU",)),
)

# The longest one last: the budget may be spent by then.
CHECKS = (
    Check("machine", "programs", 60, (Claim("faults", "driver, CUDA and packages lack nothing", 0, "faults"),)),
    Check(
        "attention",
        "attention",
        60,
        (
            # `training/shared_prefix.py` gives sharing up where packed rows are this much further from float32.
            Claim("error", "packed attention is as exact as that of separate rows (error in float64)", 2.0, "times"),
            Claim("fused", "it runs in fused kernels, forward and backward", 2, "kernels", at_least=True, on_gpu=True),
            Claim("math", "no kernel writes all scores to memory", 0, "calls", on_gpu=True),
            Claim("memory", "it takes no more memory than separate rows", 1.0, "times", on_gpu=True),
            Claim("speed", "it is faster than separate rows", 1.0, "times", at_least=True, on_gpu=True),
        ),
    ),
    Check(
        "log_probs",
        "attention",
        60,
        (
            Claim("error", "log-probabilities of packed rows are as exact as TRL's (error in float32)", 2.0, "times"),
            # verl#6280, trl#6789: the shape of a batch alone moves them by .04 to .055 nats.
            Claim("noise", "the shape of a batch alone moves log-probabilities (batch 1 and 8)", 0.06, "nats"),
        ),
    ),
    *(
        Check(
            f"update_{prompt}",
            "updates",
            120,
            (
                # tests/benchmarks/README.md: 5.8 times and more on a CPU.
                Claim(
                    "speed", f"an update at P {prompt} is faster than TRL's", 2.0, "times", at_least=True, on_gpu=True
                ),
            ),
        )
        for prompt in ("1k", "4k")
    ),
    Check(
        "weights",
        "updates",
        90,
        (
            # launch/README.md: in bfloat16 itself an update of 1e-6 is rounded away.
            Claim("bf16", "of weights held in bfloat16, 20 steps at 1e-6 move", 10, "%"),
            Claim("fp32", "of weights held in float32, 20 steps at 1e-6 move", 90, "%", at_least=True),
            Claim("lora", "an adapter moves them further at 1e-5 than at 1e-6", 5, "times", at_least=True),
        ),
    ),
    sharding("ddp"),
    sharding("zero2", "DeepSpeed"),
    sharding("zero3", "DeepSpeed"),
    sharding("fsdp2", "a GPU", "vLLM"),  # accelerate shards nothing without a GPU
    *(
        Check(
            f"scpo_{shape}",
            "steering",
            120,
            (
                Claim(
                    "countries_trained", "SCPO steers to ten countries in one process", 10, "countries", at_least=True
                ),
                Claim("flat", "memory grows from the second to the tenth", 5, "%"),
            ),
        )
        for shape in ("deberta", "llama")
    ),
    *(
        Check(
            f"sync_{way}",
            "syncs",
            120,
            (
                # `rollout.tolerance.half`; Fast-LLM#525 measured .039 with a 7B model.
                Claim("difference", f"after syncs of {what} the engine computes what the policy does", 0.1, "nats"),
                Claim("caught", f"a sync of {what} that did not arrive ends the run, at 1e-6 a step", 1, at_least=True),
            ),
            ("vLLM", *needs),
        )
        for way, what, needs in SYNCS
    ),
    Check(
        "sync_nccl",
        "syncs",
        180,
        (Claim("difference", "after syncs by NCCL a server computes what the policy does", 0.1, "nats"),),
        ("a GPU", "vLLM"),
    ),
    *(
        Check(
            f"importance_{heads}",
            "syncs",
            90,
            (
                # Fast-LLM#525: .039, with float32 heads .023.
                Claim("rms", f"trainer and engine differ per token, {heads} heads (RMS)", limit, "nats"),
                Claim("effective", "effective sample size of sequence weights, shortest", 0.5, at_least=True),
            ),
            ("vLLM",),
        )
        for heads, limit in (("bf16", 0.04), ("fp32", 0.025))
    ),
    Check(
        "seconds_full",
        "syncs",
        240,
        (
            Claim("seconds", "a sync of a 7B model in place takes", 5, "s", on_gpu=True),
            # Estimated: 20 to 45 s.
            Claim("files", "a sync of a 7B model through files takes", 45, "s", on_gpu=True),
        ),
        ("vLLM",),
    ),
    Check(
        "seconds_lora",
        "syncs",
        180,
        (Claim("seconds", "a sync of a 7B model's adapter takes", 5, "s", on_gpu=True),),
        ("vLLM",),
    ),
    Check(
        "seconds_nccl",
        "syncs",
        240,
        # Estimated: 1 to 2 s.
        (Claim("seconds", "a sync of a 7B model to a server's GPU takes", 2, "s"),),
        ("two GPUs", "vLLM"),
    ),
    *(
        Check(
            name,
            "judges",
            180,
            (
                Claim(key, text, limit, at_least=True),
                Claim("exit", f"{end} it ends within", 30, "s"),
                Claim("orphans", "it leaves no process", 0, "processes"),
                Claim("memory", "it leaves no memory taken", 0.5, "GB", on_gpu=True),
            ),
            ("vLLM",),
        )
        for name, key, text, limit, end in (
            ("evaluation", "judged", "one evaluation measures two vLLM judges", 2, "once the leaderboard is written"),
            ("served", "answers", "a served judge answers", 1, "after SIGTERM"),
        )
    ),
    Check(
        "sampling",
        "judges",
        120,
        (Claim("speed", "256 sequences at once are faster than 64", 1.5, "times", at_least=True, on_gpu=True),),
        ("vLLM",),
    ),
    Check(
        "prefix_cache",
        "judges",
        90,
        (Claim("rate", "with responses first, flip sets find their prompts in the cache", 0.5, at_least=True),),
        ("vLLM",),
    ),
    Check(
        "quick_start",
        "programs",
        240,
        (
            Claim("done", "the quick start leaves a report and a judge (files there)", 3, "files", at_least=True),
            # README.md: 58 to 87 % in the mean of seeds.
            Claim("gain", "GRPO raises Best-of-4", 15, "points", at_least=True, on_gpu=True),
        ),
    ),
)
