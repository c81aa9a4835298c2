"""What TRL does not take ends a run before it has a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from think_as_locals.start import start
from think_as_locals.types import ConfigError


@pytest.mark.parametrize(
    ("recipe", "override", "said"),
    [
        ("quickstart", "grpo.num_generations=7", r"grpo.*: generation_batch_size \(128\) must be divisible by num_gen"),
        ("quickstart", "sft.lr_scheduler_type=linaer", "sft.*: linaer is not a valid SchedulerType"),
        ("quickstart", "grpo.lr_scheduler_type=reduce_lr_on_plateau", "grpo.*: .* requires an eval strategy"),
        ("scpo_quickstart", "scpo.optim=adam", "scpo.*: adam is not a valid OptimizerNames"),
    ],
)
def test_what_trl_does_not_take_ends_a_run_before_it_has_a_folder(
    tmp_path: Path, recipe: str, override: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=f"TRL does not take this configuration:\n  - {said}"):
        start(f"recipes/{recipe}.yaml", [f"run.dir={tmp_path}", override])
    assert not list(tmp_path.iterdir())
