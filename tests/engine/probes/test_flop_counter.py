"""One step's operations are counted by torch's formulas, while the step computes what it would have."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from amptui.engine.compilation import compile_in_place
from amptui.engine.probes import flop_schedule
from amptui.engine.probes.flop_counter import FlopCounter
from amptui.records.control import Control, XRayRequest
from amptui.records.findings import FlopsCounted
from amptui.records.run import Record
from amptui.records.steps import StepRecord
from tests.tiny import Log, Tiny, Unautocastable, log_of, losses, prepare, train


class Convolutional(Tiny):
    def build_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Conv2d(8, 16, 3, groups=2),
            nn.Flatten(),
            nn.Linear(64, 4),
        )


class Attentive(Tiny):
    def build_model(self) -> nn.Module:
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        return nn.Sequential(nn.Flatten(2), nn.LazyLinear(16), encoder, nn.Flatten(), nn.LazyLinear(4))


class Recurrent(Tiny):
    def build_model(self) -> nn.Module:
        return RecurrentNet()


class RecurrentNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        last: Tensor = self.head(self.layers(inputs.squeeze(1))[0][:, -1])
        return last


def trained(kind: type[Tiny], precision: str) -> tuple[list[float | None], list[Tensor], Log]:
    log, prepared = Log(), prepare(kind(), precision=precision, steps=6)
    train(prepared, log)
    generator = torch.get_rng_state()
    return losses(log), [*prepared.model.state_dict().values(), generator], log


@pytest.mark.torch
@pytest.mark.parametrize(
    ("kind", "precision"),
    [(Tiny, "bf16"), (Convolutional, "fp32"), (Attentive, "fp32"), (Recurrent, "bf16")],
)
def test_the_step_computes_bit_for_bit_what_it_would_have(
    kind: type[Tiny], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting_losses, counting_state, log = trained(kind, precision)
    assert len(log.of(FlopsCounted)) == 1
    monkeypatch.setattr(flop_schedule, "is_compiled", lambda _model, inside=False: True)
    plain_losses, plain_state, plain = trained(kind, precision)
    assert not plain.of(FlopsCounted)
    assert counting_losses == plain_losses
    assert all(map(torch.equal, counting_state, plain_state))


@pytest.mark.torch
@pytest.mark.parametrize("kind", [Tiny, Attentive, Recurrent])
def test_it_counts_what_torch_counts(kind: type[Tiny]) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    log, prepared = Log(), prepare(kind(), steps=1)
    train(prepared, log)
    (counted,) = log.of(FlopsCounted)
    again = prepare(kind(), steps=1)
    inputs, targets = next(again.training.epoch(1))
    with FlopCounterMode(display=False) as counter:
        functional.cross_entropy(again.model.train()(inputs), targets).backward()
    assert counted.flops == counter.get_total_flops() > 0
    assert (counted.step, counted.uncounted) == (1, ())


NO_TRITON = """
import sys
sys.modules["triton"] = None  # as in torch's builds for a CPU
from torch import nn
from amptui.engine.probes.flop_counter import FlopCounter
with FlopCounter(nn.Linear(1, 1)):
    pass
"""


@pytest.mark.ci
def test_a_torch_without_triton_has_nothing_to_say_of_it() -> None:
    process = subprocess.run([sys.executable, "-c", NO_TRITON], capture_output=True, text=True, check=True)
    assert (process.stdout, process.stderr) == ("", "")


def test_a_layer_by_hand() -> None:
    log = log_of(prepare(Tiny(), steps=1))
    (counted,) = log.of(FlopsCounted)
    # Forward 2 m n k each; backward once more for the weights, and for the inputs of the second layer.
    first, second = 2 * 8 * 16 * 16, 2 * 8 * 4 * 16
    assert counted.flops == 2 * first + 3 * second
    assert counted.flops_by_type == {"float32": counted.flops}
    # 4 classes are no multiple of 8, but 8 would double the layer.
    assert (counted.unaligned_flops, counted.unaligned) == (0, ())


def test_each_precision_is_counted_once_in_its_first_step_a_warm_up_step() -> None:
    log = log_of(prepare(Tiny(epochs=10)), at={20: "bf16", 40: "fp32", 60: "bf16"})
    counted = log.of(FlopsCounted)
    assert [(entry.precision, *entry.flops_by_type) for entry in counted] == [
        ("fp32", "float32"),
        ("bf16", "bfloat16"),
    ]
    assert counted[0].flops == counted[1].flops
    steps = {record.step: record for record in log.of(StepRecord)}
    assert all(
        steps[entry.step].settling and steps[entry.step].precision == entry.precision for entry in counted
    )


def test_without_probes_as_in_a_benchmark_it_is_counted_too() -> None:
    log = log_of(prepare(Tiny(), steps=3, probes=False))
    assert len(log.of(FlopsCounted)) == 1


def test_a_first_step_that_fails_leaves_no_count_behind() -> None:
    log = log_of(prepare(Unautocastable(), steps=12), at={5: "bf16"})
    assert [entry.precision for entry in log.of(FlopsCounted)] == ["fp32"]


# ------------------------------------------------------------------- what formulas do not reach


def count(model: nn.Module, run: Callable[[], Any]) -> FlopsCounted:
    with FlopCounter(model) as counter:
        run().sum().backward()
    counted: FlopsCounted = counter.record(step=1, precision="fp16")
    return counted


def test_the_layout_of_convolutions_in_half_precision_is_noted() -> None:
    model = nn.Conv2d(8, 8, 3).to(torch.bfloat16)
    images = torch.rand(2, 8, 9, 9, dtype=torch.bfloat16, requires_grad=True)
    counted = count(model, lambda: model(images))
    assert counted.nchw_flops == counted.flops > 0
    model = model.to(memory_format=torch.channels_last)
    assert count(model, lambda: model(images)).nchw_flops == 0
    full = nn.Conv2d(8, 8, 3)
    assert count(full, lambda: full(images.float())).nchw_flops == 0
    # Images of other than two dimensions have no layout to choose.
    for layer, size in ((nn.Conv1d(8, 8, 3), (9,)), (nn.Conv3d(8, 8, 3), (4, 4, 4))):
        half, inputs = layer.bfloat16(), torch.rand(2, 8, *size, dtype=torch.bfloat16)
        assert count(half, lambda half=half, inputs=inputs: half(inputs)).nchw_flops == 0


@pytest.mark.parametrize(
    ("sizes", "padded"),
    [
        ((8, 16, 24), ()),
        ((8, 16, 20), (20,)),
        ((8, 10, 20), (10, 20)),
        ((8, 10, 10), (10,)),
        # Padding would double a size of up to 4, and there is nothing to pad of a single feature.
        ((64, 1, 64), ()),
        ((64, 4, 3), ()),
        # The rows are those of the batch: they are contiguous in none of a layer's matrices.
        ((1, 64, 64), ()),
        ((10, 64, 64), ()),
    ],
)
def test_sizes_are_those_of_the_product_and_some_can_be_padded(
    sizes: tuple[int, int, int], padded: tuple[int, ...]
) -> None:
    rows, columns, inner = sizes
    model = nn.Sequential(nn.Linear(inner, columns, bias=False))
    counted = count(model, lambda: model(torch.rand(rows, inner, requires_grad=True)))
    assert counted.flops == 3 * 2 * rows * columns * inner
    assert counted.unaligned_flops == counted.flops * bool(padded)
    assert [(entry.name, entry.sizes, entry.padded) for entry in counted.unaligned] == [
        ("0", sizes, padded)
    ] * bool(padded)


def test_a_product_of_activations_has_no_size_to_pad() -> None:
    model = nn.Linear(16, 16)

    def attend() -> Tensor:
        values: Tensor = model(torch.rand(2, 49, 16))
        return (values @ values.transpose(1, 2)) @ values

    assert count(model, attend).unaligned == ()


@pytest.mark.parametrize(
    ("layer", "sizes", "padded"),
    [
        (nn.Conv2d(3, 64, 3), (3, 64), ()),
        (nn.Conv2d(1, 8, 3), (1, 8), ()),
        (nn.Conv2d(12, 64, 3), (12, 64), (12,)),
        (nn.ConvTranspose2d(12, 50, 3), (12, 50), (12, 50)),
        (nn.Conv2d(12, 12, 3, groups=12), (12, 12), ()),
        (nn.Conv2d(24, 24, 3, groups=2), (24, 24), ()),
    ],
)
def test_channels_can_be_padded_but_not_those_of_images_or_of_groups(
    layer: nn.Conv2d, sizes: tuple[int, int], padded: tuple[int, ...]
) -> None:
    model = nn.Sequential(layer)
    counted = count(model, lambda: model(torch.rand(1, sizes[0], 5, 5)))
    assert [(entry.name, entry.sizes, entry.padded) for entry in counted.unaligned] == [
        ("0", sizes, padded)
    ] * bool(padded)


class Doubled(torch.autograd.Function):
    """Its kernels would be of its own."""

    @staticmethod
    def forward(_context: Any, values: Tensor) -> Tensor:
        return values.clone().mul_(2)

    @staticmethod
    def backward(_context: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 2


def test_an_autograd_function_of_ones_own_makes_it_a_lower_bound() -> None:
    model = nn.Linear(8, 8)
    assert count(model, lambda: model(torch.rand(8, 8))).uncounted == ()
    double: Callable[[Tensor], Tensor] = Doubled.apply
    assert count(model, lambda: double(model(torch.rand(8, 8)))).uncounted == ("Doubled",)


def test_recomputed_activations_count_each_time() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    once = count(model, lambda: model(torch.rand(8, 8, requires_grad=True)))
    twice = count(model, lambda: checkpoint(model, torch.rand(8, 8, requires_grad=True), use_reentrant=False))
    # Of the six products the first is made again; what follows it is not needed.
    assert 6 * twice.flops == 7 * once.flops
    assert twice.uncounted == ()


@pytest.mark.torch
def test_a_compiled_model_is_counted_by_the_x_ray_and_in_no_step() -> None:
    control, graphs = Control(), list[torch.fx.GraphModule]()
    prepared = prepare(Tiny(), steps=6)

    def backend(graph: torch.fx.GraphModule, _inputs: object) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    compile_in_place(prepared.model, backend=backend)
    log = Log()

    def ask(record: Record) -> None:
        if isinstance(record, StepRecord) and record.step == 3:
            assert graphs, "the first step is compiled"
            assert not log.of(FlopsCounted)
            control.ask(XRayRequest())

    log.watch = ask
    train(prepared, log, control)
    (counted,) = log.of(FlopsCounted)
    plain = Log()
    train(prepare(Tiny(), steps=1), plain)
    assert (counted.precision, counted.flops) == ("bf16", plain.of(FlopsCounted)[0].flops)
    assert counted.samples == 8
    torch.compiler.reset()
