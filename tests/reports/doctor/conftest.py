"""Make-believe drivers for the doctor, and programs that look at them in a process of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import deprecations, fake_nvml

Look = Callable[..., Any]


@pytest.fixture(scope="session")
def fake_drivers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``libnvidia-ml.so.1`` and ``libcuda.so.1``, for ``LD_LIBRARY_PATH``."""
    folder = tmp_path_factory.mktemp("drivers")
    cuda = Path(__file__).parent / "fake_cuda.c"
    if fake_nvml.build(folder) is None or not fake_nvml.build_library(cuda, folder / "libcuda.so.1"):
        pytest.skip("no C compiler that builds the make-believe drivers")
    return folder


@pytest.fixture
def look() -> Look:
    """Run a program that prints one JSON value, with ``environment`` added to this one's."""

    def run(program: str, folder: Path | None = None, **environment: str) -> Any:
        libraries = {} if folder is None else {"LD_LIBRARY_PATH": str(folder)}
        done = subprocess.run(
            [sys.executable, *deprecations.options_for_python(), "-c", program],
            env={**os.environ, **libraries, **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run
