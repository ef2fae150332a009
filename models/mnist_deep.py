"""mnist-deep: a CNN far too large for MNIST, so that mixed precision has work to speed up."""

from collections import OrderedDict

from torch import Tensor, nn

from amptui import Experiment

# (in channels, out channels, kernel size, stride, padding)
BLOCKS = (
    (1, 32, 3, 1, 1),
    (32, 64, 3, 1, 1),
    (64, 64, 2, 2, 0),
    (64, 128, 3, 1, 1),
    (128, 128, 3, 1, 1),
    (128, 128, 3, 1, 1),
    (128, 128, 2, 2, 0),
    (128, 256, 3, 1, 1),
    (256, 256, 2, 1, 0),
    (256, 512, 3, 1, 1),
    (512, 512, 3, 1, 1),
    (512, 512, 3, 1, 1),
    (512, 512, 2, 2, 0),
    (512, 1024, 3, 1, 1),
)


class DeepCnn(nn.Module):
    """14 blocks of convolution, batch norm and ReLU, then three linear layers; 14,740,522 parameters.

    Input [N, 1, 28, 28] in [0, 1], output [N, 10] logits.
    """

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(*(block(*sizes) for sizes in BLOCKS))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(1024, 1000),
            nn.ReLU(inplace=True),
            nn.Linear(1000, 1000),
            nn.ReLU(inplace=True),
            nn.Linear(1000, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.pool(self.features(images)))
        return logits


def block(inputs: int, outputs: int, kernel: int, stride: int, padding: int) -> nn.Sequential:
    """Convolution, batch norm, ReLU; with stride 2 it halves the image."""
    return nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(inputs, outputs, kernel, stride, padding),
            norm=nn.BatchNorm2d(outputs),
            relu=nn.ReLU(inplace=True),
        )
    )


class MnistDeep(Experiment):
    """The classic before-and-after of mixed precision: ten epochs of MNIST with Adam."""

    epochs: int = 10
    batch_size: int = 256
    learning_rate: float = 1e-4

    cpu_batch_size = 32  # a step of 256 takes seconds on a CPU

    def build_model(self) -> nn.Module:
        """The deep CNN; data, loss and optimizer are the defaults."""
        return DeepCnn()
