"""Estimated training hours, and the guide's table of estimates."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from conftest import ROOT
from machine.test_memory import a_run
from transformers import Qwen2Config

from think_as_locals.config.launch import Launch, read_launch
from think_as_locals.config.schema import RunConfig
from think_as_locals.machine import hours
from think_as_locals.machine.hours import SPEEDS, evaluation_seconds, run_hours, speed_of, step_seconds, steps_of
from think_as_locals.machine.memory import GB, TENSOR_PARALLEL, Counts, count, needed_bytes

B7 = Counts(7_615_616_512, 7_615_616_512, 3584, 28, 28, 32_768, 2 * 28 * 4 * 128)
ONE, EIGHT = Launch("NO", 0, 1), Launch("DEEPSPEED", 3, 8)
H100 = SPEEDS["H100"]
CARD = 85.9e9  # bytes of 80 GiB
QWEN = {  # width, feed-forward, layers, heads, key heads, words, tied: config.json of Qwen2.5
    "1.5B": (1536, 8960, 28, 12, 2, 151_936, True),
    "3B": (2048, 11_008, 36, 16, 2, 151_936, True),
    "7B": (3584, 18_944, 28, 28, 4, 152_064, False),
    "14B": (5120, 13_824, 48, 40, 8, 152_064, False),
    "32B": (5120, 27_648, 64, 40, 8, 152_064, False),
}


def test_update_time_counts_passes_over_packed_tokens() -> None:
    """7 B on an H100: 8 prompts of 1,024 tokens, 64 completions of 819; 6 N T and two passes more."""
    run = a_run("reward=correctness_structure")
    tokens = 8 * 1024 + 64 * 0.4 * 2048
    assert step_seconds(run, B7, H100)["update"] == pytest.approx(10 * 7.6156e9 * tokens / (0.3 * 989e12), rel=1e-3)
    gain = step_seconds(a_run(), B7, H100)["update"]
    assert gain == pytest.approx(12 / 10 * step_seconds(run, B7, H100)["update"])
    adapter = step_seconds(a_run("reward=correctness_structure", "lora=rank16"), B7, H100)["update"]
    assert adapter == pytest.approx(8 / 10 * step_seconds(run, B7, H100)["update"])


def test_sampling_time_reads_weights_and_cache_per_token() -> None:
    read = 2 * (7.6156e9 + 64 * 28_672 * 2048)
    assert step_seconds(a_run(), B7, H100)["sampling"] == pytest.approx(2048 * read / (0.6 * 3.35e12), rel=1e-3)
    slower = step_seconds(a_run(), B7, SPEEDS["A100"])["sampling"]
    assert slower == pytest.approx(3.35 / 2.0 * step_seconds(a_run(), B7, H100)["sampling"])


def test_steps_and_evaluations_are_counted() -> None:
    run = a_run("eval.every_steps=50")
    assert steps_of(run, EIGHT, 10_000) == pytest.approx(10_000 * 8 / (8 * 8 * 8), abs=1)
    assert steps_of(a_run("grpo.max_steps=7"), EIGHT, 10_000) == 7
    trained, measured = run_hours(run, EIGHT, B7, H100, 10_000, 4096)
    assert trained == pytest.approx(156 * sum(step_seconds(run, B7, H100).values()) / 3600)
    assert measured == pytest.approx((2 + 3) * evaluation_seconds(run, EIGHT, B7, H100, 4096) / 3600)
    assert evaluation_seconds(run, ONE, B7, H100, 4096) == 8 * evaluation_seconds(run, EIGHT, B7, H100, 4096)


def test_speed_of_recognises_gpus_or_assumes_one() -> None:
    assert speed_of("NVIDIA H200, of 143771 MiB") == ("H200", SPEEDS["H200"])
    assert speed_of("something new") == (hours.ASSUMED, H100)


@cache
def counted(folder: Path, size: str, options: str) -> Counts:
    width, forward, layers, heads, key_heads, words, tied = QWEN[size]
    shape = {"hidden_size": width, "intermediate_size": forward, "num_hidden_layers": layers}
    attention = {"num_attention_heads": heads, "num_key_value_heads": key_heads}
    Qwen2Config(vocab_size=words, tie_word_embeddings=tied, **shape, **attention).save_pretrained(folder)
    return count(a_run(f"model.path={folder}", *options.split()))


@cache
def cached_run(options: str) -> RunConfig:
    return a_run(*options.split())


def a_row(folder: Path, size: str, name: str, adapter: str, engine: str) -> str | None:
    """A line of the guide's table, or nothing where it does not fit."""
    options = f"{adapter} {engine}".strip()
    run, launch, counts = cached_run(options), read_launch(name), counted(folder, size, adapter)
    needed = needed_bytes(run, launch, counts)
    if needed > CARD:
        return None
    hours = sum(run_hours(run, launch, counts, H100, 10_000, run.eval.max_items or 10_000))
    cards = "1" if launch.processes == 1 else "2 x 8" if launch.machines > 1 else f"{launch.processes}"
    return f"| {size} | {cards} | `{name}` | {options and f'`{options}` '}| {needed / GB:.0f} | {hours:.1f} |"


def guide_table(folder: Path) -> list[str]:
    """For each size one card, eight, and two nodes for large ones, with the least sharding that fits."""
    rows = []
    for size in QWEN:
        for adapter in ("lora=rank16", ""):
            for names in (("single",), ("gpu8_ddp", "gpu8_zero2", "gpu8_zero3"), ("nodes_zero3",)):
                engines = [""] if names == ("single",) else ["", *(f"{TENSOR_PARALLEL}={ranks}" for ranks in (2, 4, 8))]
                if names != ("nodes_zero3",) or size in ("14B", "32B"):
                    tried = (a_row(folder, size, name, adapter, more) for more in engines for name in names)
                    rows += list(filter(None, [next(filter(None, tried), None)]))
    return rows


def test_guide_table_matches_the_estimates(tmp_path: Path) -> None:
    guide = (ROOT / "launch" / "README.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in guide if re.match(r"\| [\d.]+B ", line)] == guide_table(tmp_path)
