"""Experiments that stamp each of their steps: whatever loop trains them is timed with the same clock."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from amptui import Data, DataRequest, Experiment
from tests.benchmarks import stamps
from tests.benchmarks.launch_bound import LaunchBound

if TYPE_CHECKING:
    from models.mnist_deep import MnistDeep  # where its types can be read
else:
    from amptui.models.mnist_deep import MnistDeep


class _Timed(Experiment):
    """To be put before an experiment. Without validation: a plain loop has none."""

    def __post_init__(self) -> None:
        self.stamps = stamps.StampWriter(Path(os.environ[stamps.VARIABLE]))

    def load_data(self, request: DataRequest) -> Data:
        return replace(super().load_data(request), validation=None)

    def loss(self, model: nn.Module, batch: Any) -> Tensor | dict[str, Tensor]:
        self.stamps.stamp()
        loss = super().loss(model, batch)
        if self.stamps.lacks_loss:
            assert isinstance(loss, Tensor)
            self.stamps.tell_loss(loss.item())
        return loss


class TimedMnistDeep(_Timed, MnistDeep):
    """mnist-deep with a clock."""


class TimedLaunchBound(_Timed, LaunchBound):
    """Many tiny layers with a clock."""
