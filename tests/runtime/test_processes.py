"""The first stop signal stops a run cleanly, whichever it is, the second at once; cores, and time limits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import QUICK, ROOT, SMALL

from think_as_locals.runtime.processes import STOP_SIGNALS, cores, end_at_next, interrupt, on_signals, run_with_timeout
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
    if next(tried) >= 2:  # the training has begun
        (Path(__file__).parent / "entered").touch()
        time.sleep(100)
    return 0.0
"""
# What a shell starts in the background ignores Ctrl-C, and so does all that it starts.
RESTORE_SIGINT = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
TAL = f"{RESTORE_SIGINT}; from think_as_locals.cli import main; main()"


@pytest.mark.slow
def test_second_ctrl_c_ends_a_run_at_once(tmp_path: Path, warm_python: str) -> None:
    (tmp_path / "own.py").write_text(BLOCKING_REWARD)
    words = ["run", "recipes/quickstart.yaml", *SMALL, *QUICK, f"run.dir={tmp_path}", "run.name=mine"]
    words += [f"reward.own.held={tmp_path}/own.py:held", "reward.weights.held=0.1", "reward.timeout_s=300"]
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
    while not (tmp_path / "entered").exists() and run.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    assert any("asked to stop: saves at the end of this step" in line for line in run.stderr)
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=100)
    assert (run.returncode, said) == (-signal.SIGINT, "")  # for a shell 130
    assert not list((tmp_path / "mine" / "checkpoints").glob("*-*"))


def test_cores_uses_cpu_affinity_or_falls_back_to_cpu_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cores() == len(os.sched_getaffinity(0))
    monkeypatch.delattr("os.sched_getaffinity")  # as on macOS
    assert cores() == os.cpu_count()


def test_time_limit_and_errors_of_the_work() -> None:
    assert run_with_timeout(5, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        run_with_timeout(5, lambda: 1 / 0)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"took longer than 0\.1 s"):
        run_with_timeout(0.1, lambda: time.sleep(30))
    assert time.monotonic() - began < 5


def test_output_in_ascii_escapes_what_it_cannot_write() -> None:
    program = "from think_as_locals.runtime.output import set_output; set_output(None); print('† é')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=True,
    )
    assert done.stdout == b"\\u2020 \\xe9\n"
