"""What a person sees while a judge trains: in a terminal of any size, and where there is none."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from transformers import TrainerControl, TrainerState, TrainingArguments

from think_as_locals.training.live import LiveView

LOGS = {
    "loss": 0.5,
    "reward": 0.25,
    "rewards/correctness/mean": 0.125,
    "rewards/structure/mean": 0.75,
    "rewards/own_words/mean": 0.5,
    "parse_failure": 0.04,
    "frac_reward_zero_std": 0.31,
    "completions/mean_length": 61.0,
    "num_tokens": 5000.0,
}
SHOWN = ["+0.250", "own words", "+0.125", "0.750", "4.0%", "31.0%", "tokens/s", "left"]
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


def watched(console: Console, *, broken_off: bool = False) -> str:
    """What is written while a stage of four steps trains for two of them."""
    view = LiveView(console, "GRPO")
    state = TrainerState(max_steps=4, is_world_process_zero=True)
    told = (TrainingArguments(report_to=[], use_cpu=True), state, TrainerControl())
    view.on_train_begin(*told)
    view.on_log(*told, logs={"carb/accuracy": 0.25, "epoch": 0.0})  # nothing of it is shown here
    for step in (1, 2):
        state.global_step = step
        view.on_step_end(*told)
        view.on_log(*told, logs=LOGS | {"num_tokens": 5000.0 * step})
        console.print(f"CARB at step {step}")
    if not broken_off:
        view.on_train_end(*told)
    view.close()
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


@pytest.mark.parametrize(("width", "height"), [(100, 30), (60, 15)])
@pytest.mark.parametrize("broken_off", [False, True])
def test_the_panel_shows_every_figure_and_gives_the_cursor_back(width: int, height: int, broken_off: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None)
    written = watched(console, broken_off=broken_off)
    assert written.rindex(HIDE) < written.rindex(SHOW)
    panel = written[written.rindex("Think-as-Locals") :]
    for part in (*SHOWN, "GRPO", "2/4"):
        assert part in panel
    assert all(f"CARB at step {step}" in written for step in (1, 2))


def test_without_a_terminal_there_are_plain_lines() -> None:
    written = watched(Console(file=io.StringIO(), force_terminal=False, width=60))  # nor are lines broken
    assert "\x1b" not in written
    line = next(line for line in written.splitlines() if line.startswith("GRPO 1/4"))
    for part in SHOWN[:6]:
        assert part in line
