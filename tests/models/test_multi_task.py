"""multi-task: two losses that add up, in every precision, and two heads that both learn."""

import pytest
import torch

from amptui.models.multi_task import MultiTask
from amptui.records.run import EpochFinished, StepSkipped
from tests.builders import StepRow
from tests.models.on_images import DEVICES, learned, on_images
from tests.tiny import Log, train


@pytest.mark.ci
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_total_has_half_of_the_parity_s_loss_and_both_heads_learn(precision: str, device: str) -> None:
    log = Log()
    experiment = MultiTask(batch_size=32, learning_rate=2e-3)
    assert train(on_images(experiment, steps=100, precision=precision, device=device), log) == "done"
    for step in log.of(StepRow):
        assert list(step.losses) == ["digit", "parity"]
        assert step.loss == pytest.approx(step.losses["digit"] + 0.5 * step.losses["parity"], rel=1e-5)
    assert learned(log) > 0.2
    assert len(log.of(StepSkipped)) <= 4
    (epoch,) = log.of(EpochFinished)
    assert epoch.validation is not None
    assert (epoch.validation.accuracy or 0) > 0.35
    assert 0.65 < epoch.validation.metrics["parity accuracy"] <= 1


def test_parity_is_told_odd_above_zero() -> None:
    class Told(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.eye(10)[:4], torch.tensor([-1.0, 1.0, -1.0, -1.0])

    metrics = MultiTask().metrics(Told(), (torch.zeros(4, 1, 28, 28), torch.arange(4)))
    assert {name: value.item() for name, value in metrics.items()} == {
        "accuracy": 1.0,
        "parity accuracy": 0.75,
    }
