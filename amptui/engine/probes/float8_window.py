"""Where the factors of float8 products, inputs, weights and output gradients, lie in float8's range."""

import math
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial, reduce
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from amptui.base.script_signals import is_from_signal_handler
from amptui.device.accelerator import capabilities
from amptui.engine.failure import explain
from amptui.engine.float8 import Float8Linears
from amptui.engine.probes.float16_window import count_keys
from amptui.records.findings import Float8Factor, Float8Format, Float8LayerWindow, Float8Role, Float8Window

_NUMBERS = 10
"""Of each factor, in the order of the fields of :class:`Float8Factor` from ``zeros`` on."""

_MIN_EXPONENT, _MAX_EXPONENT = -42, 16
"""Exponents with a bin of their own: E5M2's range with room to see how far below it numbers lie."""

_BINS = _MAX_EXPONENT - _MIN_EXPONENT + 1

_ROW = _NUMBERS + _BINS
"""The numbers of a factor."""

_PIECE = 1 << 22
"""Elements counted at once: float32 counts that far exactly, and temporaries stay small."""

MAX_COUNTED_LAYERS = 64
"""Layers of a record with counts by exponent, those with the largest errors: a factor's counts take some 60
to 250 bytes of a journal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The numbers of a float8 type (Micikevicius et al., "FP8 Formats for Deep Learning", 2022, table 1)."""

    dtype: torch.dtype
    smallest_normal: float
    largest: float
    saturates_above: float
    """Larger ones round to more than ``largest``: halfway to what would be the next number."""


RANGES: dict[Float8Format, Range] = {
    "e4m3": Range(dtype=torch.float8_e4m3fn, smallest_normal=2.0**-6, largest=448.0, saturates_above=464.0),
    "e5m2": Range(
        dtype=torch.float8_e5m2, smallest_normal=2.0**-14, largest=57344.0, saturates_above=61439.99
    ),
}


@torch.no_grad()
def factor_numbers(factor: Tensor, scale: Tensor, format_: Float8Format) -> Tensor:
    """[_ROW] float32 for a ``factor`` [..., channels] that is multiplied by ``scale`` and rounded.

    Zeros, flushed, subnormal and saturated elements are fractions of all; errors are |rounded - exact| by
    |exact|, of the whole and of the median channel; then the ends of the scale, the channel with the largest
    absolute value, and that by the median channel's; then the counts by exponent. Does not wait for the
    device, except for one that has no float64: there the host computes them. Temporaries are as large as a
    piece of the factor.
    """
    if not capabilities(factor.device).float64:
        factor, scale = factor.cpu(), scale.cpu()
    elements = factor.detach().reshape(-1, factor.shape[-1])
    scales = scale.expand(factor.shape).reshape(elements.shape) if scale.dim() else scale.expand_as(elements)
    rows = max(1, _PIECE // elements.shape[-1])
    pieces = zip(elements.split(rows), scales.split(rows), strict=True)
    sums = reduce(_Sums.plus, (_sums_of(piece.float(), own, RANGES[format_]) for piece, own in pieces))
    peaks = sums.peaks
    numbers = (
        (sums.error_squares.sum() / sums.squares.sum()).sqrt(),
        _nanmedian((sums.error_squares / sums.squares).sqrt()),  # of channels that are not all zero
        scale.amin(),
        scale.amax(),
        peaks.argmax(),
        peaks.amax() / _nanmedian(peaks.where(peaks > 0, math.nan)),
    )
    shares = (sums.kinds.double() / elements.numel()).float()
    return torch.cat([shares, torch.stack([number.float() for number in numbers]), sums.counts])


class _Sums(NamedTuple):
    """Of some rows of a factor."""

    kinds: Tensor
    """[4] int64: zeros, flushed, subnormal and saturated elements."""
    error_squares: Tensor
    """[channels] float64, like ``squares``: of |rounded - exact|."""
    squares: Tensor
    peaks: Tensor
    """[channels] float32: the largest absolute values."""
    counts: Tensor
    """[_BINS] float32: how many elements have each exponent once scaled; NaN and Inf are left out."""

    def plus(self, other: "_Sums") -> "_Sums":
        return _Sums(
            kinds=self.kinds + other.kinds,
            error_squares=self.error_squares + other.error_squares,
            squares=self.squares + other.squares,
            peaks=self.peaks.maximum(other.peaks),
            counts=self.counts + other.counts,
        )


def _sums_of(exact: Tensor, scale: Tensor, number_range: Range) -> _Sums:
    scaled, is_zero = exact * scale, exact == 0
    rounded = scaled.clamp(-number_range.largest, number_range.largest).to(number_range.dtype).float()
    sizes = rounded.abs()
    kinds = (
        is_zero,
        (sizes == 0) & ~is_zero,
        (sizes > 0) & (sizes < number_range.smallest_normal),
        scaled.abs() > number_range.saturates_above,
    )
    return _Sums(
        kinds=torch.stack([kind.sum() for kind in kinds]),
        error_squares=(rounded / scale - exact).double().square().sum(0),
        squares=exact.double().square().sum(0),
        peaks=exact.abs().amax(0),
        counts=_count_exponents(scaled.flatten(), is_zero.flatten()),
    )


def _nanmedian(values: Tensor) -> Tensor:
    """The same as torch's, which waits for a GPU to count NaN; of nothing else NaN."""
    ordered = values.sort().values  # NaN last
    middle = ((~ordered.isnan()).sum() - 1).clamp_(min=0) >> 1
    return ordered.gather(0, middle.reshape(1))[0]


def _count_exponents(scaled: Tensor, is_zero: Tensor) -> Tensor:
    exponents = (scaled.abs().view(torch.int32) >> 23) - 127
    # Bin 0 is of zeros and the last of NaN and Inf: neither is kept.
    keys = exponents.clamp(_MIN_EXPONENT, _MAX_EXPONENT).sub_(_MIN_EXPONENT - 1)
    keys = keys.masked_fill_(is_zero, 0).masked_fill_(exponents == 128, _BINS + 1)
    return count_keys(keys, _BINS + 2)[1:-1]


def _mark(device: torch.device) -> torch.Event | None:
    """An event where the device's work is now; None on a device that times none."""
    if not capabilities(device).timed_events:
        return None
    event = torch.Event(device, enable_timing=True)
    event.record(torch.accelerator.current_stream(device.index))
    return event


def _bounded(layers: Iterable[Float8LayerWindow]) -> tuple[Float8LayerWindow, ...]:
    """``layers`` with counts by exponent in the ``MAX_COUNTED_LAYERS`` of the largest errors only."""
    windows = tuple(layers)
    counted = sorted(windows, key=_largest_error, reverse=True)[:MAX_COUNTED_LAYERS]
    names = {layer.name for layer in counted}
    return tuple(layer if layer.name in names else _without_counts(layer) for layer in windows)


def _largest_error(layer: Float8LayerWindow) -> float:
    errors = [factor.channel_error for factor in layer.factors if factor.zeros < 1.0]
    return max((math.inf if math.isnan(error) else error for error in errors), default=0.0)


def _without_counts(layer: Float8LayerWindow) -> Float8LayerWindow:
    factors = (replace(factor, first_exponent=None, counts=()) for factor in layer.factors)
    return replace(layer, factors=tuple(factors))


class Float8WindowProbe:
    """Hooks on all float8 layers for one step: their factors, as the first call of each has them.

    A context manager, used once, around the forward and backward pass. The scales are those that torchao's
    recipe computes. It changes no loss and no gradient; compiled models run eagerly meanwhile.
    """

    def __init__(self, linears: Float8Linears) -> None:
        self._linears = linears
        self._hooks = ExitStack()
        self._measured: dict[tuple[str, Float8Role], tuple[Float8Format, int, Tensor]] = {}
        self._seconds: list[float] = []
        self._marks: list[tuple[torch.Event, torch.Event]] = []
        """On a GPU: before and after each measurement."""
        self.trouble: Exception | None = None
        """Why a factor could not be measured, if so: a lack of memory, for example."""

    def __enter__(self) -> "Float8WindowProbe":
        self._hooks.enter_context(torch.compiler.set_stance("force_eager"))
        for name, linear in self._linears.linears.items():
            self._hooks.callback(linear.register_forward_hook(partial(self._see_call, name)).remove)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hooks.close()

    @property
    def seconds(self) -> float:
        """The host's, spent on measuring."""
        return sum(self._seconds)

    @property
    def device_seconds(self) -> float:
        """The device's, 0.0 for a CPU; call it when the row has arrived."""
        return sum(before.elapsed_time(after) for before, after in self._marks) / 1000

    def values(self) -> Tensor:
        """All numbers in one row, for :meth:`record`; empty if no layer ran."""
        rows = [numbers for _, _, numbers in self._measured.values()]
        return torch.cat(rows) if rows else torch.zeros(0)

    def record(self, row: Sequence[float], *, step: int, precision: str, requested: bool) -> Float8Window:
        """The record of a delivered ``row`` of :meth:`values`."""
        factors: dict[str, dict[Float8Role, Float8Factor]] = {}
        for place, ((name, role), (format_, elements, _)) in enumerate(self._measured.items()):
            numbers = row[place * _ROW : (place + 1) * _ROW]
            counts = [int(count) for count in numbers[_NUMBERS:]]
            first = next((bin_ for bin_, count in enumerate(counts) if count), 0)
            stop = len(counts) - next((bin_ for bin_, count in enumerate(reversed(counts)) if count), 0)
            factors.setdefault(name, {})[role] = Float8Factor(
                role=role,
                format=format_,
                elements=elements,
                zeros=numbers[0],
                flushed=numbers[1],
                subnormal=numbers[2],
                saturated=numbers[3],
                error=numbers[4],
                channel_error=numbers[5],
                scale_low=numbers[6],
                scale_high=numbers[7],
                channel=int(numbers[8]),
                channel_excess=numbers[9],
                first_exponent=_MIN_EXPONENT + first,
                counts=tuple(counts[first:stop]) if any(counts) else (),
            )
        return Float8Window(
            time=time.time(),
            step=step,
            precision=precision,
            recipe=self._linears.recipe,
            layers=_bounded(
                Float8LayerWindow(name=name, factors=tuple(of_layer.values()))
                for name, of_layer in factors.items()
            ),
            requested=requested,
            seconds=self.seconds,
        )

    def _see_call(self, name: str, linear: nn.Module, args: tuple[Any, ...], output: object) -> None:
        """The forward hook of a layer."""
        if (name, "input") in self._measured or not args or not isinstance(args[0], Tensor):
            return
        assert isinstance(output, Tensor)
        config: Any = linear.config
        rounded = args[0].to(output.dtype)  # as autocast does
        self._measure(name, "input", rounded, config, config.cast_config_input)
        assert isinstance(linear, nn.Linear)
        self._measure(name, "weight", linear.weight.t(), config, config.cast_config_weight)
        if output.requires_grad:
            see = partial(self._see_gradient, name, config)
            self._hooks.callback(output.register_hook(see).remove)

    def _see_gradient(self, name: str, config: Any, gradient: Tensor) -> None:
        if (name, "gradient") not in self._measured:
            self._measure(name, "gradient", gradient, config, config.cast_config_grad_output)

    def _measure(self, name: str, role: Float8Role, factor: Tensor, config: Any, cast: Any) -> None:
        from torchao.float8.config import ScalingGranularity
        from torchao.float8.float8_utils import tensor_to_scale

        if not factor.numel():
            return  # a batch without rows
        began, before = time.perf_counter(), _mark(factor.device)
        format_: Float8Format = "e5m2" if cast.target_dtype is torch.float8_e5m2 else "e4m3"
        rowwise = cast.scaling_granularity is ScalingGranularity.AXISWISE
        try:
            scale = tensor_to_scale(
                factor.detach(),
                cast.target_dtype,
                scaling_granularity=cast.scaling_granularity,
                axiswise_dim=(0 if role == "weight" else -1) if rowwise else None,
                round_scales_to_power_of_2=config.round_scales_to_power_of_2,
            )
            numbers = factor_numbers(factor, scale, format_)
        except RuntimeError as error:  # out of memory, for example: the step must not fail
            if is_from_signal_handler(error):
                raise
            self.trouble = self.trouble or explain(error, doing=f"measuring {name}", batch_size=None)
            return
        self._measured[name, role] = format_, factor.numel(), numbers
        if before is not None and (after := _mark(factor.device)) is not None:
            self._marks.append((before, after))
        self._seconds.append(time.perf_counter() - began)
