"""What a script's signal handler raises reaches the script, wherever it finds us at work."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.checkout import ROOT


def alarmed(count: int, seed: int, home: Path) -> dict[str, Any]:
    """What became of so many alarms; see `tests/alarmed.py`."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.alarmed", str(count), str(seed)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "HOME": str(home)},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def assert_all_reached(found: dict[str, Any], count: int) -> None:
    assert found["lost"] == []
    assert found["reached"] + found["dropped"] == found["fired"] >= count
    assert found["dropped"] <= 0.01 * count
    assert set(found["phases"]) >= {"open", "step", "close"}


@pytest.mark.ci
def test_alarms_at_random_moments_reach_the_script(tmp_path: Path) -> None:
    assert_all_reached(alarmed(100, 0, tmp_path), 100)


@pytest.mark.ci
@pytest.mark.parametrize("seed", [1, 2])
def test_of_ten_thousand_alarms_at_random_moments_none_is_lost(seed: int, tmp_path: Path) -> None:
    assert_all_reached(alarmed(5000, seed, tmp_path), 5000)
