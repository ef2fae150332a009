"""Synthetic images in place of MNIST and CIFAR-10: smooth random patterns, shifted and faded, in noise."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

ReportSamples = Callable[[int], object]
"""Called with how many samples are finished; an exception from it ends the work."""

CLASSES = 10
PATTERNS = 5
"""Of each class."""

_PATTERNS_SEED = 0
_COARSE_PIXELS = 6
"""Patterns are noise of this height and width, enlarged."""
_MAX_SHIFT_PIXELS = 5
_NOISE = 0.25
"""Standard deviation, where a pattern's is 1."""
_CHUNK_SAMPLES = 2_000


def synthetic_images(
    samples: int,
    shape: tuple[int, int, int],
    *,
    seed: int,
    inverted: bool = False,
    progress: ReportSamples = lambda _finished: None,
) -> tuple[Tensor, Tensor]:
    """Images of ten classes: uint8 [samples, *shape], ``shape`` being channels, height and as large a width.

    Labels are int64 [samples], uniformly random. Every seed draws other images of the same classes. They are
    white on black; with ``inverted`` on grey, half of their channels negative, of which a linear model learns
    little.
    """
    views = _views(shape)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (samples,), generator=generator)
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
    coarse = torch.randn(CLASSES * PATTERNS, channels, _COARSE_PIXELS, _COARSE_PIXELS, generator=generator)
    smooth = functional.interpolate(coarse, size=pixels + _MAX_SHIFT_PIXELS, mode="bicubic")
    smooth /= smooth.std(dim=(1, 2, 3), keepdim=True)
    return smooth.unfold(2, pixels, 1).unfold(3, pixels, 1).permute(0, 2, 3, 1, 4, 5)


def _drawn(
    views: Tensor, noise: Tensor, labels: Tensor, inverted: bool, generator: torch.Generator
) -> Tensor:
    """One image of each label, float32, to be cut off below 0 and above 255."""
    samples = len(labels)
    patterns = labels * PATTERNS + torch.randint(PATTERNS, (samples,), generator=generator)
    y, x = torch.randint(_MAX_SHIFT_PIXELS + 1, (2, samples), generator=generator)
    contrast = torch.empty(samples, 1, 1, 1).uniform_(0.1, 1.0, generator=generator)
    if inverted:
        contrast = contrast * (2 * torch.randint(2, (samples, views.shape[3], 1, 1), generator=generator) - 1)
    images = views[patterns, y, x].mul_(contrast)
    images += noise[torch.randint(len(noise), (samples,), generator=generator)]
    # Around grey only the sign tells a pattern from its negative; on black half of it would be cut off.
    images = images.mul_(0.25).add_(0.5) if inverted else images.mul_(0.5)
    return images.mul_(255).clamp_(0, 255)
