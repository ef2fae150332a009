"""What tests of reports share: a place for temporary folders."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary folders are made; what a command changes in the process is as before."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    before = sys.getswitchinterval()
    yield folder
    sys.setswitchinterval(before)
