"""Fixtures of the engine's tests."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def no_trace_of_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("amptui_experiment"):
            del sys.modules[name]
