"""Experiments of model files on a few synthetic images, trained for real."""

from functools import cache
from pathlib import Path

import pytest
import torch

from amptui import Data, DataRequest, Experiment
from amptui.data.sources import Arrays
from amptui.data.vision import synthetic_images
from amptui.engine import setup
from amptui.engine.prepared import Prepared
from amptui.recipe.request import TrainRequest
from tests.builders import StepRow
from tests.tiny import Log

SAMPLES = 3_200

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")],
    ),
]
"""A GPU's float16 kernels and autocast rules are not a CPU's."""


@cache
def _images(samples: int, seed: int) -> Arrays:
    return Arrays(*synthetic_images(samples, (1, 28, 28), seed=seed))


def on_images(
    experiment: Experiment,
    *,
    steps: int,
    precision: str | None = None,
    device: str = "cpu",
    amp_precision: str | None = None,
    validation_images: int = 200,
) -> Prepared:
    """``experiment`` with its own options, for ``steps`` steps, validated after each epoch."""

    class OnImages(type(experiment)):  # type: ignore[misc]
        def load_data(self, request: DataRequest) -> Data:
            train, samples = _images(SAMPLES, 0), steps * self.batch_size
            # No more images than the steps need: the last of them ends an epoch.
            few = Arrays(train.inputs[:samples], train.targets[:samples])
            held_out = _images(validation_images, 1)
            return Data(name="synthetic images", real=False, train=few, validation=held_out)

    request = TrainRequest(
        model="digits",
        device=device,
        precision=precision,
        amp_precision=amp_precision,
        steps=steps,
        data_dir=Path("unused"),
    )
    setup.seed_everything(request.seed)
    asked = DataRequest(data_dir=request.data_dir, seed=request.seed)
    return setup.assemble(request, OnImages(**vars(experiment)), setup.choose(request), data_request=asked)


def losses(log: Log) -> list[float]:
    """Each step's loss, of those that were measured: on a CPU all."""
    return [step.loss for step in log.of(StepRow) if step.loss is not None]


def learned(log: Log, *, steps: int = 10) -> float:
    """The fraction by which the mean loss of the last ``steps`` lies below that of the first."""
    found = losses(log)
    return 1 - sum(found[-steps:]) / sum(found[:steps])
