"""A model on two GPUs, a run on the second, and a GPU that a model file makes torch's default device."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from amptui import Data, DataRequest
from amptui.data.sources import Arrays, Source
from amptui.device.accelerator import enter_device
from amptui.records.answers import RequestMade
from amptui.records.findings import Float16Window, MemoryBreakdown, ModulesTraced, XRayTaken
from amptui.records.keeping import CheckpointWritten
from amptui.records.run import EpochFinished, Note, PrecisionChanged
from tests.builders import StepRow
from tests.simcuda.training import Asks, Pairs, Small, Whole, run
from tests.tiny import Log, losses, prepare, resume


class OnTwo(nn.Module):
    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.first, self.second = layers[:6], layers[6:]

    def to(self, *_: Any, **__: Any) -> "OnTwo":
        self.first.to("cuda:0")
        self.second.to("cuda:1")
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.second(self.first(inputs).to("cuda:1", non_blocking=True))
        return outputs.to("cuda:0", non_blocking=True)


class Halved(Whole):
    def build_model(self) -> nn.Module:
        whole = super().build_model()
        assert isinstance(whole, nn.Sequential)
        return OnTwo(whole)


@pytest.mark.parametrize(("precision", "clip_norm"), [("fp32", None), ("fp16", 0.5)])
def test_a_model_on_two_gpus_trains_and_is_looked_into_as_one(
    precision: str, clip_norm: float | None
) -> None:
    asks: Asks = {10: RequestMade("trace"), 16: RequestMade("x-ray")}
    one, two = (
        run(each(), asks=asks, steps=60, precision=precision, clip_norm=clip_norm) for each in (Whole, Halved)
    )
    assert two.log.of(Note) == []
    # The norms of two devices are added in another order; later steps tell that apart.
    assert losses(two.log)[:20] == pytest.approx(losses(one.log)[:20], rel=2e-3)
    for kind in (Float16Window, MemoryBreakdown, ModulesTraced, XRayTaken):
        assert len(two.log.of(kind)) >= 1, kind
    for mine, theirs in zip(two.log.of(StepRow), one.log.of(StepRow), strict=True):
        if mine.grad_norm is not None and theirs.grad_norm is not None:
            assert mine.grad_norm == pytest.approx(theirs.grad_norm, rel=0.1)
    assert any(record.grad_max is not None for record in two.log.of(StepRow))
    windows = two.log.of(Float16Window)[0], one.log.of(Float16Window)[0]
    assert windows[0].elements == windows[1].elements
    assert len(two.log.of(XRayTaken)[0].layers) == len(one.log.of(XRayTaken)[0].layers)
    waits = Counter({place: n for place, n in two.marks.places().items() if "EventSynchronize" not in place})
    assert waits == Counter()


def test_a_run_on_the_second_gpu_is_like_one_on_the_first() -> None:
    runs = []
    for name in ("cuda:0", "cuda:1"):
        enter_device(torch.device(name))
        try:
            runs.append(
                run(Whole(), device=name, steps=20, asks={10: RequestMade("precision", precision="fp16")})
            )
        finally:
            enter_device(torch.device("cuda:0"))
    first, second = runs
    assert losses(first.log) == losses(second.log)
    assert len(second.log.of(PrecisionChanged)) == 1
    assert {p.device for p in second.prepared.model.parameters()} == {torch.device("cuda:1")}
    assert second.marks.places() == Counter()


# What amptui makes on the host stays there where the GPU is the default device.


@pytest.fixture
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


@pytest.mark.usefixtures("_default_device")
@pytest.mark.parametrize("source", ["arrays", "loader"])
def test_all_goes_on_as_without(source: Literal["arrays", "loader"], tmp_path: Path) -> None:
    asks: Asks = {
        10: (RequestMade("trace"), RequestMade("precision", precision="fp16")),
        18: RequestMade("x-ray"),
        33: RequestMade("stop", reason="the test"),
    }
    experiment = OnDefault(source=source, samples=160)
    log = run(experiment, asks=asks, steps=50, checkpoints=tmp_path, every=10).log
    for kind in (Float16Window, ModulesTraced, XRayTaken, EpochFinished, CheckpointWritten, PrecisionChanged):
        assert log.of(kind), kind
    torch.set_default_device(None)  # as in a new process
    again = Log()
    resume(prepare(OnDefault(source=source, samples=160), steps=50, device="cuda"), tmp_path, again)
    assert len(log.of(StepRow)) + len(again.of(StepRow)) == 50
    assert None not in losses(again)
