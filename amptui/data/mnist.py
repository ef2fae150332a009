"""Reads MNIST from the same files as torchvision, downloading those that are missing.

torchvision knows the mirrors and the checksums of what they send. Its own reader checks no file that is there
already, and unpacks files in place, where another rank may be reading them or nobody may write.
"""

import gzip
import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from amptui.base.errors import DataError
from amptui.data.download import DOWNLOAD_AGAIN, download
from amptui.data.sources import Arrays, DataRequest

FOLDER = "MNIST/raw"
"""Below the folder of all data sets."""


@dataclass(frozen=True, slots=True)
class IdxFile:
    """One file of a data set: an array after a header of four bytes and four more for each dimension."""

    name: str
    shape: tuple[int, ...]
    md5: str
    """Of the uncompressed content, which does not depend on how it was compressed."""

    @property
    def header_bytes(self) -> int:
        """Where the array starts."""
        return 4 * (1 + len(self.shape))

    @property
    def size_bytes(self) -> int:
        """The size of the uncompressed file."""
        return self.header_bytes + prod(self.shape)


FILES = (
    IdxFile("train-images-idx3-ubyte", (60_000, 28, 28), "6bbc9ace898e44ae57da46a324031adb"),
    IdxFile("train-labels-idx1-ubyte", (60_000,), "a25bea736e30d166cdddb491f175f624"),
    IdxFile("t10k-images-idx3-ubyte", (10_000, 28, 28), "2646ac647ad5339dbf082846283269ea"),
    IdxFile("t10k-labels-idx1-ubyte", (10_000,), "27ae3e4e09519cfbb04c329615203637"),
)
"""Training images and labels, validation images and labels."""


def read_mnist(request: DataRequest, files: Sequence[IdxFile] = FILES) -> tuple[Arrays, Arrays]:
    """Training and validation set: uint8 images [N, 1, 28, 28] and int64 labels [N].

    Each file may be in ``request.data_dir``/MNIST/raw uncompressed or with ``.gz``. Existing files are never
    changed. Raises ``DataError`` for a file that is corrupt or cannot be downloaded, ``OSError`` if the
    folder cannot be used.
    """
    folder = request.data_dir / FOLDER
    missing = [file for file in files if not any(path.exists() for path in _paths(folder, file))]
    if missing:
        _download(missing, folder, request)
    train_images, train_labels, images, labels = (_read(folder, file) for file in files)
    return (
        Arrays(train_images.unsqueeze(1), train_labels.long()),
        Arrays(images.unsqueeze(1), labels.long()),
    )


def _paths(folder: Path, file: IdxFile) -> tuple[Path, Path]:
    """Where it is uncompressed, and where compressed."""
    return folder / file.name, folder / f"{file.name}.gz"


def _download(files: Sequence[IdxFile], folder: Path, request: DataRequest) -> None:
    from torchvision.datasets import MNIST  # a second, for those who download

    checksums = dict(MNIST.resources)
    for file in files:
        _, packed = _paths(folder, file)
        urls = [mirror + packed.name for mirror in MNIST.mirrors]
        download(urls, packed, md5=checksums[packed.name], request=request)


def _read(folder: Path, file: IdxFile) -> Tensor:
    """The file's array, uint8 in the file's shape."""
    path, packed = _paths(folder, file)
    if path.exists():
        content = path.read_bytes()
    else:
        path, content = packed, _unpacked(packed)
    _check(file, path, content)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=file.header_bytes).view(file.shape)


def _unpacked(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is corrupt ({error})", hint=DOWNLOAD_AGAIN) from error


def _check(file: IdxFile, path: Path, content: bytes) -> None:
    if len(content) != file.size_bytes:
        unpacked = "" if path.name == file.name else " uncompressed"
        what = f"{path} is corrupt: {len(content):,} bytes{unpacked} instead of {file.size_bytes:,}"
        raise DataError(what, hint=DOWNLOAD_AGAIN)
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != file.md5:
        raise DataError(f"{path} is corrupt: wrong checksum", hint=DOWNLOAD_AGAIN)
