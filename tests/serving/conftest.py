"""The engine behind the app."""

from __future__ import annotations

import pytest
from serving.judges import Longest


@pytest.fixture
def longest() -> Longest:
    return Longest()
