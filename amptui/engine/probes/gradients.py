"""Gradient health in about one pass: the norm, the largest value, and which gradients hold NaN or Inf.

On CUDA two fused kernel groups give the L2 norm and the largest absolute value of every gradient, and the
host attributes later what it was sent, with no second wait. On a CPU one pass over all gradients together
is cheaper than one look at each; only where it finds NaN or Inf is each looked at.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from amptui.records import NonFiniteKind

MAX_NAMES = 8
"""Parameters named in one record; the rest are counted."""

SMALL_ELEMENTS = 1 << 15
"""Gradients below this are copied together before a CPU looks at them. Two calls for one tensor take 4.5 us;
copying it takes 0.4 us at 256 elements and 4 us at 32,768, where torch also begins to use more threads."""

_CHUNK_ELEMENTS = 1 << 20
"""A float32 dot product of 15 million normal values was off by 1e-4, in pieces of a million by 1e-6."""


@dataclass(frozen=True, slots=True)
class GradientHealth:
    """One step's gradients as the host sees them; None for what was not looked at."""

    norm: float
    """L2 over all gradients, unscaled: NaN if any holds NaN, else Inf if any holds Inf. On CUDA it is Inf too
    where squares leave float32, with values from 1.8e19 on."""
    largest: float | None
    """The largest absolute value, unscaled: NaN if any gradient holds NaN, else Inf if any holds Inf."""
    nonfinite_count: int | None
    nonfinite_names: tuple[str, ...]
    """NaN before Inf, in the model's order, at most ``MAX_NAMES``."""
    nonfinite_kinds: tuple[NonFiniteKind, ...]
    """What each of ``nonfinite_names`` holds: NaN, or Inf and no NaN."""


class GradientProbe:
    """Measures the gradients of one model's parameters.

    A row holds the L2 norm of all gradients, then the largest absolute value: one for each parameter, or on
    a CPU, where all are finite, one for them together. A value beyond float32's range counts as Inf.
    """

    def __init__(self, model: nn.Module) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.names = tuple(name for name, _ in named)
        self.parameters = tuple(p for _, p in named)

    @torch.no_grad()
    def measure(self) -> Tensor:
        """One float32 row on the gradients' device, for :meth:`health`."""
        gradients = [dense_elements(p.grad) for p in self.parameters]
        present = [g for g in gradients if g is not None]
        if not present:
            device = self.parameters[0].device if self.parameters else None
            return torch.zeros(1 + len(gradients), device=device)
        if present[0].is_cuda:
            return measure_fused(gradients)
        norm, largest = _measure_together(present)
        if norm <= torch.finfo(torch.float32).max:
            return torch.tensor((norm, largest))
        return _measure_each(gradients)

    def health(self, row: Sequence[float], scale: float) -> GradientHealth:
        """What a delivered ``row``, measured on gradients multiplied by ``scale``, says."""
        norm, *largest = row
        if math.isfinite(sum(largest)):
            return GradientHealth(norm / scale, max(largest, default=0.0) / scale, 0, (), ())
        named = list(zip(self.names, largest, strict=True))
        nans: list[tuple[str, NonFiniteKind]] = [(name, "nan") for name, value in named if math.isnan(value)]
        infs: list[tuple[str, NonFiniteKind]] = [(name, "inf") for name, value in named if math.isinf(value)]
        names, kinds = zip(*(nans + infs)[:MAX_NAMES], strict=True)
        worst = math.nan if nans else math.inf
        return GradientHealth(worst, worst, len(nans) + len(infs), names, kinds)


def dense_elements(gradient: Tensor | None) -> Tensor | None:
    """The elements that a gradient stores, real and strided; None if there are none.

    Those of a sparse gradient are its coalesced values, which on CUDA the host waits for.
    """
    if gradient is None:
        return None
    if gradient.is_sparse:
        gradient = gradient.coalesce().values()
    if gradient.is_complex():
        gradient = torch.view_as_real(gradient.resolve_conj())
    return gradient if gradient.numel() else None


def together(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """``tensors`` on one device, where a model lies on several."""
    return [each if each.device == device else each.to(device, non_blocking=True) for each in tensors]


def measure_fused(gradients: Sequence[Tensor | None]) -> Tensor:
    """[1 + n]: the row of n gradients, at least one of them there; a few kernels on CUDA and no wait."""
    present = [g for g in gradients if g is not None]
    # In half precision norms may leave its range; float64 cannot be narrowed on the way.
    dtype = torch.float64 if any(g.dtype is torch.float64 for g in present) else torch.float32
    device = present[0].device
    norms = together(torch._foreach_norm(present, 2, dtype=dtype), device)
    norm = torch.linalg.vector_norm(torch.stack(norms))
    measured = iter(together(torch._foreach_norm(present, math.inf, dtype=dtype), device))
    absent = torch.zeros_like(norm)
    return torch.stack([norm, *(absent if g is None else next(measured) for g in gradients)]).float()


def _measure_together(present: list[Tensor]) -> tuple[float, float]:
    """L2 norm and largest absolute value of all gradients on a CPU.

    The norm is not finite if a gradient is not, and the largest value then means nothing.
    """
    small = [g for g in present if g.numel() < SMALL_ELEMENTS]
    flat = [in_memory_order(g) for g in present if g.numel() >= SMALL_ELEMENTS]
    if small:
        flat.append(torch._utils._flatten_dense_tensors(small))
    squares, largest = 0.0, 0.0
    for values in (_widened(chunk) for elements in flat for chunk in elements.split(_CHUNK_ELEMENTS)):
        squares += torch.dot(values, values).item()
        least, most = torch.aminmax(values)
        largest = max(largest, -least.item(), most.item())
    return math.sqrt(squares), largest


def _measure_each(gradients: Sequence[Tensor | None]) -> Tensor:
    """The row of gradients on a CPU, told apart; here the norm does not leave its range."""
    largest = [0.0 if g is None else _largest(g) for g in gradients]
    norm = sum(largest)  # NaN or Inf as they are
    if math.isfinite(norm):
        present = (g for g in gradients if g is not None)
        norm = math.hypot(*(torch.linalg.vector_norm(g, dtype=torch.float64).item() for g in present))
    return torch.tensor((norm, *largest), dtype=torch.float64).float()


def _largest(gradient: Tensor) -> float:
    least, most = torch.aminmax(_widened(in_memory_order(gradient)))
    # max() drops or keeps a NaN by its place; torch puts it in both.
    return max(-least.item(), most.item())


def _widened(values: Tensor) -> Tensor:
    """Half precision as float32, whose sums of squares it has no range for."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def in_memory_order(values: Tensor) -> Tensor:
    """All elements in one dimension, in the order of their memory: not copied if dense, channels-last say."""
    if values.is_contiguous():
        return values.view(-1)
    return values.permute(sorted(range(values.dim()), key=values.stride, reverse=True)).reshape(-1)
