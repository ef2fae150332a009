"""The memory of a training: what torch's allocator holds, and which tensors it is, by kind and dtype."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node
from torch.optim import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from amptui.device.accelerator import MemoryUse, memory_use, restart_peak
from amptui.probes.probe import dtype_name, tensors_in
from amptui.records.findings import MemoryBreakdown, MemoryKind
from amptui.records.run import AMP_PRECISIONS
from amptui.records.samples import AllocatorSample

_INTERVAL_SECONDS = 0.5

_HALVES = (torch.float16, torch.bfloat16)

_Stored = Literal["weights", "gradients", "optimizer", "buffers", "cast copies"]


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
    loss: Tensor | None = None,
) -> MemoryBreakdown:
    """The bytes that a step of ``precision`` keeps on the model's device, by kind and dtype; never waits.

    Call it after an optimizer step, while its gradients still exist. Each storage counts once: tied
    parameters and views cost nothing, and a small view of a large storage counts all of it. Weights are the
    parameters of the model and of the optimizer.

    ``loss`` is the step's loss. Its graph, even if its tensors are freed, says which parameters autocast
    cast, and so what its weight cache held. Without it, or if compiled or custom autograd functions hide
    casts, the kind ``cast copies`` is left out.

    ``peak_allocated_bytes`` is torch's peak in steps of this precision, None on a CPU. Activations are what
    the peak has beyond everything that persists after a step and the cast copies: tensors saved by autograd
    and temporary ones. They are a lower bound, as not all gradients exist at the peak. The rest of the peak
    is the batch, data on the device and workspaces.
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
    copies = _cast_copies(loss) if loss is not None and precision in AMP_PRECISIONS else None
    if copies is not None:
        kinds += copies
    if peak_allocated_bytes is not None:
        kinds_bytes = sum(kind.size_bytes for kind in kinds)
        # The allocator also holds what is of no kind: data on the device, cuBLAS workspaces.
        use = memory_use(device)
        held_bytes = 0 if use is None else use.allocated + sum(copy.size_bytes for copy in copies or ())
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
    return _entries(kind, sizes)


def _entries(kind: _Stored, sizes: dict[str, int]) -> list[MemoryKind]:
    ordered = sorted(sizes.items(), key=lambda item: -item[1])
    return [MemoryKind(kind=kind, dtype=dtype, size_bytes=size) for dtype, size in ordered]


def _cast_copies(loss: Tensor) -> list[MemoryKind] | None:
    """What autocast's weight cache held, from the graph of ``loss``; None if that hides casts.

    The cache holds one half-precision copy, made by ``to``, of each float32 leaf that requires gradients
    (``cached_cast`` in ATen/autocast_mode.cpp).
    """
    sizes = {dtype_name(dtype): 0 for dtype in _HALVES}
    casts: set[tuple[Tensor, torch.dtype]] = set()
    waiting, visited = [loss.grad_fn], set[Node]()
    while waiting:
        node = waiting.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        waiting += [following for following, _ in node.next_functions]
        # Functions written in Python, compiled graphs among them, hide autocast's operators.
        if isinstance(node, BackwardCFunction):
            return None
        copy = _cast_parameter(node)
        if copy is not None and copy not in casts:
            casts.add(copy)
            parameter, dtype = copy
            sizes[dtype_name(dtype)] += parameter.numel() * dtype.itemsize
    entries = _entries("cast copies", {name: size for name, size in sizes.items() if size})
    return entries or [MemoryKind(kind="cast copies", dtype="", size_bytes=0)]


def _cast_parameter(node: Node) -> tuple[Tensor, torch.dtype] | None:
    """The float32 leaf that ``node`` cast to half precision, and that dtype; None for other nodes."""
    if node.name() != "ToCopyBackward0":
        return None
    leaf = getattr(node.next_functions[0][0], "variable", None)
    dtype = node._input_metadata[0].dtype
    if leaf is None or leaf.dtype != torch.float32 or dtype not in _HALVES:
        return None
    return leaf, dtype
