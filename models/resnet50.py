"""resnet50: the usual network for mixed-precision benchmarks, on image folders or on random images."""

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchvision.models import resnet50

from amptui import Data, DataRequest, Experiment, image_folder, warmup_cosine, weight_decay_groups


class Normalize(nn.Module):
    """Normalizes each colour channel to mean 0 and variance 1, with ImageNet's statistics.

    Input [N, 3, H, W], uint8 or float32 in [0, 1]; output float32.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1))
        self.register_buffer("deviation", torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        fractions = images.float() / 255 if images.dtype == torch.uint8 else images
        return (fractions - self.mean) / self.deviation


class ResNet50(Experiment):
    """ResNet-50 as torchvision has it (v1.5: the 3x3 convolution has the stride), from random weights.

    Batch size, learning rate, momentum, decay and LR warm-up are those of Goyal et al. (arXiv:1706.02677);
    cosine decay, label smoothing and no decay of norms and biases those of He et al. (arXiv:1812.01187). For
    another batch size, change ``learning_rate`` in proportion.
    """

    epochs: int = 90
    batch_size: int = 256
    learning_rate: float = 0.1
    weight_decay: float = 1e-4
    label_smoothing: float = 0.1
    warmup: float = 0.05
    """The part of the run in which the learning rate warms up; then it decays along a cosine to zero."""
    image_size: int = 224
    """Height and width in pixels; at least 32."""
    classes: int = 1000

    cpu_batch_size = 8  # some 12 billion multiplications an image: a step takes seconds on a CPU

    def build_model(self) -> nn.Module:
        """Input [N, 3, H, W], output [N, classes] logits; 25,557,032 parameters at 1,000 classes."""
        network = resnet50(weights=None, num_classes=self.classes, zero_init_residual=True)
        return nn.Sequential(OrderedDict(normalize=Normalize(), resnet=network))

    def build_optimizer(self, model: nn.Module) -> Optimizer:
        """SGD with momentum, fused; norms and biases do not decay."""
        groups = weight_decay_groups(model, self.weight_decay)
        return SGD(groups, lr=self.learning_rate, momentum=0.9, fused=True)

    def build_scheduler(self, optimizer: Optimizer, total_steps: int | None) -> LRScheduler:
        """LR warm-up, then cosine decay."""
        warmup_steps = round((total_steps or 0) * self.warmup)
        return warmup_cosine(optimizer, total_steps, warmup_steps=warmup_steps)

    def load_data(self, request: DataRequest) -> Data:
        """``--data-dir`` with ``train/CLASS/IMAGE`` and ``val/CLASS/IMAGE``, or random images."""
        return image_folder(
            request, image_size=self.image_size, classes=self.classes, batch_size=self.batch_size
        )
