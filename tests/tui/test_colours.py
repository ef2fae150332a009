"""What the colours of the screen tell apart, on dark and on light backgrounds."""

from itertools import combinations

import pytest
from rich.color import ColorType

from amptui.tui.background import Background
from amptui.tui.style import BOLD, Style, precision_style, styles_on


@pytest.mark.parametrize("background", ["dark", "light"])
def test_what_must_not_be_confused_differs_if_there_are_256_colours(background: Background) -> None:
    styles = styles_on(background, has_256_colours=True)
    precisions = [precision_style(name) for name in ("fp32", "ieee", "tf32", "fp16", "bf16")]
    signs = [Style.GOOD, Style.WARNING, Style.ERROR, Style.TEXT]
    for one, other in combinations([*precisions, *signs], 2):
        assert styles[one] != styles[other]
    sixteen = styles_on(background, has_256_colours=False)
    assert set(sixteen) == set(styles) == {style | weight for style in Style for weight in (0, BOLD)}
    assert all(it.color is None or it.color.type is ColorType.STANDARD for it in sixteen.values())
