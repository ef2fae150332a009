"""The small networks of generated loops, and the SAM optimizer as its users write it."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from tests.loops.loop_plans import LoopPlan

FEATURES, TARGETS = 6, 3

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class Net(nn.Module):
    """Two linear layers, the second in as many versions as there are ``heads``."""

    def __init__(self, plan: LoopPlan, inputs: int, outputs: int, heads: int = 1) -> None:
        super().__init__()
        self.body = nn.Linear(inputs, 8)
        self.heads = nn.ModuleList(nn.Linear(8, outputs) for _ in range(heads))
        self.checkpoints = plan.checkpoints
        self.casts_last_layer = plan.autocast.without != "last layer"
        if "frozen layer" in plan.extras:
            self.body.requires_grad_(requires_grad=False)

    def forward(self, inputs: Tensor, head: int = 0) -> Tensor:
        hidden = self._run_body(inputs)
        if not self.casts_last_layer:
            hidden = hidden.to(self.body.weight.dtype)
        with self._around_last_layer():
            output: Tensor = self.heads[head](hidden)
        return output

    def _run_body(self, inputs: Tensor) -> Tensor:
        if self.checkpoints == "none" or not torch.is_grad_enabled():
            return self._activate(inputs)
        hidden: Tensor = checkpoint(self._activate, inputs, use_reentrant=self.checkpoints == "reentrant")
        return hidden

    def _activate(self, inputs: Tensor) -> Tensor:
        return torch.tanh(self.body(inputs))

    def _around_last_layer(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.casts_last_layer else torch.autocast("cpu", enabled=False)


class SAM(Optimizer):
    """Sharpness-aware minimization around an optimizer that shares its parameter groups."""

    def __init__(
        self, parameters: Iterable[Any], base: type[Optimizer], rho: float = 0.05, **options: Any
    ) -> None:
        super().__init__(parameters, {"rho": rho, **options})
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        """Climb to the worst weights nearby, and clear the gradients."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self.state[weight]["before"] = weight.detach().clone()
                    weight.add_(weight.grad, alpha=group["rho"])
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        """Go back, and make the base optimizer's step with the gradients from there."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    weight.copy_(self.state[weight]["before"])
        self.base_optimizer.step()
