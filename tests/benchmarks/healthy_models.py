"""Small experiments of varied kind that train well in float16, and the digits and words they learn from."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from amptui import Data, DataRequest, Experiment
from amptui.data.sources import Arrays
from amptui.models.char_gpt import CharGpt
from amptui.models.mnist_deep import MnistDeep
from amptui.models.multi_task import MultiTask
from amptui.models.selective import Selective
from amptui.models.simple_cnn import SimpleCnn

WORDS, LENGTH = 50, 24


class Small(Experiment):
    """Classifies digits; ``kind`` chooses the network."""

    kind: str = "mlp"
    batch_size: int = 32
    learning_rate: float = 1e-3

    def build_model(self) -> nn.Module:
        return NETWORKS[self.kind]()


class Regression(Small):
    """Puts its input out again; the mean square of what it misses is the loss."""

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"loss": self.loss(model, batch)}

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        inputs, _ = batch
        return functional.mse_loss(model(inputs), inputs)


class Adversary(Small):
    """The discriminator of a GAN: digits from the noise of a generator that stands still."""

    kind: str = "discriminator"

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"loss": self.loss(model, batch)}

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        inputs, _ = batch
        logits = model(torch.cat([inputs, torch.rand_like(inputs)])).squeeze(1)
        real = torch.cat([torch.ones(len(inputs)), torch.zeros(len(inputs))]).to(logits.device)
        return functional.binary_cross_entropy_with_logits(logits, real)


class Sequences(Small):
    """Says which of four words occurs most often in a row of them."""

    kind: str = "lstm"

    def load_data(self, request: DataRequest) -> Data:
        generator = torch.Generator().manual_seed(request.seed)
        words = torch.randint(0, WORDS, (3200, LENGTH), generator=generator)
        counts = functional.one_hot(words, WORDS).sum(1)[:, :4]
        return Data(name="words", real=False, train=Arrays(words, counts.argmax(1)))


class Residual(nn.Module):
    """Two convolutions with batch norms, added to their input, [N, 16, H, W]."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = _convolution(16, 16), _convolution(16, 16)

    def forward(self, features: Tensor) -> Tensor:
        """[N, 16, H, W]."""
        added: Tensor = self.second(self.first(features))
        return functional.relu(features + added)


class Recurrent(nn.Module):
    """Words [N, L] to logits [N, 4] by the last state of an LSTM, whose fused form no CPU has in float16."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 32), nn.Linear(64, 4)
        self.inputs, self.states = nn.Linear(32, 256), nn.Linear(64, 256)

    def forward(self, words: Tensor) -> Tensor:
        """[N, 4] logits."""
        embedded = self.inputs(self.words(words))
        state = cell = embedded.new_zeros(len(words), 64)
        for number in range(words.shape[1]):
            keep, new, gate, put_out = (embedded[:, number] + self.states(state)).chunk(4, 1)
            cell = keep.sigmoid() * cell + gate.sigmoid() * new.tanh()
            state = put_out.sigmoid() * cell.tanh()
        logits: Tensor = self.head(state)
        return logits


class Attentive(nn.Module):
    """Words [N, L] to logits [N, 4] by two layers of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 64), nn.Linear(64, 4)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, words: Tensor) -> Tensor:
        """[N, 4] logits."""
        logits: Tensor = self.head(self.layers(self.words(words)).mean(1))
        return logits


def _convolution(inputs: int, outputs: int, *, stride: int = 1, groups: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


def _classifier(*layers: nn.Module, features: int) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, 10))


NETWORKS: Mapping[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    ),
    "cnn and batch norm": lambda: _classifier(
        _convolution(1, 16, stride=2), _convolution(16, 32, stride=2), features=32
    ),
    "residual": lambda: _classifier(_convolution(1, 16, stride=2), Residual(), Residual(), features=16),
    "depthwise": lambda: _classifier(
        _convolution(1, 16, stride=2),
        _convolution(16, 16, groups=16),
        nn.Conv2d(16, 32, 1),
        _convolution(32, 32, stride=2, groups=32),
        features=32,
    ),
    "autoencoder": lambda: nn.Sequential(
        nn.Flatten(),
        *(nn.Linear(784, 64), nn.GELU(), nn.Linear(64, 16), nn.GELU()),
        *(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 784), nn.Sigmoid()),
        nn.Unflatten(1, (1, 28, 28)),
    ),
    "discriminator": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(784, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1)
    ),
    "lstm": Recurrent,
    "transformer": Attentive,
    "embedding": lambda: nn.Sequential(nn.EmbeddingBag(WORDS, 32, mode="sum"), nn.Linear(32, 4)),
}

HEALTHY: Mapping[str, Callable[[], Experiment]] = {
    "mnist-deep": lambda: MnistDeep(batch_size=8),
    "simple-cnn": lambda: SimpleCnn(batch_size=16),
    "multi-task": lambda: MultiTask(batch_size=16),
    "selective": lambda: Selective(batch_size=16),
    "char-gpt": lambda: CharGpt(
        batch_size=8, layers=2, heads=2, width=64, context=32, learning_rate=1e-3, warmup_steps=5
    ),
    "label smoothing": lambda: Small(label_smoothing=0.1),
    "low learning rate": lambda: Small(learning_rate=1e-4),
    **{kind: partial(Small, kind=kind) for kind in ("mlp", "cnn and batch norm", "residual", "depthwise")},
    "autoencoder": lambda: Regression(kind="autoencoder"),
    "GAN's discriminator": Adversary,
    **{kind: partial(Sequences, kind=kind) for kind in ("lstm", "transformer", "embedding")},
}
"""By name; each made anew."""

OWN_DATA = (Sequences, CharGpt, SimpleCnn)
"""Those that do not learn from digits."""
