"""Every colour of the screen can be read on the terminal's background, whatever the terminal can show."""

from itertools import combinations

import pytest
from rich.color import ColorType

from amptui.tui.background import has_256_colours
from amptui.tui.contrast import BLACK, MIN_CONTRAST, WHITE, Rgb, colour_of, contrast, is_light
from amptui.tui.style import BOLD, Style, precision_style, styles_on

TERMINALS = {
    "true colour": {"TERM": "xterm-256color", "COLORTERM": "truecolor"},
    "256 colours": {"TERM": "xterm-256color"},
    "16 colours": {"TERM": "xterm"},
}

BACKGROUNDS: dict[str, Rgb] = {
    "black": BLACK,
    "white": WHITE,
    "Solarized light": (253, 246, 227),
    "Solarized dark": (0, 43, 54),
    "Nord": (46, 52, 64),
    "grey": (119, 119, 119),
    "yellow": (255, 255, 0),
    "blue": (0, 0, 238),
}


@pytest.mark.parametrize("terminal", TERMINALS)
@pytest.mark.parametrize("background", BACKGROUNDS.values(), ids=BACKGROUNDS)
def test_every_style_can_be_read_on_it(background: Rgb, terminal: str) -> None:
    several = has_256_colours(TERMINALS[terminal])
    styles = styles_on(background, has_256_colours=several)
    assert set(styles) == {style | weight for style in Style for weight in (0, BOLD)}
    for style in styles.values():
        if style.color is None:
            continue  # the terminal's own for text
        number = style.color.number
        assert number is not None
        assert several or style.color.type is ColorType.STANDARD
        shown = {number, number + 8} if style.bold and number < 8 else {number}
        assert min(contrast(colour_of(it), background) for it in shown) >= MIN_CONTRAST


@pytest.mark.parametrize("background", [BLACK, WHITE])
def test_what_must_not_be_confused_differs_if_there_are_256_colours(background: Rgb) -> None:
    styles = styles_on(background, has_256_colours=True)
    precisions = [precision_style(name) for name in ("fp32", "ieee", "tf32", "fp16", "bf16")]
    signs = [Style.GOOD, Style.WARNING, Style.ERROR, Style.TEXT]
    for one, other in combinations([*precisions, *signs], 2):
        assert styles[one] != styles[other]


def test_contrasts_are_those_of_wcag() -> None:
    assert contrast(BLACK, WHITE) == pytest.approx(21.0)
    assert contrast((119, 119, 119), WHITE) == pytest.approx(4.48, abs=0.005)  # WebAIM's own example
    assert contrast((118, 118, 118), WHITE) == pytest.approx(4.54, abs=0.005)
    assert [is_light(colour) for colour in (BLACK, (117, 117, 117), (118, 118, 118), WHITE)] == [
        *(False, False, True, True)
    ]
