"""Start-up: hidden packages and garbage collection are restored afterwards, and freed memory is reused."""

from __future__ import annotations

import gc
import importlib.util
import subprocess
import sys

import pytest

from think_as_locals.runtime.processes import hidden, loading


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
