"""Runs programs against the make-believe NVML, each in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import deprecations, fake_nvml

OBSERVE = Path(__file__).parent / "observe.py"

Observe = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def fake_nvml_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = fake_nvml.build(tmp_path_factory.mktemp("nvml"))
    if built is None:
        pytest.skip("no C compiler that builds the make-believe NVML")
    return built


@pytest.fixture
def run_python() -> Callable[..., str]:
    def run(arguments: list[str], folder: Path | None, **settings: str) -> str:
        ended = subprocess.run(
            [sys.executable, *deprecations.options_for_python(), *arguments],
            env=fake_nvml.environment(folder, **settings),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        assert ended.stderr == ""
        return ended.stdout

    return run


@pytest.fixture
def observe(run_python: Callable[..., str]) -> Observe:
    """Open the probe over the library in ``folder`` and sample once for each entry of ``faults``."""

    def run(folder: Path | None, *faults: str, at_start: str = "", **settings: str) -> list[dict[str, Any]]:
        looks = json.loads(run_python([str(OBSERVE), *faults], folder, faults=at_start, **settings))
        assert isinstance(looks, list)
        return looks

    return run
