"""All stop signals behave alike: the first stops a run cleanly, the second at once."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import QUICK, ROOT, SMALL

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
def test_first_signal_interrupts_and_restores_default_handlers(number: signal.Signals) -> None:
    with on_signals(interrupt):
        assert signal.SIG_DFL not in handlers()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        assert handlers() == {signal.SIG_DFL}
    assert handlers() == {signal.SIG_DFL}


def test_ignored_signal_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with on_signals(interrupt):
        end_at_next()
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_stop_signal_is_recorded_and_announced(
    number: signal.Signals, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    with StopSignals() as signals:
        assert not signals.stop_requested()
        signal.raise_signal(number)
        assert signals.stop_requested()
        assert handlers() == {signal.SIG_DFL}
    assert capfd.readouterr().err == ("tal: asked to stop: saves at the end of this step; once more ends it at once\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_forwarded_by_torchrun_counts_once(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setattr("os.kill", lambda _, number: ended.append(number))
    with StopSignals() as signals:
        signal.raise_signal(number)
        signal.raise_signal(number)  # to the group by the terminal, and by torchrun
        assert (signals.stop_requested(), ended, signal.getsignal(signal.SIGUSR1)) == (True, [], signal.SIG_DFL)
        monkeypatch.setattr(checkpoints, "_FORWARDED_S", -1.0)  # as if later
        signal.raise_signal(number)
        assert (ended, handlers()) == ([number], {signal.SIG_DFL})


BLOCKING_REWARD = """
import time
from itertools import count
from pathlib import Path

tried = count()

def held(judgement, item):
    if next(tried) < 2:  # before the training begins
        return 0.0
    here = Path(__file__).parent
    (here / "entered").touch()
    until = time.monotonic() + 100
    while (here / "hold").exists() and time.monotonic() < until:
        time.sleep(0.02)
    (here / "hold").unlink(missing_ok=True)
    return 0.0
"""
# What a shell starts in the background ignores Ctrl-C, and so does all that it starts.
RESTORE_SIGINT = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
TAL = f"{RESTORE_SIGINT}; from think_as_locals.cli import main; main()"


@pytest.mark.slow
def test_first_ctrl_c_saves_the_run_and_a_second_kills_it(tmp_path: Path, warm_python: str) -> None:
    (tmp_path / "own.py").write_text(BLOCKING_REWARD)
    hold, entered = tmp_path / "hold", tmp_path / "entered"
    words = ["run", "recipes/quickstart.yaml", *SMALL, *QUICK, "grpo.max_steps=4", "grpo.save_steps=100"]
    words += ["eval.every_steps=100", f"run.dir={tmp_path}", "run.name=mine", "run.resume=auto"]
    words += [f"reward.own.held={tmp_path}/own.py:held", "reward.weights.held=0.1", "reward.timeout_s=300"]

    def interrupted(times: int) -> tuple[int, str]:
        """Status and last words of a run that is interrupted so often in a step."""
        entered.unlink(missing_ok=True)
        hold.touch()
        run = subprocess.Popen(
            [warm_python, "-c", TAL, *words],
            cwd=ROOT,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": "200"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert run.stderr is not None
        until = time.monotonic() + 100
        while not entered.exists() and run.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        run.send_signal(signal.SIGINT)
        assert any("asked to stop: saves at the end of this step" in line for line in run.stderr)
        if times == 1:
            hold.unlink()
        else:
            run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=100)
        return run.returncode, said

    status, said = interrupted(1)
    assert status == 75
    assert "saved after step 1 of grpo: repeat the command with run.name=mine run.resume=auto" in said
    assert interrupted(2) == (-signal.SIGINT, "")  # for a shell 130
    assert [path.name for path in (tmp_path / "mine" / "checkpoints").glob("*-*")] == ["step-1"]
