"""A traced step computes what any step does, and leaves nothing behind."""

import weakref
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from amptui.engine.probes.module_trace import ModuleTrace
from tests.engine.traced import Scale, autocast, record_of


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


MODELS: dict[str, Callable[[], nn.Module]] = {
    "convolutions": Convolutions,
    "checkpointed": lambda: Checkpointed(use_reentrant=False),
    "checkpointed, reentrant": lambda: Checkpointed(use_reentrant=True),
}


def trained(build: Callable[[], nn.Module], dtype: torch.dtype | None, *, tracing: bool) -> list[Tensor]:
    """Losses of three steps and then everything that the model holds."""
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
    ("kind", "dtype"),
    [
        ("convolutions", torch.float16),
        ("checkpointed", torch.bfloat16),
        ("checkpointed, reentrant", torch.float16),
    ],
    ids=str,
)
def test_losses_and_weights_are_bit_for_bit_the_same_with_hooks_and_without(
    kind: str, dtype: torch.dtype | None
) -> None:
    plain = trained(MODELS[kind], dtype, tracing=False)
    assert all(map(torch.equal, plain, trained(MODELS[kind], dtype, tracing=True)))


def test_a_step_that_raises_leaves_no_hooks() -> None:
    class Raising(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            raise ValueError(f"no {inputs.shape}")

    model = nn.Sequential(nn.ReLU(), Raising())
    with pytest.raises(ValueError, match="no "), ModuleTrace(model):
        model(torch.ones(2))
    assert not any(module._forward_hooks for module in model.modules())


def test_a_trace_keeps_no_output_alive() -> None:
    model = nn.Sequential(Scale(2.0), Scale(3.0))
    with ModuleTrace(model) as trace:
        output = weakref.ref(model(torch.ones(2)))
        assert output() is None
    assert trace.values().tolist() == [2.0, 6.0]
