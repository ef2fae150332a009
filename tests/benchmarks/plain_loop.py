"""The loop that a careful person would write for the same experiment: what amptui is measured against.

It has amptui's data, resident on the device, and never waits for the device.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch

from amptui.data.batches import Batches, open_batches
from amptui.data.sources import DataRequest
from amptui.device.accelerator import enter_device
from amptui.loops import setup
from amptui.recipe.loading import build_experiment, load_class
from amptui.recipe.request import parse_model

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def train(
    model_text: str,
    settings: Mapping[str, str],
    *,
    precision: str = "fp32",
    device: str = "auto",
    steps: int | None = None,
) -> None:
    """Train ``steps`` steps, or for ever, as amptui begins to with the same settings and seed 0."""
    chosen = setup.choose_device(device)
    enter_device(chosen)
    setup.seed_everything(0)
    experiment = build_experiment(load_class(parse_model(model_text)), settings)
    data = experiment.load_data(DataRequest(data_dir=Path("unused"), kind="synthetic"))
    batches = open_batches(data.train, device=chosen, batch_size=experiment.batch_size, training=True, seed=0)
    setup.seed_everything(0)
    model = setup.build_model(experiment, chosen, first_batch=batches.first)
    optimizer = setup.build_optimizer(experiment, model)
    scaler = torch.amp.GradScaler(chosen.type, enabled=precision == "fp16")
    for batch in islice(_endless(batches), steps):
        optimizer.zero_grad()
        with _autocast(chosen, precision):
            loss = experiment.loss(model, batch)
        assert isinstance(loss, torch.Tensor)
        if precision == "fp16":
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()


def _autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=DTYPES[precision])


def _endless(batches: Batches) -> Iterator[Any]:
    """One epoch after the other."""
    for epoch in count(1):
        yield from batches.epoch(epoch)
