"""One step's operations against hand counts: torchvision's models, convolutions of all kinds, attention."""

import itertools
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional

from amptui.engine.probes.flop_counter import FlopCounter
from amptui.models.char_gpt import CharGpt
from amptui.records.findings import FlopsCounted


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


# -------------------------------------------------------------------------------- whole models


def by_hand(model: nn.Module, images: Tensor) -> int:
    """Two operations for each weight of a layer, at each position: forward, and once per gradient."""
    flops: list[int] = []

    def add(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(module, nn.Linear):
            inner = module.in_features
        elif isinstance(module, nn.Conv2d):
            inner = module.in_channels // module.groups * math.prod(module.kernel_size)
        else:
            return
        passes = 2 + inputs[0].requires_grad  # nobody needs a gradient of the images
        flops.append(passes * 2 * output.numel() * inner)

    handles = [module.register_forward_hook(add) for module in model.modules()]
    model(images)
    for handle in handles:
        handle.remove()
    return sum(flops)


@pytest.mark.parametrize(
    "name",
    [
        "shufflenet_v2_x1_0",
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("convnext_tiny", "densenet121")),
    ],
)
def test_a_step_of_a_model_is_what_a_hand_count_gives(name: str) -> None:
    model = torchvision.models.get_model(name)
    images = torch.rand(2, 3, 64, 64)
    count = counted(model, lambda: model(images))
    assert count.flops == pytest.approx(by_hand(model, images), rel=0.01)
    assert count.uncounted == ()


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


@pytest.mark.parametrize(("key_heads", "is_causal"), [(4, False), (4, True), (2, True)])
def test_attention_counts_its_products_masked_or_not(key_heads: int, is_causal: bool) -> None:
    query, (key, value) = rand(2, 4, 5, 8), rand(2, 2, key_heads, 7, 8)
    count = counted(
        nn.Identity(),
        lambda: functional.scaled_dot_product_attention(
            query, key, value, is_causal=is_causal, enable_gqa=key_heads < 4
        ),
    )
    one = 2 * 2 * 4 * 5 * 7 * 8
    assert count.flops == 7 * one  # the fused kernel computes the scores a second time
    assert count.uncounted == ()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("directions", [1, 2])
def test_a_recurrent_layer_uses_each_matrix_once_per_position(kind: Any, directions: int) -> None:
    model = kind(4, 8, num_layers=2, batch_first=True, bidirectional=directions == 2)
    batch, length = 3, 5
    gates = {nn.LSTM: 4, nn.GRU: 3}[kind]
    weights = directions * gates * 8 * (4 + 8) + directions * gates * 8 * (directions * 8 + 8)
    count = counted(model, lambda: model(rand(batch, length, 4))[0])
    # Of a GRU torch takes apart nobody needs the gradient of the first state; oneDNN computes an LSTM's.
    left_out = batch * directions * gates * 8 * 8 * 2 * 2 if kind is nn.GRU else 0
    assert count.flops == 3 * 2 * batch * length * weights - left_out
    assert count.uncounted == ()


TENSOR_PARALLEL = """
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore
from amptui.engine.probes.flop_counter import FlopCounter

distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
parallelize_module(model, init_device_mesh("cpu", (2,)), plan)
with FlopCounter(model) as counter:
    model(torch.rand(4, 8)).sum().backward()
record = counter.record(step=1, precision="fp32")
print(record.flops, record.uncounted)
"""


@pytest.mark.ci
def test_of_a_layer_spread_over_ranks_each_counts_its_part() -> None:
    process = subprocess.run(
        [sys.executable, "-c", TENSOR_PARALLEL], capture_output=True, text=True, check=True
    )
    # Five products, the first layer's inputs need no gradient; half of each.
    assert process.stdout.strip() == f"{5 * 2 * 4 * 8 * 32 // 2} ()"


# ------------------------------------------------------------------------------- other products


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


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.AdamW, {"foreach": False}),
        (torch.optim.AdamW, {"fused": True}),
    ],
)
def test_an_optimizer_s_step_and_clipping_are_free(kind: Any, options: dict[str, Any]) -> None:
    layer = nn.Linear(8, 8)
    optimizer = kind(layer.parameters(), lr=0.1, **options)

    def step() -> Tensor:
        layer(torch.rand(8, 8)).sum().backward()
        nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        optimizer.step()
        return layer.weight

    count = counted(layer, step)
    assert (count.flops, count.uncounted) == (2 * 2 * 8**3, ())


FREE = nn.Sequential(
    *(nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.Upsample(scale_factor=2, mode="bilinear"), nn.MaxPool2d(2)),
    *(nn.ReflectionPad2d(1), nn.Dropout2d(0.1), nn.LayerNorm(6), nn.Softmax(-1), nn.GELU()),
)
"""What models do beside multiplying."""


def test_sums_normalization_pooling_and_losses_are_free() -> None:
    embedding, indices = nn.Embedding(10, 16), torch.arange(8).reshape(2, 4)

    def run() -> Tensor:
        images = FREE(embedding(indices).reshape(2, 4, 4, 4))
        gathered = images.gather(1, torch.zeros_like(images, dtype=torch.int64)).roll(1, 0).cumsum(1)
        sorted_, _ = torch.cat([images, gathered], 1).sort(1)
        loss = functional.cross_entropy(sorted_.flatten(1), torch.tensor([0, 1]))
        result: Tensor = loss + functional.mse_loss(images, gathered) + images.logsumexp(1).std()
        return result

    assert counted(embedding, run).uncounted == ()
