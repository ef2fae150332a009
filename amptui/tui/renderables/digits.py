"""A number in digits of three lines, to be read from across the room."""

from amptui.tui.canvas import Canvas

LINES = 3
"""Lines of a digit."""

_FONT = {
    "0": ("▄▄▄", "█ █", "█▄█"),
    "1": (" ▄ ", "▀█ ", "▄█▄"),
    "2": ("▄▄▄", "▄▄█", "█▄▄"),
    "3": ("▄▄▄", "▄▄█", "▄▄█"),
    "4": ("▄ ▄", "█▄█", "  █"),
    "5": ("▄▄▄", "█▄▄", "▄▄█"),
    "6": ("▄▄▄", "█▄▄", "█▄█"),
    "7": ("▄▄▄", "  █", "  █"),
    "8": ("▄▄▄", "█▄█", "█▄█"),
    "9": ("▄▄▄", "█▄█", "▄▄█"),
    ".": (" ", " ", "▄"),
    "-": ("   ", "▄▄▄", "   "),
}
"""Each line of each character."""


def draw_digits(canvas: Canvas, x: int, y: int, number: str, style: int) -> int:
    """Draw ``number``, of digits, a point and a sign, from line ``y`` on; return the column after it.

    A terminal without UTF-8 gets the plain number in the last line.
    """
    if canvas.ascii_only:
        return canvas.text(x, y + LINES - 1, number, style)
    for line in range(LINES):
        end = canvas.text(x, y + line, " ".join(_FONT[character][line] for character in number), style)
    return end
