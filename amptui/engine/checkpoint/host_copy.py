"""Copies states to host memory: nested containers of tensors and plain values, as a file can store them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from amptui.device.accelerator import PINNING

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
"""What ``torch.load(weights_only=True)`` reads besides tensors and containers."""

_ALIGNED_BYTES = 64
"""The alignment of torch's own tensors, for the widest vectors."""

_BLOCK_BYTES = 2**26
"""The most memory that tensors share: a power of two, because torch rounds pinned memory up to one."""


class NotPlainError(TypeError):
    """A state holds an object that a file cannot store without running code on reading it."""


class HostCopy:
    """Copies all tensors in ``states`` to host memory; copies from GPUs are complete after :meth:`wait`.

    The copies share a few large blocks of memory, so writing them takes the interpreter's lock a few times
    and not five times per tensor. Tensors that are the same, such as tied weights, are the same in the copy.
    Empty ones on the meta device stay.
    """

    def __init__(self, states: Sequence[object]) -> None:
        self._states = states  # keeps the tensors alive, so that no other gets one's address
        tensors = {_key(tensor): tensor for state in states for tensor in _tensors(state)}
        self._devices = {tensor.device for tensor in tensors.values() if tensor.device.type in PINNING}
        packed = {key: tensor.detach() for key, tensor in tensors.items() if _packs(tensor)}
        self._copies = {key: tensors[key].detach().cpu().clone() for key in tensors.keys() - packed.keys()}
        for (key, tensor), target in zip(packed.items(), self._allocate(packed.values()), strict=True):
            self._copies[key] = target.copy_(tensor, non_blocking=tensor.device in self._devices)

    def of(self, state: object, name: str) -> Any:
        """The copy of one of the states, called ``name`` in messages. Raises NotPlainError."""
        return _rebuilt(state, name, lambda tensor: self._copies[_key(tensor)])

    def wait(self) -> None:
        """Wait until all copies are complete."""
        for device in self._devices:
            # Unlike a device's synchronize(), an event's is no error in torch's sync debug mode.
            event = torch.Event(device, enable_timing=False)
            event.record(torch.accelerator.current_stream(device.index))
            event.synchronize()

    def _allocate(self, tensors: Iterable[Tensor]) -> Iterator[Tensor]:
        """Memory for each of ``tensors``, with its strides if it is dense."""
        for block in _blocks(tensors):
            sizes = [_aligned_bytes(tensor) // tensor.itemsize for tensor in block]
            memory = torch.empty(
                sum(sizes), dtype=block[0].dtype, device="cpu", pin_memory=bool(self._devices)
            )
            for tensor, part in zip(block, memory.split(sizes), strict=True):
                shape = tensor.shape
                stride = tensor.stride() if _is_dense(tensor) else torch.empty(shape, device="meta").stride()
                yield part.as_strided(shape, stride)


def own(state: Any) -> Any:
    """A copy of a state from a file, which does not keep the rest of the file in memory."""
    return _rebuilt(state, "the state", Tensor.clone)


def _blocks(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """The tensors in order, split where the dtype changes or a block is full."""
    block: list[Tensor] = []
    filled_bytes = 0
    for tensor in tensors:
        if block and (block[0].dtype != tensor.dtype or filled_bytes + _aligned_bytes(tensor) > _BLOCK_BYTES):
            yield block
            block, filled_bytes = [], 0
        block.append(tensor)
        filled_bytes += _aligned_bytes(tensor)
    if block:
        yield block


def _aligned_bytes(tensor: Tensor) -> int:
    return -(-tensor.numel() * tensor.itemsize // _ALIGNED_BYTES) * _ALIGNED_BYTES


def _rebuilt(state: object, name: str, copied: Callable[[Tensor], Tensor]) -> Any:
    """The same containers, as plain ones, around copied tensors. Raises NotPlainError."""
    if type(state) in _PLAIN:
        return state
    if type(state) in (Tensor, torch.nn.Parameter):
        return state if state.is_meta else copied(state)  # type: ignore[attr-defined,arg-type]  # a tensor
    if isinstance(state, np.generic):
        return _rebuilt(state.item(), name, copied)
    if isinstance(state, Mapping):
        return {
            _rebuilt(key, name, copied): _rebuilt(value, f"{name}[{key!r}]", copied)
            for key, value in state.items()
        }
    for kind in (list, tuple, set):
        if isinstance(state, kind):
            return kind(_rebuilt(part, f"{name}[{index}]", copied) for index, part in enumerate(state))
    raise NotPlainError(f"{name} is a {type(state).__name__}, which a checkpoint cannot store")


def _tensors(state: object) -> Iterator[Tensor]:
    """All tensors that :func:`_rebuilt` finds."""
    if type(state) in (Tensor, torch.nn.Parameter):
        if not state.is_meta:  # type: ignore[attr-defined]  # it is a tensor
            yield state  # type: ignore[misc]
    elif isinstance(state, Mapping):
        for value in state.values():
            yield from _tensors(value)
    elif isinstance(state, list | tuple | set):
        for part in state:
            yield from _tensors(part)


def _packs(tensor: Tensor) -> bool:
    """Whether it is nothing but strided numbers, which can share a block."""
    return tensor.layout == torch.strided and not tensor.is_quantized


def _is_dense(tensor: Tensor) -> bool:
    """Whether its elements fill a range of memory, in any order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _key(tensor: Tensor) -> object:
    """Equal for two tensors only if they are the same numbers in the same memory."""
    if not _packs(tensor) or not tensor.numel():
        return id(tensor)
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
