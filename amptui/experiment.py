"""The one thing a model file fills in: what is trained, on what, and how its loss is computed."""

from dataclasses import dataclass
from typing import Any, ClassVar, dataclass_transform

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from amptui.data.sources import Data, DataRequest
from amptui.data.vision import mnist


@dataclass_transform()
@dataclass
class Experiment:
    """A recipe for one training. Fields are options, methods are steps of the recipe.

    Every annotated field of a subclass becomes an option that ``--set name=value`` reaches; no decorator
    is needed. Only :meth:`build_model` must be written::

        class MyExperiment(Experiment):
            width: int = 64

            def build_model(self) -> nn.Module:
                return nn.Sequential(nn.Flatten(), nn.Linear(784, self.width), nn.ReLU(), ...)
    """

    epochs: int = 10
    batch_size: int = 256
    learning_rate: float = 1e-3

    cpu_batch_size: ClassVar[int | None] = None
    """Used on a CPU instead of ``batch_size`` when the person gave none, because a step would take long."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclass(cls)

    def build_model(self) -> nn.Module:
        """The model, on any device; the trainer moves it."""
        raise NotImplementedError

    def build_optimizer(self, model: nn.Module) -> Optimizer:
        """Adam over all parameters, fused: one kernel, and no host wait to learn of a skipped step."""
        return torch.optim.Adam(model.parameters(), lr=self.learning_rate, fused=True)

    def load_data(self, request: DataRequest) -> Data:
        """MNIST, or its synthetic stand-in."""
        return mnist(request)

    def loss(self, model: nn.Module, batch: Any) -> Tensor | dict[str, Tensor]:
        """Cross entropy of ``model(inputs)`` against class indices.

        Runs inside the precision's autocast. A scalar tensor; or a dict whose ``"loss"`` is the total and
        whose other entries are parts, each shown with a curve of its own.
        """
        inputs, targets = batch
        return functional.cross_entropy(model(inputs), targets)

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        """Means over one validation batch; ``"accuracy"`` as a fraction of one.

        A ``"loss"`` in the answer saves the trainer a call of :meth:`loss`.
        """
        inputs, targets = batch
        outputs = model(inputs)
        found = {"accuracy": (outputs.argmax(dim=1) == targets).float().mean()}
        if type(self).loss is Experiment.loss:
            found["loss"] = functional.cross_entropy(outputs, targets)
        return found
