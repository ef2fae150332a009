"""Steps in a precision that cannot be switched to are shown on every surface; AMP is not judged by them."""

from dataclasses import replace
from pathlib import Path

import pytest

from amptui.diagnosis.labels import precision_label, precision_letter
from amptui.diagnosis.summary import summary_lines
from amptui.process.plain_lines import status_line
from amptui.records.findings import PhaseSeconds, StepTimed
from amptui.records.own_loop import OTHER_PRECISIONS
from amptui.records.run import Record
from amptui.reports.compare.contrasts import compared
from amptui.reports.export import export
from amptui.tui.canvas import Canvas
from amptui.tui.frame import Frame
from tests.reports.compare.compared_runs import figures, whole_run
from tests.reports.export.recorded import write
from tests.telemetry.memory_samples import memory
from tests.telemetry.record_samples import device, run, steps
from tests.telemetry.whole_runs import session_of
from tests.tui.panels.drawing import SCREEN

pytestmark = pytest.mark.parametrize("precision", OTHER_PRECISIONS)


def records(precision: str) -> list[Record]:
    """FP32 and then the other precision, twice as fast, with less memory, gradients and parts timed."""
    phases = (
        PhaseSeconds(name="forward", host_seconds=1e-4, device_seconds=1e-3),
        PhaseSeconds(name="backward", host_seconds=1e-4, device_seconds=2e-3),
    )
    timed = [
        StepTimed(time=101.0, step=number, precision=name, settling=False, phases=phases)
        for name in ("fp32", precision)
        for number in range(10, 20)
    ]
    return [
        run(precision=precision),
        *steps(1, 60),
        device(100.061, "fp32", 2**31),
        memory("fp32", activations=10**9, peak=2**31),
        *steps(61, 160, precision=precision, grad_max=0.25, step_seconds=0.002),
        device(100.161, precision, 2**30),
        memory(precision, activations=10**8, peak=2**30),
        *timed,
    ]


JUDGED = ("the speed of", "less peak memory", "faster", "slower", "if in float16", "headroom in float16")


def check_text(text: str, precision: str) -> None:
    assert precision_label(precision) in text or precision in text
    assert [words for words in JUDGED if words in text] == []


@pytest.mark.ci
@pytest.mark.parametrize("size", [(80, 24), (120, 40), (160, 50)])
@pytest.mark.parametrize("focus", [None, "comparison", "memory", "throughput", "numerics"])
def test_the_screen_names_it(precision: str, size: tuple[int, int], focus: str | None) -> None:
    canvas = Canvas(*size)
    Frame().draw(canvas, session_of(records(precision)).view(), replace(SCREEN, focus=focus))
    lines = canvas.lines()
    assert precision_label(precision) in lines[0]
    check_text("\n".join(lines), precision)
    ribbons = [line for line in lines if "▔" in line]
    assert all(f"{precision_letter(precision)}▔" in line for line in ribbons)
    assert ribbons or focus is not None


def test_plain_lines_and_the_summary_name_it(precision: str) -> None:
    view = session_of(records(precision)).view()
    check_text(status_line(view), precision)
    check_text("\n".join(summary_lines(view)), precision)


def test_a_page_and_a_table_name_it(precision: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "run", records(precision))
    export(folder, html=tmp_path / "run.html", csv=tmp_path / "run.csv")
    check_text((tmp_path / "run.html").read_text(), precision)
    assert f",{precision}," in (tmp_path / "run.csv").read_text()


def test_a_comparison_of_runs_names_it(precision: str) -> None:
    runs = [figures(whole_run(seed=seed, precision=name), name=f"{name}-{seed}")
            for name in ("fp32", precision) for seed in range(2)]  # fmt: skip
    comparison = compared(runs)
    assert {group.label for group in comparison.groups} == {"FP32", precision_label(precision)}
