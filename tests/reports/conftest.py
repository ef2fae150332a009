"""What tests of reports share: somebody whom permissions bind, and a place for temporary folders."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[Path]]:
    """Be a user without rights, whom permissions bind as they do not bind root; gives a folder of theirs.

    Only within the test: what pytest and its plugins write around it they write as themselves.
    """

    @contextmanager
    def unprivileged() -> Iterator[Path]:
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

    return unprivileged


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary folders are made; what a command changes in the process is as before."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    before = sys.getswitchinterval()
    yield folder
    sys.setswitchinterval(before)
