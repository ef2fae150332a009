"""The windows of float8 products: numbers against torch's casts, in a real run, and unnoticed by a model."""

import math
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from amptui.engine.probes.float8_window import RANGES, Float8WindowProbe, operand_numbers
from amptui.records.control import HistogramRequest
from amptui.records.findings import Float8Format, Float8Operand, Float8Window
from amptui.records.run import Note
from tests.engine.compiled_runs import compiled, keeping
from tests.engine.test_float8_layers import in_float8
from tests.engine.traced import autocast
from tests.tiny import Tiny, log_of, losses, prepare

pytestmark = pytest.mark.usefixtures("usable_torchao", "windows_unasked")

FORMATS = pytest.mark.parametrize("format_", ["e4m3", "e5m2"])


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
    # One step of the format beyond the largest number; a tie goes to the even mantissa, which 448 has.
    beyond = number_range.largest + (16.0 if format_ == "e4m3" else 4096.0)
    around = torch.tensor([beyond, beyond * 0.999, beyond * 1.001])
    sign = 1
    for value in torch.cat([numbers, borders, above, below, around]):
        rounded = value.clamp(max=number_range.largest).to(number_range.dtype).float()
        expected = [
            float(value == 0),
            float(rounded == 0 and value != 0),
            float(0 < rounded < number_range.smallest_normal),
            float(value > beyond or (value == beyond and format_ == "e5m2")),
        ]
        sign = -sign
        # Shares of zeros, flushed, subnormal and saturated, errors, scales, the largest channel, counts.
        row = operand_numbers(sign * value.reshape(1, 1), torch.tensor(1.0), format_).tolist()
        assert row[:4] == expected, sign * value
        exponents = [place - 42 for place, count in enumerate(row[11:]) if count]
        assert exponents == ([math.frexp(float(value))[1] - 1] if value else []), value


@FORMATS
@pytest.mark.parametrize("piece", [None, 30], ids=["whole", "in pieces"])
def test_errors_scales_counts_and_the_largest_channel(
    format_: Float8Format, piece: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if piece:
        monkeypatch.setattr("amptui.engine.probes.float8_window._PIECE", piece)
    torch.manual_seed(0)
    operand = torch.randn(64, 8)
    operand[:, 5] *= 1000
    operand[:, 2] = 0
    operand[:, 7] *= 1e-7
    scale = torch.rand(64, 1) + 0.5
    row = operand_numbers(operand, scale, format_).tolist()
    limit = RANGES[format_].largest
    scaled = operand * scale
    difference = scaled.clamp(-limit, limit).to(RANGES[format_].dtype).float() / scale - operand
    errors = [float(difference[:, i].norm() / operand[:, i].norm()) for i in range(8) if i != 2]
    assert row[0] == 1 / 8
    assert math.isclose(row[4], float(difference.norm() / operand.norm()), rel_tol=1e-5)
    assert math.isclose(row[5], sorted(errors)[3], rel_tol=1e-5)
    assert (row[6], row[7]) == (float(scale.min()), float(scale.max()))
    peaks = operand.abs().amax(0)
    assert row[8] == 5
    assert math.isclose(row[9], float(peaks[5] / peaks[peaks > 0].median()), rel_tol=1e-6)
    of_rows = (difference.norm(dim=1) / operand.norm(dim=1)).tolist()
    assert math.isclose(row[10], sorted(of_rows)[31], rel_tol=1e-5)
    exponents = scaled[operand != 0].double().abs().log2().floor().clamp(-42, 16)
    assert row[11:] == [float((exponents == exponent).sum()) for exponent in range(-42, 17)]


# ----------------------------------------------------------------------------------------- in a run


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


def operand_of(window: Float8Window, layer: str, role: str) -> Float8Operand:
    (found,) = (
        one for each in window.layers if each.name == layer for one in each.operands if one.role == role
    )
    return found


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
def test_a_run_measures_its_first_float8_step_and_when_somebody_asks(recipe: str) -> None:
    first, *_, asked = windows(1.0, recipe)
    assert (first.step, first.requested, first.recipe) == (1, False, recipe)
    assert asked.requested
    assert [layer.name for layer in asked.layers] == ["1", "3"]
    gradient = "e5m2" if recipe == "tensorwise" else "e4m3"
    for layer in asked.layers:
        formats = {operand.role: operand.format for operand in layer.operands}
        assert formats == {"input": "e4m3", "weight": "e4m3", "gradient": gradient}
        for operand in layer.operands:
            assert 0 < operand.error < (2**-4 if operand.format == "e4m3" else 2**-3)
            assert sum(operand.counts) == round(operand.elements * (1 - operand.zeros))
            assert operand.counts[0]
            assert operand.counts[-1]
            assert operand.first_exponent is not None
            if recipe == "tensorwise":  # the scale maps the largest number onto the limit
                top = operand.first_exponent + len(operand.counts) - 1
                assert top == {"e4m3": 8, "e5m2": 15}[operand.format]
    weight = operand_of(asked, "1", "weight")
    assert math.log2(weight.scale_low).is_integer() == (recipe != "tensorwise")


def test_a_channel_far_above_the_others_makes_float8_lose_these() -> None:
    healthy = operand_of(windows(1.0, "tensorwise")[0], "3", "input")
    spoiled = operand_of(windows(1e7, "tensorwise")[0], "3", "input")
    assert healthy.channel_error < 0.1
    assert spoiled.channel == 3
    assert spoiled.channel_error > 0.9
    assert spoiled.flushed > 0.5
    assert spoiled.error < 0.1  # the norm is that of the one channel: it shows nothing


def test_measuring_changes_no_loss_and_what_hinders_it_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {step: HistogramRequest() for step in range(1, 9)}
    unmeasured = losses(log_of(prepare(Tiny(), precision="fp8", probes=False)))
    log = log_of(prepare(Tiny(), precision="fp8"), at=asked)
    assert len(log.of(Float8Window)) > 3
    assert losses(log) == unmeasured

    def no_memory(*_: object) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("amptui.engine.probes.float8_window.operand_numbers", no_memory)
    log = log_of(prepare(Tiny(), precision="fp8"), at=asked)
    assert log.of(Float8Window) == []
    (note,) = [note for note in log.of(Note) if "float8 window" in note.text]
    assert "out of memory measuring" in note.text
    assert losses(log) == unmeasured


@pytest.mark.ci  # it compiles
def test_a_compiled_model_is_measured_only_when_asked() -> None:
    graphs: list[object] = []
    log_of(compiled(prepare(Tiny(), precision="fp8"), keeping(graphs)))
    expected = len(graphs)
    torch.compiler.reset()
    log = log_of(compiled(prepare(Tiny(), precision="fp8"), keeping(graphs)), at={3: HistogramRequest()})
    assert [(window.step, window.requested) for window in log.of(Float8Window)] == [(4, True)]
    assert len(graphs) == 2 * expected > 0  # its code fits as before


# ------------------------------------------------------- models that do more than call each layer once


@pytest.mark.torch
def test_selective_checkpointing_gets_the_same_gradients() -> None:
    torch.manual_seed(0)
    saved = partial(create_selective_checkpoint_contexts, [torch.ops.aten.max.default])
    model = nn.Sequential(*(part for _ in range(3) for part in (nn.Linear(32, 32), nn.Tanh())))
    batch = torch.randn(16, 32) * 50

    def gradients(probe: Any) -> list[Tensor]:
        model.zero_grad()
        with probe:
            with autocast(torch.bfloat16):
                output = checkpoint(model, batch, use_reentrant=False, context_fn=saved)
            output.float().square().mean().backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    linears = in_float8(model)
    expected = gradients(nullcontext())
    measured = gradients(probe := Float8WindowProbe(linears))
    assert len(expected) == 6
    assert all(map(torch.equal, expected, measured))
    assert probe.trouble is None
    record = probe.record(probe.values().tolist(), step=1, precision="fp8-emulated", requested=True)
    (second,) = [layer for layer in record.layers if layer.name == "2"]
    assert {operand.role for operand in second.operands} == {"input", "weight", "gradient"}
