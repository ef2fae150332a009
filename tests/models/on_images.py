"""Experiments of model files on a few synthetic images, trained for real."""

from functools import cache
from typing import Any

import pytest
import torch

from amptui import Data, DataRequest, Experiment
from amptui.data.sources import Arrays
from amptui.data.vision import synthetic_images
from amptui.loops.setup import Prepared
from tests.builders import StepRow
from tests.tiny import Log, prepare

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
    experiment: Experiment, *, steps: int, validation_images: int = 200, **options: Any
) -> Prepared:
    """``experiment`` with its own options, for ``steps`` steps, validated after each epoch."""

    class OnImages(type(experiment)):  # type: ignore[misc]
        def load_data(self, request: DataRequest) -> Data:
            train, samples = _images(SAMPLES, 0), steps * self.batch_size
            # No more images than the steps need: the last of them ends an epoch.
            few = Arrays(train.inputs[:samples], train.targets[:samples])
            return Data(
                name="synthetic images", real=False, train=few, validation=_images(validation_images, 1)
            )

    return prepare(OnImages(**vars(experiment)), steps=steps, **options)


def losses(log: Log) -> list[float]:
    """Each step's loss, of those that were measured: on a CPU all."""
    return [step.loss for step in log.of(StepRow) if step.loss is not None]


def learned(log: Log, *, steps: int = 10) -> float:
    """The fraction by which the mean loss of the last ``steps`` lies below that of the first."""
    found = losses(log)
    return 1 - sum(found[-steps:]) / sum(found[:steps])
