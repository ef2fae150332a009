"""Make-believe drivers for the doctor."""

from pathlib import Path

import pytest

from tests import fake_nvml


@pytest.fixture(scope="session")
def fake_drivers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``libnvidia-ml.so.1`` and ``libcuda.so.1``, for ``LD_LIBRARY_PATH``."""
    folder = tmp_path_factory.mktemp("drivers")
    cuda = Path(__file__).parent / "fake_cuda.c"
    if fake_nvml.build(folder) is None or not fake_nvml.build_library(cuda, folder / "libcuda.so.1"):
        pytest.skip("no C compiler that builds the make-believe drivers")
    return folder
