"""One vector of norms tells the global norm and who is not finite."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from amptui.engine.gradients import MAX_NAMES, GradientProbe


def model_with_gradients(values: list[list[float]]) -> nn.Module:
    model = nn.Module()
    for index, row in enumerate(values):
        parameter = nn.Parameter(torch.zeros(len(row)))
        parameter.grad = torch.tensor(row)
        model.register_parameter(f"p{index}", parameter)
    return model


finite = st.floats(-1e6, 1e6, width=32)
rows = st.lists(st.lists(finite, min_size=1, max_size=5), min_size=1, max_size=12)
odd = st.sampled_from([math.nan, math.inf, -math.inf])


@given(rows, st.sampled_from([1.0, 2.0, 65536.0]))
def test_the_norm_is_that_of_all_gradients_together_unscaled(values: list[list[float]], scale: float) -> None:
    probe = GradientProbe(model_with_gradients(values))
    health = probe.health(probe.norms().tolist(), scale)
    expected = math.sqrt(sum(float(torch.tensor(x)) ** 2 for row in values for x in row)) / scale
    assert health.norm == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert health.nonfinite_count == 0


@given(rows, st.data())
def test_every_gradient_with_nan_or_inf_is_counted_and_nan_comes_first(
    values: list[list[float]], data: st.DataObject
) -> None:
    bad = data.draw(st.dictionaries(st.integers(0, len(values) - 1), odd, min_size=1))
    for index, value in bad.items():
        values[index][-1] = value
    probe = GradientProbe(model_with_gradients(values))
    health = probe.health(probe.norms().tolist(), 1.0)
    nans = [f"p{i}" for i in sorted(bad) if math.isnan(bad[i])]
    infs = [f"p{i}" for i in sorted(bad) if not math.isnan(bad[i])]
    assert health.nonfinite_count == len(bad)
    assert list(health.nonfinite_names) == (nans + infs)[:MAX_NAMES]
    assert health.has_nan == bool(nans)
    assert math.isnan(health.norm) == bool(nans)


def test_parameters_without_a_gradient_count_as_zero() -> None:
    model = model_with_gradients([[3.0], [1.0], [4.0]])
    model.get_parameter("p1").grad = None
    probe = GradientProbe(model)
    assert probe.norms().tolist() == [3.0, 0.0, 4.0]
    assert probe.health([3.0, 0.0, 4.0], 1.0).norm == 5.0


def test_no_gradient_at_all_is_a_norm_of_zero() -> None:
    probe = GradientProbe(nn.Linear(2, 2))
    assert probe.norms().tolist() == [0.0, 0.0]


def test_sparse_gradients_are_measured() -> None:
    model = nn.Embedding(10, 2, sparse=True)
    model(torch.tensor([1, 1, 3])).sum().backward()
    probe = GradientProbe(model)
    # Row 1 was looked up twice and holds 2s, row 3 holds 1s.
    assert probe.norms().tolist() == [pytest.approx(math.sqrt(4 + 4 + 1 + 1))]


def test_frozen_parameters_are_not_looked_at() -> None:
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    assert GradientProbe(model).names == ("weight",)


def test_half_precision_and_non_contiguous_gradients_are_measured() -> None:
    parameter = nn.Parameter(torch.zeros(4, 3, dtype=torch.bfloat16))
    parameter.grad = torch.ones(3, 4, dtype=torch.bfloat16).t()
    model = nn.Module()
    model.register_parameter("p", parameter)
    assert GradientProbe(model).norms().tolist() == [pytest.approx(math.sqrt(12), rel=0.01)]
