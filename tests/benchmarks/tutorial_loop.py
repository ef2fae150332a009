"""mnist-deep as tutorials train it: torchvision's MNIST, DataLoader, ToTensor, Adam, loss read each step."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader
from torchvision.datasets import MNIST
from torchvision.transforms import ToTensor

from amptui.data.vision import MNIST_FOLDER, MNIST_MD5, synthetic_images
from amptui.models.mnist_deep import DeepCnn
from tests.benchmarks.plain_loop import DTYPES
from tests.benchmarks.stamps import StampWriter


def train(
    root: Path,
    stamps: StampWriter,
    *,
    precision: str,
    device: torch.device,
    batch_size: int,
    steps: int | None = None,
) -> None:
    """Train ``steps`` steps, or for ever, on the MNIST below ``root``, and stamp each as it begins.

    Nothing is tuned: images are decoded and converted one by one in this process, and each step waits for its
    loss. In fp16 the scaler waits too, since Adam is not fused.
    """
    torch.manual_seed(0)
    model = DeepCnn().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
    loader = DataLoader(
        MNIST(str(root), train=True, transform=ToTensor()), batch_size=batch_size, shuffle=True
    )
    total = 0.0
    for batch in islice(_endless(loader), steps):
        stamps.stamp()
        images, labels = (each.to(device) for each in batch)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=DTYPES.get(precision), enabled=precision in DTYPES):
            loss = functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        total += loss.item()
        if stamps.lacks_loss:
            stamps.tell_loss(total)


def stand_in(root: Path) -> None:
    """Write amptui's synthetic images below ``root`` as MNIST's files, which torchvision then reads."""
    folder = root / MNIST_FOLDER
    folder.mkdir(parents=True)
    sets = [synthetic_images(samples, (1, 28, 28), seed=seed) for samples, seed in ((60_000, 0), (10_000, 1))]
    arrays = [array for images, labels in sets for array in (images.squeeze(1), labels.to(torch.uint8))]
    for name, array in zip(MNIST_MD5, arrays, strict=True):
        (folder / name).write_bytes(_idx(array))


def _idx(array: Tensor) -> bytes:
    """Bytes of an array behind their header: type (8 is uint8), dimensions, the size of each."""
    sizes = np.array(array.shape, dtype=">u4").tobytes()
    return bytes([0, 0, 8, array.ndim]) + sizes + array.numpy().tobytes()


def _endless(loader: DataLoader[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        yield from loader
