from hypothesis import given
from hypothesis import strategies as st

from amptui.tui.panels.phrases import (
    Block,
    Line,
    Phrase,
    Word,
    fitting,
    fitting_lines,
    flowed,
    line_width,
)
from tests.tui.panels.drawing import line_text

words = st.text(st.sampled_from("abc→"), min_size=1, max_size=12)
phrases = st.builds(lambda text, rank: Phrase((Word(text),), rank), words, st.integers(0, 5))
lines = st.lists(phrases, min_size=1, max_size=8)


def block(count: int, rank: int = 0, least: int = 1, name: str = "line") -> Block:
    return Block([[Phrase((Word(f"{name} {i}"),))] for i in range(count)], rank, least)


def texts_of(lines: list[Line]) -> list[str]:
    return [line_text(line) for line in lines]


@given(lines, st.integers(0, 80))
def test_what_matters_most_is_kept_in_its_order_while_it_fits(line: list[Phrase], width: int) -> None:
    phrases_left = fitting(line, width)
    assert phrases_left
    assert len(phrases_left) == 1 or line_width(phrases_left) <= width
    places = [next(place for place, one in enumerate(line) if one is phrase) for phrase in phrases_left]
    assert places == sorted(places)
    assert min(phrase.rank for phrase in phrases_left) == min(phrase.rank for phrase in line)
    for left_out in (phrase for place, phrase in enumerate(line) if place not in places):
        before_it = [phrase for phrase in phrases_left if phrase.rank <= left_out.rank]
        assert line_width([*before_it, left_out]) > width


@given(lines, st.integers(1, 40))
def test_flowing_loses_nothing(line: list[Phrase], width: int) -> None:
    rows = flowed(line, width)
    assert [phrase for row in rows for phrase in row] == line
    assert all(len(row) == 1 or line_width(row) <= width for row in rows)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(1, 3)), max_size=6),
    st.integers(0, 20),
)
def test_no_more_lines_are_told_than_there_are(shapes: list[tuple[int, int, int]], height: int) -> None:
    blocks = [block(count, rank, least, f"{i}") for i, (count, rank, least) in enumerate(shapes)]
    texts = texts_of(fitting_lines(blocks, height))
    assert len(texts) <= height
    everything = texts_of([line for block in blocks for line in block.lines])
    assert texts == everything or len(everything) > height
    positions = [everything.index(line) for line in texts]
    assert positions == sorted(positions)
