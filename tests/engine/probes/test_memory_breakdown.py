"""Where the memory of a step is: exact sizes of real models after real steps, each byte once."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

from amptui.engine.probes.memory_breakdown import break_down
from amptui.records.control import Control
from amptui.records.findings import MemoryBreakdown
from tests.tiny import Log, Tiny, prepare, switching, train

Sizes = dict[tuple[str, str], int]

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def sizes_of(found: MemoryBreakdown) -> Sizes:
    assert len({(kind.kind, kind.dtype) for kind in found.kinds}) == len(found.kinds)
    return {(kind.kind, kind.dtype): kind.size_bytes for kind in found.kinds}


def stepped(
    model: nn.Module,
    optimizer: Optimizer,
    inputs: Tensor,
    *,
    precision: str = "fp32",
    peak: int | None = None,
) -> Sizes:
    """What a step that ran in ``precision`` is broken down to."""
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cpu", dtype=DTYPES.get(precision, torch.bfloat16), enabled=precision in DTYPES):
        loss = model(inputs).float().square().mean()
    loss.backward()
    optimizer.step()
    found = break_down(model, optimizer, step=7, precision=precision, peak_allocated_bytes=peak, loss=loss)
    assert (found.step, found.precision, found.peak_allocated_bytes) == (7, precision, peak)
    return sizes_of(found)


def convolutional() -> nn.Sequential:
    """3 -> 4 channels of 8 x 8, then 2 numbers: 108 + 4, 8, 2 * 256 and 2 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 2)
    )


PARAMETERS = 112 + 8 + 514
IMAGES = torch.ones(2, 3, 8, 8)


# -------------------------------------------------------------------------------- what lives on


def test_adam_keeps_two_moments_and_a_step_beside_each_parameter() -> None:
    model = convolutional()
    assert stepped(model, Adam(model.parameters()), IMAGES) == {
        ("weights", "float32"): 4 * PARAMETERS,
        ("gradients", "float32"): 4 * PARAMETERS,
        ("optimizer", "float32"): 2 * 4 * PARAMETERS + 6 * 4,
        ("buffers", "float32"): 2 * 4 * 4,
        ("buffers", "int64"): 8,
    }


def test_an_optimizer_without_state_is_left_out() -> None:
    model = convolutional()
    assert not any(kind == "optimizer" for kind, _ in stepped(model, SGD(model.parameters(), 0.1), IMAGES))


def test_each_dtype_has_an_entry_and_the_largest_comes_first() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 64, bias=False))
    model[1].to(torch.bfloat16)
    found = break_down(
        model, SGD(model.parameters(), 0.1), step=1, precision="fp32", peak_allocated_bytes=None
    )
    assert [(kind.dtype, kind.size_bytes) for kind in found.kinds] == [("bfloat16", 512), ("float32", 64)]


class Tied(nn.Module):
    """An embedding that is the last layer's weight too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        result: Tensor = self.head(self.embedding(tokens))
        return result


def test_tied_parameters_count_once() -> None:
    model = Tied()
    found = stepped(model, SGD(model.parameters(), 0.1), torch.tensor([1, 2]))
    assert found == {("weights", "float32"): 160, ("gradients", "float32"): 160}


def test_views_count_their_whole_storage_once() -> None:
    flat = torch.ones(100)
    model = nn.Linear(8, 8)
    model.weight = nn.Parameter(flat[:64].view(8, 8))
    model.bias = nn.Parameter(flat[64:72])
    model.register_buffer("all_of_it", flat)
    assert stepped(model, SGD(model.parameters(), 0.1), torch.ones(1, 8)) == {
        ("weights", "float32"): 400,
        ("gradients", "float32"): 4 * 72,
    }


def test_frozen_parameters_are_weights_without_gradients() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 2, bias=False))
    model[0].requires_grad_(False)
    assert stepped(model, SGD(model[1].parameters(), 0.1), torch.ones(1, 4)) == {
        ("weights", "float32"): 64 + 32,
        ("gradients", "float32"): 32,
    }


def test_parameters_only_in_the_optimizer_are_weights_too() -> None:
    model, extra = nn.Linear(4, 2, bias=False), nn.Parameter(torch.ones(3))
    found = break_down(
        model, SGD([*model.parameters(), extra], 0.1), step=1, precision="fp32", peak_allocated_bytes=None
    )
    assert sizes_of(found) == {("weights", "float32"): 32 + 12}


def test_a_sparse_gradient_is_its_indices_and_its_values() -> None:
    model = nn.Embedding(1000, 8, sparse=True)
    found = stepped(model, SGD(model.parameters(), 0.1), torch.tensor([1, 5, 7]))
    assert found[("gradients", "float32")] == 3 * 8 * 4
    assert found[("gradients", "int64")] == 3 * 8


def test_a_wrapped_tensor_is_the_tensors_within_it() -> None:
    model = nn.Linear(4, 4, bias=False)
    optimizer = SGD(model.parameters(), 0.1)
    optimizer.state[model.weight]["moment"] = TwoTensor(torch.ones(10), torch.ones(10))
    found = stepped(model, optimizer, torch.ones(1, 4))
    assert found[("optimizer", "float32")] == 80


def test_tensors_on_another_device_are_not_counted() -> None:
    model = nn.Linear(4, 4, bias=False)
    optimizer = SGD(model.parameters(), 0.1)
    optimizer.state[model.weight]["moment"] = torch.ones(10, device="meta")
    assert not any(kind == "optimizer" for kind, _ in stepped(model, optimizer, torch.ones(1, 4)))


@given(
    widths=st.lists(st.integers(1, 12), min_size=2, max_size=4),
    frozen=st.sets(st.integers(0, 2)),
    tie=st.booleans(),
)
def test_weights_are_the_unique_parameters_whatever_the_model(
    widths: list[int], frozen: set[int], tie: bool
) -> None:
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
    for index in frozen & set(range(len(layers) - 1)):
        layers[index].requires_grad_(False)
    model = nn.Sequential(*layers)
    if tie:
        model.append(nn.Linear(widths[-1], widths[-1]))
        model.append(model[-1])
    unique = set(model.parameters())
    found = stepped(model, Adam(model.parameters()), torch.ones(2, widths[0]))
    assert found[("weights", "float32")] == sum(p.nbytes for p in unique)
    assert found[("gradients", "float32")] == sum(p.nbytes for p in unique if p.requires_grad)


# ----------------------------------------------------------------------------------- cast copies


@pytest.mark.parametrize(("precision", "dtype"), [("fp16", "float16"), ("bf16", "bfloat16")])
def test_autocast_copies_the_parameters_of_convolutions_and_linear_layers(precision: str, dtype: str) -> None:
    model = convolutional()
    found = stepped(model, Adam(model.parameters()), IMAGES, precision=precision)
    assert found[("cast copies", dtype)] == 2 * (112 + 514)


def test_without_autocast_nothing_is_copied() -> None:
    model = convolutional()
    assert not any(kind == "cast copies" for kind, _ in stepped(model, Adam(model.parameters()), IMAGES))


class Island(nn.Module):
    """A layer where autocast is off, one that is used twice, and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice, self.island, self.frozen = (nn.Linear(8, 8, bias=False) for _ in range(4))
        self.frozen.requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.frozen(self.twice(self.twice(self.first(inputs))))
        with torch.autocast("cpu", enabled=False):
            result: Tensor = self.island(hidden.float())
        return result


def test_only_what_autocast_casts_and_keeps_is_counted_and_once() -> None:
    model = Island()
    found = stepped(model, SGD(model.first.parameters(), 0.1), torch.ones(1, 8), precision="bf16")
    assert found[("cast copies", "bfloat16")] == 2 * 64 * 2


def test_a_model_that_autocast_does_not_touch_has_no_bytes_of_copies() -> None:
    model = nn.Sequential(nn.LayerNorm(4))
    found = stepped(model, SGD(model.parameters(), 0.1), torch.ones(2, 4), precision="bf16")
    assert found[("cast copies", "")] == 0


class Hidden(nn.Module):
    """Its layer runs within a function of Python's autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = checkpoint(self.layer, inputs.requires_grad_(), use_reentrant=True)
        return result


def test_hidden_casts_leave_out_the_cast_copies() -> None:
    model = Hidden()
    found = stepped(model, SGD(model.parameters(), 0.1), torch.ones(2, 4), precision="bf16")
    assert not any(kind == "cast copies" for kind, _ in found)


def test_without_a_loss_the_cast_copies_are_left_out() -> None:
    model = nn.Linear(4, 4)
    found = break_down(
        model, SGD(model.parameters(), 0.1), step=1, precision="bf16", peak_allocated_bytes=None
    )
    assert {kind.kind for kind in found.kinds} == {"weights"}


# ----------------------------------------------------------------------------------- activations


def test_activations_are_the_rest_of_the_peak() -> None:
    model = nn.Linear(8, 8, bias=False)
    found = stepped(model, SGD(model.parameters(), 0.1), torch.ones(1, 8), precision="bf16", peak=10_000)
    assert found == {
        ("weights", "float32"): 256,
        ("gradients", "float32"): 256,
        ("cast copies", "bfloat16"): 128,
        ("activations", ""): 10_000 - 256 - 256 - 128,
    }


@given(peak=st.integers(0, 2000))
def test_activations_are_never_negative(peak: int) -> None:
    model = nn.Linear(8, 8, bias=False)
    found = stepped(model, SGD(model.parameters(), 0.1), torch.ones(1, 8), peak=peak)
    assert found[("activations", "")] == max(0, peak - 512)


def test_without_a_peak_there_are_no_activations() -> None:
    model = convolutional()
    found = stepped(model, Adam(model.parameters()), IMAGES, precision="bf16")
    assert not any(kind == "activations" for kind, _ in found)


@pytest.mark.gpu
def test_on_a_gpu_activations_are_those_of_the_step_and_nothing_waits_for_it() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    device = torch.device("cuda", torch.cuda.current_device())
    bystander = torch.ones(2**24, device=device)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).to(device)
    optimizer = SGD(model.parameters(), 0.1)
    inputs = torch.ones(4096, 256, device=device)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss: Tensor = model(inputs).float().square().mean()
        loss.backward()
        optimizer.step()
        return loss

    step()
    torch.cuda.reset_peak_memory_stats(device)
    loss = step()
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = break_down(model, optimizer, step=1, precision="fp16", peak_allocated_bytes=peak, loss=loss)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    sizes = sizes_of(found)
    assert sizes[("cast copies", "float16")] == 2 * 2 * (256 * 256 + 256)
    assert 2**20 <= sizes[("activations", "")] < bystander.nbytes
    assert sum(sizes.values()) <= peak - bystander.nbytes


# -------------------------------------------------------------------------------- in a whole run


def test_a_run_breaks_down_each_precision_that_settles() -> None:
    control = Control()
    log = Log(switching(control, {70: "bf16"}))
    train(prepare(Tiny(epochs=20), precision="fp32"), log, control)
    full, half = log.of(MemoryBreakdown)
    assert (full.precision, half.precision) == ("fp32", "bf16")
    before, after = sizes_of(full), sizes_of(half)
    assert after.pop(("cast copies", "bfloat16")) == 2 * (16 * 16 + 16 + 16 * 4 + 4)
    assert before == after
    assert before[("weights", "float32")] == before[("gradients", "float32")]
