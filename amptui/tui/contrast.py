"""Whether a colour can be read on a background, by the formulas of WCAG 2.2, and the nearest one that can."""

from functools import lru_cache

Rgb = tuple[int, int, int]
"""Red, green and blue, 0 to 255."""

BLACK: Rgb = (0, 0, 0)
WHITE: Rgb = (255, 255, 255)

MIN_CONTRAST = 4.5
"""WCAG 2.2, 1.4.3: the least contrast of text with its background. Black or white has 4.58 on any."""

_SIXTEEN: tuple[Rgb, ...] = (
    *((0, 0, 0), (205, 0, 0), (0, 205, 0), (205, 205, 0), (0, 0, 238), (205, 0, 205)),
    *((0, 205, 205), (229, 229, 229), (127, 127, 127), (255, 0, 0), (0, 255, 0), (255, 255, 0)),
    *((92, 92, 255), (255, 0, 255), (0, 255, 255), (255, 255, 255)),
)
"""The first sixteen colours as xterm has them; a user's palette may have others, which nobody can know."""

_CUBE_LEVELS = (0, 95, 135, 175, 215, 255)


def colour_of(number: int) -> Rgb:
    """The colour that xterm has at ``number`` of its 256; from 16 on, all terminals have the same."""
    if number < 16:
        return _SIXTEEN[number]
    if number >= 232:
        level = 8 + 10 * (number - 232)
        return level, level, level
    red, green, blue = (number - 16) // 36, (number - 16) // 6 % 6, (number - 16) % 6
    return _CUBE_LEVELS[red], _CUBE_LEVELS[green], _CUBE_LEVELS[blue]


def luminance(colour: Rgb) -> float:
    """Relative luminance, 0 for black to 1 for white (WCAG 2.2, glossary)."""
    red, green, blue = (
        part / 255 / 12.92 if part / 255 <= 0.04045 else ((part / 255 + 0.055) / 1.055) ** 2.4
        for part in colour
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: Rgb, other: Rgb) -> float:
    """The contrast ratio of two colours, 1 to 21 (WCAG 2.2, glossary)."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def is_legible(number: int, background: Rgb) -> bool:
    """Whether text of colour ``number`` can be read on ``background``."""
    return contrast(colour_of(number), background) >= MIN_CONTRAST


def is_light(background: Rgb) -> bool:
    """Whether black is easier to read on it than white."""
    return contrast(BLACK, background) > contrast(WHITE, background)


@lru_cache(maxsize=64)
def nearest_legible(number: int, background: Rgb) -> int:
    """Of the 240 colours that are the same everywhere, the one most like ``number`` that can be read."""
    if number >= 16 and is_legible(number, background):
        return number
    wanted = colour_of(number)

    def difference(other: int) -> int:
        return sum((a - b) ** 2 for a, b in zip(colour_of(other), wanted, strict=True))

    return min((other for other in range(16, 256) if is_legible(other, background)), key=difference)
