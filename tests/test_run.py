"""The table of programs: each kind of recipe has one, and its functions exist; what a program can import."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest

from think_as_locals import run
from think_as_locals.config.checks import Config
from think_as_locals.run import PROGRAMS, _function


def test_every_recipe_kind_has_a_program_with_existing_functions() -> None:
    assert set(PROGRAMS) == set(get_args(Config))
    assert all(callable(_function(name)) for program in PROGRAMS.values() for name in program)


@pytest.mark.parametrize("imported", [False, True])
def test_deepspeed_is_hidden_only_from_an_accelerate_that_has_seen_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, imported: bool
) -> None:
    hidden: list[bool] = []

    def program() -> None:
        hidden.append(sys.modules.get("deepspeed", "absent") is None)

    monkeypatch.setattr(run, "_prepare", lambda *_: (program, SimpleNamespace(path=tmp_path)))
    monkeypatch.delitem(sys.modules, "deepspeed", raising=False)
    monkeypatch.delitem(sys.modules, "accelerate.utils", raising=False)
    if imported:
        monkeypatch.setitem(sys.modules, "accelerate.utils", SimpleNamespace())  # type: ignore[arg-type]
    run.start("quickstart", [])
    assert hidden == [imported]
