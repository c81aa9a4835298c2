"""Shared fixtures: a small item, and one small judge and two reward models, trained once per session."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from filelock import FileLock
from hypothesis import settings
from warm import TRAINING, VLLM, make_warm_python

from think_as_locals.types import Item

# One thread each, in this process and in all it starts: models this small gain nothing from more, and several processes
# on few cores starve one another. It has to stand before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Processes that start anew find our modules compiled.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Trackio reads this as it is imported, which the `warm_python` has done.
os.environ.setdefault("TRACKIO_DIR", tempfile.mkdtemp())
# The same tests on every machine: `make gpu` (tests/gpu) checks what is of GPUs.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

settings.register_profile("tests", deadline=None, max_examples=40)  # no deadline: a busy machine misses it
settings.load_profile("tests")

collect_ignore = ["benchmarks", "gpu"]  # scripts, which import one another, and what `make soak` runs

ROOT = Path(__file__).parents[1]

SMALL = [
    *("data.groups=[idiom_heavy_rain,gift_taboo]", "data.sets_per_group=12"),
    *("data.test_share=0.25", "data.validation_share=0.1"),
    *("model.scratch.hidden_size=64", "model.scratch.intermediate_size=128", "model.scratch.num_hidden_layers=2"),
    *("model.scratch.num_attention_heads=2", "model.scratch.num_key_value_heads=1"),
    *("sft.max_steps=40", "sft.warmup_steps=5", "sft.learning_rate=0.01"),
    *("grpo.max_steps=2", "grpo.per_device_train_batch_size=16", "grpo.save_steps=1"),
    *("eval.every_steps=1", "eval.max_items=16", "eval.bootstrap_samples=200"),
]
"""Overrides that make the quick start a matter of seconds, with a judge that has the grammar."""

QUICK = ["sft.max_steps=2", "sft.warmup_steps=0", "eval.max_items=4", "grpo.max_completion_length=32"]
"""Behind those: for tests to which it is all the same what the judge says."""

TRACKED = [*SMALL, "grpo.report_to=[wandb,tensorboard,trackio]"]
"""What `small_run` was started with."""

STEERED = [
    *('data.countries=["TH","EG"]', "data.groups=[street_snack,gift_taboo]"),
    *("scpo.variants=[scpo]", "scpo.seeds=[0]", "scpo.pair_counts=[]", "scpo.max_steps=3"),
    *("global_rm.max_steps=5", "eval.bootstrap_samples=200"),
]
"""Overrides that make the quick start of SCPO a matter of seconds: what `steered_run` was started with."""

PLANTED = {
    "HF_TOKEN": "hf_plantedplantedplantedplantedplanted",
    "WANDB_API_KEY": "planted0planted0planted0planted0planted0",
    "VLLM_API_KEY": "planted-vllm-key",
}
"""Secrets that stood in its environment."""


def command(name: str, python: str = sys.executable) -> str:
    """A console script of the environment that runs the tests, or the one beside a `warm_python`."""
    return str(Path(python).parent / name)


def launch(*words: str, timeout: float = 600, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command, in the checkout unless told otherwise, offline, with its output captured."""
    settings = {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE", "COLUMNS": "200", **environment}
    return subprocess.run(
        list(words),
        cwd=cwd,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


class Done(NamedTuple):
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str


Tal = Callable[..., Done]


@pytest.fixture
def tal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tal:
    """`tal` in this process: `tal("compare", "a", "b", columns=80)`."""

    def run(*words: str, columns: int = 200) -> Done:
        from think_as_locals.cli import main

        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TAL_OUTPUT", "normal")
        monkeypatch.setattr("sys.argv", ["tal", *words])
        capsys.readouterr()
        status = 0
        try:
            main()
        except SystemExit as ended:
            status = int(ended.code or 0)
        return Done(status, *capsys.readouterr())

    return run


def cpu_seconds(work: Callable[[], Any], enough: float = 0) -> float:
    """The least of three runs, or up to the first below `enough`: what a busy machine adds is not the work's."""
    least = inf
    for _ in range(3):
        start = time.process_time()
        work()
        least = min(least, time.process_time() - start)
        if least < enough:
            break
    return least


TESTING = [
    *("datasets", "fastapi.testclient", "hypothesis", "inspect_ai", "nbclient", "openai", "peft"),
    *("sklearn.metrics", "statsmodels.api"),
]
"""What tests import beside those."""
WARM = "TAL_WARM_PYTHON"
"""Variable with the folder of the `warm_python` that the processes of this session are forked from."""


def pytest_configure(config: pytest.Config) -> None:
    """Fork the processes that run tests from the `warm_python`: what most of them import is imported once."""
    if getattr(config.option, "tx", None) and "PYTEST_XDIST_WORKER" not in os.environ:
        folder = Path(tempfile.mkdtemp())
        config.add_cleanup(partial(shutil.rmtree, folder))
        make_warm_python([*TRAINING, *TESTING], sys.executable, folder)
        os.environ[WARM] = str(folder)
        config.option.tx = [f"popen//python={folder}/worker"] * len(config.option.tx)


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> str:
    """A Python that has torch, transformers and TRL imported: it begins at once, as do the processes that it starts.

    Beside it are `tal`, and an `accelerate` whose workers begin at once.
    """
    make = partial(make_warm_python, TRAINING, sys.executable)
    return f"{os.environ.get(WARM) or _shared(make, 'warm', tmp_path_factory, worker_id)}/python"


@pytest.fixture(scope="session")
def warm_vllm(tmp_path_factory: pytest.TempPathFactory, worker_id: str, warm_python: str) -> str:
    """A `warm_python` that has vLLM imported too."""
    make = partial(make_warm_python, VLLM, warm_python)
    return str(_shared(make, "warm_vllm", tmp_path_factory, worker_id) / "python")


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory, worker_id: str, warm_python: str) -> Path:
    """The folder of a finished small run, and beside it what W&B keeps and what it printed.

    It is started by `accelerate launch recipes/quickstart.yaml`.
    """
    return _shared(partial(_make_small_run, warm_python), "small_run", tmp_path_factory, worker_id) / "small"


@pytest.fixture(scope="session")
def steered_run(tmp_path_factory: pytest.TempPathFactory, worker_id: str, warm_python: str) -> Path:
    """The folder of a finished small run of SCPO: reward models of two countries."""
    return _shared(partial(_make_steered_run, warm_python), "steered_run", tmp_path_factory, worker_id) / "steered"


def _shared(make: Callable[[Path], None], name: str, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder that all workers of a session share, made by the first that asks for it."""
    shared = tmp_path_factory.getbasetemp()
    folder = (shared if worker_id == "master" else shared.parent) / name
    with FileLock(f"{folder}.lock"):
        if not (folder / "done").is_file():
            folder.mkdir()
            make(folder)
            (folder / "done").touch()
    return folder


def _make_steered_run(python: str, folder: Path) -> None:
    words = ("run", "recipes/scpo_quickstart.yaml", *STEERED, f"run.dir={folder}", "run.name=steered")
    done = launch(command("tal", python), *words)
    assert done.returncode == 0, done.stdout + done.stderr


def _make_small_run(python: str, folder: Path) -> None:
    done = launch(
        *[command("accelerate", python), "launch", "recipes/quickstart.yaml"],
        *[*TRACKED, f"run.dir={folder}", "run.name=small"],
        WANDB_MODE="offline",
        WANDB_DIR=str(folder),
        **PLANTED,
    )
    (folder / "output.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert any(line.startswith("report ") for line in done.stdout.splitlines()), done.stdout


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Let the workers import the tests one after another: the first one alone rewrites all assertions."""
    shared = os.environ.get(WARM)
    with FileLock(f"{shared}/collection.lock") if shared else nullcontext():
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests first, the quick start before all: nobody waits for them alone in the end."""
    items.sort(key=lambda item: (item.get_closest_marker("slow") is None, item.path.stem != "test_quickstart"))


@pytest.fixture(scope="module", autouse=True)
def process_state() -> Iterator[None]:
    """What a file of tests changes in its process ends with it: which files share one differs from run to run."""
    root, handlers, level = logging.root, {*logging.root.handlers}, logging.root.level
    transformers, terminated = sys.modules.get("transformers.utils.logging"), signal.getsignal(signal.SIGTERM)
    verbosity = transformers and transformers.get_verbosity()
    with (
        patch.dict(os.environ),
        patch.object(warnings, "formatwarning", warnings.formatwarning),
        patch.object(sys, "excepthook", sys.excepthook),
    ):
        yield
    signal.signal(signal.SIGTERM, terminated)
    root.setLevel(level)
    for handler in {*root.handlers} - handlers:
        root.removeHandler(handler)
    if transformers:
        transformers.set_verbosity(verbosity)
        transformers.enable_progress_bar()


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
