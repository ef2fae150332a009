"""Which module overflowed first, or came nearest to it, in steps that compute what any step does."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.utils.checkpoint import checkpoint

from amptui.probes.module_trace import ModuleTrace
from amptui.records.findings import ModuleRange, ModulesTraced


def record_of(trace: ModuleTrace, row: Sequence[float] | None = None) -> ModulesTraced:
    values = trace.values().tolist() if row is None else row
    return trace.record(values, time=1.5, step=7, precision="fp16", loss_scale=8.0, asked=True)


def autocast(dtype: torch.dtype | None) -> AbstractContextManager[object]:
    return nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype)


def traced_step(
    model: nn.Module, inputs: Tensor, *, dtype: torch.dtype | None = torch.float16, loss_scale: float = 1.0
) -> ModulesTraced:
    """One forward and backward pass of the outputs' sum; all hooks must be gone behind it."""
    scaler = GradScaler("cpu", init_scale=loss_scale, enabled=dtype is torch.float16)
    with ModuleTrace(model) as trace:
        with autocast(dtype):
            loss = model(inputs.clone().requires_grad_()).float().sum()
        scaler.scale(loss).backward()
    assert not any(module._forward_hooks for module in model.modules())
    return record_of(trace)


def by_name(record: ModulesTraced, way: str) -> dict[str, ModuleRange]:
    return {near.name: near for near in record.nearest if near.way == way}


class Scale(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.factor


def test_a_backward_overflow_names_the_first_gradient() -> None:
    # Forward: 4, 0.004, 4. Backward: the loss's gradient is the scale, and is multiplied by 1000.
    model = nn.Sequential(nn.Identity(), Scale(1e-3), Scale(1e3), nn.Identity())
    inputs = torch.full((2, 4), 4.0, dtype=torch.float16)
    record = traced_step(model, inputs, loss_scale=1024.0)
    assert record.first == ModuleRange(
        name="1", kind="Scale", way="backward", dtype="float16", largest=math.inf
    )
    assert by_name(record, "backward")["2"].largest == 1024.0
    assert by_name(record, "forward")["1"].largest == pytest.approx(0.004, rel=1e-3)


class Convolutions(nn.Module):
    """In-place ReLUs, batch norm, dropout, a residual sum, and a shared module."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.block = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Dropout(0.2), nn.ReLU(inplace=True))
        self.head = nn.Linear(4, 2)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.stem(images)
        for _ in range(2):
            features = features + self.block(features)
            features += 1
        head: Tensor = self.head(features.mean((2, 3)))
        return head


class Checkpointed(Convolutions):
    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.use_reentrant = use_reentrant

    def forward(self, images: Tensor) -> Tensor:
        features = checkpoint(self.block, self.stem(images), use_reentrant=self.use_reentrant)
        assert isinstance(features, Tensor)
        head: Tensor = self.head(features.mean((2, 3)))
        return head


def trained(build: Callable[[], nn.Module], dtype: torch.dtype | None, *, tracing: bool) -> list[Tensor]:
    torch.manual_seed(0)
    model, gradients = build(), list[Tensor]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        with ModuleTrace(model) if tracing else nullcontext() as trace:
            with autocast(dtype):
                loss = model(torch.randn(4, 1, 6, 6)).float().square().mean()
            loss.backward()
        if trace is not None:
            assert len(record_of(trace).nearest) > 3
        optimizer.step()
        gradients.append(loss.detach())
    return [*gradients, *model.state_dict().values()]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("build", "dtype"),
    [
        (Convolutions, torch.float16),
        (lambda: Checkpointed(use_reentrant=False), torch.bfloat16),
        (lambda: Checkpointed(use_reentrant=True), torch.float16),
    ],
    ids=["convolutions", "checkpointed", "checkpointed, reentrant"],
)
def test_losses_and_weights_are_bit_for_bit_the_same_with_hooks_and_without(
    build: Callable[[], nn.Module], dtype: torch.dtype
) -> None:
    plain = trained(build, dtype, tracing=False)
    assert all(map(torch.equal, plain, trained(build, dtype, tracing=True)))
