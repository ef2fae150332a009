"""Brings batches to the training device: on a GPU in a stream of their own, beside the steps before."""

import copy
from collections import deque
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from amptui.device.accelerator import PINNING, capabilities

MAX_AHEAD = 8
"""Batches that may wait on the device at once. A host with few kernels a step is hundreds of steps ahead."""


class DeviceCopies:
    """Copies each batch when it is asked for; the host never waits.

    The host is usually some steps ahead of a GPU: a copy in a stream of its own then runs while the GPU
    computes an earlier step. Nothing is loaded before its turn, so that no batch is drawn that a checkpoint
    or the end of the run would have to take back.

    Memory that two streams use is free again only when the GPU has come past its last use. A host that is
    far ahead would therefore fill the GPU with batches: from ``MAX_AHEAD`` on, copies take their turn among
    the steps, where memory is used again in order.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._runs_beside = capabilities(device).side_streams
        self._stream: torch.Stream | None = None
        self._steps: deque[torch.Event] = deque()
        """After the step before each batch, until the GPU has passed it; the oldest first."""
        self._spare: list[torch.Event] = []

    def send(self, batch: Any) -> Any:
        """``batch`` on the device, ready for the current stream."""
        if not self._runs_beside:
            return move(batch, self._device)
        computing = torch.accelerator.current_stream(self._device.index)
        if not self._has_room(computing):
            return move(batch, self._device)
        if self._stream is None:
            self._stream = torch.Stream(self._device)
        with self._stream:
            moved = move(batch, self._device)
        computing.wait_stream(self._stream)
        for tensor in _device_tensors(moved):
            tensor.record_stream(computing)
        return moved

    def _has_room(self, computing: torch.Stream) -> bool:
        while self._steps and self._steps[0].query():
            self._spare.append(self._steps.popleft())
        if len(self._steps) >= MAX_AHEAD:
            return False
        event = self._spare.pop() if self._spare else torch.Event(self._device, enable_timing=False)
        event.record(computing)
        self._steps.append(event)
        return True


def move(batch: Any, device: torch.device) -> Any:
    """The same structure with its tensors on ``device``; the host does not wait for the copies."""
    if isinstance(batch, Tensor | PackedSequence):
        tensor = batch.data if isinstance(batch, PackedSequence) else batch
        if device.type in PINNING and tensor.is_cpu and not tensor.is_pinned():
            batch = batch.pin_memory()  # the host waits for copies from other memory
        return batch.to(device, non_blocking=True)
    if isinstance(batch, MutableMapping):
        moved = copy.copy(batch)
        moved.update({key: move(value, device) for key, value in batch.items()})
        return moved
    if isinstance(batch, tuple | list):
        parts = [move(part, device) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch


def _device_tensors(batch: Any) -> Iterator[Tensor]:
    """All tensors in ``batch`` that are on a GPU."""
    if isinstance(batch, Tensor):
        if not batch.is_cpu:
            yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _device_tensors(value)
    elif isinstance(batch, tuple | list):  # a PackedSequence is a tuple as well
        for part in batch:
            yield from _device_tensors(part)
