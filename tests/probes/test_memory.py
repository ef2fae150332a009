"""Where the memory of a step is: exact sizes of real models after real steps, each byte once."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from amptui.probes.memory import break_down
from amptui.records.findings import MemoryBreakdown
from tests.tiny import Tiny, log_of, no_waits, prepare

Sizes = dict[tuple[str, str], int]

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def sizes_of(breakdown: MemoryBreakdown) -> Sizes:
    assert len({(kind.kind, kind.dtype) for kind in breakdown.kinds}) == len(breakdown.kinds)
    return {(kind.kind, kind.dtype): kind.size_bytes for kind in breakdown.kinds}


def stepped(
    model: nn.Module,
    optimizer: Optimizer | None = None,
    inputs: Tensor | None = None,
    *,
    precision: str = "fp32",
    peak: int | None = None,
) -> Sizes:
    """What a step that ran in ``precision`` is broken down to; by default one of gradient descent."""
    optimizer = optimizer or SGD(model.parameters(), 0.1)
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cpu", dtype=DTYPES.get(precision, torch.bfloat16), enabled=precision in DTYPES):
        loss = model(torch.ones(2, 4) if inputs is None else inputs).float().square().mean()
    loss.backward()
    optimizer.step()
    breakdown = break_down(model, optimizer, step=7, precision=precision, peak_allocated_bytes=peak)
    assert (breakdown.step, breakdown.precision, breakdown.peak_allocated_bytes) == (7, precision, peak)
    return sizes_of(breakdown)


def linear() -> nn.Linear:
    return nn.Linear(4, 4, bias=False)


def tied() -> nn.Module:
    embedding, head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
    head.weight = embedding.weight
    return nn.Sequential(embedding, head)


def viewing() -> nn.Module:
    flat = torch.ones(100)
    model = nn.Linear(4, 4)
    model.weight = nn.Parameter(flat[:16].view(4, 4))
    model.bias = nn.Parameter(flat[16:20])
    model.register_buffer("all_of_it", flat)
    return model


def partly_frozen() -> nn.Module:
    return nn.Sequential(linear().requires_grad_(requires_grad=False), nn.Linear(4, 2, bias=False))


@pytest.mark.parametrize(
    ("build", "inputs", "expected"),
    [
        (linear, None, {("weights", "float32"): 64, ("gradients", "float32"): 64}),
        # Tied parameters count once, and views their whole storage.
        (tied, torch.tensor([1, 2]), {("weights", "float32"): 160, ("gradients", "float32"): 160}),
        (viewing, None, {("weights", "float32"): 400, ("gradients", "float32"): 4 * 20}),
        (partly_frozen, None, {("weights", "float32"): 64 + 32, ("gradients", "float32"): 32}),
        # A sparse gradient is its indices and its values.
        (
            lambda: nn.Embedding(1000, 8, sparse=True),
            torch.tensor([1, 5, 7]),
            {("weights", "float32"): 32_000, ("gradients", "float32"): 96, ("gradients", "int64"): 24},
        ),
    ],
    ids=["plain", "tied", "views", "frozen", "sparse"],
)
def test_weights_and_gradients_count_once(
    build: Callable[[], nn.Module], inputs: Tensor | None, expected: Sizes
) -> None:
    model = build()
    assert stepped(model, SGD([p for p in model.parameters() if p.requires_grad], 0.1), inputs) == expected


def test_activations_are_the_rest_of_the_peak() -> None:
    assert stepped(linear(), precision="bf16", peak=10_000) == {
        ("weights", "float32"): 64,
        ("gradients", "float32"): 64,
        ("activations", ""): 10_000 - 64 - 64,
    }
    for peak in (0, 127, 128, 200):
        assert stepped(linear(), peak=peak)[("activations", "")] == max(0, peak - 128)
    assert not any(kind == "activations" for kind, _ in stepped(linear(), precision="bf16"))


@pytest.mark.gpu
def test_on_a_gpu_activations_are_those_of_the_step_and_nothing_waits_for_it() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    device = torch.device("cuda", torch.cuda.current_device())
    bystander = torch.ones(2**24, device=device)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).to(device)
    optimizer = SGD(model.parameters(), 0.1)
    inputs = torch.ones(4096, 256, device=device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss: Tensor = model(inputs).float().square().mean()
        loss.backward()
        optimizer.step()

    step()
    torch.cuda.reset_peak_memory_stats(device)
    step()
    peak = torch.cuda.max_memory_allocated(device)
    with no_waits():
        breakdown = break_down(model, optimizer, step=1, precision="fp16", peak_allocated_bytes=peak)
    sizes = sizes_of(breakdown)
    assert 2**20 <= sizes[("activations", "")] < bystander.nbytes
    assert sum(sizes.values()) <= peak - bystander.nbytes


def test_a_run_breaks_down_each_precision_that_settles() -> None:
    log = log_of(prepare(Tiny(epochs=20), precision="fp32"), at={70: "bf16"})
    full, half = log.of(MemoryBreakdown)
    assert (full.precision, half.precision, full.peak_allocated_bytes) == ("fp32", "bf16", None)
    before, after = sizes_of(full), sizes_of(half)
    assert before == after
    assert before[("weights", "float32")] == before[("gradients", "float32")]
