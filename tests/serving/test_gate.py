"""The rate of a client: a number for each, whatever its requests are spaced like."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from think_as_locals.serving.gate import Rate

PAUSES = st.lists(st.floats(0, 30, allow_nan=False), max_size=120)


@given(st.integers(1, 20), PAUSES)
def test_no_client_exceeds_its_rate_and_the_wait_suffices(per_minute: int, pauses: list[float]) -> None:
    rate, now = Rate(per_minute), 0.0
    for came, pause in enumerate(pauses, 1):
        now += pause
        if wait := rate.wait_s("client", now):
            now += wait
            assert rate.wait_s("client", now) < 1e-6
        assert came <= per_minute * (1 + now / 60) + 1e-6


def test_clients_are_limited_separately() -> None:
    rate = Rate(1)
    assert [rate.wait_s(f"10.0.0.{i}", 0.0) for i in range(5)] == [0.0] * 5
    assert rate.wait_s("10.0.0.1", 15.0) == 45.0


def test_idle_clients_are_forgotten() -> None:
    rate = Rate(60)
    for i in range(6000):
        assert rate.wait_s(str(i), i / 10) == 0.0
    assert len(rate._due) <= 4096
