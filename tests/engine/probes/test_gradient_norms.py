"""In which steps all gradients are measured: while the scaler searches, where it grows, and after trouble."""

import pytest
import torch
from torch import nn

from amptui.engine.probes.gradient_norms import SEARCH_STEPS, STEPS_AFTER_TROUBLE, GradientNorms
from amptui.engine.probes.gradients import GradientProbe
from amptui.engine.readback import MAX_STEPS_BETWEEN_LOOKS
from amptui.engine.reporting import StepReporter

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def reporter(*, trouble_step: int = 0, scaled_step: int = 0) -> StepReporter:
    """Of a run whose loss scale changed last after ``scaled_step``."""
    probe = GradientProbe(nn.Linear(1, 1))
    return StepReporter(lambda _record: None, probe, trouble_step=trouble_step, scaled_step=scaled_step)


def due(norms: GradientNorms, steps: range, *, is_scaled: bool = False) -> list[int]:
    """Those of ``steps``, each the number of steps made before, in which they are measured."""
    return [step for step in steps if norms.are_due(step, is_scaled=is_scaled)]


def test_the_first_step_is_measured_and_none_where_it_is_not_wanted() -> None:
    assert due(GradientNorms(CPU), range(5)) == [0]
    unwanted = GradientNorms(GPU, enabled=False)
    unwanted.look(3, reporter(trouble_step=2), growth_interval=4)
    assert due(unwanted, range(9), is_scaled=True) == []


def test_on_a_gpu_the_steps_in_which_the_scaler_searches_are_measured() -> None:
    norms = GradientNorms(GPU)
    measured_steps = []
    for step in range(SEARCH_STEPS + 5):
        measured_steps += due(norms, range(step, step + 1), is_scaled=True)
        norms.scaled_steps += 1
    assert measured_steps == [*range(SEARCH_STEPS)]


@pytest.mark.parametrize("device", [CPU, GPU], ids=str)
def test_the_steps_after_trouble_are_measured(device: torch.device) -> None:
    norms = GradientNorms(device)
    norms.look(30, reporter(trouble_step=29))
    assert due(norms, range(30, 40)) == [*range(30, 30 + STEPS_AFTER_TROUBLE)]
    norms.look(50, reporter(trouble_step=29))
    assert len(due(norms, range(50, 60))) <= 1  # at most what the budget allows


def test_on_a_gpu_the_steps_after_a_growth_are_measured() -> None:
    norms, scaler = GradientNorms(GPU), reporter(scaled_step=90)
    norms.scaled_steps = SEARCH_STEPS
    assert norms.look(95, scaler, growth_interval=20) == 15
    assert norms.look(110, reporter(scaled_step=110), growth_interval=20) == 20
    assert due(norms, range(110, 120), is_scaled=True) == [*range(110, 110 + STEPS_AFTER_TROUBLE)]
    assert GradientNorms(CPU).look(95, scaler, growth_interval=20) == MAX_STEPS_BETWEEN_LOOKS


def test_a_measurement_without_memory_leaves_the_step_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_probe: GradientProbe) -> None:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(GradientProbe, "measure", fail)
    assert GradientNorms(CPU).measure() is None
