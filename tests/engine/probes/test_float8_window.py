"""The windows of float8 products: each number against torch's own casts, bin by bin, and in a real run."""

import importlib.util
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from amptui.engine.probes.float8_window import RANGES, factor_numbers
from amptui.records.control import HistogramRequest
from amptui.records.findings import Float8Format, Float8Window
from tests.tiny import Tiny, log_of, losses, prepare

needs_torchao = pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="needs torchao")

FORMATS = pytest.mark.parametrize("format_", ["e4m3", "e5m2"])


def fractions(values: Tensor, format_: Float8Format) -> tuple[float, float, float, float]:
    """Zeros, flushed, subnormal, saturated."""
    row = factor_numbers(values.reshape(-1, 1), torch.tensor(1.0), format_)
    zeros, flushed, subnormal, saturated = row[:4].tolist()
    return zeros, flushed, subnormal, saturated


@FORMATS
def test_every_number_of_the_format_and_every_border_between_two_is_in_the_bin_of_torchs_cast(
    format_: Float8Format,
) -> None:
    number_range = RANGES[format_]
    codes = torch.arange(128, dtype=torch.uint8).view(number_range.dtype).float()
    numbers = codes[codes.isfinite()]
    assert numbers.max() == number_range.largest == torch.finfo(number_range.dtype).max
    assert number_range.smallest_normal == torch.finfo(number_range.dtype).smallest_normal
    borders = (numbers[1:] + numbers[:-1]) / 2
    above, below = borders.nextafter(torch.tensor(1e9)), borders.nextafter(torch.tensor(0.0))
    for value in torch.cat([numbers, borders, above, below]):
        rounded = value.to(number_range.dtype).float()
        expected = (
            float(value == 0),
            float(rounded == 0 and value != 0),
            float(0 < rounded < number_range.smallest_normal),
            0.0,
        )
        assert fractions(value, format_) == expected, value
        assert fractions(-value, format_) == expected, value


@FORMATS
def test_what_rounds_beyond_the_largest_number_is_saturated(format_: Float8Format) -> None:
    number_range = RANGES[format_]
    # Half a step further; a tie goes to the even mantissa, which 448 has and 57,344 has not.
    border = number_range.largest + (16.0 if format_ == "e4m3" else 4096.0)
    ties_saturate = format_ == "e5m2"
    assert fractions(torch.tensor(border), format_)[3] == float(ties_saturate)
    assert fractions(torch.tensor(border * 1.001), format_)[3] == 1.0
    assert fractions(torch.tensor(border * 0.999), format_)[3] == 0.0


@FORMATS
def test_errors_scales_and_the_largest_channel(format_: Float8Format) -> None:
    torch.manual_seed(0)
    factor = torch.randn(64, 8)
    factor[:, 5] *= 1000
    factor[:, 2] = 0
    scale = torch.rand(64, 1) + 0.5
    row = factor_numbers(factor, scale, format_).tolist()
    limit = RANGES[format_].largest
    rounded = (factor * scale).clamp(-limit, limit).to(RANGES[format_].dtype).float() / scale
    errors = [float((rounded[:, i] - factor[:, i]).norm() / factor[:, i].norm()) for i in range(8) if i != 2]
    assert row[0] == 1 / 8
    assert math.isclose(row[4], float((rounded - factor).norm() / factor.norm()), rel_tol=1e-5)
    assert math.isclose(row[5], sorted(errors)[3], rel_tol=1e-5)
    assert (row[6], row[7]) == (float(scale.min()), float(scale.max()))
    peaks = factor.abs().amax(0)
    assert row[8] == 5
    assert math.isclose(row[9], float(peaks[5] / peaks[peaks > 0].median()), rel_tol=1e-6)


class Outlier(Tiny):
    """The input of its last layer but one has a channel that exceeds the others ``times``."""

    times: float = 1.0

    def build_model(self) -> nn.Module:
        first, last = nn.Linear(16, 16), nn.Linear(16, 4)
        with torch.no_grad():
            first.weight[3] *= self.times
            first.bias[3] *= self.times
        return nn.Sequential(nn.Flatten(), first, nn.Tanhshrink(), nn.Linear(16, 16), nn.Tanh(), last)


def windows(times: float, recipe: str) -> list[Float8Window]:
    prepared = prepare(Outlier(times=times), precision="fp8", fp8_recipe=recipe)
    return log_of(prepared, at={3: HistogramRequest()}).of(Float8Window)


def error_of(window: Float8Window, layer: str, role: str) -> Any:
    return next(
        factor
        for layer_window in window.layers
        for factor in layer_window.factors
        if (layer_window.name, factor.role) == (layer, role)
    )


@needs_torchao
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
def test_a_run_measures_its_first_float8_step_and_when_somebody_asks(recipe: str) -> None:
    first, *_, asked = windows(1.0, recipe)
    assert (first.step, first.requested, first.recipe) == (1, False, recipe)
    assert asked.requested
    assert [layer.name for layer in asked.layers] == ["1", "3"]
    formats = {factor.role: factor.format for layer in asked.layers for factor in layer.factors}
    gradient = "e5m2" if recipe == "tensorwise" else "e4m3"
    assert formats == {"input": "e4m3", "weight": "e4m3", "gradient": gradient}
    weight = error_of(asked, "1", "weight")
    assert 0 < weight.error < 2**-4
    assert math.log2(weight.scale_low).is_integer() == (recipe != "tensorwise")


@needs_torchao
def test_a_channel_far_above_the_others_makes_float8_lose_these() -> None:
    healthy = error_of(windows(1.0, "tensorwise")[0], "3", "input")
    spoiled = error_of(windows(1e7, "tensorwise")[0], "3", "input")
    assert healthy.channel_error < 0.1
    assert spoiled.channel == 3
    assert spoiled.channel_error > 0.9
    assert spoiled.flushed > 0.5
    assert spoiled.error < 0.1  # the norm is that of the one channel: it shows nothing
    weight = error_of(windows(1e7, "tensorwise")[0], "1", "weight")
    assert weight.channel == 3
    assert weight.channel_error > 0.9
    assert error_of(windows(1e7, "rowwise")[0], "1", "weight").channel_error < 0.1  # each row has its scale


@needs_torchao
def test_measuring_changes_no_loss() -> None:
    measured = log_of(prepare(Tiny(), precision="fp8"), at={n: HistogramRequest() for n in range(1, 9)})
    assert len(measured.of(Float8Window)) > 3
    assert losses(measured) == losses(log_of(prepare(Tiny(), precision="fp8", probes=False)))
