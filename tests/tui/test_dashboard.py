"""The only widget: whole lines for Textual, only changed cells for the terminal."""

import re

import pyte
import pytest
from textual.app import App, ComposeResult

from amptui.tui.canvas import Canvas
from amptui.tui.canvas_app import Dashboard
from amptui.tui.style import BOLD, Style
from tests.tui.watching import awaited


class Page:
    """What is to be drawn, a line each, and what was written past Textual."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)
        self.written: list[str] = []
        self.frames = 0

    def paint(self, canvas: Canvas) -> None:
        self.frames += 1
        for y, text in enumerate(self.texts):
            canvas.text(0, y, text, Style.FP32 if y % 2 else Style.FP16 | BOLD)


class Host(App[None]):
    """An app with nothing but the dashboard."""

    def __init__(self, page: Page, **options: bool) -> None:
        super().__init__(ansi_color=True)
        both = {"ascii_only": False, "no_color": False, **options}
        self.dashboard = Dashboard(
            page.paint, page.written.append, ascii_only=both["ascii_only"], no_color=both["no_color"]
        )

    def compose(self) -> ComposeResult:
        yield self.dashboard

    def on_mount(self) -> None:
        self.screen.styles.overflow_x = self.screen.styles.overflow_y = "hidden"
        self.dashboard.styles.width = self.dashboard.styles.height = "100%"


def text(dashboard: Dashboard) -> list[str]:
    return [dashboard.render_line(y).text for y in range(dashboard.size.height)]


@awaited
async def test_only_changed_cells_are_written_and_give_the_same_screen() -> None:
    page = Page("step 1", "loss 0.5000000")
    app = Host(page)
    screen = pyte.Screen(40, 5)
    stream = pyte.Stream(screen)
    async with app.run_test(size=(40, 5)) as pilot:
        app.dashboard.repaint()
        await pilot.pause()
        stream.feed("\r\n".join(line.rstrip() for line in text(app.dashboard)))
        page.texts = ["step 2", "loss 0.5000001", "", "new"]
        app.dashboard.repaint()
        (written,) = page.written
        stream.feed(written)
        assert [line.rstrip() for line in screen.display] == ["step 2", "loss 0.5000001", "", "new", ""]
        # Three cells here and there: not one of the cells that stay is written again.
        assert re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", written) == "21new"
        assert text(app.dashboard)[0].startswith("step 2")


@awaited
async def test_what_textual_draws_again_by_itself_is_the_newest_frame() -> None:
    page = Page("step 1")
    app = Host(page)
    async with app.run_test(size=(40, 5)) as pilot:
        app.dashboard.repaint()
        await pilot.pause()
        page.texts = ["step 2"]
        app.dashboard.repaint()
        assert "step&#160;2" in app.export_screenshot()


@pytest.mark.parametrize(
    ("options", "coloured"), [({"no_color": True}, False), ({"no_color": False}, True)], ids=str
)
@awaited
async def test_colours_are_left_out_where_they_are_not_wanted(
    options: dict[str, bool], *, coloured: bool
) -> None:
    page = Page("a", "b")
    app = Host(page, **options)
    async with app.run_test(size=(40, 5)):
        app.dashboard.repaint()
        page.texts = ["c", "d"]
        app.dashboard.repaint()
        codes = re.findall(r"\x1b\[([0-9;]+)m", "".join(page.written))
        assert any(re.search(r"\b[39]\d\b", code) for code in codes) is coloured
        assert any("1" in code.split(";") for code in codes)  # bold is no colour
