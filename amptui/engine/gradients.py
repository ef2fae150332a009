"""Gradient health at the price of one pass: a norm for each gradient, and who holds NaN or Inf.

A tensor's L2 norm is NaN if it holds a NaN, and Inf if it holds an Inf (or, beyond anything a training
survives, values over 1e19 whose squares leave float32). So one vector of norms, copied to the host with
the loss, gives the global norm, the number of bad gradients and their names, with no second wait.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

MAX_NAMES = 8
"""Parameters named in one record; the rest are counted."""


@dataclass(frozen=True, slots=True)
class GradientHealth:
    """One step's gradients as the host sees them."""

    norm: float
    """L2 over all gradients."""
    nonfinite_count: int
    nonfinite_names: tuple[str, ...]
    """NaN before Inf, in the model's order, at most ``MAX_NAMES``."""
    has_nan: bool


class GradientProbe:
    """Measures the gradients of one model's parameters."""

    def __init__(self, model: nn.Module) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.names = tuple(name for name, _ in named)
        self.parameters = tuple(p for _, p in named)

    def norms(self) -> Tensor:
        """[len(names)] float32 on the device: the L2 norm of each gradient, 0 where there is none."""
        gradients = [_dense(p.grad) for p in self.parameters]
        present = [g for g in gradients if g is not None]
        if not present:
            return torch.zeros(len(gradients), device=self.parameters[0].device if self.parameters else None)
        norms = torch.stack([n if n.dtype is torch.float32 else n.float() for n in _norms(present)])
        if len(present) == len(gradients):
            return norms
        full = norms.new_zeros(len(gradients))
        where = [i for i, g in enumerate(gradients) if g is not None]
        # Built on the host and copied without a wait: indices never come from the device.
        index = torch.tensor(where).to(norms.device, non_blocking=True)
        return full.index_copy_(0, index, norms)

    def health(self, norms: Sequence[float], scale: float) -> GradientHealth:
        """What ``norms``, measured on gradients multiplied by ``scale``, say on the host."""
        total = math.hypot(*norms) / scale if norms else 0.0
        if math.isfinite(total):
            return GradientHealth(total, 0, (), has_nan=False)
        nans = [name for name, norm in zip(self.names, norms, strict=True) if math.isnan(norm)]
        infs = [name for name, norm in zip(self.names, norms, strict=True) if math.isinf(norm)]
        # hypot answers inf for inf beside nan, as C does; a norm with a NaN in it is NaN here.
        worst = math.nan if nans else math.inf
        names = (*nans, *infs)
        return GradientHealth(worst, len(names), names[:MAX_NAMES], has_nan=bool(nans))


def _dense(gradient: Tensor | None) -> Tensor | None:
    """The values of a sparse gradient, which norms can be taken of."""
    if gradient is not None and gradient.is_sparse:
        return gradient.coalesce().values()
    return gradient


def _norms(gradients: list[Tensor]) -> Sequence[Tensor]:
    """The L2 norm of each tensor: fused kernels on CUDA, dot products on a CPU (half of a norm's time)."""
    if gradients[0].is_cuda:
        return torch._foreach_norm(gradients, 2)
    return [torch.dot(flat, flat).sqrt() for flat in (g.reshape(-1) for g in gradients)]
