from dataclasses import replace

import pytest

from amptui.telemetry.view import SessionView
from amptui.tui.panels import oneliners
from tests.tui import numerics_views, views
from tests.tui.panels.drawing import Draw, draw_alone


def words(draw: Draw, view: SessionView, width: int = 80) -> str:
    return " ".join(draw_alone(draw, view, width).lines()[0].split())


@pytest.mark.parametrize(
    ("draw", "view", "text"),
    [
        (oneliners.throughput, views.compared(), "throughput 127 k samples/s 2.02 ms/step"),
        (oneliners.throughput, views.starting(), "throughput n/a n/a"),
        (oneliners.scale, views.fp32_only(), "loss scale no loss scale: only AMP fp16 uses one"),
        (
            oneliners.scale,
            views.with_skips(),
            "loss scale 8,192 doubles ━━──────── in 1,608 steps skipped 3 applied 701",
        ),
        (
            oneliners.scale,
            views.back_in_fp32(),
            "loss scale 65,536 kept while FP32 runs skipped 0 applied 500",
        ),
        (
            oneliners.scale,
            numerics_views.collapsing(),
            "loss scale 32 ✖ collapsing doubles ────────── in 2,000 steps skipped 12",
        ),
        (
            oneliners.scale,
            numerics_views.healthy(),
            "loss scale 65,536 doubles ━━━─────── in 1,396 steps skipped 0 applied 604",
        ),
        (oneliners.memory, views.starting(), "memory no sample yet"),
        (
            oneliners.comparison,
            views.compared(),
            "comparison 3.91 ms → 2.02 ms 38% less peak memory",
        ),
        (
            oneliners.comparison,
            views.first_impression(),
            "comparison ~583 ms → ~316 ms not enough steps: FP32 0 of 20, AMP 0 of 20",
        ),
        (oneliners.comparison, views.fp32_only(), "comparison no steps in AMP"),
        (oneliners.comparison, views.starting(), "comparison no steps counted yet"),
        (oneliners.loss, views.starting(), "loss waiting: importing torch"),
    ],
)
def test_a_panel_in_one_line(draw: Draw, view: SessionView, text: str) -> None:
    assert words(draw, view) == text


def test_memory_shows_the_gpu_that_trains() -> None:
    line = words(oneliners.memory, views.compared())
    assert line.startswith("memory ▸GPU0 ▰")
    assert line.endswith("3.10 / 139 GiB 93% busy")


def test_a_held_clock_takes_the_place_of_the_bar() -> None:
    line = words(oneliners.memory, views.two_gpus(), 68)
    assert line == "memory ▸GPU1 3.10 / 139 GiB ⚠ throttled: thermal (sw) +1"


def test_without_a_gpu_the_host_has_the_line() -> None:
    line = words(oneliners.memory, views.no_nvml())
    assert line.startswith("memory host ▰")
    assert line.endswith("12.0 / 31.0 GiB no NVIDIA GPU: NVML not found")


def test_a_memory_verdict_without_a_speed_keeps_the_reason() -> None:
    view = views.compared()
    half = replace(view.comparison, speedup=None, missing="steps")
    line = words(oneliners.comparison, replace(view, comparison=half))
    assert "38% less peak memory" in line
    assert "no steps yet" in line
