"""The models that come along: what their numbers are, that each trains and learns, and can be copied."""

import importlib
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from amptui import Data, DataRequest, Experiment
from amptui.base.errors import ExperimentError
from amptui.data.sources import Arrays
from amptui.data.text_corpus import read_text
from amptui.models import CATALOGUE
from amptui.models.char_gpt import CharGpt
from amptui.models.resnet50 import Normalize, ResNet50
from amptui.recipe.loading import load_class
from amptui.recipe.request import parse_model
from amptui.records.findings import FlopsCounted
from amptui.records.run import EpochFinished, StepSkipped
from tests.builders import StepRow
from tests.models.on_images import learned
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


# ----------------------------------------------------------------------------------------- char-gpt
TINY_GPT: dict[str, Any] = {"layers": 1, "heads": 2, "width": 32, "context": 16, "dropout": 0.0}


@pytest.fixture
def rhyme(tmp_path: Path) -> Path:
    path = tmp_path / "rhyme.txt"
    path.write_text("one for sorrow, two for joy, three for a girl, four for a boy\n" * 40)
    return path


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    model = CharGpt(**TINY_GPT).build_model()
    assert isinstance(model, nn.Module)
    return model.eval()


def test_a_character_s_logits_depend_on_none_after_it(model: nn.Module) -> None:
    text = torch.randint(0, 90, (1, 16), generator=torch.Generator().manual_seed(0))
    changed = text.clone()
    changed[0, 10] = (changed[0, 10] + 1) % 90
    with torch.inference_mode():
        difference = (model(text) - model(changed)).abs().amax(dim=2)[0]
    assert difference[:10].max() == 0
    assert difference[10:].min() > 0


@pytest.mark.ci
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_it_learns_a_rhyme_in_every_precision(precision: str, rhyme: Path) -> None:
    log = Log()
    experiment = CharGpt(**TINY_GPT, text=rhyme, batch_size=16, learning_rate=1e-2, epochs=1)
    assert train(prepare(experiment, precision=precision), log) == "done"
    assert learned(log) > 0.5
    assert len(log.of(StepSkipped)) <= 4
    (epoch,) = log.of(EpochFinished)
    assert epoch.validation is not None
    assert epoch.validation.loss is not None
    bits = epoch.validation.metrics["bits per character"]
    assert bits == pytest.approx(epoch.validation.loss / math.log(2))
    assert bits < 0.6 * math.log2(len(read_text(rhyme).characters))
    assert epoch.validation.accuracy is not None
    assert epoch.validation.accuracy > 0.4


def test_only_matrices_decay_and_each_parameter_once() -> None:
    model = CharGpt(**TINY_GPT).build_model()
    decaying, others = CharGpt(**TINY_GPT).build_optimizer(model).param_groups
    assert decaying["weight_decay"] > 0 == others["weight_decay"]
    assert all(p.ndim == 2 for p in decaying["params"])
    assert all(p.ndim == 1 for p in others["params"])
    assert len(decaying["params"]) + len(others["params"]) == len(list(model.parameters()))
    assert model.get_parameter("head.weight") is model.get_parameter("tok_emb.weight")


def test_a_width_that_the_heads_cannot_share_is_refused_with_one_they_can() -> None:
    with pytest.raises(ExperimentError, match="width 100 is not divisible by 3 heads; use --set width=102"):
        CharGpt(width=100, heads=3).build_model()


# ----------------------------------------------------------------------------------------- resnet50
TINY_RESNET: dict[str, Any] = {"image_size": 32, "classes": 2, "batch_size": 8}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Bright and dark images, 64 to train on and 8 to validate with."""
    for part, images in (("train", 32), ("val", 4)):
        for name, grey in (("bright", 220), ("dark", 30)):
            (tmp_path / part / name).mkdir(parents=True)
            for number in range(images):
                path = tmp_path / part / name / f"{number}.png"
                Image.new("RGB", (40, 40), (grey, grey + number % 8, grey)).save(path)
    return tmp_path


def test_bytes_and_fractions_are_normalised_alike() -> None:
    images = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    normalize = Normalize()
    found = normalize(images)
    assert found.dtype == torch.float32
    torch.testing.assert_close(normalize(images.float() / 255), found)
    mean = (normalize.mean * 255).round().to(torch.uint8)
    assert normalize(mean.expand(1, 3, 8, 8)).abs().max() < 0.01


@pytest.mark.ci
def test_it_tells_bright_images_from_dark_ones_after_an_epoch(folder: Path) -> None:
    log = Log()
    experiment = ResNet50(**TINY_RESNET, learning_rate=3e-3, label_smoothing=0.0, epochs=1)
    prepared = prepare(experiment, precision="fp32", data_dir=folder, data="real")
    assert train(prepared, log) == "done"
    assert learned(log, steps=2) > 0.5
    (epoch,) = log.of(EpochFinished)
    assert epoch.validation is not None
    assert epoch.validation.samples == 8
