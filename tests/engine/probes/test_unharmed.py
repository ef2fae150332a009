"""A measurement that fails costs a line, never the run."""

import pytest
import torch
from torch import Tensor, nn

from amptui.engine.probes.float16_window import Float16WindowProbe
from amptui.engine.snapshot import Snapshot
from amptui.records.control import Control
from amptui.records.findings import Float16Window, MemoryBreakdown
from amptui.records.run import Note, PrecisionChanged
from tests.tiny import Log, Tiny, losses, prepare, switching, train


class Masked(Tiny):
    """Its optimizer keeps a tensor of a kind that has no storage."""

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        optimizer = super().build_optimizer(model)
        optimizer.state[torch.zeros(1)] = {"mask": torch.eye(2).to_mkldnn()}
        return optimizer


def test_a_failed_memory_breakdown_is_only_a_warning() -> None:
    log = Log()
    assert train(prepare(Masked(epochs=10, learning_rate=0.0)), log) == "done"
    assert log.of(MemoryBreakdown) == []
    (note,) = log.of(Note)
    assert note.text.startswith("no memory breakdown: ")


def test_a_window_without_memory_is_reported_once_and_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = Float16WindowProbe.measure
    left = [True, True]

    def short_of_memory(probe: Float16WindowProbe, factor: float) -> Tensor:
        if left:
            left.pop()
            raise torch.OutOfMemoryError("CUDA out of memory")
        return measured(probe, factor)

    monkeypatch.setattr(Float16WindowProbe, "measure", short_of_memory)
    log = Log()
    assert train(prepare(Tiny(epochs=40)), log) == "done"
    assert [note.text[:35] for note in log.of(Note)] == ["no float16 window: CUDA out of memo"]
    assert log.of(Float16Window)
    assert len(losses(log)) == 320


def test_a_switch_without_memory_for_a_snapshot_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def short_of_memory(*_: object) -> Snapshot:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("amptui.engine.snapshot.Snapshot", short_of_memory)
    control = Control()
    log = Log(switching(control, {3: "bf16"}))
    assert train(prepare(Tiny()), log, control) == "done"
    assert "staying in fp32" in log.of(Note)[0].text
    assert log.of(PrecisionChanged) == []
