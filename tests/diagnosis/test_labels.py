"""Every precision that a step can run in has a label, a letter, a glyph and a colour, on every surface."""

import pytest

from amptui.diagnosis.labels import precision_glyph, precision_label, precision_letter, signed_label
from amptui.diagnosis.speed import why_no_ratio
from amptui.records.run import PRECISION_ORDER, PRECISIONS
from amptui.reports.export.markup import css_class
from amptui.telemetry.comparison import compare
from amptui.tui.canvas import Canvas
from amptui.tui.style import precision_style
from tests.telemetry.record_samples import steps
from tests.telemetry.whole_runs import session_of


@pytest.mark.parametrize("tell", [precision_label, precision_letter, precision_glyph, signed_label])
def test_no_two_precisions_are_told_alike(tell: object) -> None:
    assert callable(tell)
    words = [tell(name) for name in PRECISION_ORDER]
    assert len(set(words)) == len(words)


@pytest.mark.parametrize(
    ("name", "label", "letter"),
    [
        ("fp16 weights", "fp16 weights", "H"),
        ("bf16 weights", "bf16 weights", "b"),
        ("float64", "float64", "D"),
        ("mixed", "mixed precisions", "M"),
        ("unknown", "precision unknown", "?"),
    ],
)
def test_other_precisions_have_labels(name: str, label: str, letter: str) -> None:
    assert (precision_label(name), precision_letter(name)) == (label, letter)


def test_glyphs_have_one_character_each_on_ascii_terminals() -> None:
    canvas = Canvas(len(PRECISION_ORDER), 1, ascii_only=True)
    canvas.text(0, 0, "".join(map(precision_glyph, PRECISION_ORDER)))
    (line,) = canvas.lines()
    assert line.isascii()
    assert len(set(line)) == len(PRECISION_ORDER)


def test_only_precisions_of_one_number_type_share_a_colour() -> None:
    assert precision_style("fp16 weights") == precision_style("fp16")
    assert css_class("fp16 weights") == "fp16"
    for name in ("float64", "mixed", "unknown"):
        assert css_class(name) == "other"
        assert precision_style(name) not in {precision_style(each) for each in PRECISIONS}


def test_a_run_without_fp32_and_amp_says_so() -> None:
    assert why_no_ratio(compare([])) == "no steps yet"
    view = session_of(steps(1, 40, precision="float64")).view()
    assert why_no_ratio(view.comparison) == "neither FP32 nor AMP ran"
