"""Measures the gradients of a sharded model: each rank its own part, and then all ranks together.

Each method is a collective operation: all ranks call it in the same steps. None gathers a whole gradient.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from amptui.engine.probes.gradients import GradientProbe, local_part
from amptui.ranks.parallel.all_gather import all_gather


class ShardedGradients(GradientProbe):
    """Rows and norms of the global gradient, the same on all ``ranks``; no host waits for a GPU.

    A rank that cannot measure its part, for lack of memory say, raises the error after it has told the
    others, whose results are then negative.
    """

    together = True

    def __init__(self, model: nn.Module, ranks: int) -> None:
        super().__init__(model)
        self._ranks = ranks
        self._device = next((p.device for p in self.parameters), torch.device("cpu"))

    @torch.no_grad()
    def measure(self) -> Tensor:
        """One float32 row of 1 + n values, for :meth:`health`: the norm, and the largest of n parameters."""
        length, error = 1 + len(self.parameters), None
        try:
            own = super().measure()
            own = functional.pad(own, (0, length - len(own)))
        except Exception as failed:  # noqa: BLE001 - the others wait for this rank
            own, error = torch.full((length,), -1.0, device=self._device), failed
        rows = self._gather(own)
        if error is not None:
            raise error
        norms = rows[:, 0]
        norm = torch.linalg.vector_norm(norms, dtype=torch.float64).float()
        norm = torch.where((norms < 0).any(), -1.0, norm)
        return torch.cat([norm.reshape(1), rows[:, 1:].amax(0)])

    @torch.no_grad()
    def total_norm(self) -> Tensor:
        """The L2 norm of all gradients; local squares are summed in float64."""
        found = [p.grad for p in self.parameters if p.grad is not None]
        norm = nn.utils.get_total_norm([local_part(each) for each in found])
        squares = norm.double().square()
        dist.all_reduce(squares)
        return squares.sqrt().to(norm.dtype)

    def sum_of_counts(self, count: Callable[[], Tensor], length: int) -> Tensor:
        error = None
        try:
            counts = count()
        except Exception as failed:  # noqa: BLE001 - the others wait for this rank
            counts, error = torch.full((length,), -torch.inf, device=self._device), failed
        dist.all_reduce(counts)
        if error is not None:
            raise error
        return counts

    def largest_anywhere(self, largest: Tensor) -> Tensor:
        return self._gather(largest.double()).amax(0)  # not all ranks may have a part in float64

    def _gather(self, row: Tensor) -> Tensor:
        """[ranks, n]: everybody's row. A reduction by NCCL or gloo may lose a NaN, one here does not."""
        everybody = row.new_empty(self._ranks * len(row))
        all_gather(everybody, row.contiguous())
        return everybody.view(self._ranks, -1)
