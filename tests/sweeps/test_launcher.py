"""Signals to a sweep: what it makes of them, and what it leaves alone."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from think_as_locals.sweeps.jobs import STOP
from think_as_locals.sweeps.launcher import stop_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_asks_jobs_to_stop_and_the_handler_before_comes_back(tmp_path: Path, number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stop_signals(tmp_path) as received:
        assert not (tmp_path / STOP).exists()
        os.kill(os.getpid(), number)
        assert received == [number]
        assert (tmp_path / STOP).exists()
    assert signal.getsignal(number) == before


def test_under_nohup_a_sweep_outlives_its_terminal(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals(tmp_path) as received:
            os.kill(os.getpid(), signal.SIGHUP)
        assert (received, signal.getsignal(signal.SIGHUP)) == ([], signal.SIG_IGN)
    finally:
        signal.signal(signal.SIGHUP, before)
