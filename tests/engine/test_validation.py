"""One pass over the validation data: true means over samples, and a model left as it was."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from amptui.engine.validation import MetricSums, evaluating

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
