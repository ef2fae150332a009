"""Every surface of the screen looks as it was last approved: its text, and the colours of each line."""

from collections.abc import Iterator
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import pytest

from amptui.records.run import PRECISIONS
from amptui.tui.canvas import BLANK, Canvas
from amptui.tui.style import BOLD, STYLES, Background, Style, precision_style, styles_on
from tests.diagnosis.amp_situations import SITUATIONS
from tests.golden import FOLDER, Goldens
from tests.tui.surfaces import SURFACES

pytestmark = pytest.mark.usefixtures("one_time_zone")

SIZES = ((60, 18), (80, 24), (120, 40), (200, 60))

SIZES_OF_OTHER_LAYOUTS = ((40, 12), (50, 14), (70, 40), (100, 24), (100, 30), (150, 50), (160, 50))
"""Where panels are folded or arranged in another way than at the usual sizes."""

READ_AT = {"dashboard": (120, 40), "enlarged": (120, 40)}
"""The size in which people read a kind of surface, where it is not 80x24. The other sizes have digests.

So have the situations, whose words are read elsewhere.
"""

READ_IN_ALL_SIZES = (
    "dashboard compared",
    "dashboard 8 ranks in trouble",
    "overlay help",
    "run list",
)

READ_ENLARGED = {
    "compared": ("loss", "throughput", "comparison", "events"),
    "collapsing": ("numerics",),
    "fp16_agrees": ("comparison",),
    "memory by kind": ("memory",),
    "no_nvml": ("memory",),
    "A/B test over": ("comparison",),
    "compute_bound": ("throughput",),
    "logged": ("loss",),
    "FLOP rates": ("throughput",),
    "8 ranks in trouble": ("ranks", "events"),
    "64 ranks": ("ranks",),
}
"""The panels that people read enlarged, by view: once each, or in each of their forms."""

ENLARGED = (
    *("compared", "with_skips", "no_nvml", "8 ranks in trouble", "fp16_agrees", "memory by kind"),
    "failed",
)
"""The views of which every panel has a digest."""


def kind_of(surface: str) -> str:
    """The folder of its pictures."""
    kinds = ("dashboard", "enlarged", "overlay", "run list", "replay")
    return next((kind for kind in kinds if surface.startswith(kind)), "others")


def pictures() -> Iterator[tuple[str, tuple[int, int]]]:
    """The surfaces of which there are files, each with its size."""
    for surface in SURFACES:
        kind = kind_of(surface)
        if surface in READ_IN_ALL_SIZES:
            yield from ((surface, size) for size in SIZES)
        elif kind != "enlarged" and surface.removeprefix("dashboard ") not in SITUATIONS:
            yield surface, READ_AT.get(kind, (80, 24))
    for view, panels in READ_ENLARGED.items():
        yield from ((f"enlarged {panel} {view}", (120, 40)) for panel in panels)


PICTURES = tuple(pictures())


FAR = 3
"""Words of one style that are farther apart than so many columns are named apart."""


def picture(canvas: Canvas) -> str:
    """The lines without the blanks at their ends, then each line's styles, with their columns from 1 on.

    Lines of the same styles are named together. Blanks have no style: a terminal does not show it.
    """
    lines = [line.rstrip() for line in canvas.lines()]
    styles, y = [], 1
    for described, same in groupby(_line_styles(canvas, row) for row in range(canvas.height)):
        count = len(list(same))
        if described:
            where = str(y) if count == 1 else f"{y}-{y + count - 1}"
            styles.append(f"{where:>5}  {described}")
        y += count
    return "\n".join([*lines, f"--- {canvas.width}x{canvas.height}", *styles])


def _line_styles(canvas: Canvas, y: int) -> str:
    """`frame 1 40, fp16 bold 3-9`: which columns of a line have which style."""
    columns = np.flatnonzero(canvas.chars[y] != BLANK)
    if not len(columns):
        return ""
    values = canvas.styles[y, columns]
    apart = (np.diff(values) != 0) | (np.diff(columns) > FAR)
    edges = [0, *(np.flatnonzero(apart) + 1).tolist(), len(columns)]
    runs: dict[int, list[str]] = {}
    for start, stop in pairwise(edges):
        first, last = int(columns[start]) + 1, int(columns[stop - 1]) + 1
        runs.setdefault(int(values[start]), []).append(str(first) if first == last else f"{first}-{last}")
    return ", ".join(
        f"{style_name(style)} {' '.join(at)}" for style, at in runs.items() if style != Style.TEXT
    )


def style_name(style: int) -> str:
    """`fp16 bold`."""
    return Style(style & ~BOLD).name.lower() + (" bold" if style & BOLD else "")


def drawn(surface: str, size: tuple[int, int]) -> str:
    canvas = Canvas(*size)
    SURFACES[surface](canvas)
    return picture(canvas)


@pytest.mark.parametrize(
    ("surface", "size"), PICTURES, ids=lambda it: it if isinstance(it, str) else "x".join(map(str, it))
)
def test_a_surface_looks_as_approved(surface: str, size: tuple[int, int], goldens: Goldens) -> None:
    width, height = size
    kind = kind_of(surface)
    name = surface.removeprefix(kind).strip(" ,").replace("/", "-") or kind
    goldens.check(f"screens/{kind}/{name} {width}x{height}", drawn(surface, size))


def others() -> Iterator[tuple[str, tuple[int, int]]]:
    """The surfaces of which there are digests, each with its size."""
    for surface in SURFACES:
        is_enlarged = kind_of(surface) == "enlarged"
        if not is_enlarged or surface.endswith(ENLARGED):
            yield from ((surface, size) for size in (SIZES[1:3] if is_enlarged else SIZES))
    for view in ("compared", "no_nvml", "8 ranks in trouble", "two optimizers", "failed"):
        yield from ((f"dashboard {view}", size) for size in SIZES_OF_OTHER_LAYOUTS)


DIGESTS = {
    f"{kind} {size[0]}x{size[1]}": [surface for surface, _ in some]
    for (kind, size), some in groupby(
        sorted({*others()} - {*PICTURES}, key=lambda it: (kind_of(it[0]), it[1], it[0])),
        lambda it: (kind_of(it[0]), it[1]),
    )
}
"""By kind and size."""


@pytest.mark.parametrize("group", DIGESTS)
def test_surfaces_of_other_sizes_look_as_approved(
    group: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    (FOLDER / "screens" / "digests").mkdir(parents=True, exist_ok=True)
    goldens = Goldens(
        f"screens/digests/{group.replace(' ', '-')}",
        update=request.config.getoption("--update-goldens"),
        scratch=tmp_path,
    )
    width, _, height = group.rpartition(" ")[2].partition("x")
    size = int(width), int(height)
    goldens.check_digests({surface: drawn(surface, size) for surface in DIGESTS[group]})


def test_a_terminal_without_utf8_has_a_replacement_for_every_character() -> None:
    """Of the panels that are enlarged, each in every seventh view."""
    enlarged = [name for name in SURFACES if kind_of(name) == "enlarged"]
    for surface in {*SURFACES} - {*enlarged} | {*enlarged[::7]}:
        canvas = Canvas(120, 40)
        SURFACES[surface](canvas)
        before = "".join(canvas.lines())
        canvas.make_ascii()
        after = "".join(canvas.lines())
        assert after.isascii(), surface
        assert after.count("?") == before.count("?"), surface


def test_styles_have_the_approved_colours_on_dark_and_light_backgrounds(goldens: Goldens) -> None:
    tables = {
        "16 colours, dark": STYLES,
        "16 colours, light": styles_on("light", has_256_colours=False),
        "256 colours, dark": styles_on("dark", has_256_colours=True),
        "256 colours, light": styles_on("light", has_256_colours=True),
    }
    lines = [f"{'':14}" + "".join(f"{name:>31}" for name in tables)]
    lines += [
        f"{style_name(style):14}"
        + "".join(f"{str(table[style]) or 'plain':>31}" for table in tables.values())
        for style in STYLES
    ]
    goldens.check("screens/colours", "\n".join(lines))


@pytest.mark.parametrize("background", ["dark", "light"])
def test_precisions_differ_from_each_other_and_from_what_is_good_or_bad(background: Background) -> None:
    styles = styles_on(background, has_256_colours=True)
    names = [*map(precision_style, PRECISIONS[:-1]), Style.GOOD, Style.WARNING, Style.ERROR]
    assert len({str(styles[name]) for name in names}) == len(names)
    if background == "dark":  # white has too few of sixteen that can be read
        assert len({str(STYLES[name]) for name in names}) == len(names)
