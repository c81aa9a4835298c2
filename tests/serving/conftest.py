"""The engine behind the app, and clients of the app."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from fastapi.testclient import TestClient
from serving.judges import BASE, Longest, judge_of, settings

from think_as_locals.serving.app import create_app


@pytest.fixture
def longest() -> Longest:
    return Longest()


@pytest.fixture
def serve(longest: Longest) -> Iterator[Callable[..., TestClient]]:
    with ExitStack() as stack:

        def start(*overrides: str, key: str | None = None) -> TestClient:
            app = create_app(judge_of(longest), settings(*overrides), key)
            return stack.enter_context(TestClient(app, BASE, raise_server_exceptions=False))

        yield start
