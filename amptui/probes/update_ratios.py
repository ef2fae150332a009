"""How far one optimizer step moves each layer's weights, measured on copies of a part of them.

Of a layer it is |after - before| / |before|, L2 norms over its parameters. Whole weights are compared where
they are small, and evenly spaced parts of larger ones: no copy takes more than 8 MiB, 16 in float64. They are
copied just before a step and compared just after it. No step waits for the device; one that is not measured
pays nothing.

It is no :class:`Probe`: those measure the passes of a step, this measures what the optimizer does with them.
"""

import math
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from amptui.probes.gradients import in_memory_order, is_measurable, together
from amptui.probes.probe import UPDATES_BUDGET, Cadence, Sender
from amptui.records.findings import UpdatesMeasured

GAP_STEPS = 20
"""Steps from one measurement to the next at least: a record takes about 1 KB of the journal."""

MAX_LAYERS = 32
"""Layers that are measured: those with the most parameters that are trained."""

SAMPLE_ELEMENTS = 1 << 12
"""Elements compared of one parameter: each of a large one loads a line of a CPU's cache. Where weights and
updates are normally distributed, the standard error of each of both norms is 1 / sqrt(2 n): 1.1%. Where rows
differ much, as in an embedding, it is a few percent.
"""

MAX_ELEMENTS = 1 << 21
"""Elements compared of all parameters together: a layer may have thousands."""

_DIGITS = 5
"""Significant digits in a record, which are as many bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class _Share:
    """The elements of one parameter that are compared: at most ``limit``, which prefer no row or column."""

    parameter: Tensor
    layer: str
    interval: int
    """Elements in memory from one that is compared to the next."""
    form: tuple[torch.Size, tuple[int, ...]]
    """Shape and strides of the parameter."""
    size: int
    """All elements of the parameter."""

    @classmethod
    def of(cls, layer: str, parameter: Tensor, limit: int) -> "_Share":
        size = parameter.numel() * (2 if parameter.is_complex() else 1)
        interval = -(-size // limit)
        # Without a divisor in common with any of the sizes, it comes to all places of all dimensions.
        while 1 < interval < size and math.gcd(interval, size) > 1:
            interval += 1
        return cls(parameter, layer, interval, (parameter.shape, parameter.stride()), size)

    @property
    def rows(self) -> int:
        """The length of :meth:`elements`."""
        return self.size // self.interval

    def elements(self) -> Tensor:
        """[n] those that are compared, as they are now."""
        parameter = self.parameter
        if parameter.is_complex():
            parameter = torch.view_as_real(parameter.resolve_conj())
        if not parameter.is_contiguous():
            parameter = in_memory_order(parameter)
        # One call: a parameter of a small model takes longer to describe than to copy.
        return parameter.as_strided((self.rows,), (self.interval,))

    @property
    def is_intact(self) -> bool:
        """Whether the step had a gradient for the parameter, and left its elements in the same order."""
        parameter = self.parameter
        return parameter.grad is not None and (parameter.shape, parameter.stride()) == self.form


def layer_names(model: nn.Module) -> dict[int, str]:
    """By the id of each parameter the module that owns it; of those of the model itself each is a layer."""
    return {id(p): name.rpartition(".")[0] or name for name, p in model.named_parameters()}


class WeightsBefore:
    """Copies of a part of the weights that ``optimizer`` is about to change, of its largest ``layers``.

    :meth:`compare` afterwards, once.
    """

    @torch.no_grad()
    def __init__(self, layers: Mapping[int, str], optimizer: Optimizer) -> None:
        trained = [
            (layers[id(parameter)], parameter)
            for group in optimizer.param_groups
            for parameter in group["params"]
            # No subclass, of which this process may have only a part.
            if id(parameter) in layers
            and parameter.requires_grad
            and type(parameter) in (nn.Parameter, Tensor)
            if is_measurable(parameter)
        ]
        sizes: dict[str, int] = {}
        for layer, parameter in trained:
            sizes[layer] = sizes.get(layer, 0) + parameter.numel()
        largest = set(sorted(sizes, key=lambda layer: -sizes[layer])[:MAX_LAYERS])
        chosen = [(layer, parameter) for layer, parameter in trained if layer in largest]
        places = {layer: place for place, layer in enumerate(dict.fromkeys(layers.values()))}
        chosen.sort(key=lambda pair: places[pair[0]])  # the optimizer may have another order
        limit = max(1, min(SAMPLE_ELEMENTS, MAX_ELEMENTS // max(1, len(chosen))))
        groups: dict[tuple[object, ...], list[_Share]] = {}
        for share in (_Share.of(layer, parameter, limit) for layer, parameter in chosen):
            groups.setdefault((share.parameter.device, share.parameter.dtype), []).append(share)
        self._groups = [(group, _joined(group)) for group in groups.values()]
        self._measured: list[tuple[str, float]] = []
        """For each norm in a row its layer, and how many elements each compared one stands for."""

    @torch.no_grad()
    def compare(self) -> Tensor | None:
        """[2 n] float32 on the device, for :meth:`record`: n norms of changes, then n of weights.

        Parameters without a gradient, which no optimizer changes, are left out; None if no other is there.
        """
        changes: list[Tensor] = []
        weights: list[Tensor] = []
        for group, before in self._groups:
            intact = [share for share in group if share.is_intact]
            if not intact:
                continue
            old = before
            if len(intact) < len(group):
                parts = zip(group, before.split([share.rows for share in group]), strict=True)
                old = torch.cat([part for share, part in parts if share in intact])
            rows = [share.rows for share in intact]
            changes += torch._foreach_norm((_joined(intact) - old).split(rows), 2)
            weights += torch._foreach_norm(old.split(rows), 2)
            self._measured += [(share.layer, share.size / share.rows) for share in intact]
        self._groups = []  # a row may arrive after the model is gone
        if not changes:
            return None
        return torch.stack([norm.float() for norm in together([*changes, *weights], changes[0].device)])

    def record(self, row: Sequence[float], **fields: Any) -> UpdatesMeasured:
        """The record of a delivered ``row`` of :meth:`compare`; ``fields`` are the others.

        A layer whose weights are all zero has no ratio; where they hold NaN or Inf, before the step or after
        it, it is NaN.
        """
        squares: dict[str, list[float]] = {}
        count = len(row) // 2
        for (layer, stands_for), change, weight in zip(self._measured, row[:count], row[count:], strict=True):
            sums = squares.setdefault(layer, [0.0, 0.0])
            sums[0] += stands_for * change * change
            sums[1] += stands_for * weight * weight
        ratios = {
            layer: float(f"{math.sqrt(change / weight):.{_DIGITS}g}")
            if math.isfinite(change) and math.isfinite(weight)
            else math.nan
            for layer, (change, weight) in squares.items()
            if weight != 0.0
        }
        return UpdatesMeasured(ratios=ratios, **fields)


def _joined(shares: Sequence[_Share]) -> Tensor:
    """A copy of what is compared now, one after the other, wide enough for differences."""
    copied = torch.cat([share.elements() for share in shares])
    return copied if copied.dtype is torch.float64 else copied.float()


class UpdateRatios:
    """Measures the steps of one ``optimizer``, by its name, as often as ``UPDATES_BUDGET`` allows."""

    def __init__(self, sender: Sender, optimizer: str) -> None:
        self._sender, self._optimizer = sender, optimizer
        self._cadence = Cadence(UPDATES_BUDGET)
        self._layers: dict[int, str] | None = None
        self._newest_step = -GAP_STEPS
        self._before: WeightsBefore | None = None
        self._copy_seconds = 0.0
        self.until = 1
        """The last step that is measured, as planned so far."""

    def follow(self, model: nn.Module, *, enabled: bool) -> None:
        """Measure steps that change ``model`` from now on; not ``enabled``: none, as where it is sharded.

        A rank that has a part of the weights would have to meet the others in the middle of a step.
        """
        self._layers = layer_names(model) if enabled else None
        self.forget()

    def forget(self) -> None:
        """Hold nothing of a step that was not completed: the copies, and with them the model."""
        self._before = None

    def plan(self, step: int) -> None:
        """After ``step``: decide whether to measure the next one."""
        if self._layers is not None and step + 1 - self._newest_step >= GAP_STEPS and self._cadence.due():
            self.until = step + 1

    def copy(self, optimizer: Optimizer) -> None:
        """Copy the weights that ``optimizer`` is about to change."""
        self.forget()
        if self._layers is None:
            return
        began = time.perf_counter()
        with self._sender.suppress_errors("update ratios"):
            self._before = WeightsBefore(self._layers, optimizer)
            self._owner = weakref.ref(optimizer, lambda _optimizer: self.forget())  # gone within its step
        self._copy_seconds = time.perf_counter() - began
        if self._before is None:
            self._cadence.charge_since(began)

    def measure(self, step: int, found_inf: Tensor | None) -> None:
        """Compare the weights after ``step``; ``found_inf`` is the scaler's, which skips it if not 0."""
        before, self._before = self._before, None
        if before is None:
            return

        def deliver(norms: Sequence[float] | None, was_skipped: float | None, _seconds: float | None) -> None:
            if norms is not None and not was_skipped:  # a step that was skipped has no update
                record = before.record(norms, time=time.time(), step=step, optimizer=self._optimizer)
                if record.ratios:
                    self._sender.emit(record)

        began, self._newest_step = time.perf_counter(), step
        with self._sender.suppress_errors("update ratios"):
            row = before.compare()
            if row is not None:
                self._sender.push(row, found_inf, deliver)
        self._cadence.charge_since(began - self._copy_seconds)
