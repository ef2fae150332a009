"""mnist-deep, with an error for whatever makes the host wait for the GPU."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from models.mnist_deep import MnistDeep  # where its types can be read
else:
    from amptui.models.mnist_deep import MnistDeep


class NoSync(MnistDeep):
    watch_from: int = 20
    """The first step that may not wait: before it, autotuning and the allocator settle."""
    watch_until: int = 519
    """The last one. A run's very end waits for the device on purpose."""

    def build_model(self) -> nn.Module:
        self.training_steps = 0
        return super().build_model()

    def loss(self, model: nn.Module, batch: Any) -> Tensor | dict[str, Tensor]:
        if model.training and torch.cuda.is_available():
            self.training_steps += 1
            if self.training_steps == self.watch_from:
                torch.cuda.set_sync_debug_mode("error")
            elif self.training_steps > self.watch_until:
                torch.cuda.set_sync_debug_mode("default")
        return super().loss(model, batch)
