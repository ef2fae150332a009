"""What the fault tests share: a way to start one process of `amptui` after the other."""

from pathlib import Path

import pytest

from tests.faults.watched import Lives
from tests.warm import WarmSource


@pytest.fixture
def lives(warm: WarmSource, tmp_path: Path) -> Lives:
    """Quick processes of `amptui`."""
    return Lives(warm, tmp_path / "log")
