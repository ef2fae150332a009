"""Fixtures of the screen's tests."""

import os
import time
from collections.abc import Iterator

import pytest


@pytest.fixture
def one_time_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times of the day are those of the place: here the same everywhere."""
    monkeypatch.setitem(os.environ, "TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
