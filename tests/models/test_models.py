"""The models that come along: what their numbers are, that each trains, and that each can be copied."""

import importlib
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from amptui import Data, DataRequest, Experiment
from amptui.data.sources import Arrays
from amptui.models import CATALOGUE
from amptui.recipe.loading import load_class
from amptui.recipe.request import parse_model
from amptui.records.findings import FlopsCounted
from amptui.records.run import EpochFinished
from tests.builders import StepRow
from tests.tiny import Log, prepare, train

IMAGES = {
    "mnist-deep": (1, 28, 28),
    "simple-cnn": (3, 32, 32),
    "multi-task": (1, 28, 28),
    "resnet50": (3, 32, 32),
    "selective": (1, 28, 28),
    "unstable": (1, 28, 28),
}
"""What those take that take images."""

SMALL: dict[str, dict[str, int]] = {
    "resnet50": {"classes": 10},
    "char-gpt": {"layers": 1, "heads": 2, "width": 16, "context": 16},
}
"""Options of those that would take long as they are."""

LARGE = ("mnist-deep", "resnet50")
"""Those whose steps are long."""


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "count"), [("mnist-deep", 14_740_522), ("resnet50", 25_557_032), ("simple-cnn", 157_578)]
)
def test_a_model_is_as_large_as_its_documentation_says(name: str, count: int) -> None:
    assert parameters(load_class(parse_model(name))().build_model()) == count


def noise(name: str) -> Arrays:
    """Eight samples of what the model takes, with no sense in them."""
    generator = torch.Generator().manual_seed(0)
    if name == "char-gpt":
        return Arrays(*torch.randint(0, 90, (2, 8, 16), generator=generator))
    images = torch.randint(0, 256, (8, *IMAGES[name]), generator=generator, dtype=torch.uint8)
    return Arrays(images, torch.arange(8))


def on_noise(name: str) -> Experiment:
    """The model's experiment, small, on eight samples of noise."""
    arrays = noise(name)

    class Noise(load_class(parse_model(name))):  # type: ignore[misc]
        def load_data(self, request: DataRequest) -> Data:
            return Data(name="noise", real=False, train=arrays, validation=arrays)

    return Noise(epochs=1, batch_size=4, **SMALL.get(name, {}))


@pytest.mark.parametrize(
    ("name", "precision"),
    [pytest.param(name, "fp32", marks=[pytest.mark.ci] * (name in LARGE)) for name in CATALOGUE]
    + [pytest.param(name, "bf16", marks=pytest.mark.ci) for name in CATALOGUE if name not in LARGE],
)
def test_every_model_of_the_catalogue_trains(name: str, precision: str) -> None:
    log = Log()
    assert train(prepare(on_noise(name), precision=precision), log) == "done"
    steps = log.of(StepRow)
    assert len(steps) == 2
    assert all(step.loss is not None and 0 < step.loss < 30 for step in steps)
    assert all(step.grad_norm for step in steps)
    (epoch,) = log.of(EpochFinished)
    assert epoch.validation is not None
    assert epoch.validation.samples == 8
    assert [flops.uncounted for flops in log.of(FlopsCounted)] == [()]


@pytest.mark.parametrize("name", ["simple-cnn", "char-gpt", "unstable"])
def test_a_model_file_can_be_copied_and_given_by_its_path(name: str, tmp_path: Path) -> None:
    original = importlib.import_module(CATALOGUE[name][0])
    assert original.__file__ is not None
    copy = Path(shutil.copy(original.__file__, tmp_path / "my_model.py"))
    spec = parse_model(str(copy))
    found = load_class(spec)
    assert spec.name == "my_model"
    assert found.__name__ == load_class(parse_model(name)).__name__
    assert found.__module__ != original.__name__
    assert parameters(found().build_model()) == parameters(load_class(parse_model(name))().build_model())
    assert load_class(parse_model(f"{copy}:{found.__name__}")).__name__ == found.__name__
