"""A model file may make the GPU torch's default device: what amptui makes on the host stays there."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from amptui import Data, DataRequest
from amptui.data.sources import Arrays, Source
from amptui.records.control import PrecisionRequest, StopRequest, TraceRequest, XRayRequest
from amptui.records.findings import Float16Window, ModulesTraced, XRayTaken
from amptui.records.keeping import CheckpointWritten
from amptui.records.run import EpochFinished, PrecisionChanged
from amptui.records.steps import StepRecord
from tests.simcuda.training import Asks, Pairs, Small, run
from tests.tiny import Log, losses, prepare, resume


@pytest.fixture(autouse=True)
def _default_device() -> Iterator[None]:
    yield
    torch.set_default_device(None)


class OnDefault(Small):
    """Its file says ``torch.set_default_device("cuda")``."""

    source: Literal["arrays", "loader"] = "arrays"

    def load_data(self, request: DataRequest) -> Data:
        data = super().load_data(request)
        assert isinstance(data.train, Arrays)
        train: Source = data.train
        if self.source == "loader":
            # torch's own loader wants the order drawn on the default device.
            train = DataLoader(
                Pairs(data.train), self.batch_size, shuffle=True, generator=torch.Generator("cuda")
            )
        torch.set_default_device("cuda")
        return Data(name="noise", real=False, train=train, validation=data.validation)

    def build_model(self) -> nn.Module:
        model = super().build_model()
        assert next(model.parameters()).is_cuda
        return model


@pytest.mark.parametrize("source", ["arrays", "loader"])
def test_all_goes_on_as_without(source: Literal["arrays", "loader"], tmp_path: Path) -> None:
    asks: Asks = {
        10: (TraceRequest(), PrecisionRequest("fp16")),
        18: XRayRequest(),
        33: StopRequest("the test"),
    }
    experiment = OnDefault(source=source, samples=160)
    log = run(experiment, asks=asks, steps=50, checkpoints=tmp_path, every=10).log
    for kind in (Float16Window, ModulesTraced, XRayTaken, EpochFinished, CheckpointWritten, PrecisionChanged):
        assert log.of(kind), kind
    torch.set_default_device(None)  # as in a new process
    again = Log()
    resume(prepare(OnDefault(source=source, samples=160), steps=50, device="cuda"), tmp_path, again)
    assert len(log.of(StepRecord)) + len(again.of(StepRecord)) == 50
    assert None not in losses(again)
