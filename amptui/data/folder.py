"""Images in one folder per class, by torchvision's ImageFolder, or random images instead."""

from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torchvision.datasets.folder import IMG_EXTENSIONS, ImageFolder
from torchvision.transforms import v2

from amptui.base.errors import DataError
from amptui.data.sources import Arrays, Data, DataRequest, real_or_stand_in

LAYOUT_HINT = "use --data-dir with a folder that contains train/CLASS/IMAGE and val/CLASS/IMAGE"

RANDOM_BATCHES = 16
"""Batches in an epoch of random images: 0.6 GB for 256 images of 224 pixels."""

RESIZED_TO_CROPPED = 256 / 224
"""Validation crops the center of a slightly larger image, as is usual on ImageNet (arXiv:1409.1556)."""


def image_folder(request: DataRequest, *, image_size: int, classes: int, batch_size: int) -> Data:
    """The images in ``request.data_dir`` as uint8 [3, image_size, image_size], each with its class's number.

    Images in ``train`` are randomly cropped and flipped; those in ``val``, if it exists, center-cropped.
    ``classes`` is how many the model predicts. For ``real``, raises ``DataError`` if the folders are missing
    or have no images; ``auto`` warns and uses :func:`random_images`, ``RANDOM_BATCHES`` of ``batch_size``.
    """
    real = partial(_from_folder, request, image_size, classes)
    noise = partial(random_images, request, image_size, classes, batch_size)
    return real_or_stand_in(request, str(request.data_dir), real, "random images", noise)


def random_images(request: DataRequest, image_size: int, classes: int, batch_size: int) -> Data:
    """Noise with random labels, kept on the device: good for measuring speed, with nothing to learn.

    The images do not depend on the run's seed. They are float32 in [0, 1], without validation data.
    """
    generator = torch.Generator().manual_seed(0)
    samples = RANDOM_BATCHES * batch_size
    images = torch.empty(samples, 3, image_size, image_size, dtype=torch.uint8)
    for done in range(0, samples, batch_size):
        request.raise_if_stopping()
        request.report("generating random images", done, samples, "samples")
        images[done : done + batch_size].random_(0, 256, generator=generator)
    labels = torch.randint(classes, (samples,), generator=generator)
    return Data("random images", False, Arrays(images, labels))


class FolderImages(ImageFolder):  # type: ignore[misc]  # torchvision has no types
    """torchvision's, with one line for what cannot be used.

    There may be ``max_classes``, which ``indices`` number, if given.
    """

    def __init__(
        self,
        folder: Path,
        transform: v2.Compose,
        request: DataRequest,
        *,
        max_classes: int,
        indices: dict[str, int] | None = None,
    ) -> None:
        def is_image(path: str) -> bool:
            request.raise_if_stopping()
            request.report(f"listing the images in {folder}", self._listed, None, "samples")
            is_one = path.lower().endswith(IMG_EXTENSIONS)
            self._listed += is_one
            return is_one

        self._max_classes, self._indices, self._listed = max_classes, indices, 0
        super().__init__(str(folder), transform, is_valid_file=is_image, allow_empty=True)
        if not self.samples:
            raise DataError(f"{folder} has no images", hint=LAYOUT_HINT)

    def find_classes(self, directory: str | Path) -> tuple[list[str], dict[str, int]]:
        try:
            classes, indices = super().find_classes(directory)
        except (FileNotFoundError, NotADirectoryError):
            problem = "has no class folders" if Path(directory).is_dir() else "does not exist"
            raise DataError(f"{directory} {problem}", hint=LAYOUT_HINT) from None
        if len(classes) > self._max_classes:
            what = f"{directory} has {len(classes):,} classes, but the model has {self._max_classes:,}"
            raise DataError(what, hint=f"use --set classes={len(classes)}")
        if unknown := sorted(set(classes) - set(self._indices or classes)):
            raise DataError(f"{directory}/{unknown[0]} is a class that is not in train", hint=LAYOUT_HINT)
        return classes, self._indices or indices

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        try:
            image, label = super().__getitem__(index)
        except OSError as error:
            what = f"cannot read {self.samples[index][0]} as an image ({error})"
            raise DataError(what, hint="delete or move it") from error
        return image, label


def _from_folder(request: DataRequest, size: int, classes: int) -> Data:
    root, validation = request.data_dir, None
    # Workers deliver uint8: a quarter of float32's bytes to copy, and the device divides faster. In training
    # crops are random, and half of the images are flipped (arXiv:1409.4842, as in torchvision).
    crop = v2.Compose([v2.RandomResizedCrop(size), v2.RandomHorizontalFlip(), v2.PILToTensor()])
    training = FolderImages(root / "train", crop, request, max_classes=classes)
    if (root / "val").is_dir():
        resize = v2.Resize(round(size * RESIZED_TO_CROPPED))
        center = v2.Compose([resize, v2.CenterCrop(size), v2.PILToTensor()])
        numbers = training.class_to_idx
        validation = FolderImages(root / "val", center, request, max_classes=classes, indices=numbers)
    return Data(root.resolve().name, True, training, validation)
