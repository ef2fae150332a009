"""One pass over the validation data: true means over samples, and a model left as it was."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from amptui import Experiment
from amptui.base.errors import ExperimentError
from amptui.engine.validation import MetricSums, Validator, evaluating
from amptui.records.control import Control, StopRequest
from amptui.records.run import PhaseChanged, Validation
from tests.tiny import Log, Tiny, prepare

batches = st.lists(st.tuples(st.floats(-5, 5, width=32), st.integers(1, 100)), min_size=1, max_size=8)


@given(batches)
def test_batches_of_any_size_weigh_by_their_samples(drawn_batches: list[tuple[float, int]]) -> None:
    sums = MetricSums()
    for mean, samples in drawn_batches:
        sums.add(
            {"loss": torch.tensor(mean), "accuracy": torch.tensor(0.5), "f1": torch.tensor(mean)}, samples
        )
    validation = sums.means([float(value) for value in sums.tensors()])
    assert validation is not None
    total = sum(samples for _, samples in drawn_batches)
    expected = sum(mean * samples for mean, samples in drawn_batches) / total
    assert validation.samples == total
    assert validation.loss == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert validation.accuracy == pytest.approx(0.5)
    assert validation.metrics == {"f1": pytest.approx(expected, rel=1e-4, abs=1e-4)}


def test_without_samples_or_without_numbers_there_is_no_validation() -> None:
    sums = MetricSums()
    assert sums.means([]) is None
    sums.add({"loss": torch.tensor(1.0)}, 4)
    assert sums.means(None) is None


def validate(experiment: Experiment, *, precision: str = "fp32") -> tuple[Validation | None, Log]:
    prepared, log = prepare(experiment), Log()
    sums = Validator(prepared, Control(), log.emit).run(prepared.precisions[precision])
    assert sums is not None
    return sums.means([float(value) for value in sums.tensors()]), log


def test_a_stop_ends_it_between_two_batches_and_it_says_how_far_it_is() -> None:
    control, log = Control(), Log()

    class Stopping(Tiny):
        def metrics(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
            control.ask(StopRequest("test"))
            return super().metrics(model, batch)

    prepared = prepare(Stopping())
    assert Validator(prepared, control, log.emit).run(prepared.precisions["fp32"]) is None
    assert [(told.phase, told.done, told.total) for told in log.of(PhaseChanged)] == [("validating", 0, 8)]
    assert prepared.model.training


def test_metrics_that_are_no_dict_are_told() -> None:
    class Bare(Tiny):
        def metrics(self, model: nn.Module, batch: Any) -> Any:
            return torch.tensor(0.5)

    with pytest.raises(ExperimentError, match=r"Bare.metrics\(\) returned a Tensor; return a dict of scalar"):
        validate(Bare())


@given(st.lists(st.booleans(), min_size=3, max_size=3))
def test_every_module_gets_its_own_mode_back_whatever_happens(modes: list[bool]) -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Dropout())
    for module, training in zip(model.modules(), modes, strict=True):
        module.training = training

    def evaluate_and_fail() -> None:
        with evaluating(model):
            assert not any(module.training for module in model.modules())
            raise KeyError("metrics")

    with pytest.raises(KeyError):
        evaluate_and_fail()
    assert [module.training for module in model.modules()] == modes
