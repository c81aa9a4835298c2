"""Every signal to stop does the same: the first one in order, the second at once."""

from __future__ import annotations

import signal

import pytest

from think_as_locals.runtime.processes import STOP_SIGNALS, end_at_next, interrupt, on_signals
from think_as_locals.training import checkpoints
from think_as_locals.training.checkpoints import StopSignals


@pytest.fixture(autouse=True)
def _handlers() -> object:
    before = {number: signal.signal(number, signal.SIG_DFL) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def handlers() -> set[object]:
    return {signal.getsignal(number) for number in STOP_SIGNALS}


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_the_first_interrupts_and_the_next_ends_the_process(number: signal.Signals) -> None:
    with on_signals(interrupt):
        assert signal.SIG_DFL not in handlers()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        assert handlers() == {signal.SIG_DFL}
    assert handlers() == {signal.SIG_DFL}


def test_what_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with on_signals(interrupt):
        end_at_next()
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_training_is_asked_to_stop_and_says_so(
    number: signal.Signals, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    with StopSignals() as signals:
        assert not signals.asked()
        signal.raise_signal(number)
        assert signals.asked()
        assert handlers() == {signal.SIG_DFL}
    assert capfd.readouterr().err == ("tal: asked to stop: saves at the end of this step; once more ends it at once\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_torchrun_forwards_is_no_second_one(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setattr("os.kill", lambda _, number: ended.append(number))
    with StopSignals() as signals:
        signal.raise_signal(number)
        signal.raise_signal(number)  # to the group by the terminal, and by torchrun
        assert (signals.asked(), ended, signal.getsignal(signal.SIGUSR1)) == (True, [], signal.SIG_DFL)
        monkeypatch.setattr(checkpoints, "_FORWARDED_S", -1.0)  # as if later
        signal.raise_signal(number)
        assert (ended, handlers()) == ([number], {signal.SIG_DFL})
