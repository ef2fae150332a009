"""Copies of states in host memory: nests of tensors and plain values, as a file can keep them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
"""What ``torch.load(weights_only=True)`` reads besides tensors and the nests they lie in."""

_ALIGNED_BYTES = 64
"""Where torch's own tensors begin, for the widest vectors."""

_ROOM_BYTES = 2**26
"""Tensors share memory up to that much: a power of two, to which torch rounds pinned memory up."""


class NotPlainError(TypeError):
    """A state holds what no file can keep without running code when it is read: the message says where."""


class HostCopy:
    """Copies of all tensors in ``states``, begun at once; those of GPUs are there after :meth:`wait`.

    They lie side by side in a few large pieces of memory, so that a file of them is written with the
    interpreter's lock taken a few times and not five times a tensor. Tensors that are one and the same, tied
    weights say, are so in the copy.
    """

    def __init__(self, states: Sequence[object]) -> None:
        self._states = states  # no other tensor comes to lie where one of these does
        tensors = {_place(tensor): tensor for state in states for tensor in _tensors(state)}
        self._devices = {tensor.device for tensor in tensors.values() if tensor.device.type == "cuda"}
        self._copies = {place: tensor for place, tensor in tensors.items() if not _packs(tensor)}
        self._copies = {place: tensor.detach().cpu().clone() for place, tensor in self._copies.items()}
        packed = {place: tensor.detach() for place, tensor in tensors.items() if _packs(tensor)}
        for (place, tensor), room in zip(packed.items(), self._rooms(list(packed.values())), strict=True):
            self._copies[place] = room.copy_(tensor, non_blocking=True)

    def of(self, state: object, name: str) -> Any:
        """The copy of one of the states, called ``name`` in messages; raises NotPlainError."""
        return _rebuilt(state, name, self._copy)

    def wait(self) -> None:
        """Until all copies are there."""
        for device in self._devices:
            # An event's wait, unlike a device's, is no fault under torch's sync debug mode.
            done = torch.cuda.Event()
            done.record(torch.cuda.current_stream(device))
            done.synchronize()

    def _copy(self, tensor: Tensor) -> Tensor:
        return self._copies[_place(tensor)]

    def _rooms(self, tensors: Sequence[Tensor]) -> Iterator[Tensor]:
        """Memory for each of ``tensors``, with its strides where those leave no gaps."""
        pinned = bool(self._devices)
        for row in _rows(tensors):
            offsets, end = [], 0
            for tensor in row:
                offsets.append(end)
                end += _room_bytes(tensor) // tensor.itemsize
            memory = torch.empty(end, dtype=row[0].dtype, device="cpu", pin_memory=pinned)
            for tensor, offset in zip(row, offsets, strict=True):
                shape = tensor.shape
                stride = tensor.stride() if _is_dense(tensor) else torch.empty(shape, device="meta").stride()
                yield memory.as_strided(shape, stride, offset)


def own(state: Any) -> Any:
    """A copy of a state that was read from a file, which does not hold on to the rest of the file."""
    return _rebuilt(state, "the state", Tensor.clone)


def _rows(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """The tensors in their order, cut where the type changes or a room is full."""
    row: list[Tensor] = []
    filled_bytes = 0
    for tensor in tensors:
        if row and (row[0].dtype != tensor.dtype or filled_bytes + _room_bytes(tensor) > _ROOM_BYTES):
            yield row
            row, filled_bytes = [], 0
        row.append(tensor)
        filled_bytes += _room_bytes(tensor)
    if row:
        yield row


def _room_bytes(tensor: Tensor) -> int:
    return -(-tensor.numel() * tensor.itemsize // _ALIGNED_BYTES) * _ALIGNED_BYTES


def _rebuilt(state: object, name: str, copied: Callable[[Tensor], Tensor]) -> Any:
    """The same nest of plain containers around copied tensors; raises NotPlainError."""
    if type(state) in _PLAIN:
        return state
    if type(state) in (Tensor, torch.nn.Parameter):
        return copied(state)  # type: ignore[arg-type]  # it is a tensor
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
    """All tensors in a nest, without what :func:`_rebuilt` refuses."""
    if type(state) in (Tensor, torch.nn.Parameter):
        yield state  # type: ignore[misc]  # it is a tensor
    elif isinstance(state, Mapping):
        for value in state.values():
            yield from _tensors(value)
    elif isinstance(state, list | tuple | set):
        for part in state:
            yield from _tensors(part)


def _packs(tensor: Tensor) -> bool:
    """Whether it is numbers in memory and nothing else."""
    return tensor.layout == torch.strided and not tensor.is_quantized


def _is_dense(tensor: Tensor) -> bool:
    """Whether its elements fill a stretch of memory, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _place(tensor: Tensor) -> object:
    """What two tensors share only if they are the same numbers at the same place."""
    if not _packs(tensor) or not tensor.numel():
        return id(tensor)
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
