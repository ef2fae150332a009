"""Pages in a real browser: a phone and a desk, by day and by night, without a network, hostile or not."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from amptui.reports.export import export
from tests.reports.export import hostile
from tests.reports.export.browser import Tab, browser
from tests.reports.export.recorded import write
from tests.telemetry.record_samples import run as started
from tests.telemetry.record_samples import step, steps

pytestmark = pytest.mark.ci

TOO_WIDE = """
[...document.querySelectorAll("body *")]
  .filter((e) => !e.closest(".wide") && !e.closest("svg"))
  .filter((e) => e.getBoundingClientRect().right > WIDTH + 1)
  .map((e) => e.tagName + "." + e.className)
"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture(scope="module")
def page(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "run.html"
    export(run, html=path)
    return path


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    export(write(folder / "run", hostile.records()), html=folder / "run.html")
    return folder / "run.html"


@pytest.mark.parametrize(("width", "height", "dark"), [(360, 640, True), (1280, 900, False)])
def test_the_page_fits_any_width_and_both_colour_schemes(
    tab: Tab, page: Path, hostile_page: Path, width: int, height: int, dark: bool
) -> None:
    for path in (page, hostile_page):
        tab.open(path, width=width, height=height, dark=dark)
        tab.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        assert tab.evaluate(TOO_WIDE.replace("WIDTH", str(width))) == []
        assert tab.evaluate("document.documentElement.scrollWidth") == width
        assert tab.evaluate("document.querySelectorAll('figure').length") >= 5
        assert tab.requests == [path.as_uri()]
        assert tab.complaints == []


def test_hostile_texts_are_shown_and_not_run(
    tab: Tab, page: Path, hostile_page: Path, tmp_path: Path
) -> None:
    tab.open(hostile_page, width=1280, height=900)
    assert tab.evaluate("document.querySelector('h1').textContent") == hostile.EVIL
    assert tab.evaluate("document.title") == f"{hostile.EVIL} · amptui"
    for selector in ("th", "summary", "pre", "dd", ".legend li", "figcaption output"):
        texts = tab.evaluate(f"[...document.querySelectorAll('{selector}')].map((e) => e.textContent)")
        assert any("<img src=x" in text for text in texts), selector
    assert tab.evaluate("[window.owned, document.scripts.length, document.images.length]") == [None, 1, 0]
    assert tab.requests == [hostile_page.as_uri()]
    assert tab.complaints == []
    # And if markup came through, the page's policy would not let it run.
    (tmp_path / "broken.html").write_text(page.read_text().replace("</main>", f"{hostile.EVIL}</main>"))
    tab.open(tmp_path / "broken.html", width=1280, height=900)
    assert tab.evaluate("document.images.length") == 1, "the markup is in"
    assert tab.evaluate("window.owned") is None
    refused = [about["blockedReason"] for name, about in tab.events if name == "Network.loadingFailed"]
    assert refused == ["csp"], "the image was not even looked for"
    assert "Content Security Policy" in "".join(tab.complaints)


DRAWN = """
[...document.querySelector("figure").querySelectorAll(SELECTOR)]
  .map((e) => e.getAttribute("class") + " " + TOLD)
"""


def drawn(tab: Tab, selector: str, told: str) -> list[str]:
    """The class of each such part of the first chart, and something of it."""
    found: list[str] = tab.evaluate(DRAWN.replace("SELECTOR", repr(selector)).replace("TOLD", told))
    return found


def test_a_chart_has_lines_in_the_colours_of_the_precisions_and_marks(tab: Tab, tmp_path: Path) -> None:
    losses = [9000.0 if n == 30 else math.nan if n == 50 else 1 + n % 7 / 10 for n in range(1, 101)]
    precisions = ["fp32"] * 40 + ["fp16"] * 30 + ["fp4"] * 30
    taken = [
        step(n, loss=loss, precision=precision, skipped=n in (5, 6))
        for n, (loss, precision) in enumerate(zip(losses, precisions, strict=True), 1)
    ]
    export(write(tmp_path / "run", [started(), *taken]), html=tmp_path / "run.html")
    tab.open(tmp_path / "run.html", width=1280, height=900)
    points = "(e.getAttribute('d').match(/[ML]/g) ?? []).length"
    assert drawn(tab, ".line", points) == ["line fp32 40", "line fp16 30", "line other 31"]
    assert drawn(tab, ".band", points) == [], "a column is a step"
    marks = ["skip 4.50%", "skip 5.50%", "nonfinite 49.50%"]
    assert drawn(tab, ".marks text", "e.getAttribute('x')") == marks
    assert drawn(tab, ".beyond", "e.textContent") == ["beyond ↑"]
    assert tab.evaluate("document.querySelector('.outside').textContent") == " ↑: values beyond the axis."
    letters = tab.evaluate(
        "[...document.querySelector('.ribbon').querySelectorAll('text')].map((e) => e.textContent)"
    )
    assert letters == ["F", "A", "?"]
    export(write(tmp_path / "long", [started(), *steps(1, 5000)]), html=tmp_path / "long.html")
    tab.open(tmp_path / "long.html", width=1280, height=900)
    assert len(drawn(tab, ".line", "''")) == 1
    assert tab.complaints == []


def readouts(tab: Tab) -> list[str]:
    readouts: list[str] = tab.evaluate("[...document.querySelectorAll('.readout')].map((e) => e.textContent)")
    return readouts


def test_pointing_at_a_chart_shows_the_step_in_all_charts(tab: Tab, tmp_path: Path) -> None:
    shown = [
        *steps(1, 50, loss=2.0, losses={"a": 0.5, "b": 0.25}),
        *steps(51, 100, precision="fp16", loss=1.0),
    ]
    export(write(tmp_path / "run", [started(), *shown]), html=tmp_path / "run.html")
    tab.open(tmp_path / "run.html", width=1280, height=900)
    newest = readouts(tab)
    assert newest[:2] == ["1.00", "a 0.500 · b 0.250"]
    x, y, width = tab.evaluate(
        "(() => { const box = document.querySelector('.area').getBoundingClientRect();"
        "return [box.left, box.top + 20, box.width] })()"
    )
    tab.point_at(x + 0.105 * width, y)
    assert readouts(tab)[:2] == ["step 11 FP32: 2", "step 11 FP32: a 0.5 · b 0.25"]
    assert all(text.startswith("step 11 FP32: ") for text in readouts(tab))
    tab.point_at(x + 0.9995 * width, y)
    assert readouts(tab)[0] == "step 100 AMP fp16: 1"
    tab.point_at(x, 1)
    assert readouts(tab) == newest
    assert tab.complaints == []
