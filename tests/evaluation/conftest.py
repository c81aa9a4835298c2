"""A run in which every text is hostile, for tests of the HTML pages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from evaluation.judged import flip_items, judged, measure

EVIL = "</script><script>alert('x')</script>\"><img src=x onerror=alert(1)> | a\n*b* שלום"


@pytest.fixture(scope="package")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hostile prompts, responses, completions, names, protocols, data sets and settings."""
    run = tmp_path_factory.mktemp("runs") / "evil"
    some = flip_items(last=1, prompt=EVIL, response=EVIL)
    for name, model in (("a", EVIL), ("b", "RM|b\n")):
        made = [judged(item, None if i % 3 else i % 2, EVIL) for i, item in enumerate(some)]
        measure(run, name, made, model=model, dataset=EVIL, protocol=EVIL)
    (run / "config.yaml").write_text(f"x: {EVIL}\n")
    (run / "environment.json").write_text(json.dumps({EVIL: EVIL}))
    (run / "probes").mkdir()
    (run / "probes/a.json").write_text(json.dumps({"scores": None}))
    return run
