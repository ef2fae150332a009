"""A request of the data tests, and what it was told."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from amptui.data.sources import DataRequest


@dataclass
class Watched:
    """A request and what it was told."""

    request: DataRequest
    reports: list[tuple[Any, ...]]
    warnings: list[str]
    stop: threading.Event


@pytest.fixture
def watch(tmp_path: Path) -> Callable[..., Watched]:
    def make(kind: str = "auto") -> Watched:
        stop, reports, warnings = threading.Event(), list[tuple[Any, ...]](), list[str]()
        request = DataRequest(
            data_dir=tmp_path / "data",
            kind=kind,  # type: ignore[arg-type]  # the tests name the three kinds
            report=lambda *progress: reports.append(progress),
            stopping=stop.is_set,
            warn=warnings.append,
        )
        return Watched(request, reports, warnings, stop)

    return make
