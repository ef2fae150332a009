"""One traced step on a CPU and what it told, and models with gradients that a test gives them."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from amptui.engine.probes.module_trace import ModuleTrace
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


def model_with_gradients(gradients: Sequence[Tensor | None]) -> nn.Module:
    """Its parameters are ``p0``, ``p1`` and so on, each as large as its gradient."""
    model = nn.Module()
    for index, gradient in enumerate(gradients):
        parameter = nn.Parameter(torch.zeros(3) if gradient is None else torch.zeros_like(gradient))
        parameter.grad = gradient
        model.register_parameter(f"p{index}", parameter)
    return model


def by_name(record: ModulesTraced, way: str) -> dict[str, ModuleRange]:
    return {near.name: near for near in record.nearest if near.way == way}


class Scale(nn.Module):
    """Multiplies by a number in the dtype of what it is given."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.factor
