"""The table of programs: each kind of recipe has one, and its functions exist."""

from __future__ import annotations

from typing import get_args

from think_as_locals.config.checks import Config
from think_as_locals.run import PROGRAMS, _function


def test_every_recipe_kind_has_a_program_with_existing_functions() -> None:
    assert set(PROGRAMS) == set(get_args(Config))
    assert all(callable(_function(name)) for program in PROGRAMS.values() for name in program)
