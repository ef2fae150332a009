"""A watched loop of somebody else's that ends: what it waits for."""

from typing import Any

import pytest
import torch
from torch import nn

from amptui.engine.readback import HostReadback
from tests.guest.loop.seen_steps import observed_loop, sgd


class BlockedDevice(HostReadback):
    """A device that waits for a collective of a rank that has ended: nothing arrives any more."""

    def drain(self) -> None:
        """What has arrived, which is nothing."""

    def flush(self) -> None:
        raise AssertionError("this would wait for ever")


def test_after_an_error_of_a_rank_its_device_is_not_awaited() -> None:
    model = nn.Linear(3, 1)
    optimizer, records = sgd(model), list[Any]()
    loop = observed_loop(model, optimizer, records.append)
    loop.first._sender.readback = loop.first.updates._readback = BlockedDevice(lambda: 0.0)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    with pytest.raises(AssertionError, match="for ever"):
        loop.first.close(waits=True)
    loop.close(waits=False)
    assert not loop.active
    assert records == []
