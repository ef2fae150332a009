"""Everything that a forward pass changes comes back bit for bit."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from amptui.engine.snapshot import Snapshot

CPU = torch.device("cpu")
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")


def noise() -> tuple[float, float, float, float]:
    """One number of every generator; numpy's and Python's normal ones come in pairs, and one is kept."""
    return random.random(), random.gauss(0, 1), np.random.standard_normal(), torch.rand(()).item()


DRAWS: dict[str, Callable[[], object]] = {
    "python": random.random,
    "python normal": lambda: random.gauss(0, 1),
    "numpy": np.random.rand,
    "numpy normal": np.random.standard_normal,
    "torch": lambda: torch.rand(3),
}


@given(
    st.lists(st.sampled_from(sorted(DRAWS)), max_size=6), st.lists(st.sampled_from(sorted(DRAWS)), max_size=6)
)
def test_generators_are_restored(before: list[str], between: list[str]) -> None:
    for name in before:
        DRAWS[name]()
    snapshot = Snapshot(nn.Identity(), CPU)
    assert not snapshot.has_drawn
    expected = noise()
    snapshot.restore()
    for name in between:
        DRAWS[name]()
    assert snapshot.has_drawn == bool(between)
    snapshot.restore()
    assert not snapshot.has_drawn
    assert noise() == expected


def test_buffers_are_restored_bit_for_bit() -> None:
    model = nn.Module()
    bits = torch.tensor([0x7FC00001, -0x400000 + 5, 0x7F800000, -(2**31), 1], dtype=torch.int32)
    model.register_buffer("odd", bits.view(torch.float32).clone())
    snapshot = Snapshot(model, CPU)
    model.odd = torch.zeros(5)
    snapshot.restore()
    assert torch.equal(model.odd.view(torch.int32), bits)


class Rebinding(nn.Module):
    """Does to its buffers what people do in forward()."""

    mean: Tensor
    queue: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("queue", None)

    def forward(self, inputs: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * inputs
        self.queue = inputs
        if not hasattr(self, "mask"):
            self.register_buffer("mask", torch.ones(2))
        return inputs


def test_replaced_and_new_buffers_are_restored() -> None:
    model = Rebinding()
    mean = model.mean
    snapshot = Snapshot(model, CPU)
    model(torch.ones(2))
    snapshot.restore()
    assert model.mean is mean
    assert mean.tolist() == [0, 0]
    assert model.queue is None
    assert not hasattr(model, "mask")
    model(torch.ones(2))
    assert set(model.state_dict()) == {"mean", "queue", "mask"}


def test_weights_that_a_forward_pass_changes_are_restored() -> None:
    class Moving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(4, 2, max_norm=0.1)
            self.student = nn.Linear(2, 2)
            self.teacher = nn.Linear(2, 2).requires_grad_(False)

        def forward(self, words: Tensor) -> Tensor:
            with torch.no_grad():
                self.teacher.weight.lerp_(self.student.weight, 0.1)
                self.teacher.bias.data = self.student.bias.data * 0.5
            return self.student(self.words(words))  # type: ignore[no-any-return]

    model = Moving()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    snapshot = Snapshot(model, CPU)
    model(torch.tensor([0, 1]))
    assert not torch.equal(model.words.weight, before["words.weight"])
    assert not torch.equal(model.teacher.weight, before["teacher.weight"])
    snapshot.restore()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_large_frozen_base_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    base = nn.BatchNorm1d(4).requires_grad_(False)
    for max_bytes, comes_back in ((2 * 4 * 4, True), (2 * 4 * 4 - 1, False)):
        monkeypatch.setattr("amptui.engine.snapshot.MAX_FROZEN_BYTES", max_bytes)
        nn.init.ones_(base.weight)
        snapshot = Snapshot(base, CPU)
        base(torch.rand(3, 4))
        nn.init.zeros_(base.weight)
        snapshot.restore()
        assert bool(base.weight.all()) == comes_back
        assert base.num_batches_tracked == 0


@pytest.mark.gpu
@gpu
def test_a_gpu_s_dropout_masks_and_statistics_are_restored() -> None:
    device = torch.device("cuda", 0)
    model = nn.Sequential(nn.BatchNorm1d(64), nn.Dropout()).to(device)
    inputs = torch.rand(32, 64, device=device)
    snapshot = Snapshot(model, device)
    first = model(inputs)
    assert snapshot.has_drawn
    snapshot.restore()
    assert not snapshot.has_drawn
    assert torch.equal(model(inputs), first)
    snapshot.restore()
    assert model[0].num_batches_tracked.item() == 0
