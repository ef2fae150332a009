"""resnet50: torchvision's network behind a normalisation, trained on folders of images and on random ones."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from amptui.models.resnet50 import Normalize, ResNet50
from amptui.records.run import EpochFinished
from tests.builders import StepRow
from tests.models.on_images import learned
from tests.tiny import Log, prepare, train

TINY: dict[str, Any] = {"image_size": 32, "classes": 2, "batch_size": 8, "workers": 0}


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
    experiment = ResNet50(**TINY, learning_rate=3e-3, label_smoothing=0.0, epochs=1)
    prepared = prepare(experiment, precision="fp32", data_dir=folder, data="real")
    assert train(prepared, log) == "done"
    assert learned(log, steps=2) > 0.5
    (epoch,) = log.of(EpochFinished)
    assert epoch.validation is not None
    assert epoch.validation.samples == 8


@pytest.mark.ci
def test_random_images_are_trained_on_as_they_are() -> None:
    log = Log()
    experiment = ResNet50(**TINY | {"batch_size": 2})
    prepared = prepare(experiment, precision="fp16", steps=1, data="synthetic")
    assert not prepared.data.real
    assert train(prepared, log) == "done"
    (step,) = log.of(StepRow)
    assert step.loss is not None
    assert 0 < step.loss < 5
