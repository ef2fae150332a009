"""NaN and Inf in a model's buffers: statistics that a forward pass spoils for good, where no scaler looks."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from amptui.engine.probes.gradients import MAX_NAMES, SMALL_ELEMENTS, dense_elements, together
from amptui.engine.probes.module_trace import is_measurable, largest_absolute
from amptui.records import NonFinite, NonFiniteKind


class BufferWatch:
    """NaN and Inf in a model's floating-point buffers (BatchNorm statistics), which GradScaler never checks.

    A buffer that holds Inf when the watch is made is meant to, as an attention mask is, and Inf in it is no
    finding; NaN never is meant. Making a watch waits for the device, measuring does not.
    """

    def __init__(self, model: nn.Module) -> None:
        named = [(name, b) for name, b in model.named_buffers() if b.is_floating_point() or b.is_complex()]
        self.names = tuple(name for name, _ in named)
        """The buffers watched, in the model's order."""
        split = [name.rpartition(".") for name in self.names]
        self._places = [(model.get_submodule(path), key) for path, _, key in split]
        self._bad: dict[str, NonFiniteKind] = {}
        initial = zip(self.names, self.measure().tolist(), strict=True)
        self._infinite_by_design = {name for name, largest in initial if math.isinf(largest)}

    @torch.no_grad()
    def measure(self) -> Tensor:
        """One float32 row on the buffers' device, for :meth:`found`: a value for each of ``names``.

        NaN or Inf where the buffer holds one; what a finite value is has no meaning. Empty without buffers.
        """
        # Looked up each time: a module may assign a new tensor to a buffer rather than write into it.
        buffers = [_elements(getattr(module, key, None)) for module, key in self._places]
        present = [elements for elements in buffers if elements is not None]
        if present and present[0].is_cuda:
            return _measure_fused(buffers, present)
        if _all_finite(present):
            return torch.zeros(len(buffers))
        return torch.stack([torch.zeros(()) if b is None else largest_absolute(b) for b in buffers])

    def found(self, row: Sequence[float], *, time: float, step: int) -> NonFinite | None:
        """All buffers that hold NaN or Inf by a delivered ``row``; None if none is new since the row before.

        ``time`` is Unix seconds. NaN comes before Inf, at most ``MAX_NAMES`` are named.
        """
        bad: dict[str, NonFiniteKind] = {}
        for name, largest in zip(self.names, row, strict=True):
            if math.isnan(largest):
                bad[name] = "nan"
            elif math.isinf(largest) and name not in self._infinite_by_design:
                bad[name] = "inf"
        before, self._bad = self._bad, bad
        if bad.keys() <= before.keys():
            return None
        worst = sorted(bad, key=lambda name: bad[name] == "inf")[:MAX_NAMES]
        kinds = tuple(bad[name] for name in worst)
        return NonFinite(
            time=time,
            step=step,
            what="buffer",
            kind=kinds[0],
            names=tuple(worst),
            count=len(bad),
            kinds=kinds,
        )


def _elements(buffer: Tensor | None) -> Tensor | None:
    return dense_elements(buffer) if buffer is not None and is_measurable(buffer) else None


def _measure_fused(buffers: Sequence[Tensor | None], present: list[Tensor]) -> Tensor:
    """The row of buffers on CUDA: a few kernels for all of them, nothing waited for."""
    dtype = torch.float64 if any(b.dtype is torch.float64 for b in present) else torch.float32
    device = present[0].device
    measured = iter(together(torch._foreach_norm(present, math.inf, dtype=dtype), device))
    absent = torch.zeros((), dtype=dtype, device=device)
    return torch.stack([absent if b is None else next(measured) for b in buffers]).float()


def _all_finite(present: Sequence[Tensor]) -> bool:
    """Whether all elements on a CPU are: one look at the small buffers together, which are nearly all."""
    small = [elements for elements in present if elements.numel() < SMALL_ELEMENTS]
    together = [elements for elements in present if elements.numel() >= SMALL_ELEMENTS]
    if small:
        together.append(torch._utils._flatten_dense_tensors(small))
    return all(math.isfinite(largest_absolute(elements).item()) for elements in together)
