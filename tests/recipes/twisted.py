"""A model file of which one part is twisted: odd ones and wrong ones."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from amptui import Data, DataRequest, Experiment
from amptui.data.sources import Arrays

SAMPLES = 24


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
        optimizer = OPTIMIZERS.get(self.way, torch.optim.Adam)
        return optimizer(list(model.parameters()))  # type: ignore[no-any-return]

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


class Shifting(nn.Linear):
    """Gets new parameters while it trains."""

    def forward(self, inputs: Tensor) -> Tensor:
        self.weight = nn.Parameter(self.weight.detach().clone())
        return super().forward(inputs)


class Named(nn.Linear):
    """Its parameters have names that no identifier has."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        for name in ("\x1b[31m", "a b", "漢" * 100):
            self.register_parameter(name, nn.Parameter(torch.zeros(2)))


class Odd(torch.optim.Optimizer):
    """Has no learning rate, and groups of odd values."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"strange": object(), "lr": None})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Does nothing."""


class Mapped(Dataset[Any]):
    """Samples by number, of which it says how many there are."""

    def __init__(self, inputs: Tensor, targets: Tensor, length: Any) -> None:
        self.pairs, self.length = list(zip(inputs, targets, strict=True)), length

    def __len__(self) -> int:
        return self.length  # type: ignore[no-any-return]

    def __getitem__(self, index: int) -> Any:
        return self.pairs[index]


MODELS: dict[str, Callable[[], Any]] = {
    "a model in half": lambda: nn.Linear(4, 4).half(),
    "a model in double": lambda: nn.Linear(4, 4).double(),
    "a model on meta": lambda: nn.Linear(4, 4, device="meta"),
    "a frozen model": lambda: nn.Linear(4, 4).requires_grad_(False),
    "no parameters": nn.Identity,
    "names of parameters": Named,
    "new parameters": lambda: Shifting(4, 4),
    "a broken model": lambda: Broken(4, 4),
}

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "a huge learning rate": lambda found: torch.optim.SGD(found, lr=1e30),
    "one group each": lambda found: torch.optim.SGD([{"params": [p]} for p in found], lr=0.1),
    "an odd optimizer": Odd,
}

DATA: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "no data": lambda x, y: Arrays(x[:0], y[:0]),
    "too long a length": lambda x, y: Mapped(x, y, length=SAMPLES * 2),
    "a length that is no number": lambda x, y: Mapped(x, y, length="many"),
    "NaN in the data": lambda x, y: Arrays(x * math.nan, y),
    "wrong labels": lambda x, y: Arrays(x, y + 1000),
    "ragged data": lambda _x, _y: [(torch.rand(n + 1), n) for n in range(SAMPLES)],
}

RESULTS: dict[str, Callable[[Tensor], Any]] = {
    "a loss of one element": lambda loss: loss[None],
    "evil names of parts": lambda loss: {"loss": loss, "\x1b[5m\n": loss.detach(), "": loss.detach()},
    "a huge loss": lambda loss: loss * 1e30,
    "an empty loss": lambda loss: loss[None][:0],
    "parts whose keys are no text": lambda loss: {"loss": loss, 7: loss.detach()},
}

MEASURES: dict[str, Callable[[Tensor], Any]] = {
    "no metrics": lambda _: {},
    "metrics of NaN": lambda value: {"accuracy": value * math.nan},
    "metrics with evil names": lambda value: {"accuracy": value, "loss": value, "\x1b[31m": value},
    "metrics whose keys are no text": lambda value: {7: value, None: value},
}

WAYS = [*MODELS, *OPTIMIZERS, *DATA, *RESULTS, *MEASURES]
