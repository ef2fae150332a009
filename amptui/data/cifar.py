"""Reads CIFAR-10 from the files that torchvision keeps, downloading them if they are missing."""

import hashlib
import pickle
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from amptui.base.errors import DataError
from amptui.data.download import DOWNLOAD_AGAIN, download
from amptui.data.sources import Arrays, DataRequest, Progress


@dataclass(frozen=True, slots=True)
class PickledSet:
    """The batches of a data set, the archive that contains them and its mirrors."""

    folder: str
    """Below the folder of all data sets, and inside the archive."""
    train: Mapping[str, str]
    """Names of the training batches, each with the MD5 of its file."""
    validation: Mapping[str, str]
    archive: str
    archive_md5: str
    mirrors: tuple[str, ...]


# Names, checksums and address are torchvision's (torchvision.datasets.CIFAR10); a test compares them.
CIFAR10 = PickledSet(
    folder="cifar-10-batches-py",
    train={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    },
    validation={"test_batch": "40351d587109b95175f43aff81a1287e"},
    archive="cifar-10-python.tar.gz",
    archive_md5="c58f30108f718f92721af3b95e74349a",
    mirrors=("https://www.cs.toronto.edu/~kriz/",),
)


def read_cifar10(request: DataRequest, pickled_set: PickledSet = CIFAR10) -> tuple[Arrays, Arrays]:
    """Training and validation set: uint8 images [N, 3, 32, 32] and int64 labels [N].

    Reads ``request.data_dir``/cifar-10-batches-py if that folder exists, else the archive beside it, which is
    downloaded if it is missing. Existing files are never changed. Raises ``DataError`` for a file that is
    corrupt or cannot be downloaded, ``OSError`` if the folder cannot be used.
    """
    folder = request.data_dir / pickled_set.folder
    names = {**pickled_set.train, **pickled_set.validation}
    if folder.exists():
        files = {name: (folder / name, (folder / name).read_bytes()) for name in names}
    else:
        archive = request.data_dir / pickled_set.archive
        if not archive.exists():
            urls = [mirror + archive.name for mirror in pickled_set.mirrors]
            download(urls, archive, md5=pickled_set.archive_md5, request=request)
        files = {name: (archive, content) for name, content in _members(archive, pickled_set, request)}
        if missing := [name for name in names if name not in files]:
            raise DataError(f"{archive} is corrupt ({', '.join(missing)} is missing)", hint=DOWNLOAD_AGAIN)
    batches = {name: _batch(*files[name], md5) for name, md5 in names.items()}
    return _joined(batches, pickled_set.train), _joined(batches, pickled_set.validation)


def _members(archive: Path, pickled_set: PickledSet, request: DataRequest) -> Iterator[tuple[str, bytes]]:
    """The batches in the archive, in its order: going back would mean unpacking it again."""
    wanted = {f"{pickled_set.folder}/{name}": name for name in (*pickled_set.train, *pickled_set.validation)}
    request.report(Progress(f"unpacking {archive.name}"))
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                request.raise_if_stopping()
                if (name := wanted.get(member.name)) and (file := tar.extractfile(member)):
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


def _joined(batches: Mapping[str, Arrays], names: Mapping[str, str]) -> Arrays:
    chosen = [batches[name] for name in names]
    return Arrays(torch.cat([b.inputs for b in chosen]), torch.cat([b.targets for b in chosen]))
