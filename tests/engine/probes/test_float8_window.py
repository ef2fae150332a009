"""The windows of float8 products: each number against torch's own casts, bin by bin, and in a real run."""

import math
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from amptui.engine.probes.float8_window import MAX_COUNTED_LAYERS, RANGES, operand_numbers
from amptui.engine.probes.schedule import no_float8
from amptui.records import codec
from amptui.records.control import HistogramRequest
from amptui.records.findings import Float8Format, Float8LayerWindow, Float8Role, Float8Window
from amptui.records.run import Note
from tests.engine.compiled_runs import compiled
from tests.telemetry.record_samples import float8_operand, float8_window
from tests.tiny import Tiny, log_of, losses, prepare

needs_torchao = pytest.mark.usefixtures("usable_torchao")

pytestmark = pytest.mark.usefixtures("windows_unasked")


FORMATS = pytest.mark.parametrize("format_", ["e4m3", "e5m2"])


def fractions(values: Tensor, format_: Float8Format) -> tuple[float, float, float, float]:
    """Zeros, flushed, subnormal, saturated."""
    row = operand_numbers(values.reshape(-1, 1), torch.tensor(1.0), format_)
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
    operand = torch.randn(64, 8)
    operand[:, 5] *= 1000
    operand[:, 2] = 0
    scale = torch.rand(64, 1) + 0.5
    row = operand_numbers(operand, scale, format_).tolist()
    limit = RANGES[format_].largest
    rounded = (operand * scale).clamp(-limit, limit).to(RANGES[format_].dtype).float() / scale
    errors = [
        float((rounded[:, i] - operand[:, i]).norm() / operand[:, i].norm()) for i in range(8) if i != 2
    ]
    assert row[0] == 1 / 8
    assert math.isclose(row[4], float((rounded - operand).norm() / operand.norm()), rel_tol=1e-5)
    assert math.isclose(row[5], sorted(errors)[3], rel_tol=1e-5)
    assert (row[6], row[7]) == (float(scale.min()), float(scale.max()))
    peaks = operand.abs().amax(0)
    assert row[8] == 5
    assert math.isclose(row[9], float(peaks[5] / peaks[peaks > 0].median()), rel_tol=1e-6)
    of_rows = ((rounded - operand).norm(dim=1) / operand.norm(dim=1)).tolist()
    assert math.isclose(row[10], sorted(of_rows)[31], rel_tol=1e-5)


class Sizes(TorchDispatchMode):
    """Notes the bytes of the largest tensor that an operator makes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.largest_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.largest_bytes = max(self.largest_bytes, result.untyped_storage().nbytes())
        return result


@FORMATS
@pytest.mark.parametrize("by_row", [True, False], ids=["scales", "scale"])
def test_a_large_operand_is_measured_in_pieces(
    monkeypatch: pytest.MonkeyPatch, format_: Float8Format, by_row: bool
) -> None:
    torch.manual_seed(0)
    operand = torch.randn(1000, 24, dtype=torch.bfloat16) * torch.logspace(-12, 2, 24).bfloat16()
    scale = torch.rand(1000, 1) * 100 if by_row else torch.tensor(50.0)
    whole = operand_numbers(operand, scale, format_)
    monkeypatch.setattr("amptui.engine.probes.float8_window._PIECE", 250)
    with Sizes() as sizes:
        pieces = operand_numbers(operand, scale, format_)
    torch.testing.assert_close(pieces, whole, rtol=1e-6, atol=0)
    assert sizes.largest_bytes <= operand.numel() * operand.itemsize


@pytest.mark.parametrize("values", [[3.0, 1.0, 2.0], [4.0, 1.0, 3.0, 2.0], [math.nan, 5.0, 1.0, math.nan]])
def test_the_median_channel_is_torchs(values: list[float]) -> None:
    row = operand_numbers(torch.tensor([values]).nan_to_num(), torch.tensor(1.0), "e4m3")
    assert row[9] == max(torch.tensor(values).nan_to_num()) / torch.tensor(values).nanmedian()


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
        operand
        for layer_window in window.layers
        for operand in layer_window.operands
        if (layer_window.name, operand.role) == (layer, role)
    )


@pytest.mark.ci
@needs_torchao
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
def test_a_run_measures_its_first_float8_step_and_when_somebody_asks(recipe: str) -> None:
    first, *_, asked = windows(1.0, recipe)
    assert (first.step, first.requested, first.recipe) == (1, False, recipe)
    assert asked.requested
    assert [layer.name for layer in asked.layers] == ["1", "3"]
    formats = {operand.role: operand.format for layer in asked.layers for operand in layer.operands}
    gradient = "e5m2" if recipe == "tensorwise" else "e4m3"
    assert formats == {"input": "e4m3", "weight": "e4m3", "gradient": gradient}
    weight = error_of(asked, "1", "weight")
    assert 0 < weight.error < 2**-4
    assert math.log2(weight.scale_low).is_integer() == (recipe != "tensorwise")


@pytest.mark.ci
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
    by_row = error_of(windows(1e7, "rowwise_with_gw_hp")[0], "3", "input")
    assert by_row.channel_error > 0.9  # a channel that is in every row


@needs_torchao
def test_only_the_layers_of_the_largest_errors_keep_their_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amptui.engine.probes.float8_window.MAX_COUNTED_LAYERS", 1)
    for window in windows(1e7, "tensorwise"):
        errors = {
            layer.name: max(operand.channel_error for operand in layer.operands if operand.zeros < 1)
            for layer in window.layers
        }
        counted = [layer.name for layer in window.layers if any(one.counts for one in layer.operands)]
        assert counted == [max(errors, key=lambda name: errors[name])]


def test_a_line_of_so_many_layers_stays_small() -> None:
    """Three operands of a normal distribution each: a journal's line has a place for them."""
    torch.manual_seed(0)
    row = operand_numbers(torch.randn(4096, 1024), torch.tensor(90.0), "e4m3")[11:].tolist()
    first = next(place for place, count in enumerate(row) if count)
    counts = tuple(int(count) for count in row[first:] if count)
    operands = tuple(
        float8_operand(role, 0.026, first_exponent=first - 42, counts=counts) for role in get_args(Float8Role)
    )
    layers = [
        Float8LayerWindow(name=f"blocks.{number}.mlp.fc", operands=operands)
        for number in range(MAX_COUNTED_LAYERS)
    ]
    line = codec.dumps(float8_window(4, *layers))
    assert len(line) < 100_000
    assert codec.loads(line) == float8_window(4, *layers)


@needs_torchao
def test_measuring_changes_no_loss() -> None:
    measured = log_of(prepare(Tiny(), precision="fp8"), at={n: HistogramRequest() for n in range(1, 9)})
    assert len(measured.of(Float8Window)) > 3
    assert losses(measured) == losses(log_of(prepare(Tiny(), precision="fp8", probes=False)))


@FORMATS
def test_counts_by_exponent_are_those_of_the_scaled_numbers_and_make_up_the_shares(
    format_: Float8Format,
) -> None:
    torch.manual_seed(1)
    number_range, scale = RANGES[format_], 3.7
    spread = torch.randn(4000, 3) * 2.0 ** torch.randint(-50, 20, (4000, 3))
    spread[::7] = 0
    spread[1] = torch.tensor([math.nan, math.inf, -math.inf])
    row = operand_numbers(spread, torch.tensor(scale), format_)
    counts = dict(enumerate(row[11:].tolist(), -42))

    scaled = spread.float() * torch.tensor(scale)
    exact = scaled[scaled.isfinite() & (spread != 0)]
    exponents = exact.double().abs().log2().floor().clamp(-42, 16)
    assert counts == {e: float((exponents == e).sum()) for e in range(-42, 17)}

    # By torch's cast, all of a bin that no border of the format cuts is flushed, subnormal or normal.
    limited = exact.clamp(-number_range.largest, number_range.largest)
    rounded = limited.to(number_range.dtype).float().abs()
    lowest, normal = {"e4m3": (-10, -6), "e5m2": (-17, -14)}[format_]
    assert (rounded[exponents < lowest] == 0).all()
    kept = rounded[exponents > lowest]
    assert (kept > 0).all()
    assert (rounded[(exponents >= lowest) & (exponents < normal)] <= number_range.smallest_normal).all()
    assert (rounded[exponents >= normal] >= number_range.smallest_normal).all()
    flushed = sum(count for exponent, count in counts.items() if exponent < lowest)
    ties = int((exact.abs() == 2.0**lowest).sum())
    assert flushed + ties == round(row[1].item() * spread.numel())


@FORMATS
def test_each_number_of_the_format_is_in_the_bin_of_its_exponent(format_: Float8Format) -> None:
    codes = torch.arange(1, 128, dtype=torch.uint8).view(RANGES[format_].dtype).float()
    for value in codes[codes.isfinite()]:
        counts = operand_numbers(value.reshape(1, 1), torch.tensor(1.0), format_)[11:]
        assert counts.nonzero().item() == math.frexp(value.item())[1] - 1 + 42
        assert counts.sum() == 1


@needs_torchao
def test_a_record_has_the_counts_that_are_not_zero() -> None:
    first, *_ = windows(1.0, "tensorwise")
    for layer in first.layers:
        for operand in layer.operands:
            assert operand.counts[0]
            assert operand.counts[-1]
            assert sum(operand.counts) == round(operand.elements * (1 - operand.zeros))
            assert operand.first_exponent is not None
            top = operand.first_exponent + len(operand.counts) - 1
            assert top == {"e4m3": 8, "e5m2": 15}[operand.format]  # the scale maps the largest onto the limit


@needs_torchao
def test_what_hinders_a_measurement_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("amptui.engine.probes.float8_window.operand_numbers", no_memory)
    log = log_of(prepare(Tiny(), precision="fp8"), at={n: HistogramRequest() for n in range(1, 5)})
    assert log.of(Float8Window) == []
    (note,) = [note for note in log.of(Note) if "float8 window" in note.text]
    assert "out of memory measuring" in note.text
    assert losses(log) == losses(log_of(prepare(Tiny(), precision="fp8", probes=False)))


class ByWeights(Tiny):
    """Multiplies with the weights of its layers, and never calls these."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        assert isinstance(model, nn.Sequential)
        inputs, targets = batch
        layer, last = model[1], model[4]
        assert isinstance(layer, nn.Linear)
        assert isinstance(last, nn.Linear)
        hidden = nn.functional.linear(inputs.flatten(1), layer.weight, layer.bias).relu()
        return nn.functional.cross_entropy(nn.functional.linear(hidden, last.weight, last.bias), targets)


def warnings_of(log: Any) -> list[str]:
    return [note.text for note in log.of(Note) if note.severity == "warning" and "no float8" in note.text]


@needs_torchao
def test_a_step_in_fp8_without_a_float8_product_is_told_once() -> None:
    log = log_of(prepare(ByWeights(), precision="fp8"), at={3: HistogramRequest()})
    (warning,) = warnings_of(log)
    assert warning == no_float8(1, called=False)
    assert "called none of its Linear layers" in warning
    assert log.of(Float8Window) == []
    assert warnings_of(log_of(prepare(Tiny(), precision="fp8"))) == []


@pytest.mark.ci  # it compiles
@needs_torchao
def test_a_compiled_model_is_measured_only_when_asked() -> None:
    graphs: list[Any] = []

    def backend(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    log_of(compiled(prepare(Tiny(), precision="fp8"), backend))
    expected = len(graphs)
    torch.compiler.reset()
    log = log_of(compiled(prepare(Tiny(), precision="fp8"), backend), at={3: HistogramRequest()})
    assert [(window.step, window.requested) for window in log.of(Float8Window)] == [(4, True)]
    assert len(graphs) == 2 * expected > 0  # its code fits as before
