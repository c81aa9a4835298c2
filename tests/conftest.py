"""What several tests share: a small item, and one small judge trained end to end for the whole session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from think_as_locals.types import Item

ROOT = Path(__file__).parents[1]

SMALL = [
    "data.groups=[idiom_heavy_rain,gift_taboo]",
    "data.sets_per_group=12",
    "data.test_share=0.25",
    "model.scratch.hidden_size=64",
    "model.scratch.intermediate_size=128",
    "model.scratch.num_hidden_layers=2",
    "model.scratch.num_attention_heads=2",
    "model.scratch.num_key_value_heads=1",
    "sft.max_steps=40",
    "sft.warmup_steps=5",
    "sft.learning_rate=0.01",
    "grpo.max_steps=2",
    "grpo.per_device_train_batch_size=16",
    "grpo.save_steps=1",
    "eval.every_steps=1",
    "eval.max_items=16",
    "eval.bootstrap_samples=200",
]
"""Overrides that make the quick start a matter of seconds."""


def command(name: str) -> str:
    """A console script of the environment that runs the tests."""
    return str(Path(sys.executable).parent / name)


def launch(*words: str, timeout: float = 600, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the checkout, offline, with its output captured."""
    settings = {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE", "COLUMNS": "200", **environment}
    return subprocess.run(
        list(words),
        cwd=ROOT,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished small run: `tal run recipes/quickstart.yaml` with `SMALL`."""
    folder = tmp_path_factory.mktemp("runs")
    done = launch(
        command("tal"),
        "run",
        "recipes/quickstart.yaml",
        *SMALL,
        f"run.dir={folder}",
        "run.name=small",
        "grpo.report_to=[]",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "small"


@pytest.fixture
def item() -> Item:
    """A Best-of-4 item."""
    return Item(
        id="greeting-th",
        prompt="How do people in Thailand greet an elder?",
        responses=("With a firm handshake.", "With palms pressed together.", "With a deep bow.", "With two kisses."),
        best=1,
        culture="TH",
        language="en",
        domain="value",
        group="greeting",
        source="test",
        origins=("US", "TH", "JP", "ES"),
    )
