"""What lies in ``on_it`` runs on the device, in processes that the tests here start."""

import os
from pathlib import Path

import pytest

from tests.other_device.build import DoesNotFitError, build_once
from tests.other_device.device import LIBRARY_VARIABLE

collect_ignore_glob = [] if LIBRARY_VARIABLE in os.environ else ["on_it/*"]


@pytest.fixture(scope="session")
def other_device(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder it was built into, kept in pytest's cache for the next time."""
    cache = getattr(request.config, "cache", None)
    folder = cache.mkdir("other-device") if cache is not None else tmp_path_factory.mktemp("other-device")
    try:
        return build_once(folder)
    except DoesNotFitError as error:
        pytest.skip(f"no other device: {error}")
