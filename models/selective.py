"""selective: a small CNN whose last operation exceeds float16's range, and is therefore kept in FP32.

Everything runs in autocast except one island: squared distances of features with values in the hundreds.
Train it with ``--precision fp16``, then with ``--set island=false``, and see what breaks.
"""

from collections import OrderedDict
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from amptui import Experiment

FEATURES = 16 * 7 * 7
TEMPERATURE = 300.0
"""Scales squared distances of millions down to logits."""


class Brightness(nn.Module):
    """From [0, 1] back to 0 to 255, as in images without normalization. This makes the distances so large."""

    def forward(self, images: Tensor) -> Tensor:
        return images * 255


class PrototypeDistance(nn.Module):
    """Logits: how near each image is to the prototype of each class, ``-|features - prototype|^2``.

    Input [N, features], output [N, classes]: float32 with ``island``, autocast's dtype without it.
    """

    def __init__(self, features: int, classes: int, *, island: bool) -> None:
        super().__init__()
        self.prototypes = nn.Parameter(torch.randn(classes, features) * 0.1)
        self.island = island

    def forward(self, features: Tensor) -> Tensor:
        # Switching autocast off stops further casts; float16 tensors must be cast back by hand.
        with torch.autocast(features.device.type, enabled=False) if self.island else nullcontext():
            return self.logits(features.float() if self.island else features)

    def logits(self, features: Tensor) -> Tensor:
        # |f - p|^2 = |f|^2 - 2 f p + |p|^2. The first term is some 2,000,000; float16 ends at 65,504.
        features_squared = torch.einsum("nf,nf->n", features, features)
        prototypes_squared = torch.einsum("cf,cf->c", self.prototypes, self.prototypes)
        product = torch.einsum("nf,cf->nc", features, self.prototypes)
        return (2 * product - features_squared[:, None] - prototypes_squared) / TEMPERATURE


def halving_convolution(inputs: int, outputs: int) -> nn.Conv2d:
    """3x3 with stride 2, initialized so that activations keep their size (He et al., arXiv:1502.01852)."""
    convolution = nn.Conv2d(inputs, outputs, kernel_size=3, stride=2, padding=1)
    nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
    return convolution


class Selective(Experiment):
    """Mixed precision with one sensitive operation excluded."""

    epochs: int = 3
    batch_size: int = 256
    learning_rate: float = 3e-3
    island: bool = True
    """Keep the distances in FP32. Without it they are Inf in float16 from the first step on, and inexact in
    bfloat16, which has their range but 8 bits to tell them apart."""

    cpu_batch_size = 64

    def build_model(self) -> nn.Module:
        """Two convolutions and the distances; input [N, 1, 28, 28] in [0, 1], output [N, 10] logits."""
        return nn.Sequential(
            OrderedDict(
                brightness=Brightness(),
                conv1=halving_convolution(1, 8),
                relu1=nn.ReLU(inplace=True),
                conv2=halving_convolution(8, 16),
                relu2=nn.ReLU(inplace=True),
                flatten=nn.Flatten(),
                distance=PrototypeDistance(FEATURES, 10, island=self.island),
            )
        )
