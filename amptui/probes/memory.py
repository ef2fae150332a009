"""The memory of a training: what torch's allocator holds, and which tensors it is, by kind and dtype."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from amptui.device.accelerator import MemoryUse, memory_use, restart_peak
from amptui.probes.probe import dtype_name, tensors_in
from amptui.records.findings import MemoryBreakdown, MemoryKind
from amptui.records.samples import AllocatorSample

_INTERVAL_SECONDS = 0.5

_Stored = Literal["weights", "gradients", "optimizer", "buffers"]


class AllocatorWatch:
    """Samples the allocator of ``device``, if that is no CPU, and its peak over some steps; one thread's."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._has_allocator = device.type != "cpu"
        self._due = 0.0
        self._earlier_peak_bytes = 0
        self.sample: AllocatorSample | None = None
        """The newest sample; other threads may read it."""

    def look(self, precision: str, *, settled: bool) -> None:
        """Refresh ``sample`` if the last one is old: that takes about 0.1 ms."""
        if self._has_allocator and (now := time.monotonic()) >= self._due:
            self._due = now + _INTERVAL_SECONDS
            use = memory_use(self._device)
            if use is not None:
                self.sample = AllocatorSample(
                    precision=precision,
                    allocated_bytes=use.allocated,
                    reserved_bytes=use.reserved,
                    peak_allocated_bytes=self._since_restart(use) if settled else None,
                )

    def restart_peak(self) -> None:
        """Measure the peak from here on."""
        self._earlier_peak_bytes = 0
        restart_peak(self._device)

    def peak_bytes(self) -> int | None:
        """The peak of allocated memory since ``restart_peak``; None on a CPU, or where it is not known."""
        return self._since_restart(memory_use(self._device))

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Exclude what runs within from the peak: it is not part of the training."""
        peak = self.peak_bytes()
        try:
            yield
        finally:
            self.restart_peak()
            self._earlier_peak_bytes = peak or 0

    def _since_restart(self, use: MemoryUse | None) -> int | None:
        if use is None or use.peak_allocated is None:
            return None
        return max(self._earlier_peak_bytes, use.peak_allocated)


def break_down(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    step: int,
    precision: str,
    peak_allocated_bytes: int | None,
) -> MemoryBreakdown:
    """The bytes that a step of ``precision`` keeps on the model's device, by kind and dtype; never waits.

    Call it after an optimizer step, while its gradients still exist. Each storage counts once: tied
    parameters and views cost nothing, and a small view of a large storage counts all of it. Weights are the
    parameters of the model and of the optimizer.

    ``peak_allocated_bytes`` is torch's peak in steps of this precision, None on a CPU. Activations are what
    the peak has beyond everything that persists after a step: tensors saved by autograd, the weights that
    autocast has cast among them, and temporary ones. They are a lower bound, as not all gradients exist at
    the peak. The rest of the peak is the batch, data on the device and workspaces.
    """
    parameters = parameters_of(model, optimizer)
    device = parameters[0].device
    gradients = (parameter.grad for parameter in parameters if parameter.grad is not None)
    storages: set[int] = set()  # one of two kinds counts as the first
    kinds = [
        *_by_dtype("weights", parameters, device, storages),
        *_by_dtype("gradients", gradients, device, storages),
        *_by_dtype("optimizer", tensors_in(optimizer.state), device, storages),
        *_by_dtype("buffers", model.buffers(), device, storages),
    ]
    if peak_allocated_bytes is not None:
        kinds_bytes = sum(kind.size_bytes for kind in kinds)
        # The allocator also holds what is of no kind: data on the device, cuBLAS workspaces.
        use = memory_use(device)
        held_bytes = 0 if use is None else use.allocated
        activations_bytes = max(0, peak_allocated_bytes - max(held_bytes, kinds_bytes))
        kinds.append(MemoryKind(kind="activations", dtype="", size_bytes=activations_bytes))
    return MemoryBreakdown(
        time=time.time(),
        step=step,
        precision=precision,
        kinds=tuple(kinds),
        peak_allocated_bytes=peak_allocated_bytes,
    )


def parameters_of(model: nn.Module, optimizer: Optimizer) -> list[nn.Parameter]:
    """The parameters of the model, then those that only the optimizer has; each once."""
    optimized = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return list(dict.fromkeys((*model.parameters(), *optimized)))


def parts_of(tensor: Tensor) -> Iterator[Tensor]:
    """The tensors with storage behind ``tensor``: a sparse tensor or a wrapper subclass has none itself."""
    if tensor.is_sparse:
        yield from (tensor._indices(), tensor._values())
    elif is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from parts_of(getattr(tensor, name))
    else:
        yield tensor


def _by_dtype(
    kind: _Stored, tensors: Iterable[Tensor], device: torch.device, storages: set[int]
) -> list[MemoryKind]:
    """One entry per dtype, the largest first; adds their storages to ``storages``."""
    sizes: dict[str, int] = {}
    for tensor in tensors:
        for part in parts_of(tensor):
            storage = part.untyped_storage()
            if part.device == device and storage.data_ptr() not in storages:
                storages.add(storage.data_ptr())
                name = dtype_name(part.dtype)
                sizes[name] = sizes.get(name, 0) + storage.nbytes()
    ordered = sorted(sizes.items(), key=lambda item: -item[1])
    return [MemoryKind(kind=kind, dtype=dtype, size_bytes=size) for dtype, size in ordered]
