from dataclasses import replace

import pytest

from amptui.diagnosis.bottleneck import throttled_words
from amptui.diagnosis.speed import less_memory
from amptui.telemetry.view import SessionView
from amptui.tui.panels import loss, memory_panel, precision_table, scale, throughput
from tests.tui import numerics_views, views
from tests.tui.panels.drawing import Draw, draw_alone


def words(draw: Draw, view: SessionView, width: int = 80) -> str:
    return " ".join(draw_alone(draw, view, width).lines()[0].split())


@pytest.mark.parametrize(
    ("draw", "view", "text"),
    [
        (throughput.draw_line, views.compared(), "throughput 127 k samples/s 2.02 ms/step"),
        (throughput.draw_line, views.starting(), "throughput n/a n/a"),
        (scale.draw_line, views.fp32_only(), "loss scale no loss scale: only AMP fp16 uses one"),
        (
            scale.draw_line,
            views.with_skips(),
            "loss scale 8,192 doubles ━━──────── in 1,608 steps skipped 3 applied 701",
        ),
        (
            scale.draw_line,
            views.back_in_fp32(),
            "loss scale 65,536 kept while FP32 runs skipped 0 applied 500",
        ),
        (
            scale.draw_line,
            numerics_views.collapsing(),
            "loss scale 32 ✖ collapsing doubles ────────── in 2,000 steps skipped 12",
        ),
        (
            scale.draw_line,
            numerics_views.healthy(),
            "loss scale 65,536 doubles ━━━─────── in 1,396 steps skipped 0 applied 604",
        ),
        (memory_panel.draw_line, views.starting(), "memory no sample yet"),
        (
            precision_table.draw_line,
            views.compared(),
            "comparison 3.91 ms → 2.02 ms 38% less peak memory",
        ),
        (
            precision_table.draw_line,
            views.first_impression(),
            "comparison ~583 ms → ~316 ms not enough steps: FP32 0 of 20, AMP 0 of 20",
        ),
        (precision_table.draw_line, views.fp32_only(), "comparison no steps in AMP"),
        (precision_table.draw_line, views.starting(), "comparison no steps counted yet"),
        (loss.draw_line, views.starting(), "loss waiting: importing torch"),
    ],
)
def test_a_panel_in_one_line(draw: Draw, view: SessionView, text: str) -> None:
    assert words(draw, view) == text


def test_memory_shows_the_gpu_that_trains() -> None:
    line = words(memory_panel.draw_line, views.compared())
    assert line.startswith("memory ▸GPU0 ▰")
    assert line.endswith("3.10 / 139 GiB 93% busy")


def test_a_throttled_clock_takes_the_place_of_the_bar() -> None:
    view = views.two_gpus()
    assert view.device is not None
    throttled = throttled_words(view.device.gpus[1], 34)
    assert words(memory_panel.draw_line, view, 68) == f"memory ▸GPU1 3.10 / 139 GiB {throttled}"
    assert "thermal" in throttled


def test_without_a_gpu_the_host_has_the_line() -> None:
    line = words(memory_panel.draw_line, views.no_nvml())
    assert line.startswith("memory host ▰")
    assert line.endswith(f"12.0 / 31.0 GiB {views.NO_NVML}")


def test_a_memory_verdict_without_a_speed_keeps_the_reason() -> None:
    view = views.compared()
    half = replace(view.comparison, speedup=None, missing="steps")
    line = words(precision_table.draw_line, replace(view, comparison=half))
    assert less_memory(0.38) in line
    assert "no steps yet" in line
