"""What tests of commands share."""

from pathlib import Path

import pytest


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder for a run, which is not there yet."""
    return tmp_path / "run"


@pytest.fixture
def go_on(tmp_path: Path) -> Path:
    """A file that is not there yet, for which a run may wait."""
    return tmp_path / "go on"
