"""The benchmark of whole trainings, with a judge that takes seconds: both trainers train it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import QUICK, SMALL, launch

pytestmark = pytest.mark.slow


def test_the_quick_start_trains_in_both_trainers(tmp_path: Path, warm_vllm: str) -> None:
    words = ["--quickstart", "--steps", "2", "--engines", "transformers", "--out", str(tmp_path)]
    done = launch(warm_vllm, "tests/benchmarks/ahead.py", *words, "--overrides", *SMALL, *QUICK)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "quickstart.json").read_text())["found"]
    assert list(found) == ["transformers, theirs", "transformers, ours"]
    assert all(seconds > 0 and -2 <= reward <= 2 for seconds, reward in found.values())
