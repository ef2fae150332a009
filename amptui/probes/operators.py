"""Counts the operators that run, by dtype; and finds the tensors in what operators take and return."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from amptui.records.findings import OperatorCount

_UNCOUNTED = frozenset(
    {"_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
)
"""A view whose schema does not say so, and allocations that nothing is written to."""

_PRODUCTS = frozenset({"mm", "addmm", "_scaled_mm"})
"""What multiplies float8 numbers, on hardware and emulated."""


class OperatorCounter(TorchDispatchMode):
    """Counts the operators that run below autograd and autocast, casts (``_to_copy``) included.

    An operator's dtype is that of its first floating-point output, else of its first floating-point input,
    else of its first tensor. So a cast counts as its result, a sum of float16 that accumulates in float32 as
    float32, batch norm of float16 with float32 statistics as float16, and a comparison as its inputs. A
    product of float8 numbers is float8. Views, bare allocations and operators without tensors do not count.

    Backward passes count too: autograd runs CUDA's in a thread of its own, but passes the modes of the
    calling thread on (``at::ThreadLocalState``). The threads of ``nn.DataParallel`` do not get them.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # A list, because append is atomic: with several GPUs several threads run the backward pass.
        self._ran: list[tuple[str, str]] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if isinstance(func, OpOverload) and not func.is_view and func._opname not in _UNCOUNTED:
            dtype = _dtype(result, (args, kwargs))
            if dtype is not None:
                name = func._opname if func.namespace == "aten" else f"{func.namespace}.{func._opname}"
                # A tensor of torchao's has the dtype that its float8 numbers were rounded from.
                is_float8 = func._opname in _PRODUCTS and any(
                    dtype_name(one.dtype).startswith("float8") or type(one).__name__ == "Float8TrainingTensor"
                    for one in tensors_in((args, kwargs))
                )
                self._ran.append((name, "float8" if is_float8 else dtype_name(dtype)))
        return result

    def counts(self) -> tuple[OperatorCount, ...]:
        """The most frequent first."""
        frequencies = sorted(Counter(self._ran).items(), key=lambda item: (-item[1], item[0]))
        return tuple(OperatorCount(name=name, dtype=dtype, count=n) for (name, dtype), n in frequencies)


def tensors_in(nest: object) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists and mappings, in order."""
    if isinstance(nest, Tensor):
        yield nest
    elif isinstance(nest, Mapping):
        yield from tensors_in(tuple(nest.values()))
    elif isinstance(nest, tuple | list):
        for value in nest:
            yield from tensors_in(value)


def dtype_name(dtype: torch.dtype) -> str:
    """``float16``."""
    return str(dtype).removeprefix("torch.")


def _dtype(outputs: object, inputs: object) -> torch.dtype | None:
    """The dtype that an operator counts under; None if it has no tensor."""
    dtypes = [tensor.dtype for nest in (outputs, inputs) for tensor in tensors_in(nest)]
    floating = (dtype for dtype in dtypes if dtype.is_floating_point or dtype.is_complex)
    return next(floating, dtypes[0] if dtypes else None)
