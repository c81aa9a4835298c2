"""A time limit that holds in any thread and leaves nothing running that Python can stop."""

from __future__ import annotations

import threading
import time

import pytest

from think_as_locals.training.deadline import within


def _spin(stopped: threading.Event) -> None:
    try:
        while True:
            pass
    finally:
        stopped.set()


def test_a_result_and_an_error_pass_through() -> None:
    assert within(5, lambda: "done") == "done"
    with pytest.raises(KeyError, match="mine"):
        within(5, lambda: {}["mine"])


def test_an_endless_loop_is_left_and_ends_itself(capfd: pytest.CaptureFixture[str]) -> None:
    stopped, began = threading.Event(), time.monotonic()
    with pytest.raises(TimeoutError, match=r"took longer than 0\.2 s"):
        within(0.2, lambda: _spin(stopped))
    assert 0.2 <= time.monotonic() - began < 3
    assert stopped.wait(5)
    assert capfd.readouterr().err == ""


def test_it_holds_outside_of_the_main_thread() -> None:
    caught: list[BaseException] = []

    def other() -> None:
        try:
            within(0.1, lambda: time.sleep(30))
        except TimeoutError as error:
            caught.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(5)
    assert len(caught) == 1
