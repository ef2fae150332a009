"""Copies of batches to a device far behind the host: no wait for them, and a bounded number of them."""

import gc

import torch

from amptui.data.device_copies import MAX_AHEAD, DeviceCopies
from tests.simcuda.device import configured, watched

BATCHES = 4 * MAX_AHEAD


def test_few_batches_wait_on_a_device_that_is_far_behind_and_the_host_waits_for_none() -> None:
    device = torch.device("cuda", 0)
    copies, source = DeviceCopies(device), torch.ones(1 << 19).pin_memory()
    for _ in range(3):
        copies.send(source)
    torch.cuda.synchronize()
    gc.collect()  # other tests' tensors must not be freed meanwhile
    torch.cuda.reset_peak_memory_stats(device)
    active_before = torch.cuda.memory_stats(device)["active_bytes.all.current"]

    def send_all() -> None:
        for _ in range(BATCHES):
            copies.send(source).mul_(2)

    with configured(kernel_us=20_000.0):
        waits = watched(send_all)
        # Active: not to be used again before the device has come past it.
        active_bytes = torch.cuda.memory_stats(device)["active_bytes.all.peak"] - active_before
        torch.cuda.synchronize()
    assert waits == []
    assert 1 < active_bytes / source.nbytes <= MAX_AHEAD + 2
