"""MNIST and CIFAR-10 as torchvision downloads and reads them, or synthetic images in their place.

Synthetic ones are smooth random patterns, shifted and faded, in noise.
"""

import io
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from amptui.base.errors import DataError
from amptui.base.text import one_line
from amptui.data.sources import Arrays, Data, DataRequest, real_or_stand_in

MNIST_FOLDER = "MNIST/raw"
"""Below the folder of all data sets."""

SYNTHETIC = "synthetic images"

VALIDATION_SAMPLES = 10_000
"""Of both sets."""

SILENT_SECONDS = 10.0
"""A download of which nothing arrives for so long is given up."""

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


def mnist(request: DataRequest) -> Data:
    """MNIST's 60,000 and 10,000 digits, uint8 [N, 1, 28, 28], or as many synthetic ones.

    For ``real``, raises ``DataError`` if the files are corrupt or unavailable; ``auto`` warns instead and
    falls back to ``synthetic``. Every kind raises ``DataError`` if ``request.stopping()``.
    """

    def load() -> Data:
        from torchvision.datasets import MNIST

        sets = _of_torchvision(MNIST, request, f"{MNIST_FOLDER}/*")
        return Data("MNIST", True, *(Arrays(images.data.unsqueeze(1), images.targets) for images in sets))

    synthetic = partial(_synthetic, request, 60_000, (1, 28, 28), inverted=False)
    return real_or_stand_in(request, "MNIST", load, SYNTHETIC, synthetic)


def cifar10(request: DataRequest) -> Data:
    """CIFAR-10's 50,000 and 10,000 images, uint8 [N, 3, 32, 32], or as many synthetic ones.

    Kinds and errors are as for :func:`mnist`.
    """

    def load() -> Data:
        from torchvision.datasets import CIFAR10

        sets = _of_torchvision(CIFAR10, request, CIFAR10.filename, f"{CIFAR10.base_folder}/*")
        return Data("CIFAR-10", True, *map(_channels_first, sets))

    synthetic = partial(_synthetic, request, 50_000, (3, 32, 32), inverted=True)
    return real_or_stand_in(request, "CIFAR-10", load, SYNTHETIC, synthetic)


def _channels_first(images: Any) -> Arrays:
    return Arrays(
        torch.from_numpy(images.data).permute(0, 3, 1, 2).contiguous(), torch.tensor(images.targets)
    )


def _synthetic(
    request: DataRequest, train_samples: int, shape: tuple[int, int, int], *, inverted: bool
) -> Data:
    """Synthetic images, the same for every seed of the run, so that runs can be compared."""

    def drawn(samples: int, seed: int) -> Arrays:
        def progress(finished: int) -> None:
            request.raise_if_stopping()
            request.report(f"generating {SYNTHETIC}", finished, samples, "samples")

        return Arrays(*synthetic_images(samples, shape, seed=seed, inverted=inverted, progress=progress))

    return Data(SYNTHETIC, False, drawn(train_samples, 0), drawn(VALIDATION_SAMPLES, 1))


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


def _of_torchvision(kind: Any, request: DataRequest, *files: str) -> list[Any]:
    """Torchvision's training and validation set of this ``kind``, downloaded if it is not there.

    ``files``: where it keeps them, as patterns. Raises ``DataError`` if they are damaged or cannot be
    downloaded, ``OSError`` if the folder cannot be used.
    """

    def read(**options: bool) -> list[Any]:
        return [kind(request.data_dir, train=train, **options) for train in (True, False)]

    name, folder = kind.__name__, request.data_dir / files[0].rpartition("/")[0]
    request.raise_if_stopping()
    try:
        return read()
    except OSError:
        raise
    except Exception as error:  # torchvision's readers raise anything for a damaged file
        if not str(error).startswith("Dataset not found"):
            hint = "delete it to download it again"
            raise DataError(f"{name} in {folder} is damaged", hint=hint) from error
    request.data_dir.mkdir(parents=True, exist_ok=True)
    result = _downloaded(partial(read, download=True), name, files, request)
    if isinstance(result, list):
        return result
    why = str(result).strip().rpartition("\n")[2]  # what the last of torchvision's mirrors said
    what = f"cannot download {name}: {one_line(why)}"
    raise DataError(what, hint=f"copy its files to {folder} yourself") from result


def _downloaded(
    read: Callable[[], list[Any]], name: str, files: Sequence[str], request: DataRequest
) -> list[Any] | Exception:
    """What ``read`` returns, which downloads ``files``, or its error.

    torchvision's download has no timeout and cannot be stopped: a thread does it, which may be left behind.
    """
    outcome: list[list[Any] | Exception] = []

    def download() -> None:
        try:
            outcome.append(read())
        except Exception as error:  # noqa: BLE001 - whatever it makes of what a server sends
            outcome.append(error)

    thread = threading.Thread(target=download, name="amptui-download", daemon=True)
    received_bytes, limit = -1, 0.0
    request.report(f"downloading {name}")
    with redirect_stderr(io.StringIO()):  # it prints a progress bar
        thread.start()
        while not outcome:
            request.raise_if_stopping()
            paths = [path for pattern in files for path in request.data_dir.glob(pattern)]
            size_bytes = sum(path.stat().st_size for path in paths)
            if size_bytes != received_bytes:
                received_bytes, limit = size_bytes, time.monotonic() + SILENT_SECONDS
                request.report(f"downloading {name}", size_bytes, None, "bytes")
            elif time.monotonic() > limit:
                return TimeoutError(f"nothing came for {SILENT_SECONDS:g} s")
            thread.join(0.1)
    return outcome[0]
