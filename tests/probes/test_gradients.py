"""A row tells the norm, the largest value, and who holds NaN or Inf."""

import math
from collections.abc import Sequence
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from amptui.device.readback import MAX_STEPS_BETWEEN_LOOKS
from amptui.probes.gradients import (
    MAX_NAMES,
    SEARCH_STEPS,
    STEPS_AFTER_TROUBLE,
    GradientHealth,
    GradientNorms,
    GradientProbe,
)


def model_with_gradients(gradients: Sequence[Tensor | None], device: str = "cpu") -> nn.Module:
    """Its parameters are ``p0``, ``p1`` and so on, each as large as its gradient."""
    model = nn.Module()
    for index, gradient in enumerate(gradients):
        parameter = nn.Parameter(
            torch.zeros_like(torch.zeros(3) if gradient is None else gradient, device=device)
        )
        parameter.grad = None if gradient is None else gradient.to(device)
        model.register_parameter(f"p{index}", parameter)
    return model


finite = st.floats(-1e6, 1e6, width=32)
rows = st.lists(st.lists(finite, min_size=1, max_size=5), min_size=1, max_size=12)
odd = st.sampled_from([math.nan, math.inf, -math.inf])


@given(rows, st.sampled_from([1.0, 2.0, 65536.0]))
def test_norm_and_largest_value_are_over_all_unscaled_gradients(
    values: list[list[float]], scale: float
) -> None:
    probe = GradientProbe(model_with_gradients([torch.tensor(row) for row in values]))
    row = probe.measure()
    health = probe.health(row.tolist(), scale)
    norm = math.hypot(*(x for row in values for x in row))
    assert health.norm == pytest.approx(norm / scale, rel=1e-5, abs=1e-20)
    assert health.largest == max(abs(x) for row in values for x in row) / scale
    assert (health.nonfinite_count, health.nonfinite_names, health.nonfinite_kinds) == (0, (), ())


@given(rows, st.data())
def test_every_gradient_with_nan_or_inf_is_counted_and_nan_comes_first(
    values: list[list[float]], data: st.DataObject
) -> None:
    bad = data.draw(st.dictionaries(st.integers(0, len(values) - 1), odd, min_size=1))
    for index, value in bad.items():
        values[index][-1] = value
    probe = GradientProbe(model_with_gradients([torch.tensor(row) for row in values]))
    row = probe.measure()
    health = probe.health(row.tolist(), 1.0)
    nans = [f"p{i}" for i in sorted(bad) if math.isnan(bad[i])]
    infs = [f"p{i}" for i in sorted(bad) if not math.isnan(bad[i])]
    assert health.nonfinite_count == len(bad)
    assert list(health.nonfinite_names) == (nans + infs)[:MAX_NAMES]
    assert list(health.nonfinite_kinds) == (["nan"] * len(nans) + ["inf"] * len(infs))[:MAX_NAMES]
    assert health.largest is not None
    for worst in (health.norm, health.largest):
        assert math.isnan(worst) if nans else worst == math.inf


def test_no_gradient_at_all_is_a_norm_of_zero_and_frozen_parameters_have_none() -> None:
    frozen = nn.Linear(2, 2)
    frozen.bias.requires_grad_(False)
    for model, names in ((frozen, ("weight",)), (nn.ReLU(), ())):
        probe = GradientProbe(model)
        assert probe.names == names
        assert probe.health(probe.measure().tolist(), 1.0) == GradientHealth(0.0, 0.0, 0, (), ())


def health_of(*gradients: Tensor | None) -> GradientHealth:
    probe = GradientProbe(model_with_gradients(gradients))
    return probe.health(probe.measure().tolist(), 1.0)


@pytest.mark.parametrize(
    ("dtype", "size"),
    [(torch.float16, 1 << 15), (torch.bfloat16, 4), (torch.float64, 1 << 15)],
)
def test_gradients_of_any_precision_are_measured_in_a_wider_range(dtype: torch.dtype, size: int) -> None:
    health = health_of(torch.full((size,), -60000.0, dtype=dtype), torch.ones(3))
    largest = torch.tensor(60000.0, dtype=dtype).item()
    assert health.nonfinite_count == 0
    assert health.largest == largest
    assert health.norm == pytest.approx(largest * math.sqrt(size), rel=1e-4)
    # A float64 beyond float32 counts as Inf.
    health = health_of(torch.ones(1), torch.tensor([1e60], dtype=torch.float64))
    assert (health.nonfinite_names, health.norm) == (("p1",), math.inf)


CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_on_a_gpu_the_steps_after_a_growth_are_measured() -> None:
    norms = GradientNorms(GPU, nullcontext)
    norms.scaled_steps = SEARCH_STEPS
    assert norms.plan(95, 0, next_growth=110) == 15
    assert norms.plan(110, 0, next_growth=130) == 20
    due = [step for step in range(110, 120) if norms.are_due(step, is_scaled=True)]
    assert due == [*range(110, 110 + STEPS_AFTER_TROUBLE)]
    assert GradientNorms(CPU, nullcontext).plan(95, 0, next_growth=110) == MAX_STEPS_BETWEEN_LOOKS
