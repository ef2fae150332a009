"""The loop that a tutorial would write, for the same experiment: what amptui is measured against.

    python -m tests.benchmarks.plain_loop MODEL STEPS [NAME=VALUE ...]

Prints one JSON object: how many steps were timed, their seconds, and the first step's loss, by which the
two sides are held to have trained the same.
"""

import argparse
import json
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import torch

from amptui.data.batches import Batches
from amptui.data.sources import DataRequest
from amptui.engine import setup
from amptui.engine.loading import build_experiment, load_class
from amptui.modelspec import parse_model
from tests.benchmarks.workloads import WARM_UP_STEPS


def main() -> None:
    """Train as the command line says and print what it took."""
    parser = argparse.ArgumentParser(description="Time a plain training loop in FP32.")
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("steps", metavar="STEPS", type=int)
    parser.add_argument("settings", metavar="NAME=VALUE", nargs="*")
    options = parser.parse_args()
    settings = dict(pair.split("=", 1) for pair in options.settings)
    print(json.dumps(train(options.model, options.steps, settings)))


def train(model_text: str, steps: int, settings: dict[str, str]) -> dict[str, float]:
    """Train ``steps`` steps and time those after the warm-up, the device's work included."""
    assert steps > WARM_UP_STEPS
    device = setup.choose_device("auto")
    setup.enter_device(device)
    setup.seed_everything(0)
    experiment = build_experiment(load_class(parse_model(model_text)), settings)
    data = experiment.load_data(DataRequest(data_dir=Path("unused"), kind="synthetic"))
    batches, _ = setup.open_data(data, device, experiment.batch_size, 0)
    setup.seed_everything(0)
    model, optimizer = setup.build_model(experiment, device)
    losses = []
    for step, batch in zip(range(1, steps + 1), _endless(batches), strict=False):
        optimizer.zero_grad()
        loss = experiment.loss(model, batch)
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        optimizer.step()
        if step == 1:
            losses.append(loss.detach())
        if step == WARM_UP_STEPS:
            _wait(device)
            started = time.perf_counter()
    _wait(device)
    seconds = time.perf_counter() - started
    return {"steps": steps - WARM_UP_STEPS, "seconds": seconds, "first_loss": losses[0].item()}


def _endless(batches: Batches) -> Iterator[Any]:
    """One epoch after the other."""
    for epoch in count(1):
        yield from batches.epoch(epoch)


def _wait(device: torch.device) -> None:
    """Until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
