"""The place of every panel on screens of any size."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.tui.canvas import Rect
from amptui.tui.layout import PANELS, RANKED_PANELS, SMALLEST, Layout, arrange

widths, heights = st.integers(1, 250), st.integers(1, 80)
focuses = st.none() | st.sampled_from(RANKED_PANELS)
banners = st.integers(0, 3)
ranks = st.just(0) | st.integers(5, 20)
others = st.integers(0, 1)

ALWAYS_SEEN = set(PANELS) - {"numerics", "answer"}


def rect_of(layout: Layout, name: str) -> Rect:
    return next(place.rect for place in layout if place.name == name)


def framed(layout: Layout) -> set[str]:
    return {place.name for place in layout if place.framed}


def folded(layout: Layout) -> set[str]:
    return {place.name for place in layout if not place.framed}


def overlap(a: Rect, b: Rect) -> bool:
    return a.x < b.x + b.width and b.x < a.x + a.width and a.y < b.y + b.height and b.y < a.y + a.height


@given(widths, heights, focuses, banners, ranks, others, st.booleans())
def test_places_fill_the_screen_without_overlapping(
    width: int,
    height: int,
    focus: str | None,
    banner_lines: int,
    rank_lines: int,
    optimizer_lines: int,
    has_scale: bool,
) -> None:
    places = arrange(
        *(width, height, focus),
        banner_lines=banner_lines,
        rank_lines=rank_lines,
        optimizer_lines=optimizer_lines,
        has_scale=has_scale,
    )
    for place in places:
        assert min(place.rect.width, place.rect.height) >= 1
        assert min(place.rect.x, place.rect.y) >= 0
        assert place.rect.x + place.rect.width <= width
        assert place.rect.y + place.rect.height <= height
    for one, other in combinations(places, 2):
        assert not overlap(one.rect, other.rect)
    assert sum(place.rect.width * place.rect.height for place in places) == width * height


@given(st.integers(SMALLEST[0], 250), st.integers(SMALLEST[1], 80), banners)
def test_every_large_enough_screen_shows_every_panel_but_the_numerics(
    width: int, height: int, banner_lines: int
) -> None:
    layout = arrange(width, height, None, banner_lines=banner_lines)
    names = [place.name for place in layout]
    assert len(names) == len(set(names))
    assert {"header", "footer"} <= set(names)
    # On wide, low screens the comparison is a table beside the loss; nothing is ever left out.
    assert set(names) >= ALWAYS_SEEN


@given(st.integers(SMALLEST[0], 250), st.integers(SMALLEST[1], 80), banners, st.integers(5, 20))
def test_a_distributed_run_shows_its_ranks_beside_all_others(
    width: int, height: int, banner_lines: int, rank_lines: int
) -> None:
    alone = arrange(width, height, None, banner_lines=banner_lines)
    layout = arrange(width, height, None, banner_lines=banner_lines, rank_lines=rank_lines)
    either = {"ranks", "answer"}  # of the answer the ranks may leave only its line
    assert {place.name for place in layout} - either == {place.name for place in alone} - either
    assert "ranks" in {place.name for place in layout}
    assert framed(layout) - either == framed(alone) - either
    ranks = rect_of(layout, "ranks")
    assert ranks.height == 1 or ("ranks" in framed(layout) and ranks.height <= rank_lines)


@given(st.integers(SMALLEST[0], 250), st.integers(SMALLEST[1], 80), st.sampled_from(RANKED_PANELS))
def test_an_enlarged_panel_fills_the_screen_between_header_and_footer(
    width: int, height: int, focus: str
) -> None:
    layout = arrange(width, height, focus)
    assert framed(layout) == {focus}
    assert rect_of(layout, focus) == Rect(0, 2, width, height - 3)


@pytest.mark.parametrize("size", [(39, 12), (40, 11), (20, 5), (1, 1), (200, 3)])
def test_below_the_smallest_size_there_is_only_a_notice(size: tuple[int, int]) -> None:
    assert folded(arrange(*size, None)) == {"notice"}
    assert folded(arrange(*size, "loss")) == {"notice"}
