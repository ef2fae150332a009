"""A make-believe driver for the doctor."""

from pathlib import Path

import pytest

from tests import fake_nvml


@pytest.fixture(scope="session")
def fake_drivers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``libnvidia-ml.so.1``, for ``LD_LIBRARY_PATH``."""
    folder = fake_nvml.build(tmp_path_factory.mktemp("drivers"))
    return folder or pytest.skip("no C compiler that builds the make-believe driver")
