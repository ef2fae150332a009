"""The programs that judge the code, started with the tests and asked for their word when its turn comes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

COMMANDS = (
    ("ruff", "check", "--no-cache", "."),
    ("ruff", "format", "--check", "--no-cache", "."),
    ("mypy",),
)

Judges = dict[tuple[str, ...], "subprocess.Popen[str]"]

JUDGES = pytest.StashKey[Judges]()


def started_judges() -> Judges:
    """A process for each, of the lowest priority: mypy takes half a minute of a core at its first look."""
    return {
        command: subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=_yield_to_others,  # noqa: PLW1509 - one call, which takes no lock
        )
        for command in COMMANDS
    }


def _yield_to_others() -> None:
    os.nice(19)
