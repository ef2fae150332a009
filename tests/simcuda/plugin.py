"""What pytest does differently on the pretended GPU: skips what that cannot pretend, and fails on misuse."""

from collections.abc import Iterator

import pytest
import torch

from tests.simcuda import device


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        marker = item.get_closest_marker("real_gpu")
        if marker is not None:
            item.add_marker(pytest.mark.skip(reason=f"not pretended: {marker.args[0]}"))


@pytest.fixture(autouse=True)
def _as_found() -> Iterator[None]:
    """Each test finds the device whole, and fails where it did what a real one would punish."""
    device.take_waits()
    device.take_operators()
    device.take_faults()
    yield
    device.configure(broken=0, memory_out_in=0, failing_mallocs=0, failing_host_allocs=0)
    torch.cuda.set_sync_debug_mode("default")
    faults = device.take_faults()
    assert faults == []
