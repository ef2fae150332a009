"""One step's operations against hand counts, while the step computes what it would have."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from amptui import Data, DataRequest
from amptui.loops.compilation import compile_in_place
from amptui.loops.setup import prepare_precisions
from amptui.models.char_gpt import CharGpt
from amptui.probes import flop_counter
from amptui.probes.flop_counter import MAX_COUNTED, FlopCounter, FlopSchedule, step_inputs
from amptui.records.answers import RequestMade
from amptui.records.findings import FlopsCounted
from tests.builders import StepRow
from tests.loops.compiled_runs import Uneven, keeping
from tests.telemetry.record_samples import flops
from tests.tiny import Tiny, log_of, prepare


def counted(model: nn.Module, run: Callable[[], Tensor]) -> FlopsCounted:
    with FlopCounter(model) as counter:
        result = run()
        if result.requires_grad:
            result.sum().backward()
    count: FlopsCounted = counter.record(step=1, precision="fp32")
    return count


def step_flops(layer: nn.Module, inputs: Tensor) -> int:
    return counted(layer, lambda: layer(inputs)).flops


def rand(*sizes: int) -> Tensor:
    return torch.rand(*sizes, requires_grad=True)


def products(kind: Any, images: Tensor, *channels: int, **options: int) -> int:
    """How many pairs of an input and an output meet: where all numbers are 1, each product adds 1."""
    layer = kind(*channels, 2, bias=False, **options)
    nn.init.ones_(layer.weight)
    return int(layer(torch.ones_like(images)).sum())


@pytest.mark.torch
@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (nn.Conv1d, (9,)),
        (nn.Conv2d, (7, 8)),
        (nn.Conv3d, (5, 4, 5)),
        (nn.ConvTranspose1d, (5,)),
        (nn.ConvTranspose2d, (3, 4)),
        (nn.ConvTranspose3d, (2, 3, 2)),
    ],
)
def test_a_convolution_multiplies_as_often_as_inputs_and_outputs_meet(
    kind: Any, size: tuple[int, ...]
) -> None:
    channels_and_groups = [(4, 6, 1), (4, 6, 2), (4, 4, 4), (4, 8, 4)]
    for (inputs, outputs, groups), added in itertools.product(
        channels_and_groups, [{}, {"stride": 2}, {"dilation": 2}]
    ):
        options = {"groups": groups, **added}
        layer, images = kind(inputs, outputs, 2, **options), torch.rand(1, inputs, *size)
        forward = 2 * products(kind, images, inputs, outputs, **options)
        # The gradient of the weights; that of the images only where somebody needs it.
        assert step_flops(layer, images) == 2 * forward, options
        assert step_flops(layer, images.requires_grad_()) == 3 * forward, options
        layer.weight.requires_grad_(False)
        assert step_flops(layer, images) == 2 * forward, options


@pytest.mark.torch
def test_a_step_of_char_gpt_is_what_a_hand_count_gives() -> None:
    model = CharGpt(layers=2, heads=2, width=32, context=16, dropout=0.0).build_model()
    assert isinstance(model, nn.Module)
    vocabulary, batch, length, width = model.get_parameter("tok_emb.weight").shape[0], 3, 16, 32
    count = counted(model, lambda: model(torch.randint(0, 90, (batch, length))))
    # Three passes of 12 w^2 weights a block, and of the output layer's.
    weights = 2 * 12 * width**2 + vocabulary * width
    # T x w by w x T, twice in attention's forward pass; five times backward, as it computes the scores again.
    attention = 2 * (2 + 5) * batch * length * length * width
    assert count.flops == 3 * 2 * batch * length * weights + 2 * attention
    assert count.uncounted == ()


def test_a_recurrent_layer_uses_each_matrix_once_per_position() -> None:
    model = nn.LSTM(4, 8, num_layers=2, bidirectional=True)
    count = counted(model, lambda: model(rand(5, 3, 4))[0])
    assert count.flops == 3 * 2 * (5 * 3) * sum(p.numel() for p in model.parameters() if p.dim() == 2)
    assert count.uncounted == ()


@pytest.mark.parametrize(
    ("run", "flops"),
    [
        (lambda: torch.rand(3, 4).addmm_(torch.rand(3, 5), torch.rand(5, 4)), 2 * 3 * 5 * 4),
        (lambda: torch.rand(2, 3, 4).baddbmm_(torch.rand(2, 3, 5), torch.rand(2, 5, 4)), 2 * 2 * 3 * 5 * 4),
        # Four real products and four sums for each complex one.
        (lambda: (torch.rand(3, 5) + 1j) @ (torch.rand(5, 4) + 1j), 8 * 3 * 5 * 4),
    ],
    ids=["addmm_", "baddbmm_", "complex"],
)
def test_products_that_torch_has_no_formula_for(run: Callable[[], Tensor], flops: int) -> None:
    count = counted(nn.Identity(), run)
    assert (count.flops, count.uncounted) == (flops, ())


@pytest.mark.parametrize(
    ("run", "name"),
    [
        (lambda: torch.fft.rfft(rand(8)).abs(), "_fft_r2c"),
        (lambda: torch.linalg.inv(torch.eye(3) + rand(3, 3)), "linalg_inv_ex"),
        (
            lambda: torch.cdist(rand(30, 3), rand(30, 3), compute_mode="donot_use_mm_for_euclid_dist"),
            "_cdist_forward",
        ),
        (lambda: torch.sparse.mm(torch.eye(3).to_sparse(), rand(3, 4)), "_sparse_addmm"),
    ],
    ids=lambda name: name if isinstance(name, str) else "",
)
def test_what_may_multiply_and_has_no_formula_makes_a_lower_bound(
    run: Callable[[], Tensor], name: str
) -> None:
    layer = nn.Linear(8, 8)
    count = counted(layer, lambda: layer(torch.rand(8, 8)).sum() + run().sum())
    assert name in count.uncounted
    assert count.flops >= 2 * 2 * 8**3


def test_an_operator_of_somebody_s_own_is_free_only_if_it_is_tagged_as_pointwise() -> None:
    for tags, uncounted in (((torch.Tag.pointwise,), ()), ((), ("twice",))):
        with torch.library._scoped_library("amptui_tests_tags", "FRAGMENT") as library:
            library.define("twice(Tensor values) -> Tensor", tags=tags)
            library.impl("twice", lambda values: values * 2, "CompositeExplicitAutograd")
            count = counted(nn.Identity(), lambda: torch.ops.amptui_tests_tags.twice(torch.rand(3)))
        assert count.uncounted == uncounted


def test_the_layout_of_convolutions_in_half_precision_is_noted() -> None:
    model = nn.Conv2d(8, 8, 3).to(torch.bfloat16)
    images = torch.rand(2, 8, 9, 9, dtype=torch.bfloat16, requires_grad=True)
    count = counted(model, lambda: model(images))
    assert count.nchw_flops == count.flops > 0
    model = model.to(memory_format=torch.channels_last)
    assert counted(model, lambda: model(images)).nchw_flops == 0
    full = nn.Conv2d(8, 8, 3)
    assert counted(full, lambda: full(images.float())).nchw_flops == 0
    half, signal = nn.Conv1d(8, 8, 3).bfloat16(), torch.rand(2, 8, 9, dtype=torch.bfloat16)
    assert counted(half, lambda: half(signal)).nchw_flops == 0, "only images have a layout to choose"


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
        # Padding would double a size of up to 4, and there is nothing to pad of a single feature.
        (linear(64, 1, 64), ()),
        # The rows are those of the batch: they are contiguous in none of a layer's matrices.
        (linear(1, 64, 64), ()),
        # Channels can be padded, but not those of images or of groups.
        (convolution(nn.Conv2d, 3, 64), ()),
        (convolution(nn.Conv2d, 12, 64), (12,)),
        (convolution(nn.ConvTranspose2d, 12, 50), (12, 50)),
        (convolution(nn.Conv2d, 12, 12, groups=12), ()),
    ],
)
def test_some_sizes_of_a_product_can_be_padded(case: Any, padded: tuple[int, ...]) -> None:
    layer, shape, sizes = case
    model = nn.Sequential(layer)
    count = counted(model, lambda: model(torch.rand(shape, requires_grad=True)))
    if isinstance(layer, nn.Linear):
        assert count.flops == 3 * 2 * math.prod(sizes)
        assert count.unaligned_flops == count.flops * bool(padded)
    expected = [("0", sizes, padded)] if padded else []
    assert [(entry.name, entry.sizes, entry.padded) for entry in count.unaligned] == expected


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
    assert counted(model, lambda: model(torch.rand(8, 8))).uncounted == ()
    double: Callable[[Tensor], Tensor] = Doubled.apply
    assert counted(model, lambda: double(model(torch.rand(8, 8)))).uncounted == ("Doubled",)


@pytest.mark.torch
def test_a_compiled_model_is_counted_by_the_x_ray_and_in_no_step() -> None:
    graphs: list[object] = []
    prepared = prepare(Tiny(), steps=6)
    compile_in_place(prepared.model, backend=keeping(graphs))
    log = log_of(prepared, at={3: RequestMade("x-ray")})
    assert graphs, "the first step is compiled"
    (counted,) = log.of(FlopsCounted)
    (plain,) = log_of(prepare(Tiny(), steps=1)).of(FlopsCounted)
    assert (counted.precision, counted.flops) == ("bf16", plain.flops)
    assert counted.step > 3
    assert counted.samples == 8
    torch.compiler.reset()


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
    steps = {record.step: record for record in log.of(StepRow)}
    for entry, precision in ((full, "fp32"), (half, "bf16")):
        assert entry.precision == steps[entry.step].precision == precision
        assert steps[entry.step].settling


class Text(Tiny):
    """Sequences of five lengths, one a batch."""

    def build_model(self) -> nn.Module:
        return nn.Linear(4, 4)

    def load_data(self, request: DataRequest) -> Data:
        lengths = [length for length in (5, 5, 7, 9, 5) for _ in range(self.batch_size)]
        samples: Any = [(torch.rand(length, 4), torch.tensor(n % 4)) for n, length in enumerate(lengths)]
        return Data(name="rows", real=False, train=DataLoader(samples, self.batch_size))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        inputs, targets = batch
        return functional.cross_entropy(model(inputs).mean(1), targets)


def test_a_smaller_last_batch_is_counted_apart() -> None:
    log = log_of(prepare(Uneven(samples=28, epochs=3), validation=False), at={5: "bf16"})
    full, half, *others = log.of(FlopsCounted)
    first = [(count.precision, count.samples, count.step) for count in (full, half)]
    assert first == [("fp32", 8, 1), ("fp32", 4, 4)]
    assert full.flops == 2 * half.flops
    assert {(count.precision, count.samples) for count in others} == {("bf16", 8), ("bf16", 4)}
    assert not any(count.shapes_vary for count in log.of(FlopsCounted))
    settling = {record.step: record.settling for record in log.of(StepRow)}
    assert all(settling[count.step] for count in log.of(FlopsCounted))


def test_inputs_of_other_lengths_make_every_count_untrue_and_end_the_counting() -> None:
    first, second = log_of(prepare(Text(epochs=2), validation=False)).of(FlopsCounted)
    counted = [(count.step, count.samples, count.shapes_vary) for count in (first, second)]
    assert counted == [(1, 8, False), (3, 8, True)]
    assert second.flops > first.flops


def test_a_length_that_comes_late_is_noticed_and_told_once() -> None:
    counts: list[Any] = []
    schedule = FlopSchedule(nn.Linear(4, 4), counts.append)
    fp32 = prepare_precisions(torch.device("cpu"))[1]["fp32"]

    def inputs(*shape: int) -> flop_counter.StepInputs:
        return step_inputs([(shape[0], torch.empty(shape))])

    for size in range(1, 20):
        if schedule.is_due(fp32, inputs(size, 5)):
            schedule.add(flops(flops=100 * size), inputs(size, 5))
    assert [count.samples for count in counts] == list(range(1, MAX_COUNTED + 1))
    for step, shape in ((201, (1, 5)), (202, (1, 9)), (203, (1, 11))):
        schedule.check(step, inputs(*shape))
    assert [(count.step, count.shapes_vary) for count in counts[MAX_COUNTED:]] == [(202, True)]
    assert not schedule.is_due(fp32, inputs(30, 5))
