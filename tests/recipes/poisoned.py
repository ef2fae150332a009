"""A model file whose every text is poison: names, prints and errors. The poison lies beside it as JSON."""

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from amptui import Data, DataRequest, Experiment
from amptui.data.sources import Arrays

_TEXTS = cycle(json.loads(Path(__file__).with_name("poison.json").read_text()))


def _name(text: str) -> str:
    """``text`` as far as Python takes it for the name of a class or of a module."""
    return text.replace("\0", "").replace(".", "").encode("utf-8", "replace").decode()


class Poisoned(Experiment):
    """A linear model."""

    epochs: int = 1_000_000
    batch_size: int = 8
    at: int = 0
    """The step that fails."""

    def build_model(self) -> nn.Module:
        self.calls = 0
        model = nn.Sequential(nn.Flatten())
        for layer in (nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)):
            model.add_module(_name(next(_TEXTS)), layer)
        return model

    def load_data(self, request: DataRequest) -> Data:
        generator = torch.Generator().manual_seed(request.seed)
        inputs = torch.randint(0, 256, (80, 1, 4, 4), generator=generator, dtype=torch.uint8)
        arrays = Arrays(inputs, inputs.flatten(1).float().mean(1).div(64).long())
        return Data(name=next(_TEXTS), real=False, train=arrays, validation=arrays)

    def loss(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        inputs, targets = batch
        loss = functional.cross_entropy(model(inputs), targets)
        if model.training:
            self.calls += 1
            self.fail()
        return {"loss": loss, self.part: loss}

    part = next(_TEXTS)

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {next(_TEXTS): torch.tensor(0.5)}

    def fail(self) -> None:
        """Raise what is poison in its type and in its text."""
        if self.calls == self.at:
            raise type(_name(next(_TEXTS)), (ValueError,), {})(next(_TEXTS))


Poisoned.__name__ = Poisoned.__qualname__ = _name(next(_TEXTS))
Poisoned.__doc__ = next(_TEXTS)
