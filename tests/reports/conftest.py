"""What tests of reports share: somebody whom permissions bind."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Is a user without rights, whom permissions bind as they do not bind root; gives a folder of theirs."""
    was_root = os.geteuid() == 0
    if was_root:
        os.seteuid(65534)
    folder = Path(tempfile.mkdtemp())
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if was_root:
            os.seteuid(0)
