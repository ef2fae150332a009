"""A model file of which each part can be twisted in many ways: right ones, odd ones and wrong ones."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

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
        for name in ("", "\x1b[31m", "a b", "漢" * 100):
            if name:
                self.register_parameter(name, nn.Parameter(torch.zeros(2)))


def frozen() -> nn.Module:
    return nn.Linear(4, 4).requires_grad_(False)


def shared() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, layer)


def spoiled() -> nn.Module:
    model = nn.Linear(4, 4)
    with torch.no_grad():
        model.weight.fill_(math.nan)
    return model


def unused() -> nn.Module:
    model = nn.Linear(4, 4)
    model.spare = nn.Linear(3, 3)
    with torch.no_grad():
        model.spare.weight.fill_(math.nan)
    return model


MODELS: dict[str, Callable[[], Any]] = {
    "linear": lambda: nn.Linear(4, 4),
    "lazy": lambda: nn.LazyLinear(4),
    "batch norm": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
    "half": lambda: nn.Linear(4, 4).half(),
    "double": lambda: nn.Linear(4, 4).double(),
    "on meta": lambda: nn.Linear(4, 4, device="meta"),
    "shared": shared,
    "unused and NaN": unused,
    "frozen": frozen,
    "without parameters": nn.Identity,
    "names": Named,
    "shifting": lambda: Shifting(4, 4),
    "broken": lambda: Broken(4, 4),
    "NaN": spoiled,
    "None": lambda: None,
    "a class": lambda: nn.Linear,
}


class Odd(torch.optim.Optimizer):
    """Has no learning rate, and groups of odd values."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"strange": object(), "lr": None})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Does nothing."""


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "adam": lambda found: torch.optim.Adam(found, fused=True),
    "sgd": lambda found: torch.optim.SGD(found, lr=0.1),
    "huge": lambda found: torch.optim.SGD(found, lr=1e30),
    "tensor": lambda found: torch.optim.SGD(found, lr=torch.tensor(0.1)),
    "one group each": lambda found: torch.optim.SGD([{"params": [p]} for p in found], lr=0.1),
    "odd": Odd,
    "lbfgs": torch.optim.LBFGS,
    "None": lambda _: None,
}


class Mapped(Dataset[Any]):
    """Samples by number; ``length`` is what it says of itself."""

    def __init__(self, inputs: Tensor, targets: Tensor, length: Any = SAMPLES) -> None:
        self.pairs, self.length = list(zip(inputs, targets, strict=True)), length

    def __len__(self) -> int:
        return self.length  # type: ignore[no-any-return]

    def __getitem__(self, index: int) -> Any:
        return self.pairs[index]


class Streamed(IterableDataset[Any]):
    """The same one after the other, or none."""

    def __init__(self, pairs: list[Any]) -> None:
        self.pairs = pairs

    def __iter__(self) -> Iterator[Any]:
        return iter(self.pairs)


def dropping(samples: list[Any]) -> Any:
    kept = [sample for sample in samples if sample[1] != 0]
    return default_collate(kept) if len(kept) > 5 else None


def pairs(inputs: Tensor, targets: Tensor) -> Any:
    return list(zip(inputs, targets, strict=True))


def both(train: Any, validation: Any = None) -> Data:
    return Data("twisted", False, train, validation)


DATA: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "arrays": lambda x, y: both(Arrays(x, y), Arrays(x, y)),
    "dataset": lambda x, y: both(Mapped(x, y), Mapped(x, y)),
    "stream": lambda x, y: both(Streamed(pairs(x, y)), Streamed(pairs(x, y))),
    "loader": lambda x, y: both(DataLoader(pairs(x, y), 8), DataLoader(pairs(x, y), 3)),
    "dropping": lambda x, y: both(DataLoader(pairs(x, y), 8, collate_fn=dropping)),
    "only None": lambda x, y: both(DataLoader(pairs(x, y), 8, collate_fn=lambda _: None)),
    "no validation": lambda x, y: both(Arrays(x, y), Streamed([])),
    "empty stream": lambda _x, _y: both(Streamed([])),
    "empty": lambda x, y: both(Arrays(x[:0], y[:0])),
    "too long": lambda x, y: both(Mapped(x, y, length=SAMPLES * 2)),
    "no number": lambda x, y: both(Mapped(x, y, length="many")),
    "NaN": lambda x, y: both(Arrays(x * math.nan, y)),
    "wrong labels": lambda x, y: both(Arrays(x, y + 1000)),
    "ragged": lambda _x, _y: both([(torch.rand(n + 1), n) for n in range(SAMPLES)]),
    "None": lambda _x, _y: None,
    "text": lambda _x, _y: both("MNIST"),
}

RESULTS: dict[str, Callable[[Tensor], Any]] = {
    "scalar": lambda loss: loss,
    "one element": lambda loss: loss[None],
    "dict": lambda loss: {"loss": loss, "part": loss.detach()},
    "evil names": lambda loss: {"loss": loss, "\x1b[5m\n": loss.detach(), "": loss.detach()},
    "double": lambda loss: loss.double(),
    "nan": lambda loss: loss * math.nan,
    "huge": lambda loss: loss * 1e30,
    "vector": lambda loss: loss.repeat(3),
    "empty": lambda loss: loss[None][:0],
    "number": lambda loss: loss.item(),
    "without a gradient": lambda loss: loss.detach(),
    "None": lambda _: None,
    "dict without": lambda loss: {"part": loss},
    "dict of numbers": lambda loss: {"loss": loss, "part": 1.0},
    "keys that are no text": lambda loss: {"loss": loss, 7: loss.detach()},
}

MEASURES: dict[str, Callable[[Tensor], Any]] = {
    "nothing": lambda _: {},
    "nan": lambda value: {"accuracy": value * math.nan},
    "several": lambda value: {"accuracy": value, "loss": value, "\x1b[31m": value},
    "vector": lambda value: {"accuracy": value.repeat(2)},
    "numbers": lambda _: {"accuracy": 0.5},
    "None": lambda _: None,
    "keys that are no text": lambda value: {7: value, None: value},
}

WAYS: dict[str, list[str]] = {
    "model": list(MODELS),
    "optimizer": list(OPTIMIZERS),
    "data": list(DATA),
    "result": list(RESULTS),
    "measure": ["own", *MEASURES],
}
