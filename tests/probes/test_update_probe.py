"""The update ratio of a layer is |after - before| / |before|, as full copies of its weights tell it."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from amptui.probes.update_ratios import WeightsBefore, layer_names
from amptui.records.findings import UpdatesMeasured
from tests.tiny import Tiny, log_of, prepare

Change = Callable[[], object]


def measured(model: nn.Module, optimizer: Optimizer, change: Change | None = None) -> UpdatesMeasured:
    """The ratios of one step of ``optimizer``, or of a ``change`` in its place."""
    before = WeightsBefore(layer_names(model), optimizer)
    (change or optimizer.step)()
    row = before.compare()
    assert row is not None
    return before.record(row.tolist(), time=1.0, step=1)


def moved(new: Tensor, old: Tensor) -> float:
    """How far a tensor was moved, in float64."""
    new, old = (
        values.detach().to(torch.complex128 if values.is_complex() else torch.float64)
        for values in (new, old)
    )
    return float((new - old).norm() / old.norm())


def independent(model: nn.Module, before: nn.Module) -> dict[str, float]:
    """The same by full copies, in float64, of the modules that own parameters."""
    ratios = {}
    for (name, module), old in zip(model.named_modules(), before.modules(), strict=True):
        parts = [[p.flatten() for p in owner.parameters(recurse=False)] for owner in (module, old)]
        if parts[0]:
            ratios[name] = moved(torch.cat(parts[0]), torch.cat(parts[1]))
    return ratios


def filled(model: nn.Module) -> Any:
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return model


def test_a_sample_takes_elements_of_all_rows_and_columns_alike() -> None:
    """A fixed interval of a power of two would see one column in 32, and miss what the others do."""
    model = nn.Linear(4096, 64, bias=False)
    nn.init.constant_(model.weight, 1.0)
    filled(model)

    def shift_some() -> None:
        with torch.no_grad():
            model.weight[:, 1::2] += 0.1
            model.weight[:32] += 0.2

    before = copy.deepcopy(model)
    record = measured(model, torch.optim.SGD(model.parameters(), lr=0.0), shift_some)
    exact = moved(model.weight, before.weight)
    assert record.ratios["weight"] == pytest.approx(exact, rel=0.01)


class Part(Tensor):
    """A tensor of another kind, of which this process may hold a part."""


def test_what_no_optimizer_changes_and_other_kinds_of_tensors_are_left_out() -> None:
    layers = nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(7, 11), nn.Linear(11, 3)
    model: Any = nn.Sequential(*layers)
    model[0].requires_grad_(False)  # frozen
    filled(model)
    model[1].zero_grad()  # without a gradient
    optimizer = torch.optim.SGD([*model[0].parameters(), *model[1].parameters(), *model[2].parameters()], 0.1)
    assert list(measured(model, optimizer).ratios) == ["2"], "the last is another optimizer's"
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].weight = nn.Parameter(torch.randn(4, 4).as_subclass(Part))
    model[0].bias = None
    filled(model)
    model[1].bias.grad = None
    before = copy.deepcopy(model[1].weight)
    ratios = measured(model, torch.optim.SGD(model.parameters(), lr=0.1)).ratios
    assert ratios == pytest.approx({"1": moved(model[1].weight, before)}, rel=1e-4)
    others = torch.optim.SGD(nn.Linear(3, 3).parameters(), lr=0.1)
    assert WeightsBefore(layer_names(model), others).compare() is None


def test_zero_weights_have_no_ratio_and_lost_ones_are_not_a_number() -> None:
    model = filled(nn.ModuleDict({name: nn.Linear(4, 4) for name in ("zero", "lost", "losing", "whole")}))
    with torch.no_grad():
        for parameter in model["zero"].parameters():
            parameter.zero_()
        model["lost"].weight[0, 0] = math.nan
    model["losing"].weight.grad[1, 1] = math.inf
    ratios = measured(model, torch.optim.SGD(model.parameters(), lr=0.1)).ratios
    assert set(ratios) == {"lost", "losing", "whole"}
    assert math.isnan(ratios["lost"])
    assert math.isnan(ratios["losing"])
    assert ratios["whole"] > 0


class Copying(Tiny):
    """Copies its weights before each step of its optimizer, and says what that did to them."""

    def build_optimizer(self, model: nn.Module) -> Optimizer:
        self.ratios: list[dict[str, float]] = []
        optimizer, before = super().build_optimizer(model), list[nn.Module]()
        optimizer.register_step_pre_hook(lambda *_: before.append(copy.deepcopy(model)))
        optimizer.register_step_post_hook(lambda *_: self.ratios.append(independent(model, before.pop())))
        return optimizer


@pytest.mark.parametrize("options", [{"accumulate": 3}, {"clip_norm": 0.01}, {"precision": "bf16"}])
def test_a_measured_step_has_the_ratios_of_full_copies(options: dict[str, Any]) -> None:
    experiment = Copying(epochs=20)
    measurements = log_of(prepare(experiment, steps=50, **options)).of(UpdatesMeasured)
    assert len(measurements) >= 2
    for record in measurements:
        assert record.ratios == pytest.approx(experiment.ratios[record.step - 1], rel=1e-3)
