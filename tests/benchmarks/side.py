"""The bare loop over amptui's data, for a comparison of step times, which goes on until it is killed.

    python -m tests.benchmarks.side MODEL [--precision P] [--device D] [--batch-size N]

The whole app is started as a person starts it.
"""

import argparse
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import torch

from amptui.data.batches import open_batches
from amptui.data.sources import DataRequest
from amptui.device.accelerator import enter_device
from amptui.loops import setup
from amptui.recipe.loading import build_experiment, load_class
from amptui.recipe.request import parse_model

PLAIN = "plain"
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description="Train until killed.")
    parser.add_argument("model")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch-size", type=int, default=32)
    options = parser.parse_args()
    plain_loop(options.model, options.precision, options.device, options.batch_size)


def plain_loop(model_text: str, precision: str, device_text: str, batch_size: int) -> None:
    """The loop that a careful person would write for the same experiment: what amptui is measured against.

    It begins as amptui does with the same settings and seed 0, has amptui's data, resident on the device, and
    never waits for that.
    """
    device = setup.choose_device(device_text)
    enter_device(device)
    setup.seed_everything(0)
    experiment = build_experiment(load_class(parse_model(model_text)), {"batch_size": str(batch_size)})
    data = experiment.load_data(DataRequest(data_dir=Path("unused"), kind="synthetic"))
    batches = open_batches(data.train, device=device, batch_size=batch_size, training=True, seed=0)
    setup.seed_everything(0)
    model = setup.build_model(experiment, device, first_batch=batches.first)
    optimizer = setup.build_optimizer(experiment, model)
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
    for batch in (batch for epoch in count(1) for batch in batches.epoch(epoch)):
        optimizer.zero_grad()
        with nullcontext() if precision == "fp32" else torch.autocast(device.type, dtype=DTYPES[precision]):
            loss: Any = experiment.loss(model, batch)
        if precision == "fp16":
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
