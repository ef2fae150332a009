"""Copies to a GPU in a stream of their own: the right values in time, in bounded memory."""

from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from amptui.data.device_copies import MAX_AHEAD, DeviceCopies

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


def test_on_a_cpu_a_batch_is_handed_on_as_it_is() -> None:
    batch: Any = torch.ones(2), ["name", {"x": torch.ones(3)}]
    sent = DeviceCopies(torch.device("cpu")).send(batch)
    assert sent[0] is batch[0]
    assert sent[1][1]["x"] is batch[1][1]["x"]


@pytest.mark.gpu
@gpu
def test_what_was_sent_is_there_when_a_step_reads_it() -> None:
    device = torch.device("cuda", 0)
    copies = DeviceCopies(device)
    for number in range(4 * MAX_AHEAD):
        numbers = torch.full((1000,), float(number))
        batch: Any = {"x": numbers, "y": (numbers.int(), "text"), "packed": pack_sequence([numbers])}
        sent = copies.send(batch)
        assert {sent["x"].device, sent["y"][0].device, sent["packed"].data.device} == {device}
        total = sent["x"].sum() + sent["y"][0].sum() + sent["packed"].data.sum()
        del sent
        assert total.item() == 3000.0 * number


@pytest.mark.gpu
@gpu
def test_no_copy_makes_the_host_wait() -> None:
    copies = DeviceCopies(torch.device("cuda", 0))
    batches = [torch.ones(1000).pin_memory() for _ in range(3 * MAX_AHEAD)]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in batches:
            copies.send(batch).mul_(2)
    finally:
        torch.cuda.set_sync_debug_mode("default")
