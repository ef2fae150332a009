"""One training for a comparison of step times, which goes on until it is killed.

    python -m tests.benchmarks.side SIDE MODEL [--precision P] [--device D] [--batch-size N] [--mnist DIR]

SIDE is ``tutorial`` (mnist-deep as a tutorial writes it, on MNIST's files below DIR), ``plain`` (a bare
loop over amptui's data), or the call that the same loop makes to be watched: ``observe`` or ``watch``. The
whole app is started as a person starts it.
"""

import argparse
import os
from contextlib import nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader
from torchvision.datasets import MNIST
from torchvision.transforms import ToTensor

import amptui
from amptui.data.batches import open_batches
from amptui.data.sources import DataRequest
from amptui.data.vision import MNIST_FOLDER, synthetic_images
from amptui.device.accelerator import enter_device
from amptui.loops import setup
from amptui.models.mnist_deep import DeepCnn
from amptui.recipe.loading import build_experiment, load_class
from amptui.recipe.request import parse_model
from tests.benchmarks.timed import VARIABLE, StampWriter

TUTORIAL, PLAIN, OBSERVE, WATCH = "tutorial", "plain", "observe", "watch"
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train until killed.")
    parser.add_argument("side", choices=(TUTORIAL, PLAIN, OBSERVE, WATCH))
    parser.add_argument("model")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--mnist", type=Path)
    options = parser.parse_args()
    if options.side == TUTORIAL:
        tutorial_loop(options.mnist, options.precision, options.device, options.batch_size)
    else:
        plain_loop(options.side, options.model, options.precision, options.device, options.batch_size)


def plain_loop(side: str, model_text: str, precision: Any, device_text: str, batch_size: int) -> None:
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
    autocast: Any = nullcontext
    if precision != "fp32":
        autocast = partial(torch.autocast, device.type, dtype=DTYPES[precision])
    if side == OBSERVE:
        amptui.observe(model, optimizer)
    elif side == WATCH:
        monitor = amptui.watch(model, optimizer, precision=precision)
        scaler, autocast = monitor.scaler, monitor.autocast
    for batch in (batch for epoch in count(1) for batch in batches.epoch(epoch)):
        optimizer.zero_grad()
        with autocast():
            loss: Any = experiment.loss(model, batch)
        if precision == "fp16" or side == WATCH:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()


def tutorial_loop(root: Path, precision: str, device_text: str, batch_size: int) -> None:
    """mnist-deep on the MNIST below ``root``: torchvision, DataLoader, ToTensor, Adam, loss read each step.

    Nothing is tuned: images are decoded and converted one by one in this process, and each step waits for its
    loss. In fp16 the scaler waits too, since Adam is not fused.
    """
    stamps, device = StampWriter(Path(os.environ[VARIABLE])), setup.choose_device(device_text)
    torch.manual_seed(0)
    model = DeepCnn().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
    images = MNIST(str(root), train=True, transform=ToTensor())
    loader = DataLoader(images, batch_size=batch_size, shuffle=True)
    total = 0.0
    for batch in (batch for _ in count() for batch in loader):
        stamps.stamp()
        inputs, labels = (each.to(device) for each in batch)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=DTYPES.get(precision), enabled=precision in DTYPES):
            loss = functional.cross_entropy(model(inputs), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        total += loss.item()
        if stamps.count == 1:
            stamps.first_loss = total


def write_stand_in(root: Path) -> None:
    """Write amptui's synthetic images below ``root`` as MNIST's files, which torchvision then reads."""
    folder = root / MNIST_FOLDER
    folder.mkdir(parents=True)
    sets = [synthetic_images(samples, (1, 28, 28), seed=seed) for samples, seed in ((60_000, 0), (10_000, 1))]
    arrays = [array for images, labels in sets for array in (images.squeeze(1), labels.to(torch.uint8))]
    for (name, _), array in zip(MNIST.resources, arrays, strict=True):
        header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()  # 8 is uint8
        (folder / name.removesuffix(".gz")).write_bytes(header + array.numpy().tobytes())


if __name__ == "__main__":
    main()
