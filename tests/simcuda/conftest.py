"""Tests in this folder run on the pretended GPU, in processes that they start."""

from pathlib import Path

import pytest

from tests.simcuda import device
from tests.simcuda.build import DoesNotFitError, build_once

collect_ignore_glob = [] if device.is_present() else ["on_it/*"]


@pytest.fixture(scope="session")
def pretended_gpu(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder it was built into, kept in pytest's cache for the next time."""
    cache = getattr(request.config, "cache", None)
    folder = cache.mkdir("simcuda") if cache is not None else tmp_path_factory.mktemp("simcuda")
    try:
        return build_once(folder)
    except DoesNotFitError as error:
        pytest.skip(f"no pretended GPU: {error}")
