"""The float16 window: how many gradient elements float16 would flush to 0, hold as subnormals, or overflow.

Elements are counted by exponent, and the squares of those that underflow are summed, which says how much of
the gradient is lost. There is a bin for each exponent, split where a limit of float16 lies inside it. The
bits of non-negative float32 numbers, read as integers, have the same order as the numbers: one binary search
among integers finds an element's bin.
"""

import math
import struct
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from amptui.probes.gradients import GradientProbe, dense_elements, in_memory_order, together
from amptui.probes.probe import WINDOW_BUDGET, Answer, Cadence, Moment, Probe, Sender, answer_all
from amptui.records.findings import Float16Window, ParameterWindow, is_old

MAX_PARAMETERS = 8
"""Parameters named in one record."""

_MIN_EXPONENT, _MAX_EXPONENT = -60, 40
"""Exponents with a bin of their own; smaller and larger ones go into the first and the last."""

_SHOWN_MIN, _SHOWN_MAX = -30, 17
"""Exponents that each record has: float16's range and a little more, so that a histogram keeps its place."""

_SEGMENT_ELEMENTS = 1 << 22
"""Elements counted at once: float32 counts that far exactly, and temporaries take at most 48 MiB."""

_SMALL_ELEMENTS = 1 << 13
"""Smaller parameters are counted together."""

_GROUP_PARAMETERS = 64
"""Small parameters counted together: so many bins fit into the 48 KiB of shared memory of a CUDA block."""


def _bits(value: float) -> int:
    """A float32 read as an integer."""
    return int(struct.unpack("<i", struct.pack("<f", value))[0])


_NONZERO = 1
# IEEE 754 rounds to nearest, ties to even. The smallest float16 subnormal is 2^-24: half of it is a tie and
# becomes 0, everything above becomes a subnormal. The largest subnormal is 2^-14 - 2^-24: from halfway
# between it and 2^-14 on, the tie included, values become normal. The largest float16 is 65504: from 65520,
# halfway between it and 2^16, they become Inf.
_KEPT = _bits(2.0**-25) + 1
_NORMAL = _bits(2.0**-14 - 2.0**-25)
_OVERFLOWS = _bits(65520.0)
_NONFINITE = _bits(math.inf)
_LARGEST = _NONFINITE - 1
_LARGEST_FLUSHED = 2.0**-25
_BELOW_NORMAL = struct.unpack("<f", struct.pack("<i", _NORMAL - 1))[0]
_WITHIN_EXPONENT = (_NONZERO, _KEPT, _NORMAL, _OVERFLOWS)

_EDGES = (
    *sorted({*_WITHIN_EXPONENT, *(_bits(2.0**e) for e in range(_MIN_EXPONENT + 1, _MAX_EXPONENT + 1))}),
    _NONFINITE,
)
"""Where each bin begins; the bin of zeros comes before the first."""

_BINS = len(_EDGES) + 1
_FLUSHED = slice(1, _EDGES.index(_KEPT) + 1)
_SUBNORMAL = slice(_FLUSHED.stop, _EDGES.index(_NORMAL) + 1)
_OVERFLOWING = slice(_EDGES.index(_OVERFLOWS) + 1, _BINS - 1)
_EXPONENTS = tuple(max(_MIN_EXPONENT, (edge >> 23) - 127) for edge in _EDGES[:-1])
"""The exponent of each bin between zeros and non-finite values: float32 stores it, plus 127, in bits 23 to
30."""

_SUMS = 3
"""Sums of squares of each segment: of flushed, of subnormal, and of all elements."""


class Float16WindowProbe:
    """Counts the gradient elements of each parameter by exponent.

    A segment is a small parameter, or a part of a large one. A row holds the bins of all
    segments, then the ``_SUMS`` of all segments. float64 gradients are rounded to float32 first.
    """

    def __init__(self, gradients: GradientProbe) -> None:
        self._gradients = gradients
        self._names = gradients.names
        small: dict[torch.device, list[int]] = {}
        large = list[int]()
        for number, parameter in enumerate(gradients.parameters):
            is_small = parameter.numel() < _SMALL_ELEMENTS
            (small.setdefault(parameter.device, []) if is_small else large).append(number)
        groups = [
            on_device[start : start + _GROUP_PARAMETERS]
            for on_device in small.values()
            for start in range(0, len(on_device), _GROUP_PARAMETERS)
        ]
        parameters = gradients.parameters
        self._groups = [[parameters[i] for i in group] for group in (*groups, *([i] for i in large))]
        self._owners = [i for group in groups for i in group]
        """The parameter of each segment."""
        self._owners += [i for i in large for _ in range(_segments(parameters[i]))]
        self.row_counts = len(self._owners) * _BINS
        """How many of a row's numbers are counts; they come first."""
        devices = dict.fromkeys(p.device for p in parameters)
        self._device = next(iter(devices), torch.device("cpu"))
        self._edges = {device: torch.tensor(_EDGES, dtype=torch.int32, device=device) for device in devices}

    @torch.no_grad()
    def measure(self, factor: float) -> Tensor:
        """One float32 row on the device: counts and squares of the gradients times ``factor``.

        ``factor`` is the loss scale, or 1.0 if the gradients are scaled already. Of a sharded model the row
        is summed over all ranks; its values are negative if one of them could not count.
        """
        length = self.row_counts + len(self._owners) * _SUMS
        return self._gradients.sum_of_counts(partial(self._count, factor), length)

    def _count(self, factor: float) -> Tensor:
        if not self._groups:
            return torch.zeros(0, device=self._device)
        counts, norms = list[Tensor](), list[Tensor]()
        for group in self._groups:
            elements = [dense_elements(p.grad) for p in group]
            flat = [None if values is None else in_memory_order(values) for values in elements]
            parts: list[list[Tensor | None]] = [flat]  # what is counted at once
            if len(group) == 1 and flat[0] is not None:
                parts = [[piece] for piece in flat[0].split(_SEGMENT_ELEMENTS)]
            # A sparse gradient leaves the last segments empty.
            missing = (1 if len(group) > 1 else _segments(group[0])) - len(parts)
            parts += [[None]] * missing
            for part in parts:
                part_counts, part_norms = self._count_segments(part, factor, group[0].device)
                counts.append(part_counts)
                norms.append(part_norms)
        rows = together([*counts, *norms], self._device)
        return torch.cat([*rows[: len(counts)], torch.cat(rows[len(counts) :]).square()])

    def _count_segments(
        self, segments: Sequence[Tensor | None], factor: float, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Counts and norms of flat gradients, one after the other; zeros for those that are None."""
        present = [(number, values) for number, values in enumerate(segments) if values is not None]
        bins = len(segments) * _BINS
        if not present:
            return torch.zeros(bins, device=device), torch.zeros(len(segments) * _SUMS, device=device)
        values = present[0][1] if len(present) == 1 else torch.cat([values for _, values in present])
        bits = _magnitudes(values.float(), factor)
        # The bin of each is how many edges it has reached.
        keys = torch.bucketize(bits, self._edges[device], right=True, out_int32=True)
        if len(segments) > 1:
            torch._foreach_add_(keys.split([len(g) for _, g in present]), [i * _BINS for i, _ in present])
        sizes = [0 if values is None else len(values) for values in segments]
        return count_keys(keys, bins), norms_of_each(bits, sizes)

    def record(self, row: Sequence[float], **fields: Any) -> Float16Window:
        """The record of a delivered ``row``; ``fields`` are those that the row does not hold."""
        counts = self._by_parameter(row[: self.row_counts], _BINS)
        sums = self._by_parameter(row[self.row_counts :], _SUMS)
        total = [math.fsum(column) for column in zip(*counts, strict=True)] or [0.0] * _BINS
        squares = [sum(column) for column in zip(*sums, strict=True)] or [0.0] * _SUMS
        first, exponents = _by_exponent(total)
        return Float16Window(
            first_exponent=first,
            counts=exponents,
            nonfinite=int(total[-1]),
            worst=_worst(
                ParameterWindow(name=name, **_counts(*own))
                for name, *own in zip(self._names, counts, sums, strict=True)
            ),
            **_counts(total, squares),
            **fields,
        )

    def _by_parameter(self, row: Sequence[float], width: int) -> list[Sequence[float]]:
        """Sum the segments of each parameter, ``width`` numbers each; in the model's order."""
        sums: list[Sequence[float]] = [()] * len(self._names)
        for number, owner in enumerate(self._owners):
            segment = row[number * width : (number + 1) * width]
            sums[owner] = [*map(float.__add__, sums[owner], segment)] if sums[owner] else segment
        return [parameter_sums or [0.0] * width for parameter_sums in sums]


class WindowProbe(Probe):
    """Measures a window as often as ``WINDOW_BUDGET`` allows, and at once if somebody asks for one.

    Without ``enabled`` only then.
    """

    what = "float16 window"

    def __init__(self, gradients: GradientProbe, sender: Sender, *, enabled: bool) -> None:
        self._counts = Float16WindowProbe(gradients)
        self._sender = sender
        self._enabled = enabled
        self._cadence = Cadence(WINDOW_BUDGET, free=1)
        self._newest: tuple[int, float, str, float] | None = None
        """Of the newest window: its step, time, precision and loss scale."""
        self._is_outdated = False
        self.answers: list[Answer] = []
        """For the requests of a window that was not measured yet."""

    def check_age(self, step: int, precision: str, scale: float) -> None:
        """Note whether the newest window is out of date for the step after ``step``, by ``is_old``."""
        if self._newest is not None:
            measured, _, measured_in, measured_scale = self._newest
            is_outdated = is_old(measured, measured_scale, now=step, scale_now=scale)
            self._is_outdated = is_outdated or measured_in != precision

    def is_due(self) -> bool:
        """Whether one was requested, or the budget allows it: to replace an old one it may be overdrawn."""
        is_urgent = self._is_outdated and self._cadence.may_borrow
        return bool(self.answers) or (self._enabled and (is_urgent or self._cadence.due()))

    def after_backward(self, moment: Moment) -> None:
        answers, self.answers = self.answers, []
        (step, precision, assumed_scale), before, now = moment, self._newest, time.perf_counter()
        steps_since, seconds_since = (None, None) if before is None else (step - before[0], now - before[1])

        def deliver(counts: Sequence[float] | None, scale: float | None, seconds: float | None) -> None:
            began = time.perf_counter()
            if counts is None:
                answer_all(answers, "its results were lost")
            else:
                with self._sender.suppress_errors(self.what, answers):
                    if counts and counts[0] < 0:
                        raise RuntimeError("another rank could not measure it")
                    window = self._counts.record(
                        counts,
                        time=time.time(),
                        step=step,
                        precision=precision.name,
                        loss_scale=assumed_scale if scale is None else scale,
                        hypothetical=scale is None,
                        seconds=seconds,
                        steps_since=steps_since,
                        seconds_since=seconds_since,
                    )
                    self._sender.emit(window)
                    # The host makes the record between two steps: charge its time like the device's.
                    seconds = None if seconds is None else seconds + time.perf_counter() - began
                    answer_all(answers, "")
            self._cadence.charge(seconds)

        with self._sender.suppress_errors(self.what, answers):
            self._newest, self._is_outdated = (step, now, precision.name, assumed_scale), False
            self._cadence.begin()
            self._sender.begin_interval()
            try:
                row = self._counts.measure(1.0 if precision.scales else assumed_scale)
            except Exception:
                self._cadence.charge(None)  # there may be memory for the next one
                raise
            self._sender.push(row, precision.scale, deliver, timed=True)


def norms_of_each(bits: Tensor, sizes: Sequence[int]) -> Tensor:
    """[len(sizes) * _SUMS] float32: the norms of the first ``sizes[0]`` elements, of the next, and so on.

    ``bits`` are those of non-negative float32 numbers. Where a segment holds NaN or Inf, its norms are NaN.
    Six operators; never waits.
    """
    magnitudes = bits.view(torch.float32)
    small = magnitudes - torch.threshold(magnitudes, _BELOW_NORMAL, 0.0)
    subnormal = torch.threshold(small, _LARGEST_FLUSHED, 0.0)
    small -= subnormal
    # A fused kernel sums blocks of 64 Ki, then these: in float32 the norm of 4 million is exact to 1e-6.
    pieces = zip(*(values.split(list(sizes)) for values in (small, subnormal, magnitudes)), strict=True)
    return torch.stack(torch._foreach_norm([part for piece in pieces for part in piece], 2))


def count_keys(keys: Tensor, bins: int) -> Tensor:
    """[bins] float32: how often each of 0 to ``bins`` - 1 is among the int32 ``keys``. Never waits."""
    if keys.is_cpu:
        return torch.bincount(keys, minlength=bins).float()
    if torch.are_deterministic_algorithms_enabled():  # torch refuses the kernel below, which is exact
        numbers = torch.arange(bins, dtype=keys.dtype, device=keys.device)
        up_to = torch.searchsorted(keys.sort().values, numbers, right=True)
        return up_to.diff(prepend=up_to.new_zeros(1)).float()
    # Unlike bincount, histc knows its range and need not ask the device. A key is the middle of its bin.
    return torch.histc(keys.float(), bins, -0.5, bins - 0.5)


def _segments(parameter: nn.Parameter) -> int:
    elements = parameter.numel() * (2 if parameter.is_complex() else 1)
    return -(-elements // _SEGMENT_ELEMENTS)


def _magnitudes(values: Tensor, factor: float) -> Tensor:
    """[n] int32: the bits of ``|values * factor|`` as float32.

    A product that leaves float32's range becomes the smallest or largest float32, so that only elements that
    were 0, NaN or Inf before are counted as such.
    """
    own = torch.abs(values).view(torch.int32)
    if factor == 1.0:
        return own
    bits = torch.mul(values, factor).abs_().view(torch.int32)
    least = torch.clamp(own, max=_NONZERO)
    return torch.clamp(bits, min=least, max=own.clamp_(min=_LARGEST), out=bits)


def _counts(counts: Sequence[float], sums: Sequence[float]) -> dict[str, Any]:
    """The fields of ``Float16Counts``."""
    # Beside NaN or Inf there is no norm.
    flushed, subnormal, squares = (None, None, None) if counts[-1] else sums
    return {
        "elements": int(sum(counts)),
        "zeros": int(counts[0]),
        "flushed": int(sum(counts[_FLUSHED])),
        "subnormal": int(sum(counts[_SUBNORMAL])),
        "overflowing": int(sum(counts[_OVERFLOWING])),
        "squares": squares,
        "flushed_squares": flushed,
        "subnormal_squares": subnormal,
    }


def _worst(parameters: Iterable[ParameterWindow]) -> tuple[ParameterWindow, ...]:
    """Parameters with overflows first, then those whose gradient loses the largest share of its norm."""

    def loss(p: ParameterWindow) -> tuple[float, float, float]:
        return p.overflowing / p.elements, round(p.underflowing_share or 0.0, 3), p.flushed / p.elements

    losing = [p for p in parameters if p.flushed or p.overflowing or p.subnormal]
    return tuple(sorted(losing, key=loss, reverse=True)[:MAX_PARAMETERS])


def _by_exponent(counts: Sequence[float]) -> tuple[int, tuple[int, ...]]:
    """The first exponent with a count, at most ``_SHOWN_MIN``, and the counts from there to the last one."""
    count_by_exponent = dict.fromkeys(range(_MIN_EXPONENT, _MAX_EXPONENT + 1), 0)
    for exponent, count in zip(_EXPONENTS, counts[1:-1], strict=True):
        count_by_exponent[exponent] += int(count)
    exponents = [exponent for exponent, count in count_by_exponent.items() if count]
    first, last = min([_SHOWN_MIN, *exponents]), max([_SHOWN_MAX, *exponents])
    return first, tuple(count_by_exponent[exponent] for exponent in range(first, last + 1))
