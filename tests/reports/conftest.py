"""What tests of reports share: somebody whom permissions bind."""

import os
import shutil
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
