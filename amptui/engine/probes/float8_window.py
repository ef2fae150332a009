"""Where the operands of float8 products, inputs, weights and output gradients, lie in float8's range."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce, wraps
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from amptui.base.script_signals import is_from_signal_handler
from amptui.device.accelerator import capabilities
from amptui.engine.failure import explain
from amptui.engine.float8 import Float8Linears, is_float8_layer
from amptui.engine.probes.float16_window import count_keys
from amptui.records.findings import Float8Format, Float8LayerWindow, Float8Operand, Float8Role, Float8Window

_NUMBERS = 11
"""Of each operand, in the order of the fields of :class:`Float8Operand` from ``zeros`` on."""

_MIN_EXPONENT, _MAX_EXPONENT = -42, 16
"""Exponents with a bin of their own: E5M2's range with room to see how far below it numbers lie."""

_BINS = _MAX_EXPONENT - _MIN_EXPONENT + 1

_ROW = _NUMBERS + _BINS
"""The numbers of an operand."""

_PIECE = 1 << 22
"""Elements counted at once: float32 counts that far exactly, and temporaries stay small."""

MAX_COUNTED_LAYERS = 64
"""Layers of a record with counts by exponent, those with the largest errors: an operand's counts take some 60
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
def operand_numbers(operand: Tensor, scale: Tensor, format_: Float8Format) -> Tensor:
    """[_ROW] float32 for a ``operand`` [..., channels] that is multiplied by ``scale`` and rounded.

    Zeros, flushed, subnormal and saturated elements are fractions of all; errors are |rounded - exact| by
    |exact|, of the whole and of the median channel; then the ends of the scale, the channel with the largest
    absolute value, and that by the median channel's; the error of the median row; then the counts by
    exponent. Does not wait for the device, except for one that has no float64: there the host computes them.
    Temporaries are as large as a piece of the operand, and two numbers for each row.
    """
    if not capabilities(operand.device).float64:
        operand, scale = operand.cpu(), scale.cpu()
    elements = operand.detach().reshape(-1, operand.shape[-1])
    scales = scale.expand(operand.shape).reshape(elements.shape) if scale.dim() else scale.expand_as(elements)
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
        _nanmedian(torch.cat(sums.row_errors)),  # of rows that are not all zero
    )
    shares = (sums.kinds.double() / elements.numel()).float()
    return torch.cat([shares, torch.stack([number.float() for number in numbers]), sums.counts])


class _Sums(NamedTuple):
    """Of some rows of an operand."""

    kinds: Tensor
    """[4] int64: zeros, flushed, subnormal and saturated elements."""
    error_squares: Tensor
    """[channels] float64, like ``squares``: of |rounded - exact|."""
    squares: Tensor
    row_errors: tuple[Tensor, ...]
    """[rows] float32 of each piece: |rounded - exact| by |exact|."""
    peaks: Tensor
    """[channels] float32: the largest absolute values."""
    counts: Tensor
    """[_BINS] float32: how many elements have each exponent once scaled; NaN and Inf are left out."""

    def plus(self, other: "_Sums") -> "_Sums":
        return _Sums(
            kinds=self.kinds + other.kinds,
            error_squares=self.error_squares + other.error_squares,
            squares=self.squares + other.squares,
            row_errors=self.row_errors + other.row_errors,
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
    error_squares = (rounded / scale - exact).double().square()
    squares = exact.double().square()
    return _Sums(
        kinds=torch.stack([kind.sum() for kind in kinds]),
        error_squares=error_squares.sum(0),
        squares=squares.sum(0),
        row_errors=((error_squares.sum(1) / squares.sum(1)).sqrt().float(),),
        peaks=exact.abs().amax(0),
        counts=_count_exponents(scaled.flatten(), is_zero.flatten()),
    )


def _nanmedian(values: Tensor) -> Tensor:
    """The same as torch's, which waits for a GPU to count NaN; of nothing else NaN."""
    ordered = values.sort().values  # NaN last
    middle = ((~ordered.isnan()).sum() - 1).clamp_(min=0) >> 1
    return ordered.gather(0, middle.reshape(1))[0]


def _worse(first: Tensor, second: Tensor, role: Float8Role) -> Tensor:
    """Of the numbers of two casts of an operand those of the one that loses more, without a wait."""
    ours, others = (_judged(numbers, role) for numbers in (first, second))
    return torch.where((others > ours) | others.isnan(), second, first)


def _judged(numbers: Tensor, role: Float8Role) -> Tensor:
    """The same as :attr:`Float8Operand.judged_error`, on the device."""
    return numbers[5] if role == "gradient" else numbers[5].maximum(numbers[10])  # NaN if one is


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
    errors = [operand.judged_error for operand in layer.operands if operand.zeros < 1.0]
    return max((math.inf if math.isnan(error) else error for error in errors), default=0.0)


def _without_counts(layer: Float8LayerWindow) -> Float8LayerWindow:
    operands = (replace(operand, first_exponent=None, counts=()) for operand in layer.operands)
    return replace(layer, operands=tuple(operands))


class Float8WindowProbe:
    """Measures the operands of all float8 layers in one step, as the first call of each has them.

    A context manager, used once, around the forward and backward pass. The scales are those that torchao's
    recipe computes. It changes no loss and no gradient; compiled models run eagerly meanwhile.

    The class of the layers, which is this run's own, gets another ``forward`` meanwhile. A hook would be
    copied and saved with a layer, would see what other hooks return, and miss a call of ``forward`` itself.
    """

    def __init__(self, linears: Float8Linears) -> None:
        self._linears = linears
        self._names = {linear: name for name, linear in linears.linears.items()}
        self._stack = ExitStack()
        self._measured: dict[tuple[str, Float8Role], tuple[Float8Format, int, Tensor]] = {}
        self._expected: set[str] = set()
        """Layers whose output waits for its gradient."""
        self._seconds: list[float] = []
        self._marks: list[tuple[torch.Event, torch.Event]] = []
        """On a GPU: before and after each measurement."""
        self.trouble: Exception | None = None
        """Why an operand could not be measured, if so: a lack of memory, for example."""
        self.layers_called = False
        """Whether anything called a float8 layer."""
        self.layers_multiplied = False
        """Whether a float8 layer multiplied in float8."""

    def __enter__(self) -> "Float8WindowProbe":
        self._stack.enter_context(torch.compiler.set_stance("force_eager"))
        for kind in {type(linear) for linear in self._names if is_float8_layer(linear)}:
            self._stack.enter_context(_watched_forward(kind, self._call))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

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
        operands: dict[str, dict[Float8Role, Float8Operand]] = {}
        for place, ((name, role), (format_, elements, _)) in enumerate(self._measured.items()):
            numbers = row[place * _ROW : (place + 1) * _ROW]
            counts = [int(count) for count in numbers[_NUMBERS:]]
            first = next((bin_ for bin_, count in enumerate(counts) if count), 0)
            stop = len(counts) - next((bin_ for bin_, count in enumerate(reversed(counts)) if count), 0)
            operands.setdefault(name, {})[role] = Float8Operand(
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
                row_error=numbers[10],
                first_exponent=_MIN_EXPONENT + first,
                counts=tuple(counts[first:stop]) if any(counts) else (),
            )
        return Float8Window(
            time=time.time(),
            step=step,
            precision=precision,
            recipe=self._linears.recipe,
            layers=_bounded(
                Float8LayerWindow(name=name, operands=tuple(of_layer.values()))
                for name, of_layer in operands.items()
            ),
            requested=requested,
            seconds=self.seconds,
        )

    def _call(self, forward: Callable[[Any, Any], Any], linear: Any, operand: Any) -> Any:
        """Call a float8 layer with ``operand``, its input; measure that if it multiplies in float8."""
        self.layers_called = True
        multiplies = False
        with self._outside(name := self._names.get(linear)):
            multiplies = isinstance(operand, Tensor) and linear.takes(operand)
        self.layers_multiplied |= multiplies
        output = forward(linear, operand)
        if multiplies and name is not None:  # it has no name in a replica, for example
            self._see_call(name, linear, operand, output)
        return output

    def _see_call(self, name: str, linear: Any, operand: Tensor, output: object) -> None:
        with self._outside(name):
            config = linear.config
            if (name, "input") not in self._measured:
                casts = config.cast_config_input, config.cast_config_input_for_grad_weight
                self._measure(name, "input", _autocast(operand), config, casts)
                casts = config.cast_config_weight_for_grad_input, config.cast_config_weight
                self._measure(name, "weight", linear.weight.t(), config, casts)
            if name not in self._expected and isinstance(output, Tensor) and output.requires_grad:
                self._expected.add(name)
                see = partial(self._see_gradient, name, config)
                self._stack.callback(output.register_hook(see).remove)

    def _see_gradient(self, name: str, config: Any, gradient: Tensor) -> None:
        with self._outside(name):
            if (name, "gradient") not in self._measured:
                casts = config.cast_config_grad_output, config.cast_config_grad_output_for_grad_weight
                self._measure(name, "gradient", gradient, config, casts)

    @contextmanager
    def _outside(self, name: str | None) -> Iterator[None]:
        """Within it our operators concern nobody, and no error of ours reaches the training.

        A dispatch mode would see them: that of selective checkpointing repeats in the backward pass the
        results of its list by their order.
        """
        try:
            with torch.no_grad(), _disable_current_modes():
                yield
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            what = "float8 layers" if name is None else name or "the model"
            self.trouble = self.trouble or explain(error, doing=f"measuring {what}", batch_size=None)

    def _measure(
        self, name: str, role: Float8Role, operand: Tensor, config: Any, casts: tuple[Any, Any]
    ) -> None:
        """``casts``: with scales of each row, and of each channel, if not of the whole."""
        if not operand.numel():
            return  # a batch without rows
        began, before = time.perf_counter(), _mark(operand.device)
        rows = operand.detach().reshape(-1, operand.shape[-1])
        scalings = _scalings(casts)
        format_: Float8Format = "e5m2" if casts[0].target_dtype is torch.float8_e5m2 else "e4m3"
        numbers = reduce(
            partial(_worse, role=role),
            (operand_numbers(rows, _scale(rows, config, cast, dim), format_) for cast, dim in scalings),
        )
        self._measured[name, role] = format_, operand.numel(), numbers
        if before is not None and (after := _mark(operand.device)) is not None:
            self._marks.append((before, after))
        self._seconds.append(time.perf_counter() - began)


@contextmanager
def _watched_forward(kind: type, call: Callable[[Any, Any, Any], Any]) -> Iterator[None]:
    """Within it ``call`` gets the class's ``forward``, the layer and the input instead of each call."""
    original = kind.forward  # type: ignore[attr-defined]
    before = vars(kind).get("forward")

    @wraps(original)
    def forward(self: Any, input: Any) -> Any:  # noqa: A002 - as nn.Linear calls it
        return call(original, self, input)

    try:
        kind.forward = forward  # type: ignore[attr-defined]
        yield
    finally:
        if before is not None:
            kind.forward = before  # type: ignore[attr-defined]
        elif "forward" in vars(kind):
            del kind.forward  # type: ignore[attr-defined]


def _autocast(operand: Tensor) -> Tensor:
    """``operand`` as autocast rounds it here."""
    kind = operand.device.type
    return operand.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else operand


def _scalings(casts: tuple[Any, Any]) -> list[tuple[Any, int | None]]:
    """The different ones of the two casts of an operand, with the dimension along which one scale holds.

    The first scales along each row if not the whole, the second along each channel; one that the recipe
    leaves in bfloat16 is not among them.
    """
    from torchao.float8.config import ScalingGranularity, ScalingType

    scalings: dict[object, tuple[Any, int | None]] = {}
    for cast, dim in zip(casts, (-1, 0), strict=True):
        if cast.scaling_type is not ScalingType.DISABLED:
            along = dim if cast.scaling_granularity is ScalingGranularity.AXISWISE else None
            scalings[along] = cast, along
    return list(scalings.values())


def _scale(rows: Tensor, config: Any, cast: Any, dim: int | None) -> Tensor:
    from torchao.float8.float8_utils import tensor_to_scale

    scale: Tensor = tensor_to_scale(
        rows,
        cast.target_dtype,
        scaling_granularity=cast.scaling_granularity,
        axiswise_dim=dim,
        round_scales_to_power_of_2=config.round_scales_to_power_of_2,
    )
    return scale
