from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runs.served import Run, running


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with running(tmp_path) as run:
        yield run
