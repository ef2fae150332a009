"""multi-task: one trunk, two heads (the digit, and whether it is odd), and one scaled sum of two losses."""

from collections import OrderedDict
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from amptui import Experiment

WIDTH = 64


class TwoHeads(nn.Module):
    """A trunk of two convolutions with two linear heads.

    Input [N, 1, 28, 28] in [0, 1], output [N, 10] logits of the digit and [N] logits of its being odd.
    """

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(1, 16, kernel_size=3, padding=1),
                relu1=nn.ReLU(inplace=True),
                pool1=nn.MaxPool2d(2),
                conv2=nn.Conv2d(16, 32, kernel_size=3, padding=1),
                relu2=nn.ReLU(inplace=True),
                pool2=nn.MaxPool2d(2),
                flatten=nn.Flatten(),
                hidden=nn.Linear(32 * 7 * 7, WIDTH),
                relu3=nn.ReLU(inplace=True),
            )
        )
        self.digit = nn.Linear(WIDTH, 10)
        self.parity = nn.Linear(WIDTH, 1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.trunk(images)
        return self.digit(features), self.parity(features).squeeze(1)


class MultiTask(Experiment):
    """Two tasks in one backward pass: a single loss scale must suit the gradients of both."""

    epochs: int = 5
    batch_size: int = 256
    learning_rate: float = 1e-3
    parity_weight: float = 0.5
    """The weight of the second task relative to the first."""

    cpu_batch_size = 64

    def build_model(self) -> nn.Module:
        """The trunk and its two heads; data and optimizer are the defaults."""
        return TwoHeads()

    def loss(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        """The digit's cross entropy + ``parity_weight`` times the parity's; both parts unweighted."""
        images, digits = batch
        digit_logits, parity_logits = model(images)
        digit = functional.cross_entropy(digit_logits, digits)
        # With logits: autocast on CUDA rejects binary_cross_entropy after a sigmoid.
        parity = functional.binary_cross_entropy_with_logits(parity_logits, (digits % 2).float())
        return {"loss": digit + self.parity_weight * parity, "digit": digit, "parity": parity}

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        """The accuracy of each head: ``accuracy`` is the digit's."""
        images, digits = batch
        digit_logits, parity_logits = model(images)
        return {
            "accuracy": (digit_logits.argmax(dim=1) == digits).float().mean(),
            "parity accuracy": ((parity_logits > 0) == (digits % 2 == 1)).float().mean(),
        }
