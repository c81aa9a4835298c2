"""An orderly end when a cluster asks for it: SIGTERM or SIGUSR1 on any ranks, and all save at the end of the step."""

from __future__ import annotations

import os
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

    A signal that comes before training, or during an evaluation, is heeded at the end of the next step.

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
        if self._received:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._received = True

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Ask all ranks; where one has a signal, save and stop. The last step stops anyway."""
        here = torch.tensor([int(self._received)], device=PartialState().device)
        if bool(gather(here).any()) and state.global_step < state.max_steps:
            self.stopped = control.should_save = control.should_training_stop = True
