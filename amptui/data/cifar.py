"""Reads CIFAR-10 from the files that torchvision keeps, downloading them if they are missing.

torchvision knows their names and checksums. Its own reader unpacks the archive into the data folder, which
may be read-only or shared with another rank, and names no damaged file.
"""

import hashlib
import pickle
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from amptui.base.errors import DataError
from amptui.data.download import DOWNLOAD_AGAIN, download
from amptui.data.sources import Arrays, DataRequest, Progress

if TYPE_CHECKING:
    from torchvision.datasets import CIFAR10


def read_cifar10(request: DataRequest, dataset: "type[CIFAR10] | None" = None) -> tuple[Arrays, Arrays]:
    """Training and validation set: uint8 images [N, 3, 32, 32] and int64 labels [N].

    Reads ``request.data_dir``/cifar-10-batches-py if that folder exists, else the archive beside it, which is
    downloaded if it is missing. Existing files are never changed. ``dataset`` is torchvision's class or one
    of the same make. Raises ``DataError`` for a file that is corrupt or cannot be downloaded, ``OSError`` if
    the folder cannot be used.
    """
    from torchvision.datasets import CIFAR10  # a second, for those who train on it

    dataset = dataset or CIFAR10
    train, validation = dict(dataset.train_list), dict(dataset.test_list)
    folder, checksums = request.data_dir / dataset.base_folder, {**train, **validation}
    if folder.exists():
        files = {name: (folder / name, (folder / name).read_bytes()) for name in checksums}
    else:
        archive = request.data_dir / dataset.filename
        if not archive.exists():
            download([dataset.url], archive, md5=dataset.tgz_md5, request=request)
        members = {f"{dataset.base_folder}/{name}": name for name in checksums}
        files = {name: (archive, content) for name, content in _unpacked(archive, members, request)}
        if missing := [name for name in checksums if name not in files]:
            raise DataError(f"{archive} is corrupt ({', '.join(missing)} is missing)", hint=DOWNLOAD_AGAIN)
    batches = {name: _batch(*files[name], md5) for name, md5 in checksums.items()}
    return _joined([batches[name] for name in train]), _joined([batches[name] for name in validation])


def _unpacked(archive: Path, members: dict[str, str], request: DataRequest) -> Iterator[tuple[str, bytes]]:
    """Name and content of each of ``members``, in the archive's order: going back would unpack it again."""
    request.report(Progress(f"unpacking {archive.name}"))
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                request.raise_if_stopping()
                if (name := members.get(member.name)) and (file := tar.extractfile(member)):
                    yield name, file.read()
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(f"{archive} is corrupt ({error})", hint=DOWNLOAD_AGAIN) from error


def _batch(path: Path, content: bytes, md5: str) -> Arrays:
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
        raise DataError(
            f"{path} is corrupt: {len(content):,} bytes with a wrong checksum", hint=DOWNLOAD_AGAIN
        )
    batch = pickle.loads(content, encoding="latin1")  # noqa: S301 (the checksum proves its origin)
    images = torch.tensor(batch["data"], dtype=torch.uint8).view(-1, 3, 32, 32)
    return Arrays(images, torch.tensor(batch["labels"], dtype=torch.int64))


def _joined(batches: list[Arrays]) -> Arrays:
    return Arrays(
        torch.cat([batch.inputs for batch in batches]), torch.cat([batch.targets for batch in batches])
    )
