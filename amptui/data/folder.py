"""Images in one folder per class, as in torchvision's ImageFolder, or random images instead."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets.folder import IMG_EXTENSIONS
from torchvision.transforms import v2

from amptui.base.errors import DataError
from amptui.data.loaders import worker_count
from amptui.data.sources import Arrays, Data, DataRequest, Named, Progress, real_or_stand_in
from amptui.device.accelerator import PINNING, default_device

LAYOUT_HINT = "use --data-dir with a folder that contains train/CLASS/IMAGE and val/CLASS/IMAGE"

RANDOM_BATCHES = 16
"""Batches in an epoch of random images: 0.6 GB for 256 images of 224 pixels."""

RESIZED_TO_CROPPED = 256 / 224
"""Validation crops the center of a slightly larger image, as is usual on ImageNet (arXiv:1409.1556)."""

MAX_WORKERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageBatches:
    """How the model gets its images."""

    batch_size: int
    image_size: int
    """Height and width in pixels."""
    classes: int
    """Number of classes that the model predicts."""
    workers: int | None = None
    """Processes that read images; None: one less than the number of cores, at most 16."""


def image_folder(request: DataRequest, wanted: ImageBatches) -> Data:
    """The images in ``request.data_dir``, in batches of uint8 [N, 3, size, size] and int64 classes [N].

    Images in ``train`` are randomly cropped and flipped; those in ``val``, if it exists, center-cropped. For
    ``real``, raises ``DataError`` if the folders are missing or have no images; ``auto`` warns and uses
    :func:`random_images`.
    """
    folder = Named(str(request.data_dir), lambda: _from_folder(request, wanted))
    return real_or_stand_in(request, folder, Named("random images", lambda: random_images(request, wanted)))


def random_images(request: DataRequest, wanted: ImageBatches) -> Data:
    """Noise with random labels, kept on the device: good for measuring speed, with nothing to learn.

    The images do not depend on the run's seed. They are float32 in [0, 1], without validation data.
    """
    generator = torch.Generator().manual_seed(0)
    samples = RANDOM_BATCHES * wanted.batch_size
    images = torch.empty(samples, 3, wanted.image_size, wanted.image_size, dtype=torch.uint8)
    for done in range(0, samples, wanted.batch_size):
        request.raise_if_stopping()
        request.report(Progress("generating random images", done, samples, "samples"))
        images[done : done + wanted.batch_size].random_(0, 256, generator=generator)
    labels = torch.randint(wanted.classes, (samples,), generator=generator)
    return Data("random images", False, Arrays(images, labels))


class FolderImages(Dataset[tuple[Tensor, int]]):
    """Image files and their class indices, read on demand."""

    def __init__(self, samples: list[tuple[str, int]], transform: Callable[[Image.Image], Tensor]) -> None:
        self.samples = samples
        self.transform = transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self.samples[index]
        try:
            with Image.open(path) as image:
                return self.transform(image.convert("RGB")), label
        except OSError as error:
            raise DataError(f"cannot read {path} as an image ({error})", hint="delete or move it") from error


def _from_folder(request: DataRequest, wanted: ImageBatches) -> Data:
    root = request.data_dir
    classes = _class_folders(root / "train")
    if len(classes) > wanted.classes:
        what = f"{root / 'train'} has {len(classes):,} classes, but the model has {wanted.classes:,}"
        raise DataError(what, hint=f"use --set classes={len(classes)}")
    training = FolderImages(_listed(root / "train", classes, request), _training_transform(wanted))
    return Data(
        name=root.resolve().name,
        real=True,
        train=_loader(training, wanted, request, training=True),
        validation=_validation(request, wanted, classes),
    )


def _validation(
    request: DataRequest, wanted: ImageBatches, classes: list[str]
) -> DataLoader[tuple[Tensor, int]] | None:
    folder = request.data_dir / "val"
    if not folder.is_dir():
        return None
    if unknown := sorted(set(_class_folders(folder)) - set(classes)):
        raise DataError(f"{folder / unknown[0]} is a class that is not in train", hint=LAYOUT_HINT)
    images = FolderImages(_listed(folder, classes, request), _validation_transform(wanted))
    return _loader(images, wanted, request, training=False)


def _class_folders(folder: Path) -> list[str]:
    """The names of the classes, sorted; their order gives their indices."""
    classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []
    if not classes:
        problem = "has no class folders" if folder.is_dir() else "does not exist"
        raise DataError(f"{folder} {problem}", hint=LAYOUT_HINT)
    return classes


def _listed(folder: Path, classes: list[str], request: DataRequest) -> list[tuple[str, int]]:
    """Every image of ``classes`` with its class index; a class may have subfolders."""
    samples: list[tuple[str, int]] = []
    for label, name in enumerate(classes):
        request.raise_if_stopping()
        request.report(Progress(f"listing the images in {folder}", len(samples), None, "samples"))
        paths = (
            f"{place}/{file}"
            for place, _folders, files in os.walk(folder / name, followlinks=True)
            for file in files
            if file.lower().endswith(IMG_EXTENSIONS)
        )
        samples += [(path, label) for path in sorted(paths)]
    if not samples:
        raise DataError(f"{folder} has no images", hint=LAYOUT_HINT)
    return samples


# Workers deliver uint8: a quarter of float32's bytes to copy, and the device divides faster.
def _training_transform(wanted: ImageBatches) -> v2.Compose:
    """A random crop of the image, flipped half of the time (arXiv:1409.4842, as in torchvision)."""
    size = wanted.image_size
    return v2.Compose([v2.RandomResizedCrop(size), v2.RandomHorizontalFlip(), v2.PILToTensor()])


def _validation_transform(wanted: ImageBatches) -> v2.Compose:
    size = wanted.image_size
    resized = round(size * RESIZED_TO_CROPPED)
    return v2.Compose([v2.Resize(resized), v2.CenterCrop(size), v2.PILToTensor()])


def _loader(
    images: FolderImages, wanted: ImageBatches, request: DataRequest, *, training: bool
) -> DataLoader[tuple[Tensor, int]]:
    workers = wanted.workers if request.workers is None else request.workers
    if workers is None:
        workers = worker_count(MAX_WORKERS)
    return DataLoader(
        images,
        wanted.batch_size,
        shuffle=training,
        drop_last=training,
        num_workers=workers,
        # Validation workers end with the validation: they would keep their memory for the whole epoch.
        persistent_workers=training and workers > 0,
        pin_memory=default_device().type in PINNING,
        generator=torch.Generator().manual_seed(request.seed),
    )
