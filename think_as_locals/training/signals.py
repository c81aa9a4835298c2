"""An orderly end when a cluster asks for it: SIGTERM or SIGUSR1 on any ranks, and all save at the end of the step."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class StopSignals(TrainerCallback):
    """Turns the first signal into a checkpoint and an end; a second one ends the process at once.

    A signal that comes before a stage is heeded at the end of its first step.

    Example:
        with StopSignals() as signals:
            trainer.add_callback(signals)
            trainer.train()
        signals.stopped  # whether training ended early, alike on all ranks
    """

    def __init__(self) -> None:
        self.stopped = False
        self._received = False
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        self._handlers = {number: signal.signal(number, self._receive) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._received = True
        for each in SIGNALS:  # the next one ends the process, even one that hangs outside of Python
            signal.signal(each, signal.SIG_DFL)

    def asked(self) -> bool:
        """Whether any rank has a signal; all call this together."""
        here = torch.tensor([int(self._received)], device=PartialState().device)
        return bool(gather(here).any())

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Where a rank has a signal, save and stop. The last step stops anyway."""
        if self.asked() and state.global_step < state.max_steps:
            self.stopped = control.should_save = control.should_training_stop = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Where one came while CARB was measured, the checkpoint of that step is there: stop."""
        if self.asked() and state.global_step < state.max_steps:
            self.stopped = control.should_training_stop = True
