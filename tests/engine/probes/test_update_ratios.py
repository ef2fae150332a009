"""Update ratios of a training: of which steps there are some. That nothing else changes, experiments tell."""

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from amptui.base.errors import ExperimentError
from amptui.engine.probes import update_ratios
from amptui.engine.probes.update_probe import UpdateProbe, WeightsBefore
from amptui.engine.probes.update_ratios import GAP_STEPS, UpdateRatios
from amptui.records.findings import UpdatesMeasured
from amptui.records.run import Record
from amptui.records.steps import StepRecord
from tests.tiny import Exploding, Log, Spoiled, Tiny, log_of, prepare, train

CPU = torch.device("cpu")


def ratios(prepared: Any, **options: Any) -> dict[int, Mapping[str, float]]:
    """Those of a training, by step."""
    return {record.step: record.ratios for record in log_of(prepared, **options).of(UpdatesMeasured)}


class Copying(Tiny):
    """Copies its weights before each step of its optimizer, and says what that did to them."""

    def build_optimizer(self, model: nn.Module) -> Optimizer:
        self.ratios: list[dict[str, float]] = []
        optimizer, before = super().build_optimizer(model), dict[str, Tensor]()

        def layers() -> Iterator[tuple[str, Tensor]]:
            for name, module in model.named_modules():
                if parts := [p.detach().double().flatten() for p in module.parameters(recurse=False)]:
                    yield name, torch.cat(parts)

        def compare() -> dict[str, float]:
            return {name: float((new - before[name]).norm() / before[name].norm()) for name, new in layers()}

        optimizer.register_step_pre_hook(lambda *_: before.update(layers()))
        optimizer.register_step_post_hook(lambda *_: self.ratios.append(compare()))
        return optimizer


@pytest.mark.parametrize("options", [{"accumulate": 3}, {"clip_norm": 0.01}, {"precision": "bf16"}])
def test_a_measured_step_has_the_ratios_of_full_copies(options: dict[str, Any]) -> None:
    experiment = Copying(epochs=20)
    by_step = ratios(prepare(experiment, steps=50, **options))
    assert len(by_step) >= 2
    for step, layers in by_step.items():
        assert layers == pytest.approx(experiment.ratios[step - 1], rel=1e-3)


def test_the_first_step_is_measured_and_then_none_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that is not measured calls nothing."""
    calls: list[str] = []
    for owner, name in ((UpdateProbe, "copy"), (WeightsBefore, "compare"), (UpdateRatios, "measure")):
        original = getattr(owner, name)

        def counted(*arguments: Any, _name: str = name, _original: Any = original) -> Any:
            calls.append(_name)
            return _original(*arguments)

        monkeypatch.setattr(owner, name, counted)
    steps = [*ratios(prepare(Tiny(epochs=9)))]
    assert steps[:2] == [1, 1 + GAP_STEPS], "a tiny model's next measurement is always affordable"
    assert min(after - before for before, after in pairwise(steps)) >= GAP_STEPS
    assert calls == ["copy", "measure", "compare"] * len(steps)
    assert ratios(prepare(Tiny(), probes=False)) == {}


def test_a_skipped_step_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_ratios, "UPDATES_BUDGET", 1e9)
    log = log_of(prepare(Exploding(epochs=12), precision="fp16"))
    skipped = {record.step for record in log.of(StepRecord) if record.skipped}
    measured = {record.step for record in log.of(UpdatesMeasured)}
    assert 1 in skipped, "it was due, and did not change a weight"
    assert measured
    assert not measured & skipped


def test_lost_weights_are_no_number() -> None:
    log = Log()
    with pytest.raises(ExperimentError, match="contain NaN"):
        train(prepare(Spoiled(at=1, steps=1, epochs=1), steps=1), log)
    (record,) = log.of(UpdatesMeasured)
    assert record.ratios
    assert all(math.isnan(ratio) for ratio in record.ratios.values())


# --------------------------------------------------------------------------------------- by hand


def following(model: nn.Module, *, enabled: bool = True) -> tuple[UpdateRatios, Optimizer, list[Record]]:
    emitted: list[Record] = []
    updates = UpdateRatios(CPU, emitted.append)
    updates.follow(model, enabled=enabled)
    return updates, torch.optim.SGD(model.parameters(), lr=0.1), emitted


def test_a_sharded_model_is_not_measured() -> None:
    updates, optimizer, _ = following(nn.Linear(3, 3), enabled=False)
    updates.copy(optimizer)
    assert not updates.is_open
    updates.look(5)
    assert updates.until == 1
