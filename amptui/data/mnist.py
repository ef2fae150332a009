"""Reads MNIST from the same files as torchvision, downloading those that are missing."""

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from amptui.base.errors import DataError
from amptui.data.download import DOWNLOAD_AGAIN, download
from amptui.data.sources import Arrays, DataRequest


@dataclass(frozen=True, slots=True)
class IdxFile:
    """One file of a data set: an array after a header of four bytes and four more for each dimension."""

    name: str
    shape: tuple[int, ...]
    md5: str
    """Of the uncompressed content, which does not depend on how it was compressed."""
    packed_md5: str = ""
    """Of the file on the mirrors, ``name`` with ``.gz``."""

    @property
    def header_bytes(self) -> int:
        """Where the array starts."""
        return 4 * (1 + len(self.shape))

    @property
    def size_bytes(self) -> int:
        """The size of the uncompressed file."""
        return self.header_bytes + prod(self.shape)


@dataclass(frozen=True, slots=True)
class IdxSet:
    """The four files of a data set and their mirrors."""

    folder: str
    """Below the folder of all data sets."""
    files: tuple[IdxFile, IdxFile, IdxFile, IdxFile]
    """Training images and labels, validation images and labels."""
    mirrors: tuple[str, ...]


# Mirrors and packed checksums are torchvision's (torchvision.datasets.MNIST); a test compares them.
MNIST = IdxSet(
    folder="MNIST/raw",
    files=(
        IdxFile(
            "train-images-idx3-ubyte",
            (60_000, 28, 28),
            "6bbc9ace898e44ae57da46a324031adb",
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        ),
        IdxFile(
            "train-labels-idx1-ubyte",
            (60_000,),
            "a25bea736e30d166cdddb491f175f624",
            "d53e105ee54ea40749a09fcbcd1e9432",
        ),
        IdxFile(
            "t10k-images-idx3-ubyte",
            (10_000, 28, 28),
            "2646ac647ad5339dbf082846283269ea",
            "9fb629c4189551a2d022fa330f9573f3",
        ),
        IdxFile(
            "t10k-labels-idx1-ubyte",
            (10_000,),
            "27ae3e4e09519cfbb04c329615203637",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    mirrors=("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
)


def read_mnist(request: DataRequest, idx_set: IdxSet = MNIST) -> tuple[Arrays, Arrays]:
    """Training and validation set: uint8 images [N, 1, 28, 28] and int64 labels [N].

    Each file may be in ``request.data_dir``/MNIST/raw uncompressed or with ``.gz``. Existing files are never
    changed. Raises ``DataError`` for a file that is corrupt or cannot be downloaded, ``OSError`` if the
    folder cannot be used.
    """
    folder = request.data_dir / idx_set.folder
    _download_missing(folder, idx_set, request)
    train_images, train_labels, images, labels = (_read(folder, file) for file in idx_set.files)
    return (
        Arrays(train_images.unsqueeze(1), train_labels.long()),
        Arrays(images.unsqueeze(1), labels.long()),
    )


def _download_missing(folder: Path, idx_set: IdxSet, request: DataRequest) -> None:
    for file in idx_set.files:
        packed = _packed(folder, file)
        if not (folder / file.name).exists() and not packed.exists():
            urls = [mirror + packed.name for mirror in idx_set.mirrors]
            download(urls, packed, md5=file.packed_md5, request=request)


def _packed(folder: Path, file: IdxFile) -> Path:
    return folder / f"{file.name}.gz"


def _read(folder: Path, file: IdxFile) -> Tensor:
    """The file's array, uint8 in the file's shape."""
    path = folder / file.name
    if path.exists():
        content = path.read_bytes()
    else:
        path = _packed(folder, file)
        content = _unpacked(path)
    _hold_to(file, path, content)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=file.header_bytes).view(file.shape)


def _unpacked(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is corrupt ({error})", hint=DOWNLOAD_AGAIN) from error


def _hold_to(file: IdxFile, path: Path, content: bytes) -> None:
    if len(content) != file.size_bytes:
        unpacked = "" if path.name == file.name else " uncompressed"
        what = f"{path} is corrupt: {len(content):,} bytes{unpacked} instead of {file.size_bytes:,}"
        raise DataError(what, hint=DOWNLOAD_AGAIN)
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != file.md5:
        raise DataError(f"{path} is corrupt: wrong checksum", hint=DOWNLOAD_AGAIN)
