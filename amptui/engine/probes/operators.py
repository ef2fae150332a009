"""Which operators ran, how often and in which dtype; and the tensors in what operators take and give."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from amptui.findings import OperatorCount

_UNCOUNTED = frozenset(
    {"_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
)
"""A view that its schema does not call one, and memory that nothing has been written to yet."""


class OperatorCounter(TorchDispatchMode):
    """Counts the operators that run below autograd and autocast, casts (``_to_copy``) included.

    An operator's dtype is that of the first floating-point tensor that it puts out, else that it takes, else
    of the first tensor of any kind. So a cast counts where it leads, a factory as what it makes, a sum over
    float16 that adds in float32 as float32, batch norm of float16 with float32 statistics as float16, and a
    comparison as what it compares. Views, bare allocations and what touches no tensor do not count.

    Backward passes count too. Modes belong to a thread, and autograd runs CUDA's backward pass in a thread
    of its own, but its engine hands every worker the state of the thread that called it, modes included
    (``at::ThreadLocalState``). The threads that ``nn.DataParallel`` starts get none of it.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # A list, as its append is atomic: with several GPUs several threads run the backward pass.
        self._ran: list[tuple[str, str]] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        result = func(*args, **given)
        if isinstance(func, OpOverload) and not func.is_view and func._opname not in _UNCOUNTED:
            dtype = _dtype(result, (args, given))
            if dtype is not None:
                self._ran.append((_name(func), dtype_name(dtype)))
        return result

    def counts(self) -> tuple[OperatorCount, ...]:
        """The most frequent first."""
        found = sorted(Counter(self._ran).items(), key=lambda item: (-item[1], item[0]))
        return tuple(OperatorCount(name=name, dtype=dtype, count=count) for (name, dtype), count in found)


def tensors_in(nest: object) -> Iterator[Tensor]:
    """The tensors of tuples, lists and mappings, in order and however deep."""
    if isinstance(nest, Tensor):
        yield nest
    elif isinstance(nest, Mapping):
        for value in nest.values():
            yield from tensors_in(value)
    elif isinstance(nest, tuple | list):
        for value in nest:
            yield from tensors_in(value)


def dtype_name(dtype: torch.dtype) -> str:
    """``float16``."""
    return str(dtype).removeprefix("torch.")


def _dtype(result: object, taken: object) -> torch.dtype | None:
    """What :class:`OperatorCounter` counts an operator under; None if it touched no tensor."""
    first = None
    for nest in (result, taken):
        for tensor in tensors_in(nest):
            if tensor.is_floating_point() or tensor.is_complex():
                return tensor.dtype
            first = first or tensor.dtype
    return first


def _name(func: OpOverload[..., Any]) -> str:
    return func._opname if func.namespace == "aten" else f"{func.namespace}.{func._opname}"
