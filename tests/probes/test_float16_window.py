"""The float16 window counts, element for element, what ``.half()`` would do to the scaled gradients."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn

from amptui.probes.float16_window import MAX_PARAMETERS, Float16WindowProbe
from amptui.probes.gradients import GradientProbe
from amptui.records.findings import Float16Window, ParameterWindow
from tests.probes.test_gradients import model_with_gradients

LARGE = 1 << 14
"""Elements of a parameter that is counted by itself."""


def window_of_model(model: nn.Module, factor: float = 1.0) -> Float16Window:
    probe = Float16WindowProbe(GradientProbe(model))
    return probe.record(
        probe.measure(factor).tolist(),
        time=1.0,
        step=2,
        precision="fp16",
        loss_scale=65536.0,
        hypothetical=True,
        seconds=0.25,
        steps_since=None,
    )


def window_of(*gradients: Tensor | None, factor: float = 1.0) -> Float16Window:
    return window_of_model(model_with_gradients(gradients), factor)


counts_of = attrgetter("elements", "zeros", "flushed", "subnormal", "overflowing", "nonfinite")


def counts_by_half(gradient: Tensor, factor: float) -> tuple[int, ...]:
    wide = gradient.float()
    half = (wide * factor).half()
    classes = (
        wide == 0,
        (half == 0) & (wide != 0),
        (half != 0) & (half.abs() < 2.0**-14),
        half.isinf() & wide.isfinite(),
        ~wide.isfinite(),
    )
    zeros, flushed, subnormal, overflowing, nonfinite = (int(c.sum()) for c in classes)
    return len(gradient), zeros, flushed, subnormal, overflowing, nonfinite


def exponents_of(gradient: Tensor, factor: float) -> Counter[int]:
    """How many finite elements that are not zero have each exponent, -60 and 40 for all beyond."""
    window: Counter[int] = Counter()
    for before, value in zip(gradient.tolist(), (gradient * factor).abs().tolist(), strict=True):
        if before and math.isfinite(before):
            exponent = math.frexp(value)[1] - 1 if value else -60
            window[max(-60, min(40, exponent)) if math.isfinite(value) else 40] += 1
    return window


def neighbours(value: float) -> tuple[float, ...]:
    """A float32, those on either side of it, and their negatives."""
    middle = torch.tensor(value)
    near = [torch.nextafter(middle, torch.tensor(to)).item() for to in (-math.inf, math.inf)]
    return tuple(sign * x for x in (value, *near) for sign in (1, -1))


EDGES = [
    value
    for edge in (
        *(2.0**-25, 2.0**-24, 2.0**-14, 2.0**-14 - 2.0**-24, 2.0**-14 - 2.0**-25),
        *(65504.0, 65520.0, 65536.0),
    )
    for value in neighbours(edge)
]
EXTREMES = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-40, 2.0**-126, 3e38, -3e38]

values = st.one_of(
    st.sampled_from(EDGES + EXTREMES),
    st.floats(width=32),
    st.builds(math.ldexp, st.floats(1, 2, width=32, exclude_max=True), st.integers(-40, 20)),
)
factors = st.one_of(
    st.sampled_from([1.0, 2.0**16, 2.0**-10, 2.0**40, 3.0, 0.1]),
    st.floats(2.0**-30, 2.0**30, width=32),
)


def long(numbers: Sequence[float]) -> Tensor:
    """So many of each that they are counted as large parameters are."""
    return torch.tensor(numbers).repeat(-(-LARGE // len(numbers)))


lengths = pytest.mark.parametrize("as_gradient", [torch.tensor, long], ids=["short", "long"])


@lengths
@example(numbers=EDGES + EXTREMES, factor=1.0)
@example(numbers=EXTREMES, factor=2.0**-30)
@example(numbers=EXTREMES, factor=65536.0)
@example(numbers=[x / 3 for x in EDGES], factor=3.0)
@given(numbers=st.lists(values, min_size=1, max_size=30), factor=factors)
def test_each_element_is_counted_as_float16_would_round_it(
    as_gradient: Callable[[Sequence[float]], Tensor], numbers: list[float], factor: float
) -> None:
    gradient = as_gradient(numbers)
    window = window_of(gradient, factor=factor)
    assert counts_of(window) == counts_by_half(gradient, factor)
    counted = {window.first_exponent + i: count for i, count in enumerate(window.counts) if count}
    assert counted == exponents_of(gradient, factor)
    assert sum(window.counts) == window.elements - window.zeros - window.nonfinite
    assert window.first_exponent <= -30
    assert window.first_exponent + len(window.counts) - 1 >= 17


def squares_by_numpy(numbers: Sequence[float], factor: float) -> tuple[float, float, float]:
    """Sums of squares as numpy's own float16 has the classes: of flushed, subnormal and all elements."""
    with np.errstate(over="ignore"):
        scaled = np.abs(np.asarray(numbers, np.float32) * np.float32(factor))
        half = scaled.astype(np.float16)
    squares = scaled.astype(np.float64) ** 2
    flushed = half == 0
    subnormal = ~flushed & (half < np.float16(2.0**-14))
    return squares[flushed].sum(), squares[subnormal].sum(), squares.sum()


def squares_of(window: Float16Window | ParameterWindow) -> tuple[float | None, float | None, float | None]:
    return window.flushed_squares, window.subnormal_squares, window.squares


moderate = st.one_of(
    st.sampled_from([*(edge for edge in EDGES if abs(edge) < 1e6), 0.0]),
    st.builds(math.ldexp, st.floats(1, 2, width=32, exclude_max=True), st.integers(-40, 15)),
)


@lengths
@example(numbers=[edge for edge in EDGES if abs(edge) < 1e6], factor=1.0)
@given(numbers=st.lists(moderate, min_size=1, max_size=30), factor=st.sampled_from([1.0, 2.0**-10, 3.0, 0.1]))
def test_squares_are_those_of_what_numpy_s_float16_flushes_and_holds_as_subnormal(
    as_gradient: Callable[[Sequence[float]], Tensor], numbers: list[float], factor: float
) -> None:
    gradient = as_gradient(numbers)
    window = window_of(gradient, torch.ones(1), factor=factor)
    flushed, subnormal, squares = squares_by_numpy(gradient.tolist(), factor)
    one = squares_by_numpy([1.0], factor)[2]
    # A sum of n squares in float32 may be off by n roundings of 2^-24.
    bound = (gradient.numel() + 8) * 2.0**-23
    assert squares_of(window) == pytest.approx((flushed, subnormal, squares + one), rel=bound, abs=1e-30)
    for parameter in window.worst:
        assert squares_of(parameter) == pytest.approx((flushed, subnormal, squares), rel=bound, abs=1e-30)


@pytest.mark.parametrize("size", [4, LARGE])
def test_beside_nan_and_inf_there_is_no_norm(size: int) -> None:
    gradient, other = torch.full((size,), 2.0**-20), torch.full((size,), 2.0**-20)
    gradient[0] = math.nan
    window = window_of(gradient, other)
    assert squares_of(window) == (None, None, None)
    assert {squares_of(parameter) for parameter in window.worst} == {
        (None, None, None),
        (0.0, size * 2.0**-40, size * 2.0**-40),
    }


def test_empty_bins_outside_float16_s_range_are_left_out() -> None:
    window = window_of(torch.tensor([1.0, 2.0]))
    assert (window.time, window.step, window.precision, window.loss_scale) == (1.0, 2, "fp16", 65536.0)
    assert (window.hypothetical, window.seconds, window.steps_since) == (True, 0.25, None)
    assert (window.first_exponent, len(window.counts)) == (-30, 48)
    window = window_of(torch.tensor([2.0**-45, 2.0**25]))
    assert (window.first_exponent, len(window.counts)) == (-45, 71)
    assert (window.counts[0], window.counts[-1]) == (1, 1)


def test_more_small_parameters_than_are_counted_at_once_keep_their_names_and_some_are_told() -> None:
    gradients = [torch.ones(2) for _ in range(150)]
    for index in (3, 70, 149):
        gradients[index][0] = 2.0**-30
    before = [gradient.clone() for gradient in gradients]
    assert [p.name for p in window_of(*gradients, factor=3.0).worst] == ["p3", "p70", "p149"]
    assert all(map(torch.equal, gradients, before))
    assert len(window_of(*(torch.tensor([2.0**-30]) for _ in range(20))).worst) == MAX_PARAMETERS


def test_more_elements_than_float32_counts_are_counted_exactly() -> None:
    gradient = torch.ones(1).expand((1 << 24) + 3)
    parameter = nn.Parameter(gradient, requires_grad=True)
    parameter.grad = gradient
    model = nn.Module()
    model.register_parameter("p", parameter)
    assert window_of_model(model).elements == (1 << 24) + 3


def test_the_worst_overflow_or_lose_the_largest_share_of_their_norm() -> None:
    lost, coarse, fine = 2.0**-30, 2.0**-20, 1.0
    window = window_of(
        torch.tensor([fine, fine]),
        torch.tensor([coarse, fine]),
        torch.tensor([coarse, coarse]),
        torch.tensor([lost, fine, fine, fine]),
        torch.tensor([1e6, lost, fine, fine]),
        torch.tensor([0.0, lost, coarse, fine]),
    )
    assert [p.name for p in window.worst] == ["p4", "p2", "p3", "p5", "p1"]
    worst = window.worst[0]
    assert (worst.elements, worst.zeros, worst.flushed, worst.subnormal, worst.overflowing) == (4, 0, 1, 0, 1)


def test_parameters_without_a_gradient_have_no_elements_and_shift_no_name() -> None:
    window = window_of(None, torch.tensor([2.0**-30]), None, torch.full((LARGE,), 2.0**-30))
    assert counts_of(window) == (1 + LARGE, 0, 1 + LARGE, 0, 0, 0)
    assert [p.name for p in window.worst] == ["p1", "p3"]
