"""A model with lazy layers trains as one whose sizes are written down, and its optimizer may be any."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from amptui import Data, DataRequest
from amptui.base.errors import ExperimentError
from amptui.data.sources import Arrays, Source
from tests.builders import StepRow
from tests.tiny import Drawing, Jittered, Log, Tiny, log_of, losses, prepare, train


def written() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.Dropout(0.3), nn.Flatten()),
        *(nn.Linear(27, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)),
    )


def lazy() -> nn.Sequential:
    return nn.Sequential(
        *(nn.LazyConv2d(3, 2), nn.LazyBatchNorm2d(), nn.Dropout(0.3), nn.Flatten()),
        *(nn.LazyLinear(16), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(4)),
    )


class Wrapped(DataLoader[Any]):
    def __iter__(self) -> Any:
        return iter([(inputs, targets) for inputs, targets in super().__iter__()])


SOURCES: dict[str, Callable[[Jittered], Source]] = {
    "dataset": lambda samples: samples,
    "samples": lambda samples: DataLoader(samples, None, sampler=torch.arange(64).split(8), collate_fn=tuple),
    "wrapped": lambda samples: Wrapped(samples, 8),
}


class Shaped(Drawing):
    def __init__(self, model: Callable[[], nn.Module], source: Callable[[Jittered], Source]) -> None:
        super().__init__(epochs=3)
        self.model, self.make = model, source

    def build_model(self) -> nn.Module:
        return self.model()

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        self.sizes = [parameter.numel() for parameter in model.parameters()]
        return super().build_optimizer(model)

    def load_data(self, request: DataRequest) -> Data:
        data = Tiny.load_data(self, request)
        assert isinstance(data.train, Arrays)
        return replace(data, train=self.make(Jittered(data.train)))


@pytest.mark.parametrize("source", sorted(SOURCES))
def test_a_lazy_model_trains_like_one_with_explicit_sizes(source: str) -> None:
    logs = []
    for model in (written, lazy):
        log = Log()
        assert train(prepare(Shaped(model, SOURCES[source])), log) == "done"
        logs.append(log)
    assert len(losses(logs[0])) == 24
    assert losses(logs[1]) == losses(logs[0])


def test_a_lazy_layer_that_no_batch_reaches_is_named() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = lazy(), nn.LazyLinear(3)

        def forward(self, inputs: Tensor) -> Any:
            return self.used(inputs)

    class Forgetful(Tiny):
        def build_model(self) -> nn.Module:
            return Spare()

    with pytest.raises(
        ExperimentError, match=r"the first batch leaves spare.weight and 1 more uninitialized; "
    ):
        prepare(Forgetful())


class Rateless(torch.optim.Optimizer):
    """Knows no learning rate."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"pull": 0.01})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.sub_(group["pull"] * parameter.grad)


class Optimized(Tiny):
    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return Rateless(model.parameters())


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_an_optimizer_without_a_learning_rate_trains(precision: str) -> None:
    log = log_of(prepare(Optimized(), precision=precision))
    assert [record.lr for record in log.of(StepRow)] == [None] * 16
