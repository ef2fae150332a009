from pathlib import Path
from typing import Any

import pytest

from tests.ranks.rank_at_work import Ended, Start, train_ranks
from tests.warm import WarmSource


@pytest.fixture
def start(warm: WarmSource, tmp_path: Path) -> Start:
    """Has two ranks, or more, do a task in the test's folder; returns how each ended."""

    def started(task: str = "plain", *, folder: Path = tmp_path, **options: Any) -> list[Ended]:
        folder.mkdir(exist_ok=True)
        return train_ranks(task, folder, warm, **options)

    return started
