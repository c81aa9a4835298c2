"""What a person sees while a judge trains: one live panel in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from fnmatch import fnmatchcase
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

_SHOWN = {  # metric -> how it is called, how it is written
    "loss": ("loss", "{:.3f}"),
    "mean_token_accuracy": ("token accuracy", "{:.3f}"),
    "reward": ("reward", "{:+.3f}"),
    "rewards/correctness/mean": ("correctness", "{:+.3f}"),
    "rewards/structure/mean": ("structure", "{:.3f}"),
    "rewards/criteria_gain/mean": ("criteria gain", "{:+.3f}"),
    "consistent_accuracy": ("both orders right", "{:.1%}"),
    "parse_failure": ("parse failures", "{:.1%}"),
    "frac_reward_zero_std": ("zero-variance groups", "{:.1%}"),
    "completions/mean_length": ("tokens a completion", "{:.0f}"),
}
_PLAIN_EVERY_S = 15.0


class LiveView(TrainerCallback):
    """Shows one stage: step, rewards, parse failures, zero-variance groups, tokens a second, time left."""

    def __init__(self, console: Console, stage: str) -> None:
        self._console = console
        self._stage = stage
        self._live: Live | None = None
        self._latest: dict[str, float] = {}
        self._tokens = (0.0, time.monotonic())
        self._printed = -_PLAIN_EVERY_S
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._progress.add_task(stage, total=None)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Open the panel."""
        if not state.is_world_process_zero:
            return
        self._progress.update(self._task, total=state.max_steps, completed=state.global_step)
        self._tokens = (0.0, time.monotonic())
        if self._console.is_terminal:
            self._live = Live(self._panel(), console=self._console, refresh_per_second=4)
            self._live.start()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Advance the bar."""
        self._progress.update(self._task, completed=state.global_step)
        if self._live:
            self._live.update(self._panel())

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Take in the latest figures."""
        if not state.is_world_process_zero or not logs or _SHOWN.keys().isdisjoint(logs):
            return
        self._latest |= {key: value for key, value in logs.items() if isinstance(value, float | int)}
        self._count_tokens()
        if self._live:
            self._live.update(self._panel())
        elif time.monotonic() - self._printed >= _PLAIN_EVERY_S or state.global_step == state.max_steps:
            self._printed = time.monotonic()
            said = f"{self._stage} {state.global_step}/{state.max_steps}  {self._line()}"
            self._console.print(said, highlight=False, soft_wrap=True)  # in a log, a line is a line

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the panel, leaving its last state."""
        self.close()

    def close(self) -> None:
        """Give the terminal back, after an error as well."""
        if self._live:
            self._live.stop()
            self._live = None

    def _count_tokens(self) -> None:
        tokens, now = self._latest.get("num_tokens", 0.0), time.monotonic()
        if tokens > self._tokens[0]:
            self._latest["tokens/s"] = (tokens - self._tokens[0]) / max(now - self._tokens[1], 1e-9)
            self._tokens = (tokens, now)

    def _figures(self) -> list[tuple[str, str]]:
        figures = [
            (name, form.format(self._latest[key])) for key, (name, form) in _SHOWN.items() if key in self._latest
        ]
        figures += [
            (key.split("/")[1].replace("_", " "), f"{self._latest[key]:+.3f}")
            for key in sorted(self._latest.keys() - _SHOWN.keys())
            if fnmatchcase(key, "rewards/*/mean")
        ]
        if "tokens/s" in self._latest:
            figures.append(("tokens/s", f"{self._latest['tokens/s']:,.0f}"))
        return figures

    def _line(self) -> str:
        left = self._progress.tasks[0].time_remaining
        return "  ".join(
            [f"{name} {value}" for name, value in self._figures()] + ([f"left {left:.0f} s"] if left else [])
        )

    def _panel(self) -> Panel:
        grid = Table.grid(padding=(0, 2))
        for name, value in self._figures():
            grid.add_row(name, f"[bold]{value}")
        body = Table.grid()
        body.add_row(self._progress)
        body.add_row(grid)
        return Panel(body, title="Think-as-Locals", border_style="cyan")
