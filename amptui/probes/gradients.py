"""The norm of all gradients, their largest absolute value, and which of them hold NaN or Inf.

Two operators, on CUDA fused kernels, compute the L2 norm and the largest absolute value of every gradient.
The host finds NaN and Inf in the row that it receives later.

Their norms are no :class:`Probe`: they are numbers of the step itself, which also asks for them when it has
found an overflow.
"""

import math
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from amptui.device.accelerator import capabilities
from amptui.device.readback import MAX_STEPS_BETWEEN_LOOKS
from amptui.probes.probe import GRADIENTS_BUDGET, Cadence
from amptui.recipe.sharding import local_part
from amptui.records.run import NonFiniteKind

MAX_NAMES = 8
"""Parameters named in one record; the rest are only counted."""

SEARCH_STEPS = 20
"""Scaled steps until GradScaler has found its scale: from 65,536 that takes fewer skips than this."""

STEPS_AFTER_TROUBLE = 5
"""Steps whose gradients are measured after a skip or a growth of the scale: if another skip follows soon, it
is within these."""


@dataclass(frozen=True, slots=True)
class GradientHealth:
    """The gradients of one step; None for what was not measured."""

    norm: float
    """L2 over all gradients, unscaled: NaN if any holds NaN, else Inf if any holds Inf, or if squares
    overflow float32, from values of 1.8e19 on."""
    largest: float | None
    """The largest absolute value, unscaled: NaN if any gradient holds NaN, else Inf if any holds Inf."""
    nonfinite_count: int | None
    nonfinite_names: tuple[str, ...]
    """NaN before Inf, in the model's order, at most ``MAX_NAMES``."""
    nonfinite_kinds: tuple[NonFiniteKind, ...]
    """For each of ``nonfinite_names``: ``nan``, or ``inf`` if it holds Inf and no NaN."""


class GradientProbe:
    """Measures the gradients of the parameters of ``model`` that are trained.

    If ``owner`` is an optimizer, those that it changes.

    A row holds the L2 norm of all gradients, then one largest absolute value per parameter, in the model's
    order. A value beyond float32's range counts as Inf. The parameters are held for no longer than ``owner``
    lives, if there is one.
    """

    together: ClassVar[bool] = False
    """Whether each process has only a part of the gradients, so that all have to measure in the same
    steps."""

    def __init__(self, model: nn.Module, owner: object = None) -> None:
        parameters = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if isinstance(owner, Optimizer):
            ids = {id(p) for group in owner.param_groups for p in group["params"]}
            parameters = [(name, p) for name, p in parameters if id(p) in ids]
        self.names = tuple(name for name, _ in parameters)
        self.parameters = tuple(p for _, p in parameters)
        """Those that are measured."""
        self._owner = weakref.ref(self if owner is None else owner, self._forget)

    def _forget(self, _owner: object) -> None:
        self.parameters = ()

    @torch.no_grad()
    def measure(self) -> Tensor:
        """One float32 row on the gradients' device, for :meth:`health`."""
        parameters = self.parameters
        gradients = [dense_elements(p.grad) for p in parameters]
        present = [g for g in gradients if g is not None]
        if not present:
            device = parameters[0].device if parameters else None
            return torch.zeros(1 + len(gradients), device=device)
        norm = torch.linalg.vector_norm(torch.stack(norm_of_each(present, 2)))
        return row_with_gaps([norm, *norm_of_each(present, math.inf)], [norm, *gradients])

    def total_norm(self) -> Tensor:
        """The L2 norm of all gradients as ``torch.nn.utils.clip_grad_norm_`` measures it, bit for bit."""
        return nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])

    def sum_of_counts(self, count: Callable[[], Tensor], length: int) -> Tensor:  # noqa: ARG002
        """[length] what ``count`` returns, summed over all processes that have a part of the gradients."""
        return count()

    def largest_anywhere(self, largest: Tensor) -> Tensor:
        """[n] each of the ``largest`` values as the largest over all processes."""
        return largest

    def health(self, row: Sequence[float], scale: float) -> GradientHealth:
        """Interpret a delivered ``row`` of gradients that were multiplied by ``scale``."""
        norm, *largest = row
        if math.isfinite(sum(largest)):
            return GradientHealth(norm / scale, max(largest, default=0.0) / scale, 0, (), ())
        pairs = list(zip(self.names, largest, strict=True))
        nans: list[tuple[str, NonFiniteKind]] = [(name, "nan") for name, value in pairs if math.isnan(value)]
        infs: list[tuple[str, NonFiniteKind]] = [(name, "inf") for name, value in pairs if math.isinf(value)]
        names, kinds = zip(*(nans + infs)[:MAX_NAMES], strict=True)
        worst = math.nan if nans else math.inf
        return GradientHealth(worst, worst, len(nans) + len(infs), names, kinds)


class GradientNorms:
    """Measures a model's gradients as often as ``GRADIENTS_BUDGET`` allows, and in the steps after trouble.

    Without ``enabled`` only what a step itself has to know is measured.
    """

    def __init__(
        self,
        device: torch.device,
        suppress_errors: Callable[[str], AbstractContextManager[object]],
        probe: GradientProbe | None = None,
        *,
        enabled: bool = True,
    ) -> None:
        self._suppress_errors = suppress_errors
        """Of a measurement by its name, without autocast: the step has no norm then."""
        self._enabled = enabled
        self._foresees = enabled and capabilities(device).timed_events
        """Whether to measure before a skip is known: on a GPU the gradients are gone by then."""
        self._is_sharded = False
        self._cadence = Cadence(GRADIENTS_BUDGET)
        self._known_trouble = 0
        self._next_growth: int | None = None
        self.until = int(enabled)
        """The last step whose gradients are measured, as planned so far."""
        self.scaled_steps = 0
        """Steps made with a loss scaler."""
        self.probe = GradientProbe(nn.Module()) if probe is None else probe

    def follow(self, model: nn.Module, owner: object, *, is_sharded: bool) -> None:
        """Measure the gradients of ``model`` from now on; ``is_sharded``: only a part of them is here.

        Once ``owner``, the optimizer, is gone, nothing of the model is held.
        """
        self.probe, self._is_sharded = GradientProbe(model, owner), is_sharded

    def are_due(self, step: int, *, is_scaled: bool) -> bool:
        """Whether to measure after a backward pass of the step that follows ``step``."""
        if is_scaled and self._foresees and self.scaled_steps < SEARCH_STEPS:
            self.until = max(self.until, step + SEARCH_STEPS - self.scaled_steps)
        return step < self.until

    def plan(self, step: int, trouble_step: int, next_growth: int | None = None) -> int:
        """After ``step``: decide how long to measure; return after how many steps to look again.

        ``trouble_step`` is the newest that was not finite. ``next_growth``: after which step the loss scale
        will grow, if no step before it is skipped; None if there is no scale, or it is not known.
        """
        if not self._enabled:
            return MAX_STEPS_BETWEEN_LOOKS
        if trouble_step > self._known_trouble:
            self._known_trouble = trouble_step
            self.until = step + STEPS_AFTER_TROUBLE
        elif self._cadence.due():
            self.until = max(self.until, step + 1)
        if not self._foresees:
            return MAX_STEPS_BETWEEN_LOOKS
        if self._next_growth is not None and self._next_growth <= step:
            self.until = max(self.until, self._next_growth + STEPS_AFTER_TROUBLE)
        self._next_growth = next_growth
        return MAX_STEPS_BETWEEN_LOOKS if next_growth is None else max(1, next_growth - step)

    def measure(self) -> Tensor | None:
        """One row of the probe's; None if that fails, or if ranks would have to measure it together."""
        began, row = time.perf_counter(), None
        with self._suppress_errors("gradient norms"):
            row = None if self._is_sharded else self.probe.measure()
        self._cadence.charge_since(began)
        return row


def dense_elements(tensor: Tensor | None) -> Tensor | None:
    """The elements that a tensor stores here, real and strided; None if there are none.

    Of a tensor that is divided among several processes these are this one's. Of a sparse tensor they are its
    coalesced values, for which CUDA makes the host wait.
    """
    if tensor is None:
        return None
    tensor = local_part(tensor)
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor if tensor.numel() else None


def in_memory_order(values: Tensor) -> Tensor:
    """All elements in one dimension, in memory order; a copy only if they are not dense."""
    if values.is_contiguous():
        return values.view(-1)
    return values.permute(sorted(range(values.dim()), key=values.stride, reverse=True)).reshape(-1)


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
    if elements.is_cpu:  # ten times faster there
        least, most = torch.aminmax(in_memory_order(elements))
        return torch.maximum(-least, most).float()
    # One kernel. Without a dtype autocast would cast all elements to float32 first.
    wide = torch.float64 if elements.dtype is torch.float64 else torch.float32
    largest: Tensor = torch.linalg.vector_norm(elements, math.inf, dtype=wide)
    return largest.float()


def together(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """``tensors`` on one device: a model may be spread over several."""
    return [tensor if tensor.device == device else tensor.to(device, non_blocking=True) for tensor in tensors]


def norm_of_each(tensors: list[Tensor], order: float) -> list[Tensor]:
    """The norm of each tensor, 0-d, on the first one's device: a few kernels on CUDA, no wait.

    A CPU sums squares one by one, as in ``clip_grad_norm_``: of 16 million it is off by 6e-4 (measured).
    """
    if order == math.inf and tensors[0].is_cpu:
        return together([largest_absolute(tensor) for tensor in tensors], tensors[0].device)
    # A half-precision norm could overflow. float64 tensors cannot be reduced in float32.
    dtype = torch.float64 if any(tensor.dtype is torch.float64 for tensor in tensors) else torch.float32
    return together(torch._foreach_norm(tensors, order, dtype=dtype), tensors[0].device)


def row_with_gaps(values: Sequence[Tensor], tensors: Sequence[Tensor | None]) -> Tensor:
    """[n] float32: a value for each of n ``tensors``, 0 for those that are None."""
    rest, absent = iter(values), torch.zeros_like(values[0])
    return torch.stack([absent if tensor is None else next(rest) for tensor in tensors]).float()
