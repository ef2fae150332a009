"""No surface of the screen cuts a word, a unit or a number, at any size from 40x12 to 200x60."""

from collections.abc import Iterable

import pytest

from amptui.tui.canvas import Canvas
from amptui.tui.panels.phrases import whole_words
from tests.tui.cut_words import searching
from tests.tui.surfaces import SURFACES

SIZES = [(40, 12), (60, 18), (80, 24), (100, 30), (120, 40), (160, 50), (200, 60)]


def cut_at(size: tuple[int, int], names: Iterable[str]) -> list[str]:
    """What the surfaces of these names cut on a screen of this size, each with its name."""
    cut = []
    for name in names:
        with searching() as search:
            SURFACES[name](Canvas(*size))
        cut += [f"{name}: {text}" for text in search.cut()]
    return cut


@pytest.mark.ci
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_no_word_is_cut(size: tuple[int, int]) -> None:
    """Of the panels that are enlarged every seventh, at each size others."""
    enlarged = [name for name in SURFACES if name.startswith("enlarged")]
    others = [name for name in SURFACES if not name.startswith("enlarged")]
    assert cut_at(size, [*others, *enlarged[SIZES.index(size) :: len(SIZES)]]) == []


@pytest.mark.nightly
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_no_surface_cuts_a_word(size: tuple[int, int]) -> None:
    assert cut_at(size, SURFACES) == []


@pytest.mark.parametrize(
    ("width", "words"),
    [
        (30, "loss scale 65,536 after a skip"),
        (29, "loss scale 65,536 after a…"),
        (24, "loss scale 65,536 after…"),
        (23, "loss scale…"),  # never "65,536…", as if more digits followed
        (10, "loss…"),
        (3, "loss scale 65,536 after a skip"),  # a canvas cuts the only word
    ],
)
def test_whole_words_are_kept_and_no_number_looks_cut(width: int, words: str) -> None:
    assert whole_words("loss scale 65,536 after a skip", width) == words


def test_wide_characters_count_twice() -> None:
    assert whole_words("漢字 漢字 漢字", 11) == "漢字 漢字…"
    assert whole_words("漢字 漢字 漢字", 9) == "漢字…"
