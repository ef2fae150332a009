"""One step's operations are counted by torch's formulas, while the step computes what it would have."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from amptui import Data, DataRequest
from amptui.engine.compilation import compile_in_place
from amptui.engine.probes import flop_schedule
from amptui.engine.probes.flop_counter import FlopCounter
from amptui.engine.probes.flop_schedule import MAX_SHAPES, MAX_SIZES, FlopSchedule, step_inputs
from amptui.engine.setup import prepare_precisions
from amptui.records.control import XRayRequest
from amptui.records.findings import FlopsCounted
from amptui.records.steps import StepRecord
from tests.engine.compiled_runs import Uneven, keeping
from tests.telemetry.record_samples import flops
from tests.tiny import Log, Tiny, log_of, losses, prepare, train


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


def trained(kind: type[Tiny], precision: str) -> tuple[list[float | None], list[Tensor], Log]:
    log, prepared = Log(), prepare(kind(), precision=precision, steps=6)
    train(prepared, log)
    generator = torch.get_rng_state()
    return losses(log), [*prepared.model.state_dict().values(), generator], log


@pytest.mark.torch
@pytest.mark.parametrize(
    ("kind", "precision"),
    [(Convolutional, "bf16"), (Attentive, "fp32")],
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
@pytest.mark.parametrize("kind", [Tiny, Attentive])
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


@pytest.mark.parametrize("probes", [True, False])
def test_each_precision_is_counted_once_in_its_first_step_a_warm_up_step(probes: bool) -> None:
    """Without probes, as in a benchmark, too."""
    log = log_of(prepare(Tiny(epochs=4), probes=probes), at={10: "bf16", 15: "fp32", 20: "bf16"})
    full, half = log.of(FlopsCounted)
    # Forward 2 m n k each; backward once more for the weights, and for the inputs of the second layer.
    first, second = 2 * 8 * 16 * 16, 2 * 8 * 4 * 16
    assert full.flops == half.flops == 2 * first + 3 * second
    assert (full.flops_by_type, half.flops_by_type) == ({"float32": full.flops}, {"bfloat16": full.flops})
    # 4 classes are no multiple of 8, but 8 would double the layer.
    assert (full.unaligned_flops, full.unaligned) == (0, ())
    steps = {record.step: record for record in log.of(StepRecord)}
    for entry, precision in ((full, "fp32"), (half, "bf16")):
        assert entry.precision == steps[entry.step].precision == precision
        assert steps[entry.step].settling


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
    half, signal = nn.Conv1d(8, 8, 3).bfloat16(), torch.rand(2, 8, 9, dtype=torch.bfloat16)
    assert count(half, lambda: half(signal)).nchw_flops == 0, "only images have a layout to choose"


def linear(rows: int, columns: int, inner: int) -> tuple[nn.Module, tuple[int, ...], tuple[int, ...]]:
    """A layer, the shape of its inputs, and the sizes of its product."""
    return nn.Linear(inner, columns, bias=False), (rows, inner), (rows, columns, inner)


def convolution(
    kind: type[nn.Module], inputs: int, outputs: int, **options: int
) -> tuple[nn.Module, tuple[int, ...], tuple[int, ...]]:
    return kind(inputs, outputs, 3, **options), (1, inputs, 5, 5), (inputs, outputs)


@pytest.mark.parametrize(
    ("case", "padded"),
    [
        (linear(8, 16, 24), ()),
        (linear(8, 16, 20), (20,)),
        (linear(8, 10, 20), (10, 20)),
        (linear(8, 10, 10), (10,)),
        # Padding would double a size of up to 4, and there is nothing to pad of a single feature.
        (linear(64, 1, 64), ()),
        (linear(64, 4, 3), ()),
        # The rows are those of the batch: they are contiguous in none of a layer's matrices.
        (linear(1, 64, 64), ()),
        (linear(10, 64, 64), ()),
        # Channels can be padded, but not those of images or of groups.
        (convolution(nn.Conv2d, 3, 64), ()),
        (convolution(nn.Conv2d, 1, 8), ()),
        (convolution(nn.Conv2d, 12, 64), (12,)),
        (convolution(nn.ConvTranspose2d, 12, 50), (12, 50)),
        (convolution(nn.Conv2d, 12, 12, groups=12), ()),
        (convolution(nn.Conv2d, 24, 24, groups=2), ()),
    ],
)
def test_some_sizes_of_a_product_can_be_padded(case: Any, padded: tuple[int, ...]) -> None:
    layer, shape, sizes = case
    model = nn.Sequential(layer)
    counted = count(model, lambda: model(torch.rand(shape, requires_grad=True)))
    if isinstance(layer, nn.Linear):
        assert counted.flops == 3 * 2 * math.prod(sizes)
        assert counted.unaligned_flops == counted.flops * bool(padded)
    expected = [("0", sizes, padded)] if padded else []
    assert [(entry.name, entry.sizes, entry.padded) for entry in counted.unaligned] == expected


def test_a_product_of_activations_has_no_size_to_pad() -> None:
    model = nn.Linear(16, 16)

    def attend() -> Tensor:
        values: Tensor = model(torch.rand(2, 49, 16))
        return (values @ values.transpose(1, 2)) @ values

    assert count(model, attend).unaligned == ()


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
    graphs: list[object] = []
    prepared = prepare(Tiny(), steps=6)
    compile_in_place(prepared.model, backend=keeping(graphs))
    log = log_of(prepared, at={3: XRayRequest()})
    assert graphs, "the first step is compiled"
    (counted,) = log.of(FlopsCounted)
    (plain,) = log_of(prepare(Tiny(), steps=1)).of(FlopsCounted)
    assert (counted.precision, counted.flops) == ("bf16", plain.flops)
    assert counted.step > 3
    assert counted.samples == 8
    torch.compiler.reset()


# ------------------------------------------------------- one step of each precision and input shape


CPU = torch.device("cpu")
FP32 = prepare_precisions(CPU)[1]["fp32"]
EAGER = prepare_precisions(CPU)[1]["fp32"]
EAGER.eager = True


class Text(Tiny):
    """Sequences of the lengths in ``steps_of``, one a batch; ``labels`` adds a tensor of a new shape."""

    steps_of: str = "5,5,5"
    labels: bool = False

    def build_model(self) -> nn.Module:
        return nn.Linear(4, 4)

    def load_data(self, request: DataRequest) -> Data:
        lengths = [int(count) for count in self.steps_of.split(",") for _ in range(self.batch_size)]
        self.batches = 0
        samples: Any = [(torch.rand(length, 4), torch.tensor(n % 4)) for n, length in enumerate(lengths)]
        rows = DataLoader(samples, self.batch_size, collate_fn=self.collate_fn)
        return Data(name="rows", real=False, train=rows)

    def collate_fn(self, samples: list[Any]) -> Any:
        inputs, targets = zip(*samples, strict=True)
        self.batches += self.labels
        return torch.stack(inputs), torch.stack(targets), torch.rand(1 + self.batches)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        inputs, targets, _ = batch
        return functional.cross_entropy(model(inputs).mean(1), targets)


def counts_of(experiment: Tiny, *, at: dict[int, str] | None = None, **options: Any) -> list[FlopsCounted]:
    return log_of(prepare(experiment, validation=False, **options), at=at or {}).of(FlopsCounted)


def test_a_smaller_last_batch_is_counted_apart() -> None:
    log = log_of(prepare(Uneven(samples=28, epochs=3), validation=False), at={5: "bf16"})
    full, half, *others = log.of(FlopsCounted)
    first = [(count.precision, count.samples, count.step) for count in (full, half)]
    assert first == [("fp32", 8, 1), ("fp32", 4, 4)]
    assert full.flops == 2 * half.flops
    assert {(count.precision, count.samples) for count in others} == {("bf16", 8), ("bf16", 4)}
    assert not any(count.shapes_vary for count in log.of(FlopsCounted))
    settling = {record.step: record.settling for record in log.of(StepRecord)}
    assert all(settling[count.step] for count in log.of(FlopsCounted))


def test_accumulated_batches_make_one_step_of_all_their_samples() -> None:
    three, two = counts_of(Tiny(samples=40, epochs=1), accumulate=3)
    assert (three.samples, two.samples) == (24, 16)
    assert 2 * three.flops == 3 * two.flops


def test_inputs_of_other_lengths_make_every_count_untrue_and_end_the_counting() -> None:
    first, second = counts_of(Text(steps_of="5,5,7,9,5", epochs=2))
    counted = [(count.step, count.samples, count.shapes_vary) for count in (first, second)]
    assert counted == [(1, 8, False), (3, 8, True)]
    assert second.flops > first.flops


def test_shapes_that_cost_no_operations_are_no_matter() -> None:
    sized_inputs = counts_of(Text(labels=True, epochs=4))
    assert [(count.samples, count.shapes_vary) for count in sized_inputs] == [(8, False)] * MAX_SHAPES


# ------------------------------------------------------------------------------------- parts


def inputs(samples: int, *shapes: tuple[int, ...]) -> flop_schedule.StepInputs:
    return step_inputs([(samples, [torch.empty(shape) for shape in shapes])])


def watched() -> tuple[FlopSchedule, list[FlopsCounted]]:
    counts: list[FlopsCounted] = []
    return FlopSchedule(nn.Linear(4, 4), counts.append), counts


def test_a_length_that_comes_late_is_noticed_and_told_once() -> None:
    schedule, counts = watched()
    schedule.check(1, inputs(8, (8, 5)))
    schedule.add(flops(), inputs(8, (8, 5)))
    schedule.check(200, inputs(4, (4, 9)))
    schedule.check(201, inputs(8, (8, 5)))
    assert [count.shapes_vary for count in counts] == [False]
    schedule.check(202, inputs(8, (8, 9)))
    schedule.check(203, inputs(8, (8, 11)))
    assert [(count.step, count.shapes_vary) for count in counts] == [(1, False), (202, True)]
    assert not schedule.is_due(FP32, inputs(16, (16, 5)))


def test_another_precision_may_come_to_another_number() -> None:
    schedule, counts = watched()
    schedule.add(flops("fp32", flops=100), inputs(8, (8, 5)))
    schedule.add(flops("fp16", flops=90), inputs(8, (8, 5)))
    assert not any(count.shapes_vary for count in counts)


def test_so_many_sizes_are_counted_and_no_more() -> None:
    schedule, counts = watched()
    for size in range(1, 20):
        sized_inputs = inputs(size, (size, 5))
        if schedule.is_due(FP32, sized_inputs):
            schedule.add(flops(flops=100 * size), sized_inputs)
    assert [count.samples for count in counts] == list(range(1, MAX_SIZES + 1))


@pytest.mark.parametrize("part", [True, False])
def test_a_compiled_model_is_counted_only_where_all_of_it_runs_eagerly(
    part: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flop_schedule, "is_compiled", lambda _model, inside=False: part or not inside)
    schedule, _ = watched()
    assert not schedule.is_due(FP32, inputs(8, (8, 5)))
    assert schedule.is_due(EAGER, inputs(8, (8, 5))) is not part
