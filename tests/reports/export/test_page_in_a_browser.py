"""Pages in a real browser: narrow and wide, light and dark, hostile or not; what is drawn and told."""

import json
import math
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from amptui.reports.export.exporting import export
from tests import poison
from tests.builders import write_journal
from tests.golden import Goldens
from tests.reports.texts import Reading, json_text
from tests.telemetry.record_samples import run as started
from tests.telemetry.record_samples import steps

pytestmark = pytest.mark.ci

VARIABLE = "AMPTUI_TEST_BROWSER"
"""Names a Chromium where none is on the PATH."""

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


DEMO = Path(__file__).parents[3] / "demo" / "mnist-deep.jsonl"


class Shown(NamedTuple):
    """A page as a browser made it."""

    reading: Reading
    result: Any
    """Of the test's expression."""
    console: str
    """What its console says."""


def show(page: Path, expression: str = "", *, dark: bool = False) -> Shown:
    """Open a page; only for an expression of the test without its policy, which allows none."""
    path = os.environ.get(VARIABLE)
    browser = shutil.which(path) if path else next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        pytest.skip(f"no Chromium: set {VARIABLE} to one, or have {' or '.join(NAMES[:3])} on the PATH")
    if expression:
        html = re.sub(r"<meta http-equiv[^>]*>", "", page.read_text())
        script = f"<script>document.body.dataset.result = JSON.stringify({expression})</script>"
        page = page.with_suffix(".asked.html")
        page.write_text(html.replace("</body>", f"{script}</body>"))
    completed = subprocess.run(
        [
            *(browser, "--headless", "--dump-dom", "--disable-gpu", "--hide-scrollbars"),
            *("--no-first-run", "--disable-background-networking", "--window-size=1280,900"),
            "--no-sandbox",  # a container has no user namespaces, and the page is our own
            "--enable-logging=stderr",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            f"--user-data-dir={page.parent / 'profile'}",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    reading = Reading(completed.stdout)
    (body,) = [own for tag, own in reading.tags if tag == "body"]
    console = "\n".join(line for line in completed.stderr.splitlines() if "CONSOLE" in line)
    return Shown(reading, json.loads(body.get("data-result", "null")), console)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "run.html"
    export(DEMO, html=path)
    return path


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    export(write_journal(folder / "run", poison.evil_records()), html=folder / "run.html")
    return folder / "run.html"


TOO_WIDE = """(() => {
  document.documentElement.style.width = "WIDTHpx";
  for (const each of document.querySelectorAll("details")) each.open = true;
  return [...document.querySelectorAll("body *")]
    .filter((e) => !e.closest(".wide") && !e.closest("svg") && e.getBoundingClientRect().right > WIDTH + 1)
    .map((e) => e.tagName + "." + e.className);
})()"""


@pytest.mark.parametrize(("width", "dark"), [(360, True), (1280, False)])
def test_a_page_fits_any_width_and_both_colour_schemes(
    page: Path, hostile_page: Path, width: int, dark: bool
) -> None:
    for path in (page, hostile_page):
        shown = show(path, TOO_WIDE.replace("WIDTH", str(width)), dark=dark)
        assert shown.result == []
        assert shown.console == ""
        assert [own.get("class") for tag, own in shown.reading.tags if tag == "svg"].count("area") >= 5


def test_hostile_texts_are_shown_and_not_run(hostile_page: Path, tmp_path: Path) -> None:
    shown = show(hostile_page)
    tags = [tag for tag, _ in shown.reading.tags]
    assert (tags.count("script"), "img" in tags, shown.console) == (1, False, "")
    assert shown.reading.texts.count(poison.EVIL) > 9
    # And if markup came through, the page's policy would not let it run.
    broken = tmp_path / "broken.html"
    broken.write_text(hostile_page.read_text().replace("</main>", f"{poison.EVIL}</main>"))
    shown = show(broken)
    assert "img" in [tag for tag, _ in shown.reading.tags], "the markup is in"
    assert shown.console.count("violates the following Content Security Policy") >= 2


def exported(tmp_path: Path, *records: Any) -> Path:
    export(write_journal(tmp_path / "run", [started(), *records]), html=tmp_path / "run.html")
    return tmp_path / "run.html"


DRAWN = """[".line", ".band", "stop", ".marks text", ".beyond", ".outside", ".ribbon text"].map((selector) =>
  [...document.querySelector("figure").querySelectorAll(selector)].map((each) => [
    each.getAttribute("class").trim(),
    each.getAttribute("d")?.match(/[ML]/g).length ?? each.getAttribute("x") ?? each.getAttribute("offset"),
    each.textContent,
    each.getAttribute("stroke") ?? each.getAttribute("fill") ?? getComputedStyle(each).stopColor,
  ]))"""


POINTED = """(() => {
  const area = document.querySelector(".area"), box = area.getBoundingClientRect();
  const told = () => [...document.querySelectorAll(".readout")].map((each) => each.textContent);
  const at = (kind, share) => {
    area.dispatchEvent(new PointerEvent(kind, { clientX: box.left + share * box.width }));
    return told();
  };
  return [told(), at("pointermove", 0.105), at("pointerdown", 0.9995), at("pointerleave", 0)];
})()"""


def test_charts_are_drawn_and_read_out_as_approved(tmp_path: Path, goldens: Goldens) -> None:
    """NaN has no point; a column of several steps has a band, with a gap where a precision has no value."""
    losses = [9000.0 if n == 30 else math.nan if n == 50 else 1 + n % 7 / 10 for n in range(1, 101)]
    precisions = ["fp32"] * 40 + ["fp16"] * 30 + ["fp4"] * 30
    skips = [n in (5, 6) for n in range(1, 101)]
    marked = exported(tmp_path / "marked", *steps(1, 100, loss=losses, precision=precisions, skipped=skips))
    values = [1 + n % 7 / 10 if not 1000 < n <= 1500 else None for n in range(1, 2501)]
    mixed = ["fp16" if loss is None else "fp32" for loss in values]
    in_columns = exported(tmp_path / "in columns", *steps(1, 2500, loss=values, precision=mixed))
    early = steps(1, 50, loss=2.0, losses={"a": 0.5, "b": 0.25})
    parts = exported(tmp_path / "parts", *early, *steps(51, 100, precision="fp16", loss=1.0))
    shown = [show(marked, DRAWN), show(in_columns, DRAWN), show(parts, POINTED)]
    assert [page.console for page in shown] == [""] * 3
    goldens.check("reports/page drawn", json_text([page.result for page in shown]))
