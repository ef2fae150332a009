"""A model file of which each part can be twisted in many ways: right ones, odd ones and wrong ones."""

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
    """Each field names a way to be."""

    epochs: int = 2
    batch_size: int = 8
    model: str = "linear"
    optimizer: str = "adam"
    data: str = "arrays"
    result: str = "scalar"
    measure: str = "own"

    def load_data(self, request: DataRequest) -> Data:
        inputs = torch.rand(SAMPLES, 4)
        return DATA[self.data](inputs, inputs.argmax(1))  # type: ignore[no-any-return]

    def build_model(self) -> nn.Module:
        return MODELS[self.model]()  # type: ignore[no-any-return]

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return OPTIMIZERS[self.optimizer](list(model.parameters()))  # type: ignore[no-any-return]

    def loss(self, model: nn.Module, batch: Any) -> Any:
        inputs, targets = batch
        return RESULTS[self.result](functional.cross_entropy(model(inputs).float(), targets))

    def metrics(self, model: nn.Module, batch: Any) -> Any:
        if self.measure == "own":
            return super().metrics(model, batch)
        return MEASURES[self.measure](torch.tensor(0.5))


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


def shared() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, layer)


def unused() -> nn.Module:
    model = nn.Linear(4, 4)
    model.spare = nn.Linear(3, 3)
    with torch.no_grad():
        model.spare.weight.fill_(math.nan)
    return model


MODELS: dict[str, Callable[[], Any]] = {
    "linear": lambda: nn.Linear(4, 4),
    "half": lambda: nn.Linear(4, 4).half(),
    "double": lambda: nn.Linear(4, 4).double(),
    "on meta": lambda: nn.Linear(4, 4, device="meta"),
    "shared": shared,
    "unused and NaN": unused,
    "frozen": lambda: nn.Linear(4, 4).requires_grad_(False),
    "without parameters": nn.Identity,
    "names": Named,
    "shifting": lambda: Shifting(4, 4),
    "broken": lambda: Broken(4, 4),
}


class Odd(torch.optim.Optimizer):
    """Has no learning rate, and groups of odd values."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"strange": object(), "lr": None})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Does nothing."""


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "adam": lambda found: torch.optim.Adam(found, fused=True),
    "huge": lambda found: torch.optim.SGD(found, lr=1e30),
    "one group each": lambda found: torch.optim.SGD([{"params": [p]} for p in found], lr=0.1),
    "odd": Odd,
}


class Mapped(Dataset[Any]):
    """Samples by number; ``length`` is what it says of itself."""

    def __init__(self, inputs: Tensor, targets: Tensor, length: Any = SAMPLES) -> None:
        self.pairs, self.length = list(zip(inputs, targets, strict=True)), length

    def __len__(self) -> int:
        return self.length  # type: ignore[no-any-return]

    def __getitem__(self, index: int) -> Any:
        return self.pairs[index]


def both(train: Any, validation: Any = None) -> Data:
    return Data("twisted", False, train, validation)


DATA: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "arrays": lambda x, y: both(Arrays(x, y), Arrays(x, y)),
    "empty": lambda x, y: both(Arrays(x[:0], y[:0])),
    "too long": lambda x, y: both(Mapped(x, y, length=SAMPLES * 2)),
    "no number": lambda x, y: both(Mapped(x, y, length="many")),
    "NaN": lambda x, y: both(Arrays(x * math.nan, y)),
    "wrong labels": lambda x, y: both(Arrays(x, y + 1000)),
    "ragged": lambda _x, _y: both([(torch.rand(n + 1), n) for n in range(SAMPLES)]),
}

RESULTS: dict[str, Callable[[Tensor], Any]] = {
    "scalar": lambda loss: loss,
    "one element": lambda loss: loss[None],
    "evil names": lambda loss: {"loss": loss, "\x1b[5m\n": loss.detach(), "": loss.detach()},
    "double": lambda loss: loss.double(),
    "nan": lambda loss: loss * math.nan,
    "huge": lambda loss: loss * 1e30,
    "empty": lambda loss: loss[None][:0],
    "keys that are no text": lambda loss: {"loss": loss, 7: loss.detach()},
}

MEASURES: dict[str, Callable[[Tensor], Any]] = {
    "nothing": lambda _: {},
    "nan": lambda value: {"accuracy": value * math.nan},
    "several": lambda value: {"accuracy": value, "loss": value, "\x1b[31m": value},
    "keys that are no text": lambda value: {7: value, None: value},
}

WAYS: dict[str, list[str]] = {
    "model": list(MODELS),
    "optimizer": list(OPTIMIZERS),
    "data": list(DATA),
    "result": list(RESULTS),
    "measure": ["own", *MEASURES],
}
