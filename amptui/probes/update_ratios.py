"""How far one optimizer step moves each layer's weights, measured on copies of a part of them.

Of a layer it is |after - before| / |before|, L2 norms over its parameters. Whole weights are compared where
they are small, and evenly spaced parts of larger ones: no copy takes more than 8 MiB, 16 in float64. They are
copied just before a step and compared just after it. No step waits for the device; one that is not measured
pays nothing.
"""

import math
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from amptui.base.script_signals import is_from_signal_handler
from amptui.device.failure import explain
from amptui.device.readback import open_readback
from amptui.probes.budget import UPDATES_BUDGET, Cadence
from amptui.probes.gradients import in_memory_order, is_measurable, together
from amptui.records.findings import UpdatesMeasured
from amptui.records.run import Note, Record

GAP_STEPS = 20
"""Steps from one measurement to the next at least: a record takes about 1 KB of the journal."""

_CAPACITY = 8

MAX_LAYERS = 32
"""Layers that are measured: those with the most parameters that are trained."""

SAMPLE_ELEMENTS = 1 << 14
"""Elements compared of one parameter. Where weights and updates are normally distributed, the standard error
of each of both norms is 1 / sqrt(2 n): 0.6%. Where rows differ much, as in an embedding, it is a few percent.
"""

RUN_ELEMENTS = 16
"""Neighbours that are compared together, a line of a CPU's cache: single elements would load a line each."""

MAX_ELEMENTS = 1 << 21
"""Elements compared of all parameters together: a layer may have thousands."""

_DIGITS = 5
"""Significant digits in a record, which are as many bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class _Share:
    """The elements of one parameter that are compared."""

    parameter: Tensor
    layer: str
    interval: int
    """Elements in memory from the start of one run of ``RUN_ELEMENTS`` to the next; 0: all are compared."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    size: int
    """All elements of the parameter."""

    @property
    def length(self) -> int:
        """How many of them are compared."""
        return self.rows * RUN_ELEMENTS if self.interval else self.size

    @property
    def rows(self) -> int:
        """The length of :meth:`elements`."""
        return self.size // self.interval if self.interval else self.size

    def elements(self) -> Tensor:
        """Those that are compared, as they are now: [n], or of runs [n, ``RUN_ELEMENTS``]."""
        parameter = self.parameter
        if parameter.is_complex():
            parameter = torch.view_as_real(parameter.resolve_conj())
        if not parameter.is_contiguous():
            parameter = in_memory_order(parameter)
        # One call: a parameter of a small model takes longer to describe than to copy.
        if not self.interval:
            return parameter.as_strided((self.size,), (1,))
        return parameter.as_strided((self.rows, RUN_ELEMENTS), (self.interval, 1))

    @property
    def is_intact(self) -> bool:
        """Whether the step had a gradient for the parameter, and left its elements in the same order."""
        parameter = self.parameter
        has_order = parameter.shape == self.shape and parameter.stride() == self.strides
        return parameter.grad is not None and has_order


@dataclass(frozen=True, slots=True)
class Measured:
    """What the two norms of one parameter, of its change and of its weights, stand for."""

    layer: str
    weight: float
    """Elements that each compared one stands for."""


class WeightsBefore:
    """Copies of a part of the weights from before a step; :meth:`compare` afterwards, once."""

    def __init__(self, shares: Sequence[_Share]) -> None:
        groups: dict[tuple[object, ...], list[_Share]] = {}
        for share in shares:
            parameter, is_whole = share.parameter, not share.interval
            groups.setdefault((parameter.device, parameter.dtype, is_whole), []).append(share)
        self._groups = [(group, _joined(group)) for group in groups.values()]

    @torch.no_grad()
    def compare(self) -> tuple[Tensor, tuple[Measured, ...]]:
        """[2 n] float32 on the device: n norms of changes, then n of weights; and what they stand for.

        Parameters without a gradient, which no optimizer changes, are left out.
        """
        changes: list[Tensor] = []
        weights: list[Tensor] = []
        measured: list[Measured] = []
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
            measured += [Measured(share.layer, share.size / share.length) for share in intact]
        if not measured:
            return torch.zeros(0), ()
        device = changes[0].device
        return torch.stack([norm.float() for norm in together([*changes, *weights], device)]), tuple(measured)


class UpdateProbe:
    """Finds what to compare of the parameters of ``model``; holds none of them."""

    def __init__(self, model: nn.Module) -> None:
        # The module that owns a parameter; of those that the model itself owns, each is a layer.
        self._layers = {id(p): name.rpartition(".")[0] or name for name, p in model.named_parameters()}
        self._places = {layer: place for place, layer in enumerate(dict.fromkeys(self._layers.values()))}

    @torch.no_grad()
    def copy(self, optimizer: Optimizer) -> WeightsBefore:
        """Copy the weights that ``optimizer`` is about to change: a part of them, of its largest layers."""
        trained = [
            (self._layers[id(parameter)], parameter)
            for group in optimizer.param_groups
            for parameter in group["params"]
            if id(parameter) in self._layers and parameter.requires_grad and _is_plain(parameter)
        ]
        sizes: dict[str, int] = {}
        for layer, parameter in trained:
            sizes[layer] = sizes.get(layer, 0) + parameter.numel()
        largest = set(sorted(sizes, key=lambda layer: -sizes[layer])[:MAX_LAYERS])
        chosen = [(layer, parameter) for layer, parameter in trained if layer in largest]
        chosen.sort(key=lambda pair: self._places[pair[0]])  # the optimizer may have another order
        limit = max(RUN_ELEMENTS, min(SAMPLE_ELEMENTS, MAX_ELEMENTS // max(1, len(chosen))))
        return WeightsBefore([_share(layer, parameter, limit) for layer, parameter in chosen])


def record_of(row: Sequence[float], measured: Sequence[Measured], **fields: Any) -> UpdatesMeasured:
    """The record of a delivered ``row`` of :meth:`WeightsBefore.compare`; ``fields`` are the others.

    A layer whose weights are all zero has no ratio.
    """
    squares: dict[str, list[float]] = {}
    for item, change, weight in zip(measured, row[: len(measured)], row[len(measured) :], strict=True):
        sums = squares.setdefault(item.layer, [0.0, 0.0])
        sums[0] += item.weight * change * change
        sums[1] += item.weight * weight * weight
    sampled = {item.layer: None for item in measured if item.weight > 1.0}
    ratios = {layer: _ratio(change, weight) for layer, (change, weight) in squares.items() if weight != 0.0}
    return UpdatesMeasured(ratios=ratios, sampled=tuple(name for name in sampled if name in ratios), **fields)


def _ratio(change_squares: float, weight_squares: float) -> float:
    """Rounded to what a record holds; NaN where the weights hold NaN or Inf, before the step or after it."""
    ratio = math.sqrt(change_squares / weight_squares)
    is_finite = math.isfinite(change_squares) and math.isfinite(weight_squares)
    return float(f"{ratio:.{_DIGITS}g}") if is_finite else math.nan


def _is_plain(parameter: Tensor) -> bool:
    """Whether it is a tensor with its elements: no subclass, of which this process may have only a part."""
    return type(parameter) in (nn.Parameter, Tensor) and is_measurable(parameter)


def _share(layer: str, parameter: Tensor, limit: int) -> _Share:
    """At most ``limit`` elements of a parameter, which prefer no row or column."""
    size = parameter.numel() * (2 if parameter.is_complex() else 1)
    interval = -(-size // max(1, limit // RUN_ELEMENTS)) if size > limit else 0
    # Without a divisor in common with any of the sizes, runs begin at all places of all dimensions.
    while interval and math.gcd(interval, size) > 1 and interval < size:  # there is one run at least
        interval += 1
    return _Share(parameter, layer, interval, tuple(parameter.shape), parameter.stride(), size)


def _joined(shares: Sequence[_Share]) -> Tensor:
    """A copy of what is compared now, one after the other, wide enough for differences."""
    copied = torch.cat([share.elements() for share in shares])
    return copied if copied.dtype is torch.float64 else copied.float()


class UpdateRatios:
    """Measures the steps of one optimizer as often as ``UPDATES_BUDGET`` allows; the training thread's.

    ``optimizer``: under which name they are recorded.
    """

    def __init__(
        self, device: torch.device, emit: Callable[[Record], object], *, optimizer: str = ""
    ) -> None:
        self._device = device
        self._emit = emit
        self._optimizer = optimizer
        self._cadence = Cadence(UPDATES_BUDGET)
        self._probe: UpdateProbe | None = None
        self._newest_step = -GAP_STEPS
        self._before: WeightsBefore | None = None
        self._copy_seconds = 0.0
        self._readback = open_readback(device, clock=time.perf_counter, capacity=_CAPACITY)
        self._row_length = 0
        self._trouble = ""
        """Why the first measurement that failed did so, until that is emitted."""
        self._has_failed = False
        self.until = 1
        """The last step that is measured, as planned so far."""
        self.is_open = False
        """Whether the weights from before the step that is being made were copied."""

    def follow(self, model: nn.Module, *, enabled: bool) -> None:
        """Measure steps that change ``model`` from now on; not ``enabled``: none, as where it is sharded.

        A rank that has a part of the weights would have to meet the others in the middle of a step.
        """
        self._probe = UpdateProbe(model) if enabled else None
        self.forget()

    def forget(self) -> None:
        """Hold nothing of a step that was not completed: the copies, and with them the model."""
        self._before, self.is_open = None, False

    def look(self, step: int) -> None:
        """After ``step``: emit what has arrived, and plan whether to measure the next one."""
        self.drain()
        if self._probe is not None and step + 1 - self._newest_step >= GAP_STEPS and self._cadence.due():
            self.until = step + 1

    def copy(self, optimizer: Optimizer) -> None:
        """Copy the weights that ``optimizer`` is about to change."""
        self.forget()
        if self._probe is None:
            return
        began = time.perf_counter()
        with self._measuring():
            self._before, self.is_open = self._probe.copy(optimizer), True
            self._owner = weakref.ref(optimizer, lambda _optimizer: self.forget())  # gone within its step
        self._copy_seconds = time.perf_counter() - began
        if not self.is_open:
            self._cadence.charge_since(began)

    def measure(self, step: int, found_inf: Tensor | None) -> None:
        """Compare the weights after ``step``; ``found_inf`` is the scaler's, which skips it if not 0."""
        before, self._before, self.is_open = self._before, None, False
        if before is None:
            return
        began, self._newest_step = time.perf_counter(), step
        with self._measuring():
            row, measured = before.compare()
            if measured:
                self._push(row, measured, step, found_inf)
        self._cadence.charge_since(began - self._copy_seconds)

    def drain(self) -> None:
        """Emit what has arrived."""
        self._readback.drain()
        if self._trouble:
            self._emit(Note(time=time.time(), severity="warning", text=f"no update ratios: {self._trouble}"))
            self._trouble = ""

    def flush(self) -> None:
        """Emit everything; waits for the device."""
        self._readback.flush()
        self.drain()

    @contextmanager
    def _measuring(self) -> Iterator[None]:
        """Without the autocast that may be on here; an error, a lack of memory for example, ends no step."""
        kind = self._device.type
        try:
            # To enter a context of autocast would tell our own hooks that a forward pass begins.
            is_enabled = torch.is_autocast_enabled(kind)
            torch.set_autocast_enabled(kind, False)
            try:
                yield
            finally:
                torch.set_autocast_enabled(kind, is_enabled)
        except Exception as error:  # a tensor subclass may raise anything; the run must go on
            if is_from_signal_handler(error):
                raise
            if not self._has_failed:
                self._has_failed = True
                self._trouble = explain(error, doing="while updates were measured", batch_size=None).what

    def _push(self, row: Tensor, measured: tuple[Measured, ...], step: int, found_inf: Tensor | None) -> None:
        if len(row) > self._row_length:
            if self._row_length:
                # More is trained than before. To lengthen the ring would wait for what is under way.
                self._readback = open_readback(self._device, clock=time.perf_counter, capacity=_CAPACITY)
            self._row_length = len(row)

        def deliver(values: Sequence[float] | None, _seconds: float | None) -> None:
            if values is None or (found_inf_is_sent and values[-1]):
                return  # lost; or the scaler skipped the step, and there was no update
            norms = values[:-1] if found_inf_is_sent else values
            record = record_of(norms, measured, time=time.time(), step=step, optimizer=self._optimizer)
            if record.ratios:
                self._emit(record)

        found_inf_is_sent = found_inf is not None
        self._readback.push([row] if found_inf is None else [row, found_inf], deliver, timed=False)
