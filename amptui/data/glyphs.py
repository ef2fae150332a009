"""The shapes in synthetic images: strokes and outlines, warped, as distance fields."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

FIELD_PIXELS = 40
"""Height and width of a distance field."""

FIELD_EXTENT = 1.6
"""A field spans [-FIELD_EXTENT, FIELD_EXTENT] in x and y; shapes lie within about [-1, 1], y down."""

_POINTS_PER_SPAN = 12
_WAVE_NUMBERS = ((1, 0), (0, 1), (1, 1), (1, -1), (2, 1), (1, -2))
_WAVE_LENGTH = 5.0

# Digit -> ways to write it -> strokes, separated by "|". A stroke is a smooth curve through its points, x,y
# in hundredths; at a sharp turn, one stroke ends and the next begins.
_DIGITS = (
    (  # 0
        "0,-100 -42,-71 -60,0 -42,71 0,100 42,71 60,0 42,-71 0,-100",
        "30,-85 -10,-97 -45,-40 -45,40 -10,97 30,75 46,10 40,-60 5,-100",
        "5,-85 -53,-60 -75,0 -53,60 0,85 53,60 75,0 53,-60 -5,-85",
    ),
    (  # 1
        "0,-100 2,0 0,100",
        "-40,-50 -20,-70 2,-100 | 2,-100 4,0 0,100",
        "-40,-60 -20,-75 0,-100 | 0,-100 0,0 0,100 | -45,100 0,98 45,100",
    ),
    (  # 2
        "-50,-55 -30,-90 10,-100 45,-75 45,-35 15,15 -25,60 -55,95 | -55,95 0,92 60,95",
        "-50,-60 -10,-100 40,-75 38,-20 0,40 -35,88 -60,78 -40,50 -5,68 25,95 65,80",
        "-45,-70 0,-100 45,-70 20,-5 -50,90 | -50,90 0,78 60,95",
    ),
    (  # 3
        "-50,-75 -10,-100 40,-80 40,-35 -10,-8 | -10,-8 42,12 50,60 10,98 -30,95 -55,70",
        "-45,-95 0,-97 45,-95 | 45,-95 20,-55 -10,-15 | -10,-15 40,0 50,50 15,95 -25,95 -50,75",
        "-50,-80 0,-100 42,-65 20,-20 -18,-5 -12,-22 30,5 50,50 10,98 -50,80",
    ),
    (  # 4
        "-40,-95 -50,-40 -55,15 | -55,15 0,15 62,8 | 35,-90 30,0 25,100",
        "30,-100 -10,-40 -60,30 | -60,30 0,32 65,30 | 30,-100 30,0 30,100",
        "-40,-95 -55,-30 -40,5 0,10 40,-10 | 42,-95 40,0 35,100",
    ),
    (  # 5
        "50,-95 0,-95 -40,-93 | -40,-93 -42,-50 -45,-15 | -45,-15 -5,-30 40,-5 50,40 20,90 -20,98 -50,80",
        "52,-92 0,-95 -38,-70 -30,-30 10,-10 42,25 30,75 -10,98 -50,85",
        "-30,-85 -34,-50 -40,-10 | -40,-10 0,-25 40,5 42,50 10,92 -50,90 | -30,-85 10,-90 60,-100",
    ),
    (  # 6
        "40,-100 -10,-65 -45,0 -45,60 -10,98 35,80 45,40 15,10 -20,20 -43,50",
        "10,-100 -30,-40 -42,40 -10,97 33,75 22,33 -10,38 -37,70",
        "25,-95 -20,-30 -50,35 -25,90 25,95 55,50 25,10 -20,20 -46,50",
    ),
    (  # 7
        "-50,-90 0,-93 50,-90 | 50,-90 20,-20 -15,100",
        "-50,-90 0,-93 50,-90 | 50,-90 15,-10 -10,100 | -25,2 10,0 45,-2",
        "-55,-50 -54,-70 -50,-92 | -50,-92 0,-85 52,-92 | 52,-92 10,-10 0,100",
    ),
    (  # 8
        "42,-72 0,-100 -40,-70 -20,-25 20,10 45,55 10,98 -35,80 -40,40 -5,0 30,-35 42,-72",
        "0,-100 -36,-80 -34,-30 0,-8 34,-30 36,-80 0,-100 | 0,-8 -44,20 -46,70 0,100 46,70 44,20 0,-8",
        "50,-85 5,-95 -35,-65 -10,-20 30,20 35,70 0,97 -35,70 -20,20 15,-25 50,-75",
    ),
    (  # 9
        "42,-70 5,-98 -40,-75 -40,-30 0,-10 33,-35 42,-70 | 42,-70 40,0 30,100",
        "42,-75 0,-98 -42,-70 -35,-20 10,-12 40,-45 42,-75 | 42,-75 45,0 25,75 -10,98 -45,80",
        "45,-85 0,-100 -42,-60 -10,-15 35,-50 44,-85 30,0 5,100",
    ),
)


def waves(points: Tensor) -> Tensor:
    """Smooth functions of the plane, [..., 2] to [..., 12]: weighted sums of them bend shapes."""
    numbers = torch.tensor(_WAVE_NUMBERS, dtype=torch.float32) * (2 * math.pi / _WAVE_LENGTH)
    angles = points @ numbers.T
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def field_points() -> Tensor:
    """The points [FIELD_PIXELS ** 2, 2] at which distance fields are computed, x before y."""
    edge = FIELD_EXTENT * (1 - 1 / FIELD_PIXELS)
    axis = torch.linspace(-edge, edge, FIELD_PIXELS)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    return torch.stack([x, y], dim=-1).reshape(-1, 2)


def digit_fields(per_digit: int, generator: torch.Generator) -> Tensor:
    """Distances to the pen's line: [10, per_digit, FIELD_PIXELS, FIELD_PIXELS], each glyph bent anew."""
    banks = []
    for ways in _DIGITS:
        strokes = [[_points(stroke) for stroke in way.split("|")] for way in ways]
        # Each way to write it gets an equal share of the glyphs.
        shares = [len(range(i, per_digit, len(ways))) for i in range(len(ways))]
        drawn = [_stroke_fields(way, share, generator) for way, share in zip(strokes, shares, strict=True)]
        banks.append(torch.cat(drawn))
    return torch.stack(banks)


def object_fields(per_object: int, generator: torch.Generator) -> Tensor:
    """Signed distances to outlines, negative inside: [10, per_object, FIELD_PIXELS, FIELD_PIXELS]."""
    return torch.stack(
        [_outline_fields(outlines, per_object, generator) for outlines in object_outlines().values()]
    )


def _points(path: str) -> Tensor:
    """A path's points, [P, 2]."""
    return torch.tensor([[float(number) / 100 for number in pair.split(",")] for pair in path.split()])


def object_outlines() -> dict[str, list[Tensor]]:
    """Closed outlines [C, 2] by object; a point inside an odd number of them is inside the object."""
    return {
        "disc": [_around([0.85] * 24)],
        "ring": [_around([0.95] * 24), _around([0.5] * 24)],
        "square": [_points("-78,-78 78,-78 78,78 -78,78")],
        "triangle": [_points("0,-95 95,75 -95,75")],
        "star": [_around([1.05, 0.45] * 5)],
        "cross": [
            _points("-30,-95 30,-95 30,-30 95,-30 95,30 30,30 30,95 -30,95 -30,30 -95,30 -95,-30 -30,-30")
        ],
        "crescent": [torch.cat([_arc(0.95, 50, 310), _arc(0.747, 282.4, 77.6, centre_x=0.45)])],
        "heart": [_heart()],
        "arrow": [_points("0,-100 80,-10 30,-10 30,95 -30,95 -30,-10 -80,-10")],
        "bolt": [_points("-5,-105 60,-105 20,-25 65,-25 -45,110 -10,15 -60,15")],
    }


def _around(radii: Sequence[float]) -> Tensor:
    """Corners at equal angles around the center, the first at the top: [len(radii), 2]."""
    turns = torch.arange(len(radii)) * (2 * math.pi / len(radii))
    return torch.tensor(radii)[:, None] * torch.stack([turns.sin(), -turns.cos()], dim=1)


def _arc(radius: float, start_degrees: float, end_degrees: float, *, centre_x: float = 0.0) -> Tensor:
    """Points along an arc about (centre_x, 0), angles from the x axis towards y: [24, 2]."""
    turns = torch.linspace(math.radians(start_degrees), math.radians(end_degrees), 24)
    return torch.stack([centre_x + radius * turns.cos(), radius * turns.sin()], dim=1)


def _heart() -> Tensor:
    """The curve x = sin^3 t, y = (13 cos t - 5 cos 2t - 2 cos 3t - cos 4t) / 15, upright: [32, 2]."""
    t = torch.arange(32) * (2 * math.pi / 32)
    y = 13 * t.cos() - 5 * (2 * t).cos() - 2 * (3 * t).cos() - (4 * t).cos()
    return torch.stack([t.sin() ** 3, -y / 15], dim=1)


def _stroke_fields(strokes: Sequence[Tensor], glyphs: int, generator: torch.Generator) -> Tensor:
    bent = _bent(strokes, glyphs, amplitude=0.055, generator=generator)
    pen = torch.cat([_smooth(stroke) for stroke in bent], dim=1)
    distances = torch.cdist(field_points().expand(glyphs, -1, -1), pen)
    return distances.amin(dim=2).view(glyphs, FIELD_PIXELS, FIELD_PIXELS)


def _outline_fields(outlines: Sequence[Tensor], glyphs: int, generator: torch.Generator) -> Tensor:
    points = field_points()
    distances = torch.full((glyphs, len(points)), torch.inf)
    inside = torch.zeros(glyphs, len(points), dtype=torch.bool)
    for corners in _bent(outlines, glyphs, amplitude=0.03, generator=generator):
        ends = corners.roll(-1, dims=1)
        distances = torch.minimum(distances, _distance_to_segments(points, corners, ends))
        inside ^= _inside(points, corners, ends)
    signed = torch.where(inside, -distances, distances)
    return signed.view(glyphs, FIELD_PIXELS, FIELD_PIXELS)


def _bent(
    curves: Sequence[Tensor], glyphs: int, *, amplitude: float, generator: torch.Generator
) -> list[Tensor]:
    """``glyphs`` versions [glyphs, C, 2] of each curve, bent together so that touching curves still touch."""
    points = torch.cat(list(curves))
    basis = waves(points)
    weights = torch.randn(glyphs, basis.shape[1], 2, generator=generator) * amplitude
    return list(torch.split(points + basis @ weights, [len(curve) for curve in curves], dim=1))


def _smooth(stroke: Tensor) -> Tensor:
    """Points along the uniform Catmull-Rom spline through [G, C, 2]: [G, (C - 1) * 12 + 1, 2]."""
    first, last = 2 * stroke[:, :1] - stroke[:, 1:2], 2 * stroke[:, -1:] - stroke[:, -2:-1]
    padded = torch.cat([first, stroke, last], dim=1)
    before, here, there, after = (padded[:, i : i + stroke.shape[1] - 1, None] for i in range(4))
    t = torch.arange(_POINTS_PER_SPAN)[:, None] / _POINTS_PER_SPAN
    spans = here + 0.5 * t * (
        there - before
        + t * (2 * before - 5 * here + 4 * there - after + t * (3 * (here - there) + after - before))
    )  # fmt: skip
    return torch.cat([spans.flatten(1, 2), stroke[:, -1:]], dim=1)


def _distance_to_segments(points: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
    """Distance from each point [P, 2] to the nearest segment from [G, S, 2] to [G, S, 2]: [G, P]."""
    along = (ends - starts)[:, None]
    offset = points[None, :, None] - starts[:, None]
    position = (offset * along).sum(-1) / along.square().sum(-1).clamp_min(1e-12)
    gap = offset - position.clamp(0, 1)[..., None] * along
    return gap.square().sum(-1).amin(dim=2).sqrt()


def _inside(points: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
    """Whether a ray to the right of each point crosses the outline an odd number of times: [G, P]."""
    x, y = points[:, 0, None], points[:, 1, None]
    (x0, y0), (x1, y1) = (corner[:, None].unbind(-1) for corner in (starts, ends))
    straddles = (y0 > y) != (y1 > y)
    crossing = x0 + (y - y0) * (x1 - x0) / torch.where(straddles, y1 - y0, 1.0)
    return ((straddles & (x < crossing)).sum(dim=2) % 2).bool()
