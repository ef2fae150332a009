"""MNIST and CIFAR-10 as torchvision keeps and reads them, or synthetic images in their place.

Synthetic ones are smooth random patterns, shifted and faded, in noise.

Downloads are our own: torchvision's has no timeout, cannot be stopped, prints, and unpacks in place, where
another rank may be reading.
"""

import gzip
import queue
import tarfile
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import torch
from torch import Tensor
from torch.nn import functional

from amptui.base.errors import DataError
from amptui.data.sources import Arrays, Data, DataRequest, Named, Progress, real_or_stand_in

DOWNLOAD_AGAIN = "delete or rename it to download it again"
"""What to do about a corrupt file."""

MNIST_FOLDER = "MNIST/raw"
"""Below the folder of all data sets."""

MNIST_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
"""Of the unpacked files; torchvision checks only archives, which may have been compressed anew."""

VALIDATION_SAMPLES = 10_000
"""Of both sets."""

ANSWER_SECONDS, STALL_SECONDS = 5.0, 15.0
"""How long to wait for the first byte of a file, and for the next one."""

_CLASSES = 10
_PATTERNS = 5
"""Of each class."""

_PATTERNS_SEED = 0
_COARSE_PIXELS = 6
"""Patterns are noise of this height and width, enlarged."""
_MAX_SHIFT_PIXELS = 5
_NOISE = 0.25
"""Standard deviation, where a pattern's is 1."""
_CHUNK_SAMPLES = 2_000

_Archives = Mapping[str, tuple[Sequence[str], str]]
"""The URLs and the MD5 of each archive, by its path below the folder of all data sets."""


def mnist(request: DataRequest) -> Data:
    """MNIST's 60,000 and 10,000 digits, uint8 [N, 1, 28, 28], or as many synthetic ones.

    For ``real``, raises ``DataError`` if the files are corrupt or unavailable; ``auto`` warns instead and
    falls back to ``synthetic``. Every kind raises ``DataError`` if ``request.stopping()``.
    """

    def load() -> Data:
        from torchvision.datasets import MNIST

        archives = {
            f"{MNIST_FOLDER}/{name}": ([mirror + name for mirror in MNIST.mirrors], md5)
            for name, md5 in MNIST.resources
        }
        _complete(request, MNIST_FOLDER, MNIST_MD5, archives)
        sets = (MNIST(request.data_dir, train=train) for train in (True, False))
        return Data("MNIST", True, *(Arrays(images.data.unsqueeze(1), images.targets) for images in sets))

    stand_in = _synthetic(request, 60_000, (1, 28, 28), inverted=False)
    return real_or_stand_in(request, Named("MNIST", load), stand_in)


def cifar10(request: DataRequest) -> Data:
    """CIFAR-10's 50,000 and 10,000 images, uint8 [N, 3, 32, 32], or as many synthetic ones.

    Kinds and errors are as for :func:`mnist`.
    """

    def load() -> Data:
        from torchvision.datasets import CIFAR10

        checksums = dict([*CIFAR10.train_list, *CIFAR10.test_list])
        checksums[CIFAR10.meta["filename"]] = CIFAR10.meta["md5"]
        archives = {CIFAR10.filename: ([CIFAR10.url], CIFAR10.tgz_md5)}
        _complete(request, CIFAR10.base_folder, checksums, archives)
        sets = (CIFAR10(request.data_dir, train=train) for train in (True, False))
        return Data("CIFAR-10", True, *map(_channels_first, sets))

    stand_in = _synthetic(request, 50_000, (3, 32, 32), inverted=True)
    return real_or_stand_in(request, Named("CIFAR-10", load), stand_in)


def _channels_first(images: Any) -> Arrays:
    return Arrays(
        torch.from_numpy(images.data).permute(0, 3, 1, 2).contiguous(), torch.tensor(images.targets)
    )


def _synthetic(
    request: DataRequest, train_samples: int, shape: tuple[int, int, int], *, inverted: bool
) -> Named:
    """Synthetic images, the same for every seed of the run, so that runs can be compared."""
    name = "synthetic images"

    def drawn(samples: int, seed: int) -> Arrays:
        def progress(finished: int) -> None:
            request.raise_if_stopping()
            request.report(Progress(f"generating {name}", finished, samples, "samples"))

        return Arrays(*synthetic_images(samples, shape, seed=seed, inverted=inverted, progress=progress))

    return Named(name, lambda: Data(name, False, drawn(train_samples, 0), drawn(VALIDATION_SAMPLES, 1)))


def synthetic_images(
    samples: int,
    shape: tuple[int, int, int],
    *,
    seed: int,
    inverted: bool = False,
    progress: Callable[[int], object] = lambda _finished: None,
) -> tuple[Tensor, Tensor]:
    """Images of ten classes: uint8 [samples, *shape], ``shape`` being channels, height and as large a width.

    Labels are int64 [samples], uniformly random. Every seed draws other images of the same classes. They are
    white on black; with ``inverted`` on grey, half of their channels negative, of which a linear model learns
    little. ``progress`` gets how many are finished; an exception from it ends the work.
    """
    views = _views(shape)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(_CLASSES, (samples,), generator=generator)
    noise = torch.randn(min(samples, _CHUNK_SAMPLES), *shape, generator=generator).mul_(_NOISE)
    images = torch.empty(samples, *shape, dtype=torch.uint8)
    finished = 0
    for some, chunk in zip(labels.split(_CHUNK_SAMPLES), images.split(_CHUNK_SAMPLES), strict=True):
        chunk.copy_(_drawn(views, noise, some, inverted, generator))
        finished += len(some)
        progress(finished)
    return images, labels


def _views(shape: tuple[int, int, int]) -> Tensor:
    """All patterns at all shifts, without copies: [classes * patterns, shifts, shifts, *shape]."""
    channels, pixels, _ = shape
    generator = torch.Generator().manual_seed(_PATTERNS_SEED)
    coarse = torch.randn(_CLASSES * _PATTERNS, channels, _COARSE_PIXELS, _COARSE_PIXELS, generator=generator)
    smooth = functional.interpolate(coarse, size=pixels + _MAX_SHIFT_PIXELS, mode="bicubic")
    smooth /= smooth.std(dim=(1, 2, 3), keepdim=True)
    return smooth.unfold(2, pixels, 1).unfold(3, pixels, 1).permute(0, 2, 3, 1, 4, 5)


def _drawn(
    views: Tensor, noise: Tensor, labels: Tensor, inverted: bool, generator: torch.Generator
) -> Tensor:
    """One image of each label, float32, to be cut off below 0 and above 255."""
    samples = len(labels)
    patterns = labels * _PATTERNS + torch.randint(_PATTERNS, (samples,), generator=generator)
    y, x = torch.randint(_MAX_SHIFT_PIXELS + 1, (2, samples), generator=generator)
    contrast = torch.empty(samples, 1, 1, 1).uniform_(0.1, 1.0, generator=generator)
    if inverted:
        contrast = contrast * (2 * torch.randint(2, (samples, views.shape[3], 1, 1), generator=generator) - 1)
    images = views[patterns, y, x].mul_(contrast)
    images += noise[torch.randint(len(noise), (samples,), generator=generator)]
    # Around grey only the sign tells a pattern from its negative; on black half of it would be cut off.
    images = images.mul_(0.25).add_(0.5) if inverted else images.mul_(0.5)
    return images.mul_(255).clamp_(0, 255)


def _complete(request: DataRequest, folder: str, checksums: Mapping[str, str], archives: _Archives) -> None:
    """Add what is missing in ``folder``, from archives that are there or downloaded, and check every file.

    Files that are there are never changed, and no incomplete file ever has its final name: several ranks may
    do this at once. Raises ``DataError`` for a file that is corrupt or cannot be downloaded, ``OSError`` if
    the folder cannot be used.
    """
    from torchvision.datasets.utils import check_integrity, extract_archive

    place = request.data_dir / folder
    missing = [name for name in checksums if not (place / name).exists()]
    if missing:
        request.data_dir.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=request.data_dir, prefix=".download-") as scratch:
            for name, (urls, md5) in archives.items():
                archive, downloaded = request.data_dir / name, Path(scratch) / name
                downloaded.parent.mkdir(parents=True, exist_ok=True)
                if not archive.exists():
                    hint = f"copy it to {archive.parent} yourself"
                    _download(urls, downloaded, md5, hint, request)
                    archive = downloaded
                request.report(Progress(f"unpacking {archive.name}"))
                try:
                    extract_archive(archive, downloaded.parent)
                except (gzip.BadGzipFile, tarfile.TarError, zlib.error, EOFError) as error:
                    raise DataError(f"{archive} is corrupt: {error}", hint=DOWNLOAD_AGAIN) from error
                for file in missing:
                    path = Path(scratch) / folder / file
                    if path.exists() and not check_integrity(path, checksums[file]):
                        what = f"{archive} is corrupt: {file} in it has a wrong checksum"
                        raise DataError(what, hint=DOWNLOAD_AGAIN)
            place.mkdir(parents=True, exist_ok=True)
            for file in missing:
                (Path(scratch) / folder / file).replace(place / file)
    for name, md5 in checksums.items():
        request.raise_if_stopping()
        path = place / name
        if not check_integrity(path, md5):
            what = f"{path} is corrupt: {path.stat().st_size:,} bytes with a wrong checksum"
            raise DataError(what, hint=DOWNLOAD_AGAIN)


def _download(urls: Sequence[str], path: Path, md5: str, hint: str, request: DataRequest) -> None:
    """Download ``path`` from the first of ``urls`` that sends a file with this MD5, and report progress.

    Raises ``DataError`` if none does or if ``request.stopping()``.
    """
    from torchvision.datasets.utils import check_integrity

    failures = []
    for number, url in enumerate(urls):
        part = path.with_name(f"{path.name}.{number}")  # a mirror that is given up may write on
        trouble = _received(url, part, request)
        if not trouble and not check_integrity(part, md5):
            trouble = f"sent {part.stat().st_size:,} bytes with a wrong checksum"
        if not trouble:
            part.replace(path)
            return
        failures.append(f"{urlsplit(url).netloc}: {trouble}")
    raise DataError(f"cannot download {path.name} ({'; '.join(failures)})", hint=hint)


def _received(url: str, part: Path, request: DataRequest) -> str:
    """Write what ``url`` sends to ``part``; return why that failed, if it did.

    A thread receives: no wait in the resolver or on a socket delays a user who wants to stop.
    """
    detail = f"downloading {url.rpartition('/')[2]}"
    items: queue.SimpleQueue[Progress | str] = queue.SimpleQueue()
    receiver = threading.Thread(
        target=_receive, args=(url, part, detail, items), name="amptui-download", daemon=True
    )
    receiver.start()
    request.report(Progress(detail))
    deadline, silence = time.monotonic() + ANSWER_SECONDS, "no answer"
    while True:
        request.raise_if_stopping()
        try:
            item = items.get(timeout=0.1)
        except queue.Empty:
            if time.monotonic() > deadline:
                return silence
            continue
        if isinstance(item, str):
            return item
        request.report(item)
        deadline, silence = time.monotonic() + STALL_SECONDS, "stalled"


def _receive(url: str, part: Path, detail: str, items: "queue.SimpleQueue[Progress | str]") -> None:
    """Put progress into ``items``, and at last why not all has arrived; "" if it has."""
    done = 0
    try:
        with urlopen(url, timeout=STALL_SECONDS) as response, part.open("wb") as file:  # noqa: S310
            while chunk := response.read1(1 << 16):
                file.write(chunk)
                done += len(chunk)
                total = done + response.length if response.length is not None else None
                items.put(Progress(detail, done, total, "bytes"))
        items.put("")
    except HTTPError as error:
        error.close()
        items.put(f"HTTP {error.code} {error.reason}")
    except (OSError, HTTPException, ValueError) as error:  # ValueError: an invalid proxy setting
        cause = getattr(error, "reason", error)
        items.put(" ".join(str(getattr(cause, "strerror", None) or cause).split()) or type(cause).__name__)
