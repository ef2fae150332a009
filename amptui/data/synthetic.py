"""Synthetic MNIST and CIFAR-10: digits that look handwritten, and textured objects.

Posing a few thousand glyphs takes most of the time; each then gives several images with other crops, pens or
colours. Few large operations instead of many small ones: on a busy machine each parallel operation of torch
waits for the slowest of its threads.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations

import torch
from torch import Tensor
from torch.nn import functional

from amptui.data.glyphs import FIELD_EXTENT, digit_fields, object_fields, waves

TellDone = Callable[[int], None]
"""Called with how many samples are done; an exception from it ends the work."""

_MAX_POSES = 4_000
_CHUNK_SAMPLES = 2_000
_NOISE_VALUES = 1 << 20

_GLYPHS = 48
"""Differently bent glyphs of each digit."""

_OUTLINES = 12
"""Differently bent outlines of each object."""

_MARGIN_PIXELS = 4
"""Glyphs are posed on a canvas that is wider than an image by this much, from which images are cropped."""

_CHANNEL_ORDERS = tuple(permutations(range(3)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """How a glyph is placed in its image; spreads are standard deviations, ranges are uniform."""

    pixels: int
    pixels_per_unit: float
    turn_radians: float
    slant: tuple[float, float]
    """Mean and spread of the shift in x by y."""
    zoom: tuple[float, float]
    """Range of the scale of the glyph's plane to the image's: above 1, the glyph is smaller."""
    shift: float
    """Largest displacement in either direction, in the glyph's units."""
    warp: float
    """Spread of each wave that bends the plane."""


# A digit spans two units: 15 to 21 pixels, where MNIST's span 20 at most.
_DIGIT_VIEW = _View(
    pixels=28,
    pixels_per_unit=10.0,
    turn_radians=0.16,
    slant=(0.08, 0.17),
    zoom=(0.95, 1.35),
    shift=0.1,
    warp=0.022,
)
_OBJECT_VIEW = _View(
    pixels=32,
    pixels_per_unit=13.0,
    turn_radians=0.35,
    slant=(0.0, 0.1),
    zoom=(0.95, 1.6),
    shift=0.15,
    warp=0.02,
)


def _no_progress(_done: int) -> None:
    """Nobody is watching."""


def digits(samples: int, *, seed: int, progress: TellDone = _no_progress) -> tuple[Tensor, Tensor]:
    """Draw digits 0 to 9, white on black: uint8 images [samples, 1, 28, 28] and int64 labels [samples].

    Each is one of several ways to write the digit: bent, rotated, slanted, scaled and shifted, with its own
    pen width and brightness. After 4,000 images, shapes are reused, shifted and with another pen. Labels are
    uniformly random. The same seed draws the same images on the same machine.
    """
    generator = torch.Generator().manual_seed(seed)
    fields = digit_fields(_GLYPHS, generator)
    labels, posed = _posed(samples, fields, _DIGIT_VIEW, generator)
    noise = torch.randn(_NOISE_VALUES, generator=generator)
    images = _cut_out(samples, posed, lambda chunk, _number: _inked(chunk, noise, generator), progress)
    return images, labels


def objects(samples: int, *, seed: int, progress: TellDone = _no_progress) -> tuple[Tensor, Tensor]:
    """Draw textured shapes on textured grounds: uint8 images [samples, 3, 32, 32], int64 labels [samples].

    The label is the shape, in the order of ``glyphs.object_outlines``. Colours, textures and whether the
    shape or the ground is brighter are random: neither colour nor a sum over pixels reveals the class.
    After 4,000 images, shapes are reused, shifted and in other colours. Labels are uniformly random. The
    same seed draws the same images on the same machine.
    """
    generator = torch.Generator().manual_seed(seed)
    fields = object_fields(_OUTLINES, generator)
    labels, posed = _posed(samples, fields, _OBJECT_VIEW, generator)
    noise = torch.randn(_NOISE_VALUES, generator=generator)
    painted = torch.cat([_painted(chunk, noise, generator) for chunk in torch.split(posed, _CHUNK_SAMPLES)])
    return _cut_out(samples, painted, _recoloured, progress), labels


def _posed(samples: int, fields: Tensor, view: _View, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Labels of all samples, int64 [samples], and the poses they use in turn, as distances.

    The poses are float32 [poses, pixels, pixels], with a margin around the image.
    """
    poses = min(samples, _MAX_POSES)
    labels = torch.randint(len(fields), (poses,), generator=generator)
    posed = [_seen(chunk, fields, view, generator) for chunk in torch.split(labels, _CHUNK_SAMPLES)]
    return labels.repeat(-(-samples // poses))[:samples], torch.cat(posed)


def _cut_out(
    samples: int, posed: Tensor, finish: Callable[[Tensor, int], Tensor], progress: TellDone
) -> Tensor:
    """Images of all poses, cropped at one place after the other, until there are enough.

    ``finish`` makes uint8 images [N, channels, pixels, pixels] from crops of ``posed`` and the number of the
    crop.
    """
    pixels = posed.shape[-1] - _MARGIN_PIXELS
    images = []
    for start in range(0, samples, len(posed)):
        number = start // len(posed)
        y, x = _corner(number)
        cut = posed[: samples - start, ..., y : y + pixels, x : x + pixels]
        for chunk in torch.split(cut, _CHUNK_SAMPLES):
            images.append(finish(chunk, number))
            progress(min(samples, sum(map(len, images))))
    return torch.cat(images)


def _corner(number: int) -> tuple[int, int]:
    """Where in the margin a crop starts: the center first, then every place once, far from the last."""
    places = _MARGIN_PIXELS + 1
    return divmod((places**2 // 2 + 7 * number) % places**2, places)


def _uniform(low: float, high: float, samples: int, generator: torch.Generator) -> Tensor:
    return torch.rand(samples, generator=generator) * (high - low) + low


def _normal(mean: float, spread: float, samples: int, generator: torch.Generator) -> Tensor:
    """Normal numbers, clamped: outliers would make glyphs illegible."""
    return torch.randn(samples, generator=generator).clamp(-2.5, 2.5) * spread + mean


def _seen(labels: Tensor, fields: Tensor, view: _View, generator: torch.Generator) -> Tensor:
    """A glyph of each label's class seen through its own pose and warp: distances, with the margin."""
    pixels = view.pixels + _MARGIN_PIXELS
    axis = (torch.arange(pixels) - (pixels - 1) / 2) / view.pixels_per_unit
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    plane = torch.stack([x, y], dim=-1).reshape(-1, 2)
    # Pose and warp are linear in their numbers: one product with [x, y, 1, waves] places all pixels.
    basis = torch.cat([plane, torch.ones(len(plane), 1), waves(1.5 * plane)], dim=1)
    warps = torch.randn(len(labels), basis.shape[1] - 3, 2, generator=generator) * view.warp
    weights = torch.cat([_poses(len(labels), view, generator), warps], dim=1).transpose(1, 2)
    places = (weights @ basis.T).view(-1, 2, pixels, pixels).permute(0, 2, 3, 1) / FIELD_EXTENT
    glyphs = torch.randint(fields.shape[1], labels.shape, generator=generator)
    chosen = fields[labels, glyphs].unsqueeze(1)
    return functional.grid_sample(chosen, places, padding_mode="border", align_corners=False).squeeze(1)


def _poses(samples: int, view: _View, generator: torch.Generator) -> Tensor:
    """The affine maps from the image's x, y and 1 to the glyph's x and y: [samples, 3, 2]."""
    turn = _normal(0, view.turn_radians, samples, generator)
    slant = _normal(*view.slant, samples, generator)
    zoom_y = _uniform(*view.zoom, samples, generator)
    zoom_x = _uniform(0.85, 1.2, samples, generator) * zoom_y
    cos, sin = turn.cos(), turn.sin()
    from_x = torch.stack([cos * zoom_x, sin * zoom_y], dim=1)
    from_y = torch.stack([(slant * cos - sin) * zoom_x, (slant * sin + cos) * zoom_y], dim=1)
    shifts = (2 * torch.rand(samples, 2, generator=generator) - 1) * view.shift
    return torch.stack([from_x, from_y, shifts], dim=1)


def _inked(distances: Tensor, noise: Tensor, generator: torch.Generator) -> Tensor:
    """Bright where the pen's line is closer than half its width: uint8 [N, 1, height, width]."""
    samples = len(distances)
    half_width, blur, brightness, grain = (
        _uniform(low, high, samples, generator).view(-1, 1, 1)
        for low, high in ((0.07, 0.19), (0.11, 0.17), (200, 275), (-8, 10))
    )
    ink = ((half_width - distances) / blur + 0.5).clamp_(0, 1).mul_(brightness)
    ink += _noise(noise, distances.shape, generator) * grain.clamp_min(0)
    return ink.clamp_(0, 255).to(torch.uint8).unsqueeze(1)


def _painted(distances: Tensor, noise: Tensor, generator: torch.Generator) -> Tensor:
    """Shape and ground, each in its own colour and texture: uint8 [N, 3, height, width]."""
    samples, height, width = distances.shape
    middle = (
        _uniform(60, 195, samples, generator)[:, None] + torch.randn(samples, 3, generator=generator) * 25
    )
    apart = functional.normalize(torch.randn(samples, 3, generator=generator), dim=1)
    apart *= _uniform(40, 90, samples, generator)[:, None]
    cover = (0.5 - distances / 0.09).clamp_(0, 1).unsqueeze(1)
    image = _texture(samples, height, generator).add_((middle - apart)[..., None, None])
    shape = _texture(samples, height, generator).add_((middle + apart)[..., None, None])
    image += cover * (shape - image)
    grain = _uniform(3, 15, samples, generator).view(-1, 1, 1, 1)
    image += _noise(noise, torch.Size((samples, 3, height, width)), generator) * grain
    return image.clamp_(0, 255).to(torch.uint8)


def _recoloured(images: Tensor, number: int) -> Tensor:
    """Images with their channels permuted, and inverted every other time."""
    ordered = images[:, _CHANNEL_ORDERS[number % len(_CHANNEL_ORDERS)]]
    return ordered.bitwise_not() if number % 2 else ordered


def _texture(samples: int, pixels: int, generator: torch.Generator) -> Tensor:
    """A few plane waves of 4 to 30 pixels, one colour direction per sample: [samples, 3, pixels, pixels]."""
    waves_in_all = 20
    turn = _uniform(0, math.pi, waves_in_all, generator)
    number = 2 * math.pi / torch.logspace(math.log10(4), math.log10(30), waves_in_all)
    axis = torch.arange(pixels, dtype=torch.float32)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    angles = torch.outer(number * turn.cos(), x.flatten()) + torch.outer(number * turn.sin(), y.flatten())
    basis = torch.cat([angles.cos(), angles.sin()])
    weights = torch.randn(samples, len(basis), generator=generator)
    weights *= torch.rand(samples, len(basis), generator=generator) < 0.15
    tint = torch.randn(samples, 3, 1, 1, generator=generator) * 10
    return tint * (weights @ basis).view(samples, 1, pixels, pixels)


def _noise(noise: Tensor, shape: torch.Size, generator: torch.Generator) -> Tensor:
    """A random slice of the noise for each sample: cheaper than new noise."""
    length = shape[1:].numel()
    starts = torch.randint(len(noise) - length, shape[:1], generator=generator)
    return noise.unfold(0, length, 1)[starts].view(shape)
