"""Recorded texts under tests/golden; with UPDATE_GOLDEN set, they are recorded anew."""

from __future__ import annotations

import os

from conftest import ROOT


def assert_recorded(name: str, text: str) -> None:
    golden = ROOT / "tests" / "golden" / name
    if "UPDATE_GOLDEN" in os.environ:
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")
