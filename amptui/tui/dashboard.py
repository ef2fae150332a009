"""The only widget: draws a canvas and writes the cells that changed to the terminal."""

from collections.abc import Callable

from rich.segment import Segment
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from amptui.tui.canvas import Canvas
from amptui.tui.painter import Painter
from amptui.tui.style import STYLES


class Dashboard(Widget):
    """Shows what ``paint`` draws on a canvas of the widget's size: the whole terminal.

    Textual draws it at the start and after a resize; otherwise ``write`` gets the changes. No other widget
    may be on the screen, because the changes bypass Textual's compositor.
    """

    def __init__(
        self,
        paint: Callable[[Canvas], None],
        write: Callable[[str], None],
        *,
        ascii_only: bool,
        no_color: bool,
    ) -> None:
        super().__init__()
        self._paint = paint
        self._write = write
        self._painter = Painter(no_color=no_color)
        self._ascii_only = ascii_only
        self._shown = Canvas(0, 0)
        self._strips: dict[int, Strip] = {}

    def repaint(self) -> None:
        """Draw a frame and write the cells that changed."""
        canvas = self._painted(self.size)
        if canvas.chars.shape != self._shown.chars.shape:
            self._show(canvas)
            self.refresh()
            return
        spans = canvas.changes_since(self._shown)
        if spans:
            self._show(canvas)
            self._write(self._painter.paint(canvas, spans))

    def render_lines(self, crop: Region) -> list[Strip]:
        """The newest frame: Textual's cache has lines from before the changes that were written past it."""
        self._styles_cache.clear()
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        """Line ``y`` of the newest frame, for Textual."""
        if self.size != Size(self._shown.width, self._shown.height):
            self._show(self._painted(self.size))  # a resize asks for lines before the next frame
        if y not in self._strips:
            segments = [Segment(text, STYLES[style]) for text, style in self._shown.runs(y)]
            self._strips[y] = Strip(segments, self._shown.width)
        return self._strips[y]

    def _painted(self, size: Size) -> Canvas:
        canvas = Canvas(size.width, size.height, ascii_only=self._ascii_only)
        self._paint(canvas)
        return canvas

    def _show(self, canvas: Canvas) -> None:
        self._shown = canvas
        self._strips.clear()
