"""The memory by kind in its panel: bars, numbers, sentences, and what gives way where there is no room."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.diagnosis.labels import precision_glyph
from amptui.diagnosis.memory_use import memory_sentences
from amptui.records.findings import MemoryBreakdown
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels import memory_panel, memory_table
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import BOLD, Style
from tests.telemetry.memory_samples import memory as breakdown_of
from tests.telemetry.record_samples import xray
from tests.tui import views
from tests.tui.panels.drawing import SCREEN, draw_alone, style_of

MIB = 2**20

FP32 = breakdown_of("fp32", activations=1500 * MIB, peak=1850 * MIB)
FP16 = breakdown_of("fp16", activations=760 * MIB, copies=28 * MIB, peak=1138 * MIB, step=812)
BF16 = replace(breakdown_of("bf16", activations=760 * MIB, copies=28 * MIB, peak=1138 * MIB), step=900)


def with_memory(*breakdown_of: MemoryBreakdown, before: SessionView | None = None) -> SessionView:
    return replace(before or views.compared(), memory=breakdown_of)


def drawn(view: SessionView, width: int = 76, height: int = 20, *, ascii_only: bool = False) -> Canvas:
    canvas = Canvas(width, height, ascii_only=ascii_only)
    memory_table.draw(canvas, view, ScreenState(accepts=view.accepts))
    return canvas


def lines(view: SessionView, width: int = 76, height: int = 20) -> list[str]:
    return [line.rstrip() for line in drawn(view, width, height).lines()]


def row(view: SessionView, kind: str) -> list[str]:
    (line,) = (line for line in lines(view) if line[2:].startswith(kind) and "MiB" in line)
    return line[2:].split()


def test_each_kind_has_its_bytes_in_each_precision_and_what_amp_changes() -> None:
    view = with_memory(FP32, FP16)
    assert row(view, "weights") == ["weights", "float32", "56.0", "MiB", "56.0", "MiB", "the", "same"]
    assert row(view, "optimizer") == ["optimizer", "float32", "112", "MiB", "112", "MiB", "the", "same"]
    assert row(view, "cast copies") == ["cast", "copies", "float16", "–", "28.0", "MiB", "+28.0", "MiB"]
    assert row(view, "activations") == ["activations", "1.46", "GiB", "760", "MiB", "-740", "MiB"]
    assert row(view, "other") == ["other:", "data,", "batch", "126", "MiB", "126", "MiB", "the", "same"]


def test_what_amp_saves_and_what_it_costs_have_inks_of_their_own() -> None:
    canvas = drawn(with_memory(FP32, FP16))
    assert style_of(canvas, "-740 MiB") == Style.GOOD
    assert style_of(canvas, "+28.0 MiB") == Style.WARNING
    assert style_of(canvas, "▲ AMP fp16") == Style.FP16 | BOLD


def test_the_parts_of_a_bar_are_as_long_as_their_bytes_and_share_one_scale() -> None:
    full, amp = (line[11:66] for line in lines(with_memory(FP32, FP16))[1:3])
    assert len(full) == 55
    assert full.count("░") == pytest.approx(55 * 1500 / 1850, abs=1)
    assert amp.count("░") == pytest.approx(55 * 760 / 1850, abs=1)
    assert len(amp.rstrip()) == pytest.approx(55 * 1138 / 1850, abs=1)
    assert "▚" in amp
    assert "▚" not in full


def test_a_bar_ends_in_its_peak() -> None:
    assert [line.split()[-2:] for line in lines(with_memory(FP32, FP16))[1:3]] == [
        ["1.81", "GiB"],
        ["1.11", "GiB"],
    ]


def test_without_a_peak_nothing_is_shown_of_activations() -> None:
    view = with_memory(breakdown_of("fp32"), breakdown_of("bf16", copies=28 * MIB), before=views.no_nvml())
    text = lines(view)
    assert text[0].startswith("memory of a step without activations")
    assert not any(line[2:].startswith(("activations  ", "other")) for line in text)
    assert text[1].endswith("224 MiB")
    _, missing = memory_sentences(view.memory, None, view.accepts)
    assert missing in " ".join(line.strip() for line in text)
    assert "press x" in missing


def test_one_precision_alone_has_no_changes() -> None:
    text = lines(with_memory(FP32))
    assert not any("changes" in line for line in text)
    (sentence,) = memory_sentences([FP32], None)
    assert sentence in " ".join(text)


def test_of_three_precisions_the_newest_amp_s_changes_are_shown() -> None:
    text = lines(with_memory(FP32, FP16, BF16), 110, 30)
    assert any(line.endswith("bf16 changes") for line in text)
    copies = [line for line in text if line[2:].startswith("cast copies") and "MiB" in line]
    assert [line.split()[3:] for line in copies] == [
        ["float16", "–", "28.0", "MiB", "–"],
        ["bfloat16", "–", "–", "28.0", "MiB", "+28.0", "MiB"],
    ]


def test_what_the_xray_found_stands_below() -> None:
    view = with_memory(FP32, FP16)
    numerics = replace(view.numerics, xray=xray(saved_bytes_fp32=236 * MIB, saved_bytes_amp=121 * MIB))
    *_, sentence = memory_sentences(view.memory, numerics.xray)
    assert sentence in " ".join(lines(replace(view, numerics=numerics)))
    assert "236 MiB" in sentence


@pytest.mark.parametrize("width", [44, 50])
def test_a_sentence_that_is_cut_says_so(width: int) -> None:
    view = with_memory(FP32, FP16)
    (sentence,) = memory_sentences(view.memory, None)
    begin, cut = sentence[:20], 0
    for height in range(7, 30):
        text = " ".join(" ".join(lines(view, width, height)).split())
        if begin in text and sentence not in text:
            cut += 1
            assert "…" in text[text.index(begin) :]
    assert cut


def test_kinds_are_explained_where_there_is_room() -> None:
    view = with_memory(FP32, FP16)
    assert any(line.startswith("activations: saved for the backward") for line in lines(view, 110, 30))
    assert not any(line.startswith("activations: ") for line in lines(view, 76, 14))


def test_the_smallest_rows_give_way_first_and_nothing_is_cut_short() -> None:
    view = with_memory(FP32, FP16)
    tall, low = lines(view, 76, 20), lines(view, 76, 9)
    assert any("buffers" in line and "KiB" in line for line in tall)
    assert [line[2:].split()[0] for line in low[4:7]] == ["optimizer", "activations", "other:"]
    assert low[7].startswith("peak fell by")


def test_narrow_panels_leave_out_dtypes_and_add_them_up() -> None:
    text = lines(with_memory(FP32, FP16), 37, 20)
    assert not any("float32 " in line for line in text)
    (buffers,) = (line for line in text if line[2:].startswith("buffers"))
    assert buffers.split()[2:] == ["30.1", "KiB", "30.1", "KiB"]
    assert all(len(line) <= 37 for line in text)


SIZES = st.none() | st.integers(0, 2**45)


@given(
    sizes=st.lists(st.tuples(st.integers(0, 2**45), SIZES, SIZES), min_size=1, max_size=4),
    width=st.integers(36, 120),
    height=st.integers(9, 40),
)
def test_whatever_was_measured_can_be_drawn(
    sizes: list[tuple[int, int | None, int | None]], width: int, height: int
) -> None:
    breakdowns = [
        replace(
            breakdown_of(precision, peak=peak),
            kinds=breakdown_of(precision, activations=activations, copies=copies).kinds[5 * (whole % 2) :],
        )
        for precision, (whole, activations, copies), peak in zip(
            ("fp32", "tf32", "fp16", "bf16"), sizes, (None, 0, 2**20, 2**45), strict=False
        )
    ]
    canvas = drawn(with_memory(*breakdowns), width, height)
    for y, breakdown in enumerate(breakdowns, 1):
        assert precision_glyph(breakdown.precision) in canvas.lines()[y]


@pytest.mark.parametrize(("width", "height"), [(35, 20), (76, 6)])
def test_there_is_room_for_a_title_the_bars_and_three_rows_or_for_nothing(width: int, height: int) -> None:
    view = with_memory(FP32, FP16)
    assert not memory_table.has_room(Canvas(width, height), view)
    assert memory_table.has_room(Canvas(36, 7), view)
    assert not memory_table.has_room(Canvas(76, 20), views.compared())


def test_an_ascii_terminal_tells_the_kinds_apart_too() -> None:
    canvas = drawn(with_memory(FP32, FP16), ascii_only=True)
    bar = canvas.lines()[2]
    assert all(fill in bar for fill in "#%=x-.")
    assert all(line.isascii() for line in canvas.lines())


def test_the_small_panel_stays_as_it_was() -> None:
    before, after = views.compared(), with_memory(FP32, FP16)
    for width, height in ((34, 6), (30, 11), (60, 8)):
        small = draw_alone(memory_panel.draw, before, width, height).lines()
        assert draw_alone(memory_panel.draw, after, width, height).lines() == small


def test_the_breakdown_stands_below_what_nvml_says() -> None:
    text = draw_alone(memory_panel.draw, with_memory(FP32, FP16), 76, 20, screen=SCREEN).lines()
    assert text[0].startswith("▸GPU0")
    assert not text[5].strip()
    assert text[6].startswith("where the peak memory is")


def test_a_run_without_samples_shows_its_breakdown_all_the_same() -> None:
    view = replace(with_memory(FP32, FP16), device=None)
    text = draw_alone(memory_panel.draw, view, 76, 20).lines()
    assert text[0].startswith("where the peak memory is")
    small = draw_alone(memory_panel.draw, view, 34, 6).lines()
    assert any(memory_panel.NO_SAMPLE in line for line in small)
