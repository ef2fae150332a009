"""The code is as the settings in pyproject.toml want it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("ruff", "check", "--no-cache", "."), id="ruff check"),
        pytest.param(("ruff", "format", "--check", "--no-cache", "."), id="ruff format"),
        # Half a minute of a core at its first look.
        pytest.param(("mypy",), id="mypy", marks=pytest.mark.slow),
    ],
)
def test_the_code_is_clean(command: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
