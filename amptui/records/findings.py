"""Records of measurements inside mixed precision: float16 histogram, module trace, X-ray, timing, memory.

As in all records ``None`` is a number that was not measured and ``time`` is Unix seconds.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

FLOAT16_ZONES = {"subnormal": -25, "normal": -14, "overflow": 16}
"""The exponents of two from which on magnitudes are so in float16; below the first they are flushed to zero.

IEEE 754 binary16 rounds magnitudes up to 2^-25 to zero, has its smallest normal number at 2^-14, and rounds
from 65520 on, just below 2^16, to infinity.
"""


OLD_STEPS = 100
"""A measurement of a single step is old once as many steps were made since as before it, and at least so
many: gradients change fast at first and slowly later (our choice)."""

OLD_SCALE_FACTOR = 4.0
"""It is old too if the loss scale has moved by more than this factor since: two doublings of 40 binades."""


def is_old(step: int, scale: float | None, *, now: int, scale_now: float | None) -> bool:
    """Whether a measurement of ``step`` is old by step ``now``; ``scale`` is its own if that matters."""
    if now - step > max(OLD_STEPS, step):
        return True
    moved = 1.0 if not scale or not scale_now else max(scale_now / scale, scale / scale_now)
    return moved > OLD_SCALE_FACTOR


@dataclass(frozen=True, slots=True, kw_only=True)
class Float16Counts:
    """Where gradients, multiplied by a loss scale, lie in float16's range.

    With g an element and s the scale: flushed 0 < |g s| <= 2^-25, subnormal what float16 rounds to less than
    2^-14, overflowing |g s| >= 65520 (rounded to infinity), NaN and Inf counted apart.
    """

    elements: int
    zeros: int
    flushed: int
    subnormal: int
    overflowing: int
    squares: float | None = None
    """The sum of (g s)^2 over all elements: the square of the scaled gradient's L2 norm. None, as the two
    below, beside NaN or Inf."""
    flushed_squares: float | None = None
    """The part of it in flushed elements."""
    subnormal_squares: float | None = None
    """The part of it in subnormal elements."""

    @property
    def underflowing_share(self) -> float | None:
        """sqrt((flushed + subnormal) / all), each a sum of squares of g s: the share of the L2 norm.

        0 is none of it, 1 all. In a step that ran in float16 it is a lower bound: what was flushed on the way
        is zero already. None without nonzero elements, and beside NaN or Inf.
        """
        if self.squares is None or not math.isfinite(self.squares):
            return None
        if self.squares <= 0.0:  # float32 cannot hold squares that small
            return 1.0 if self.elements > self.zeros else None
        small = (self.flushed_squares or 0.0) + (self.subnormal_squares or 0.0)
        return min(1.0, math.sqrt(max(0.0, small) / self.squares))


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterWindow(Float16Counts):
    """One parameter's gradient."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Float16Window(Float16Counts):
    """All gradients of one step."""

    time: float
    step: int
    precision: str
    loss_scale: float
    """The scale that the counts are for."""
    hypothetical: bool
    """The step did not run in float16: the counts say what would happen. If false, what float16 flushed on
    the way is among ``zeros`` already and cannot be told from true zeros."""
    first_exponent: int
    """``counts[i]`` holds elements with 2^(first_exponent + i) <= |g s| < 2^(first_exponent + i + 1)."""
    counts: tuple[int, ...]
    nonfinite: int
    worst: tuple[ParameterWindow, ...]
    """The parameters that lose the most, worst first, bounded in number; without those that lose nothing."""
    seconds: float | None
    """The duration of the measurement, on the device's clock."""
    steps_since: int | None
    """Steps since the one before; None for the first."""
    seconds_since: float | None = None
    """Seconds since the one before on the host's clock: the measurement's share of the time."""

    @property
    def normal(self) -> int:
        """Elements that float16 keeps in full precision."""
        elsewhere = self.zeros + self.flushed + self.subnormal + self.overflowing + self.nonfinite
        return self.elements - elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatesMeasured:
    """How far one optimizer step moved the weights of each layer: |after - before| / |before|, L2 norms.

    Of large layers it is estimated from a part of their weights. There is none of a step that the scaler
    skipped.
    """

    time: float
    step: int
    ratios: Mapping[str, float]
    """By layer, in the model's order, bounded in number: NaN where weights hold NaN or Inf. Left out are
    layers without a gradient, and those whose weights are all zero."""
    optimizer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRange:
    """The largest absolute value in one module's output, or in the gradient of its output."""

    name: str
    """The module's path in the model, ``features.12.conv``; the model itself is the empty string."""
    kind: str
    """Its class: ``Conv2d``."""
    way: Literal["forward", "backward"]
    dtype: str
    """torch's name of the tensor's type: ``float16``."""
    largest: float
    """NaN or Inf where the tensor holds one. Backward it is the scaled gradient's."""


NonFiniteCause = Literal["", "input", "weights", "buffer", "overflow", "output", "gradient", "unknown"]
"""Where NaN or Inf began, in the order in which causes are looked for. ``overflow``: Inf in a float16 output,
of inputs and weights that are finite; ``output``: any other; ``gradient``: all outputs were finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModulesTraced:
    """A trace of all modules in one step: which overflowed first, or came closest to it."""

    time: float
    step: int
    precision: str
    loss_scale: float | None = None
    asked: bool = False
    """Whether a person asked for it; otherwise a non-finite step triggered it."""
    first: ModuleRange | None = None
    """The first non-finite output in the order of execution, else the first non-finite gradient."""
    nearest: tuple[ModuleRange, ...] = ()
    """Those nearest 65504 first, bounded in number; without the non-finite ones."""
    modules: int = 0
    """How many modules were watched; 0 where only inputs, weights and buffers were looked at."""
    seconds: float | None = None
    """What the hooks cost the step on the host's clock."""
    lost: tuple[str, ...] = ()
    """Parameters and buffers that held NaN or Inf before the step already, bounded in number. If there are
    any, the trace cannot show where they come from: ``first`` is None and ``nearest`` empty."""
    lost_count: int = 0
    """How many there are."""
    inputs: tuple[str, ...] = ()
    """The model's inputs that hold NaN or Inf, by index or keyword: then ``first`` is None too."""
    cause: NonFiniteCause = ""
    """Where NaN or Inf of this step came from; empty if there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAgreement:
    """How far one layer's gradients in AMP agree with those in FP32; None where there are no gradients."""

    name: str
    """The module that owns the parameters."""
    kind: str
    elements: int
    """Elements of its gradients."""
    cosine: float | None
    """Of the angle between both gradients: 1 is the same direction."""
    relative_error: float | None
    """|AMP - FP32| / |FP32|, L2 norms."""
    lost: float | None
    """The fraction of the elements not zero in FP32 that are zero in AMP."""
    output_dtype: str
    """What its output was in AMP: ``float16``; empty if it put out no tensor."""
    norm: float | None = None
    """The L2 norm of FP32's gradient, without a loss scale."""
    underflowing: float | None = None
    """In ``fp16``: sqrt(the part of FP32's sum of squares in elements that float16 holds as zero or as
    subnormals, at the loss scale); otherwise None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class XRayTaken:
    """One batch in FP32 (ieee) and in AMP or FP8, from the same weights and random state; neither applied."""

    time: float
    step: int
    """The step whose batch it was, which then ran as if nothing had been."""
    precision: str
    """The AMP precision or FP8 beside FP32: what is said of AMP is said of either."""
    loss_scale: float | None
    loss_fp32: float
    loss_amp: float
    layers: tuple[LayerAgreement, ...]
    """In the model's order."""
    output_dtypes: Mapping[str, str]
    """Every module's output in AMP, by its path."""
    random: bool
    """Active dropout: both passes began with the same random state but may have drawn other masks."""
    seconds: float
    """Its duration, during which training was blocked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionMeasured:
    """One precision in a comparison of blocks in turns, warm-up steps left out; None where not measured."""

    precision: str
    blocks: int
    steps: int
    """Applied steps counted in these blocks."""
    step_seconds: float | None
    """The geometric mean of the blocks' medians."""
    samples_per_second: float | None
    """In steps of that time."""
    speedup: float | None
    """The baseline's step time by this one's, from pairs of neighbouring blocks: above 1 is faster."""
    speedup_low: float | None
    """95% interval of the speed-up; None, as the other end, with fewer than three pairs."""
    speedup_high: float | None
    peak_allocated_bytes: int | None
    skipped: int
    """Steps that no figure counts: the scaler skipped them."""
    first_loss: float | None
    last_loss: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionsCompared:
    """The progress of a comparison, or its result if ``over``, with the reason."""

    time: float
    step: int
    baseline: str
    block_steps: int
    rounds: int
    """Rounds done, each with a block of every precision."""
    most_rounds: int
    rows: tuple[PrecisionMeasured, ...]
    """The baseline first."""
    over: bool
    reason: Literal["running", "narrow", "limit", "stopped"]
    """Why it is over: the intervals are narrow enough, the rounds are used up, or somebody stopped it, or
    fewer than two precisions run."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """The precisions that could not be entered, each with the error; the others began anew without them."""
    chosen: str = ""
    """What ran before it and runs again after it."""


PhaseName = Literal["input", "forward", "backward", "clip", "optimizer"]
"""In the order of a step. ``input`` is waiting for the batch; on the device it is copying it there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSeconds:
    """One part of a step: on the host's clock, and on the device's where there is one beside it."""

    name: PhaseName
    host_seconds: float
    device_seconds: float | None
    """Between the ends of this part's work and of the one before; None on a CPU, which is its own device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimed:
    """Where one step's time went; taken of a few steps only."""

    time: float
    step: int
    precision: str
    settling: bool
    phases: tuple[PhaseSeconds, ...]
    """In the order in which they ran; those that did not are left out."""


FloatHindrance = Literal["size", "kind", "subclass", "forward", "weight"]
"""Why a layer does not multiply in float8: a size is not divisible by 16; it is no ``nn.Linear``; it is of a
subclass, or its ``forward`` was replaced, which may compute something else; its weight is no parameter of
float32, bfloat16 or float16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerLeftOut:
    """A layer with a weight matrix that stays in bfloat16 while others multiply in float8."""

    name: str
    kind: str
    """Its class."""
    why: FloatHindrance
    shape: tuple[int, ...]
    """Of its largest weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Float8Layers:
    """Which layers of the model multiply in float8, told with the first step that does."""

    time: float
    step: int
    """The first step."""
    precision: str
    layers: int
    names: tuple[str, ...]
    """The first of them, bounded in number; "" is the model itself."""
    parameters: int
    """In their weights and biases, each once."""
    left_out: tuple[LayerLeftOut, ...]
    """The first of those, bounded in number."""
    left_out_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCompiled:
    """``torch.compile`` compiled for a step or a validation, which took that much longer."""

    time: float
    step: int
    """The step, or the last one before the validation."""
    precision: str
    training: bool
    """False: for a validation."""
    seconds: float
    """On the host's clock: tracing, code generation, compilers, autotuning, recording of CUDA graphs."""
    what: Literal["first", "again", "graphs"]
    """``first`` in this precision since the process started; ``again``: what was compiled did not fit any
    more; ``graphs``: CUDA graphs were recorded."""
    reason: str = ""
    """Why it was compiled again, in torch's words; empty where torch does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryKind:
    """The tensors of one kind and dtype."""

    kind: Literal["weights", "gradients", "optimizer", "buffers", "activations"]
    dtype: str
    """torch's name: ``float32``; empty where dtypes are not told apart."""
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBreakdown:
    """Where the memory of steps in one precision goes; what was not measured is not among ``kinds``."""

    time: float
    step: int
    precision: str
    kinds: tuple[MemoryKind, ...]
    peak_allocated_bytes: int | None
    """torch's peak of these steps; None on a CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnalignedProduct:
    """A matrix product or convolution with a size that could be padded to a multiple of 8."""

    name: str
    """A layer with a weight of that shape."""
    sizes: tuple[int, ...]
    """M, N and K of a product; channels in and out of a convolution."""
    flops: int
    padded: tuple[int, ...] = ()
    """Those of the sizes that are worth padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopsCounted:
    """The operations of one step's matrix products, convolutions and attention, forward and backward."""

    time: float
    step: int
    precision: str
    flops: int
    """A multiplication and an addition count as two."""
    flops_by_type: Mapping[str, int]
    """By what was multiplied: ``float16``, ``bfloat16``, ``tf32``, ``float32``, ``float64``."""
    nchw_flops: int
    """Of convolutions in half precision whose tensors are all channels first."""
    unaligned_flops: int
    """Of all with a size that could be padded to a multiple of 8."""
    unaligned: tuple[UnalignedProduct, ...]
    """By layer, the forward pass's sizes; those with the most operations first, bounded in number."""
    uncounted: tuple[str, ...]
    """What ran, may have computed more than elements, and has no formula: then ``flops`` is a lower bound."""
    samples: int | None = None
    """Of the counted step, which stands for the steps of as many samples."""
    shapes_vary: bool = False
    """Another step of as many samples had inputs of other shapes: no count stands for all of them."""
