"""The place of every panel on screens of any size."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from amptui.tui.canvas import Rect
from amptui.tui.layout import RANKED_PANELS, arrange

widths, heights = st.integers(1, 250), st.integers(1, 80)
focuses = st.none() | st.sampled_from(RANKED_PANELS)
banners = st.integers(0, 3)
ranks = st.just(0) | st.integers(5, 20)
others = st.integers(0, 1)


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
