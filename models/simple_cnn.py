"""simple-cnn: two convolutions on CIFAR-10, so small that launching kernels takes longer than they do."""

from torch import nn

from amptui import Data, DataRequest, Experiment, cifar10


class SimpleCnn(Experiment):
    """A small CNN on 32x32 colour images, on which mixed precision gains little."""

    learning_rate: float = 1e-3

    def build_model(self) -> nn.Module:
        """Input [N, 3, 32, 32] in [0, 1], output [N, 10] logits."""
        return nn.Sequential(
            nn.Conv2d(3, 64, kernel_size=3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(inplace=True),
            nn.Conv2d(64, 128, kernel_size=3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Linear(128 * 8 * 8, 10),
        )

    def load_data(self, request: DataRequest) -> Data:
        """CIFAR-10, or its synthetic stand-in."""
        return cifar10(request)
