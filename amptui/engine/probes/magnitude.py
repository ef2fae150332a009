"""The largest absolute value of a tensor, and which tensors have one."""

import math

import torch
from torch import Tensor

from amptui.engine.probes.gradients import dense_elements, in_memory_order


def is_measurable(tensor: Tensor) -> bool:
    """Whether :func:`largest_absolute` takes ``tensor``: strided, floating-point or complex, not empty."""
    return (
        (tensor.is_floating_point() or tensor.is_complex())
        and tensor.layout is torch.strided
        and not tensor.is_nested
        # A tensor inside torch.func.vmap stands for many and must not be kept.
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and tensor.numel() > 0
    )


def largest_absolute(tensor: Tensor) -> Tensor:
    """The largest absolute value, 0-d float32 on the device: NaN if there is a NaN, else Inf if an Inf.

    Both parts of a complex number count. A float64 beyond float32's range becomes Inf.
    """
    elements = dense_elements(tensor.detach())
    assert elements is not None, "only tensors with elements are measurable"
    if elements.itemsize == 1:
        elements = elements.float()  # float8 has no comparison
    if elements.is_cuda:
        # One kernel. Without a dtype autocast would cast all elements to float32 first.
        wide = torch.float64 if elements.dtype is torch.float64 else torch.float32
        largest: Tensor = torch.linalg.vector_norm(elements, math.inf, dtype=wide)
        return largest.float()
    least, most = torch.aminmax(in_memory_order(elements))
    return torch.maximum(-least, most).float()
