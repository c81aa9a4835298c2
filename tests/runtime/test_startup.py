"""Start-up: what is hidden or postponed is there afterwards, as is garbage collection, and freed memory is reused."""

from __future__ import annotations

import gc
import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from think_as_locals.runtime.processes import hidden, imported_on_use, loading


def test_loading_freezes_objects_and_reenables_gc_after_failure() -> None:
    frozen = gc.get_freeze_count()
    while_loading = []

    def load() -> None:
        with loading():
            while_loading.append(gc.isenabled())
            raise ValueError("faulty")

    with pytest.raises(ValueError, match="faulty"):
        load()
    assert (while_loading, gc.isenabled()) == ([False], True)
    assert gc.get_freeze_count() > frozen


def test_hidden_package_is_restored_and_a_loaded_one_stays_visible() -> None:
    with hidden("tabnanny", "json"):
        assert importlib.util.find_spec("tabnanny") is None
        with pytest.raises(ImportError):
            importlib.import_module("tabnanny")
        assert importlib.import_module("json") is sys.modules["json"]
    assert importlib.util.find_spec("tabnanny") is not None
    assert "tabnanny" not in sys.modules


def test_package_is_imported_on_its_first_use() -> None:
    names: dict[str, Any] = {}
    with imported_on_use("tabnanny", "json", "not_installed"):
        exec("import tabnanny, json", names)  # noqa: S102
        assert hasattr(names["tabnanny"], "run")
        with pytest.raises(ImportError):
            exec("from tabnanny import check")  # noqa: S102
        with pytest.raises(ImportError):
            importlib.import_module("tabnanny.part")
        with pytest.raises(ImportError):
            importlib.import_module("not_installed")
    assert names["json"] is sys.modules["json"]
    inspect.stack()  # looks at all modules
    assert "tabnanny" not in sys.modules
    assert names["tabnanny"].check is importlib.import_module("tabnanny").check
    assert not hasattr(names["tabnanny"], "run")


@pytest.mark.slow
def test_quick_start_imports_no_package_that_it_does_not_use(tmp_path: Path) -> None:
    """Up to its first training step: each of these would add a tenth of a second or more, where it is installed."""
    packages = ["wandb", "trackio", "boto3", "deepspeed", "sklearn", "scipy.optimize", "vllm"]
    program = f"""
import os, sys
from transformers.utils import is_scipy_available
assert is_scipy_available()  # as who uses transformers may have asked before
import think_as_locals.training
from trl.import_utils import is_vllm_available
assert is_scipy_available() and is_vllm_available()
from think_as_locals import run, train

def stop(*_):
    imported = [name for name in {packages} if sys.modules.get(name)]
    run._function("policy:load_data")
    import think_as_locals.policy, think_as_locals.steer, think_as_locals.training.rollouts
    print(imported + [name for name in ("sklearn", "vllm") if sys.modules.get(name)], file=sys.stderr, flush=True)
    os._exit(0)  # to take all modules apart would take a second

train.train_stage = stop
run.start("recipes/quickstart.yaml", ["run.dir={tmp_path}", "sft.max_steps=1"])
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "[]"


PAGE_FAULTS_PROGRAM = """
from resource import RUSAGE_SELF, getrusage
from think_as_locals.runtime.processes import keep_freed_memory
for _ in range(3):
    before = getrusage(RUSAGE_SELF).ru_minflt
    bytearray(2**26)
    print(getrusage(RUSAGE_SELF).ru_minflt - before)
    keep_freed_memory()
"""


def test_freed_memory_is_reused() -> None:
    """Two blocks after one another: by default, the system hands out the pages of each."""
    done = subprocess.run([sys.executable, "-c", PAGE_FAULTS_PROGRAM], check=True, capture_output=True, text=True)
    default, _, kept = map(int, done.stdout.split())
    assert kept < default / 10
