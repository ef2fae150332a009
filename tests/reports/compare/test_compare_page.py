"""The page of a comparison: self-contained, safe with any text, and drawn by a real browser."""

import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from amptui.base.errors import AmptuiError
from amptui.reports.compare.compare_page import page, write_page
from amptui.reports.compare.contrasts import Compared, compared
from amptui.reports.compare.following import read_all
from tests.reports.compare.compared_runs import BF16, FP32, figures, started, trained, validated, whole_run
from tests.reports.export.browser import browser


@pytest.fixture(scope="module")
def recorded() -> Compared:
    return read_all([*FP32, *BF16], target=None)


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.opened: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.opened.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def of(self, tag: str, class_: str) -> list[dict[str, str | None]]:
        return [
            attrs
            for name, attrs in self.opened
            if name == tag and class_ in (attrs.get("class") or "").split()
        ]


def test_the_page_has_a_chart_for_each_axis_and_a_band_for_each_group(recorded: Compared) -> None:
    found = Elements(page(recorded))
    assert len(found.of("figure", "chart")) == 3
    for colour in ("fp32", "bf16"):
        lines = [attrs for attrs in found.of("path", "line") if colour in (attrs["class"] or "")]
        assert len([attrs for attrs in lines if "stroke-dasharray" not in attrs]) == 3
        assert [attrs for attrs in found.of("path", "band") if colour in (attrs["class"] or "")]


def test_a_tail_is_dashed_where_other_runs_have_ended(recorded: Compared) -> None:
    dashed = [attrs for attrs in Elements(page(recorded)).of("path", "line") if "stroke-dasharray" in attrs]
    assert dashed  # by time: runs of a group differ in it


def test_the_page_has_the_figures_of_the_plain_text(recorded: Compared) -> None:
    words = " ".join(Elements(page(recorded)).words)
    for figure in ("0.404 [0.377–0.448]", "A fp32-seed2", "precision", "AMP bf16"):
        assert figure in words


def test_nothing_is_loaded_and_no_script_runs(recorded: Compared) -> None:
    text = page(recorded)
    found = Elements(text)
    assert not [tag for tag, _ in found.opened if tag in ("script", "img", "link", "iframe")]
    policy = next(attrs["content"] for tag, attrs in found.opened if tag == "meta" and "http-equiv" in attrs)
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert not re.search(r"https?://", text)


HOSTILE = "<script>alert(1)</script>\x1b[2J&\"'"


def test_no_text_of_a_run_becomes_markup() -> None:
    runs = [
        figures(whole_run(config={HOSTILE: HOSTILE}, model=HOSTILE, device_name=HOSTILE), name=HOSTILE),
        figures(whole_run(config={HOSTILE: 1}, precision=HOSTILE), name="other"),
    ]
    text = page(compared(runs))
    assert "<script" not in text
    assert "\x1b" not in text
    assert not [tag for tag, _ in Elements(text).opened if tag == "script"]


def test_runs_of_any_state_make_a_page() -> None:
    silent = figures([started()])
    broken = figures(whole_run([1.0] * 20 + [math.nan] * 20, precision="bf16"))
    page(compared([silent, broken]))
    page(compared([silent, figures([])]))
    found = Elements(page(compared([broken, figures(whole_run([1.0] * 40))])))
    assert found.of("text", "nonfinite")


def test_validations_have_charts_of_their_own() -> None:
    *records, end = whole_run(5.0)
    validating = figures([*records[:11], validated(10, 2.0), *records[11:], validated(30, 1.0), end])
    found = Elements(page(compared([validating, figures(trained([1.0] * 30, precision="bf16"))])))
    assert len(found.of("figure", "chart")) == 6


def test_a_page_that_cannot_be_written_is_told(recorded: Compared, tmp_path: Path) -> None:
    with pytest.raises(AmptuiError, match="cannot write"):
        write_page(recorded, tmp_path)
    write_page(recorded, tmp_path / "new" / "page.html")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["page.html"]


@pytest.mark.parametrize("width", [360, 1200])
def test_a_browser_draws_it_without_complaint(recorded: Compared, tmp_path: Path, width: int) -> None:
    place = tmp_path / "page.html"
    write_page(recorded, place)
    with browser(tmp_path / "profile") as tab:
        tab.open(place, width=width, height=900)
        assert tab.complaints == []
        assert tab.requests == [place.as_uri()]
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        lines = tab.evaluate("[...document.querySelectorAll('path.line')].map(p => p.getTotalLength())")
        assert min(lines) > 0
