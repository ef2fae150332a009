"""The float16 window: how many gradient elements float16 would flush to 0, hold as subnormals, or overflow.

Elements are counted by exponent, and the squares of those that underflow are summed, which says how much of
the gradient is lost. There is a bin for each exponent, split where a limit of float16 lies inside it. The
bits of non-negative float32 numbers, read as integers, have the same order as the numbers: one binary search
among integers finds an element's bin.
"""

import math
import struct
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from amptui.probes.gradients import GradientProbe, dense_elements, in_memory_order, together
from amptui.records.findings import Float16Window, ParameterWindow

MAX_PARAMETERS = 8
"""Parameters named in one record."""

_MIN_EXPONENT, _MAX_EXPONENT = -60, 40
"""Exponents with a bin of their own; smaller and larger ones go into the first and the last."""

_SHOWN_MIN, _SHOWN_MAX = -30, 17
"""Exponents that each record has: float16's range and a little more, so that a histogram keeps its place."""

_SEGMENT_ELEMENTS = 1 << 22
"""Elements counted at once: float32 counts that far exactly, and temporaries take at most 48 MiB."""

_CHUNK_ELEMENTS = 1 << 18
"""The same for large gradients on a CPU, so that temporaries stay in its cache."""

_SMALL_ELEMENTS = 1 << 13
"""Smaller parameters are counted together; larger ones on a CPU by their upper halves, which is faster
then."""

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

_HALVES = 1 << 15
"""How many values the upper 16 bits of a non-negative float32 can have."""

_SUMS = 3
"""Sums of squares of each segment: of flushed, of subnormal, and of all elements."""


_Segments = tuple[list[Tensor], list[Tensor]]
"""Counts and norms of the same segments, as lists of tensors."""


class Float16WindowProbe:
    """Counts the gradient elements of each parameter by exponent.

    A segment is a small parameter, or up to ``_SEGMENT_ELEMENTS`` of a large one. A row holds the bins of all
    segments, then the ``_SUMS`` of all segments. float64 gradients are rounded to float32 first.
    """

    def __init__(self, gradients: GradientProbe) -> None:
        self._gradients = gradients
        self._names = gradients.names
        numbered = list(enumerate(gradients.parameters))
        small: dict[torch.device, list[tuple[int, nn.Parameter]]] = {}
        for i, parameter in numbered:
            if parameter.numel() < _SMALL_ELEMENTS:
                small.setdefault(parameter.device, []).append((i, parameter))
        groups = [
            on_device[start : start + _GROUP_PARAMETERS]
            for on_device in small.values()
            for start in range(0, len(on_device), _GROUP_PARAMETERS)
        ]
        self._groups = [[p for _, p in group] for group in groups]
        self._large = [(i, p) for i, p in numbered if p.numel() >= _SMALL_ELEMENTS]
        self._owners = [i for group in groups for i, _ in group]
        """The parameter of each segment."""
        self._owners += [i for i, p in self._large for _ in range(_segments(p))]
        self.row_counts = len(self._owners) * _BINS
        """How many of a row's numbers are counts; they come first."""
        devices = dict.fromkeys(p.device for p in gradients.parameters)
        self._device = next(iter(devices), torch.device("cpu"))
        self._edges = {device: torch.tensor(_EDGES, dtype=torch.int32, device=device) for device in devices}
        on_cpu = torch.device("cpu") in devices
        self._halves = _HalfCounter() if self._large and on_cpu else None

    @torch.no_grad()
    def measure(self, factor: float) -> Tensor:
        """One float32 row on the device: counts and squares of the gradients times ``factor``.

        ``factor`` is the loss scale, or 1.0 if the gradients are scaled already. Of a sharded model the row
        is summed over all ranks; its values are negative if one of them could not count.
        """
        length = self.row_counts + len(self._owners) * _SUMS
        return self._gradients.sum_of_counts(partial(self._count, factor), length)

    def _count(self, factor: float) -> Tensor:
        segments = [self._count_group(group, factor) for group in self._groups]
        segments += [self._count_large(parameter, factor) for _, parameter in self._large]
        if not segments:
            return torch.zeros(0, device=self._device)
        counts = together([row for rows, _ in segments for row in rows], self._device)
        norms = together([row for _, rows in segments for row in rows], self._device)
        return torch.cat([*counts, torch.cat(norms).square()])

    def record(self, row: Sequence[float], **fields: Any) -> Float16Window:
        """The record of a delivered ``row``; ``fields`` are those that the row does not hold."""
        counts = self._by_parameter(row[: self.row_counts], _BINS)
        sums = self._by_parameter(row[self.row_counts :], _SUMS)
        total = [math.fsum(column) for column in zip(*counts, strict=True)] or [0.0] * _BINS
        squares = [sum(column) for column in zip(*sums, strict=True)] or [0.0] * _SUMS
        whole = _parameter_window("", total, squares)
        first, exponents = _by_exponent(total)
        return Float16Window(
            first_exponent=first,
            counts=exponents,
            elements=whole.elements,
            zeros=whole.zeros,
            flushed=whole.flushed,
            subnormal=whole.subnormal,
            overflowing=whole.overflowing,
            nonfinite=int(total[-1]),
            worst=_worst(map(_parameter_window, self._names, counts, sums)),
            squares=whole.squares,
            flushed_squares=whole.flushed_squares,
            subnormal_squares=whole.subnormal_squares,
            **fields,
        )

    def _by_parameter(self, row: Sequence[float], width: int) -> list[Sequence[float]]:
        """Sum the segments of each parameter, ``width`` numbers each; in the model's order."""
        sums: list[Sequence[float]] = [()] * len(self._names)
        for number, owner in enumerate(self._owners):
            segment = row[number * width : (number + 1) * width]
            sums[owner] = [*map(float.__add__, sums[owner], segment)] if sums[owner] else segment
        return [parameter_sums or [0.0] * width for parameter_sums in sums]

    def _count_group(self, group: Sequence[nn.Parameter], factor: float) -> _Segments:
        """Count small parameters together: their segments follow each other in one tensor."""
        gradients = ((number, dense_elements(p.grad)) for number, p in enumerate(group))
        present = [(number, in_memory_order(g)) for number, g in gradients if g is not None]
        bins, device = len(group) * _BINS, group[0].device
        if not present:
            return [torch.zeros(bins, device=device)], [torch.zeros(len(group) * _SUMS, device=device)]
        bits = _magnitudes(torch.cat([g for _, g in present]).float(), factor)
        sizes = [0] * len(group)
        for number, gradient in present:
            sizes[number] = len(gradient)
        keys = self._binned(bits)
        torch._foreach_add_(keys.split([len(g) for _, g in present]), [i * _BINS for i, _ in present])
        if not bits.is_cpu:
            return [count_keys(keys, bins)], [norms_of_each(bits, sizes)]
        return [count_keys(keys, bins)], [_norms_by_bin(bits, keys, len(group))]

    def _count_large(self, parameter: nn.Parameter, factor: float) -> _Segments:
        """Count the segments of a large parameter; a sparse gradient leaves the last of them empty."""
        gradient = dense_elements(parameter.grad)
        pieces = () if gradient is None else in_memory_order(gradient).split(_SEGMENT_ELEMENTS)
        count = self._halves.count if self._halves and parameter.is_cpu else self._count_piece
        missing, device = _segments(parameter) - len(pieces), parameter.device
        segments = [count(piece, factor) for piece in pieces]
        if missing:
            segments.append(
                (torch.zeros(missing * _BINS, device=device), torch.zeros(missing * _SUMS, device=device))
            )
        return [counts for counts, _ in segments], [sums for _, sums in segments]

    def _count_piece(self, values: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        bits = _magnitudes(values.float(), factor)
        return count_keys(self._binned(bits), _BINS), norms_of_each(bits, [len(bits)])

    def _binned(self, bits: Tensor) -> Tensor:
        """[n] int32: the bin of each element."""
        return torch.bucketize(bits, self._edges[bits.device], right=True, out_int32=True)


class _HalfCounter:
    """Counts large gradients on a CPU by the upper 16 bits of each float32: much faster than a search.

    These are the exponent and 7 bits of the mantissa: enough for all bins but those that meet at one of the
    four edges inside an exponent. If elements have the same upper bits as such an edge, all elements are
    compared with it.
    """

    def __init__(self) -> None:
        halves = torch.arange(_HALVES, dtype=torch.int32)
        self._bins = torch.bucketize(halves << 16, torch.tensor(_EDGES, dtype=torch.int32), right=True)
        # Kept, because fresh memory from the system costs more than the computation.
        self._scratch = torch.empty(4, _CHUNK_ELEMENTS)

    def count(self, values: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        """[bins] and [_SUMS] float32 of [n] ``values`` times ``factor``: counts and norms."""
        counts = torch.zeros(_BINS, dtype=torch.int64)
        flushed = subnormal = squares = 0.0
        for chunk in values.split(_CHUNK_ELEMENTS):
            *scratch, spare = self._scratch[:, : len(chunk)]
            bits = _magnitudes(chunk.float(), factor, scratch)
            upper = torch.bitwise_right_shift(bits, 16, out=spare.view(torch.int32))
            halves = torch.bincount(upper, minlength=_HALVES)
            counts.index_add_(0, self._bins, halves)
            product = bits.view(torch.float32)
            squares += torch.dot(product, product).item()
            if halves[1 : (_NORMAL >> 16) + 1].any():  # often nothing is; the squares of half 0 are 0
                flushes = halves[1 : (_KEPT >> 16) + 1].any()
                small_squares = _squares_below(product, spare, scratch[2] if flushes else None)
                flushed, subnormal = flushed + small_squares[0], subnormal + small_squares[1]
            for edge in _WITHIN_EXPONENT:
                half = edge >> 16
                if halves[half]:
                    # The result is float because torch vectorizes that.
                    beyond = torch.ge(bits, edge, out=spare).sum().long() - halves[half + 1 :].sum()
                    above = _EDGES.index(edge) + 1
                    counts[above] += beyond
                    counts[above - 1] -= beyond
        return counts.float(), torch.tensor((flushed, subnormal, squares)).sqrt()


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


def _norms_by_bin(bits: Tensor, keys: Tensor, segments: int) -> Tensor:
    """:func:`norms_of_each` on a CPU, where a norm per parameter would be slower than sums by bin."""
    squares = bits.view(torch.float32).double().square_()
    by_bin = torch.bincount(keys, weights=squares, minlength=segments * _BINS).view(segments, _BINS)
    flushed, subnormal = by_bin[:, _FLUSHED].sum(1), by_bin[:, _SUBNORMAL].sum(1)
    return torch.stack([flushed, subnormal, by_bin.sum(1)], 1).sqrt().reshape(-1).float()


def _squares_below(magnitudes: Tensor, scratch: Tensor, other: Tensor | None) -> tuple[float, float]:
    """The sums of squares of flushed and of subnormal elements, on a CPU.

    Overwrites ``scratch`` and ``other``, which is None if nothing is flushed.
    """
    large = torch.threshold_(scratch.copy_(magnitudes), _BELOW_NORMAL, 0.0)
    small = torch.sub(magnitudes, large, out=scratch)
    if other is None:
        return 0.0, torch.dot(small, small).item()
    subnormal = torch.threshold_(other.copy_(small), _LARGEST_FLUSHED, 0.0)
    squares = torch.dot(subnormal, subnormal).item()
    flushed = torch.sub(small, subnormal, out=small)
    return torch.dot(flushed, flushed).item(), squares


def count_keys(keys: Tensor, bins: int) -> Tensor:
    """[bins] float32: how often each of 0 to ``bins`` - 1 is among the int32 ``keys``. Never waits."""
    if keys.is_cpu:
        return torch.bincount(keys, minlength=bins).float()
    if torch.are_deterministic_algorithms_enabled():
        return count_by_sorting(keys, bins)
    return count_in_kernel(keys, bins)


def count_in_kernel(keys: Tensor, bins: int) -> Tensor:
    """:func:`count_keys` in one kernel. The counts are exact, but torch refuses it in deterministic mode."""
    # Unlike bincount, histc knows its range and need not ask the device. A key is the middle of its bin.
    return torch.histc(keys.float(), bins, -0.5, bins - 0.5)


def count_by_sorting(keys: Tensor, bins: int) -> Tensor:
    """:func:`count_keys` with deterministic operators only."""
    numbers = torch.arange(bins, dtype=keys.dtype, device=keys.device)
    up_to = torch.searchsorted(keys.sort().values, numbers, right=True)
    return up_to.diff(prepend=up_to.new_zeros(1)).float()


def _segments(parameter: nn.Parameter) -> int:
    elements = parameter.numel() * (2 if parameter.is_complex() else 1)
    return -(-elements // _SEGMENT_ELEMENTS)


def _magnitudes(
    values: Tensor, factor: float, scratch: Iterable[Tensor | None] = (None, None, None)
) -> Tensor:
    """[n] int32: the bits of ``|values * factor|`` as float32; ``scratch`` holds three tensors of [n].

    A product that leaves float32's range becomes the smallest or largest float32, so that only elements that
    were 0, NaN or Inf before are counted as such.
    """
    product, own, least = scratch
    if factor == 1.0:
        return torch.abs(values, out=own).view(torch.int32)
    bits = torch.mul(values, factor, out=product).abs_().view(torch.int32)
    most = torch.abs(values, out=own).view(torch.int32)
    least = torch.clamp(most, max=_NONZERO, out=None if least is None else least.view(torch.int32))
    return torch.clamp(bits, min=least, max=most.clamp_(min=_LARGEST), out=bits)


def _parameter_window(name: str, counts: Sequence[float], sums: Sequence[float]) -> ParameterWindow:
    # Beside NaN or Inf there is no norm.
    flushed, subnormal, squares = (None, None, None) if counts[-1] else sums
    return ParameterWindow(
        name=name,
        elements=int(sum(counts)),
        zeros=int(counts[0]),
        flushed=int(sum(counts[_FLUSHED])),
        subnormal=int(sum(counts[_SUBNORMAL])),
        overflowing=int(sum(counts[_OVERFLOWING])),
        squares=squares,
        flushed_squares=flushed,
        subnormal_squares=subnormal,
    )


def _worst(parameters: Iterable[ParameterWindow]) -> tuple[ParameterWindow, ...]:
    """Parameters with overflows first, then those whose gradient loses the largest share of its norm."""
    losing = [p for p in parameters if p.flushed or p.overflowing or p.subnormal]
    losing.sort(
        key=lambda p: (p.overflowing / p.elements, _lost_share(p), p.flushed / p.elements), reverse=True
    )
    return tuple(losing[:MAX_PARAMETERS])


def _lost_share(parameter: ParameterWindow) -> float:
    """The part of a parameter's squares that underflows, from 0 to 1, rounded to thousandths."""
    if parameter.squares is None:
        return 0.0
    if not parameter.squares:
        return 1.0  # float32 cannot hold squares that small
    small = (parameter.flushed_squares or 0.0) + (parameter.subnormal_squares or 0.0)
    return round(small / parameter.squares, 3)


def _by_exponent(counts: Sequence[float]) -> tuple[int, tuple[int, ...]]:
    """The first exponent with a count, at most ``_SHOWN_MIN``, and the counts from there to the last one."""
    count_by_exponent = dict.fromkeys(range(_MIN_EXPONENT, _MAX_EXPONENT + 1), 0)
    for exponent, count in zip(_EXPONENTS, counts[1:-1], strict=True):
        count_by_exponent[exponent] += int(count)
    exponents = [exponent for exponent, count in count_by_exponent.items() if count]
    first, last = min([_SHOWN_MIN, *exponents]), max([_SHOWN_MAX, *exponents])
    return first, tuple(count_by_exponent[exponent] for exponent in range(first, last + 1))
