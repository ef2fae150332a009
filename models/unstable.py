"""unstable: a small model with one of float16's problems built in; FP32 and bfloat16 are not affected."""

from collections import OrderedDict
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from amptui import Experiment

WIDTH = 32


class Edges(nn.Module):
    """Strength of edges in learned directions: ``sqrt(gx^2 + gy^2 + epsilon)``.

    Input [N, 1, 28, 28], output [N, 8, 14, 14]. On a black background both slopes are 0, and so is the root's
    gradient, ``gx / sqrt(epsilon)``, unless float16 rounds epsilon to 0, as it does all below 2^-25: then it
    is 0 / 0, NaN at every loss scale.
    """

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.slopes = nn.Conv2d(1, 16, kernel_size=3, stride=2, padding=1, bias=False)
        nn.init.kaiming_normal_(self.slopes.weight)
        self.epsilon = epsilon

    def forward(self, images: Tensor) -> Tensor:
        gx, gy = self.slopes(images).chunk(2, dim=1)
        # Products, since autocast computes powers in float32 on CUDA: there gx**2 would hide the problem.
        strength: Tensor = (gx * gx + gy * gy + self.epsilon).sqrt()
        return strength


class Amplifier(nn.Module):
    """Multiplies its input, of any shape, by a gain.

    The norm after it removes the gain again: it only changes how large the numbers are.
    ``growth`` is the gain's factor from one training step to the next, up to a gain of a million; ``burst``
    comes on top at step 50, and at every 2,000th after it, for that step alone.
    """

    gain: Tensor
    steps: Tensor

    def __init__(self, gain: float = 1.0, *, growth: float = 1.0, burst: float = 1.0) -> None:
        super().__init__()
        # Buffers on the device: reading a number there would make the host wait for it.
        self.register_buffer("gain", torch.tensor(gain, dtype=torch.float32))
        self.register_buffer("steps", torch.tensor(0))
        self.growth, self.burst = growth, burst

    def forward(self, features: Tensor) -> Tensor:
        if not self.training:
            return features * self.gain
        self.steps.add_(1)
        self.gain.mul_(self.growth).clamp_(max=1e6)
        return features * (self.gain * torch.where(self.steps % 2000 == 50, self.burst, 1.0))


class Unstable(Experiment):
    """Trouble on purpose: in float16 this goes wrong, or nearly, as ``trouble`` says."""

    epochs: int = 3
    batch_size: int = 32
    learning_rate: float = 1e-3
    trouble: Literal["none", "calibration", "collapse", "forward", "buffers", "underflow"] = "calibration"
    """One of:

    - none: as it should be. No step is skipped before the scaler tries a scale above its first, 65,536.
    - calibration: the loss counts eight times, as a part of a larger one may, and gradients overflow at the
      first scale. Two or three steps are skipped, the scale settles below, all is well.
    - collapse: one gradient is NaN at every scale while the loss is fine. Every step is skipped and the scale
      falls without end.
    - forward: numbers in the layer ``amplifier`` grow until they leave float16's range. From then on the loss
      is NaN, and no scale helps.
    - buffers: step 50 overflows in front of a batch norm. The scaler skips it, the training loss is fine
      again, but the running statistics stay Inf and NaN, and so does the validation, in every precision.
    - underflow: the loss is so small that most gradients are 0 in float16, scaled as they are. No step is
      skipped, and hardly anything is learned.
    """

    def build_model(self) -> nn.Module:
        """Input [N, 1, 28, 28] in [0, 1], output [N, 10] logits."""
        return nn.Sequential(
            OrderedDict(
                edges=Edges(epsilon=1e-8 if self.trouble == "collapse" else 1e-3),
                pool=nn.MaxPool2d(2),
                flatten=nn.Flatten(),
                hidden=nn.Linear(8 * 7 * 7, WIDTH),
                amplifier=self.build_amplifier(),
                norm=nn.BatchNorm1d(WIDTH) if self.trouble == "buffers" else nn.LayerNorm(WIDTH),
                relu=nn.ReLU(inplace=True),
                head=nn.Linear(WIDTH, 10),
            )
        )

    def build_amplifier(self) -> Amplifier:
        """It does nothing for most troubles. What it multiplies is 1 to 5 at most; float16 ends at 65,504."""
        if self.trouble == "forward":
            return Amplifier(growth=1.2)
        if self.trouble == "buffers":
            return Amplifier(gain=6_000.0, burst=25.0)
        return Amplifier()

    def build_optimizer(self, model: nn.Module) -> Optimizer:
        """Adam, which divides the loss's size out, with an epsilon below even the smallest gradients here."""
        return torch.optim.Adam(model.parameters(), lr=self.learning_rate, eps=1e-20, fused=True)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Cross entropy, in the unit that the trouble needs."""
        inputs, targets = batch
        factor = {"calibration": 8.0, "underflow": 1e-10}.get(self.trouble, 1.0)
        return functional.cross_entropy(model(inputs), targets) * factor
