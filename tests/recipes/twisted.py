"""A model file of which one part is twisted: odd ones and wrong ones."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from amptui import Data, DataRequest, Experiment
from amptui.data.sources import Arrays

SAMPLES = 24

HUGE = "a huge learning rate"


class Twisted(Experiment):
    """``way`` names the part and how it is."""

    epochs: int = 2
    batch_size: int = 8
    way: str = ""

    def load_data(self, request: DataRequest) -> Data:
        inputs = torch.rand(SAMPLES, 4)
        targets = inputs.argmax(1)
        if self.way in DATA:
            return Data("twisted", False, DATA[self.way](inputs, targets))
        return Data("twisted", False, Arrays(inputs, targets), Arrays(inputs, targets))

    def build_model(self) -> nn.Module:
        return MODELS.get(self.way, lambda: nn.Linear(4, 4))()  # type: ignore[no-any-return]

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        lr = 1e30 if self.way == HUGE else 1e-3
        return torch.optim.SGD(model.parameters(), lr=lr)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        inputs, targets = batch
        loss = functional.cross_entropy(model(inputs).float(), targets)
        return RESULTS[self.way](loss) if self.way in RESULTS else loss

    def metrics(self, model: nn.Module, batch: Any) -> Any:
        measure = MEASURES.get(self.way)
        return measure(torch.tensor(0.5)) if measure else super().metrics(model, batch)


class Broken(nn.Linear):
    """Fails in its forward pass."""

    def forward(self, _inputs: Tensor) -> Tensor:
        raise ZeroDivisionError("\x1b[2J" + "long " * 1000 + "\n\n\nlines")


MODELS: dict[str, Callable[[], Any]] = {
    "a model in half": lambda: nn.Linear(4, 4).half(),
    "a model on meta": lambda: nn.Linear(4, 4, device="meta"),
    "a frozen model": lambda: nn.Linear(4, 4).requires_grad_(False),
    "no parameters": nn.Identity,
    "a broken model": lambda: Broken(4, 4),
}

DATA: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "no data": lambda x, y: Arrays(x[:0], y[:0]),
    "NaN in the data": lambda x, y: Arrays(x * math.nan, y),
    "wrong labels": lambda x, y: Arrays(x, y + 1000),
    "ragged data": lambda _x, _y: [(torch.rand(n + 1), n) for n in range(SAMPLES)],
}

RESULTS: dict[str, Callable[[Tensor], Any]] = {
    "a huge loss": lambda loss: loss * 1e30,
    "an empty loss": lambda loss: loss[None][:0],
    "parts whose keys are no text": lambda loss: {"loss": loss, 7: loss.detach()},
}

MEASURES: dict[str, Callable[[Tensor], Any]] = {
    "metrics of NaN": lambda value: {"accuracy": value * math.nan},
    "metrics whose keys are no text": lambda value: {7: value, None: value},
}

WAYS = [*MODELS, HUGE, *DATA, *RESULTS, *MEASURES]
