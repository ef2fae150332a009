"""What is said of a measurement, as lines and as JSON, from measurements made by hand."""

import io
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len

from amptui.base.errors import AmptuiError
from amptui.records.findings import ModelCompiled, PrecisionMeasured
from amptui.records.run import Note
from amptui.reports.bench.measure import Progress
from amptui.reports.bench.results import Bench, Measured, Plan, report_json, report_lines
from amptui.telemetry.events import event_of
from amptui.telemetry.flops import flops_now
from amptui.telemetry.view import Comparison, SessionView
from tests import poison
from tests.golden import Goldens
from tests.reports.bench.measurements import RUN, amp, bench, measured, timing
from tests.reports.texts import json_text
from tests.telemetry import record_samples as samples

NAN = float("nan")
LAUNCH_BOUND = (timing("fp32", 0.005), timing("fp16", 0.004, bound="launch"))


def changed(size: Measured, **compared: Any) -> Measured:
    """With another result of the comparison."""
    assert size.view.compared is not None
    return replace(size, view=replace(size.view, compared=replace(size.view.compared, **compared)))


def counted(**changes: Any) -> Measured:
    """FLOPs of both precisions are known, of fp16 a lower bound and with an unaligned product."""
    head = samples.product("head", sizes=(256, 10, 512))
    flops = [samples.flops("fp32", flops=10**12), samples.flops("fp16", flops=10**12, uncounted=("mine",))]
    flops[1] = replace(flops[1], unaligned_flops=5 * 10**11, unaligned=(head,))
    return measured(
        amp(), flops=tuple(flops_now(item, 9.0, changes.get("run", RUN)) for item in flops), **changes
    )


def skipped_all() -> PrecisionMeasured:
    """A precision of which every step was skipped."""
    row = replace(amp(), blocks=0, steps=0, step_seconds=None, samples_per_second=None, skipped=26)
    return replace(row, speedup=None, speedup_low=None, speedup_high=None)


COMPILED = tuple(
    event_of(ModelCompiled(time=1.0, step=1, precision=name, training=True, seconds=seconds, what="again"))
    for name, seconds in (("fp16", 9.62), ("fp32", 41.2), ("fp32", 20.0))
)
"""The newest first."""


REPORTS: dict[str, Callable[[], Bench]] = {
    "a clear gain": lambda: bench(measured(amp()), channels_last=True),
    "every step skipped": lambda: bench(measured(skipped_all())),
    "FLOP/s": lambda: bench(counted()),
    "FLOP/s of a CPU": lambda: bench(counted(run=replace(RUN, device="cpu"))),
    "FLOPs that vary": lambda: bench(
        measured(amp(), flops=(flops_now(samples.flops("fp32", shapes_vary=True), 0.05, RUN),))
    ),
    "a little gain, explained": lambda: bench(
        measured(amp(1.01), timings=LAUNCH_BOUND, comparison=Comparison(memory_saving=-0.18))
    ),
    "slower, explained": lambda: bench(
        measured(
            amp(1 / 36),
            timings=(timing("fp32", 0.005), timing("fp16", 0.18)),
            comparison=Comparison(baseline="fp32", low="fp16", speedup=1 / 36),
        )
    ),
    "one failed": lambda: bench(changed(measured(amp()), failed={"bf16": "no kernel for bfloat16"})),
    "left out": lambda: replace(
        bench(measured(amp())), plan=Plan((), {"tf32": "no TF32 here"}), interrupted=True
    ),
    "three sizes, the last too large": lambda: bench(
        measured(amp(0.5), batch_size=32),
        measured(amp(2.0), batch_size=1024),
        measured(batch_size=2048, error=AmptuiError("no memory left"), compared=None),
    ),
    "nothing measured": lambda: bench(
        Measured(batch_size=None, view=SessionView(), error=AmptuiError("no such layer"))
    ),
    "NaN and no peak": lambda: bench(measured(amp(last_loss=NAN, peak_allocated_bytes=None))),
    "unknown bound": lambda: bench(measured(amp(), timings=(timing("fp32", 0.005, bound="unknown"),))),
    "FP8 no faster than bf16": lambda: bench(
        measured(amp(1.6, precision="bf16", skipped=0), amp(1.632, precision="fp8", skipped=0))
    ),
    "compiled, launch-bound": lambda: bench(
        measured(amp(), events=COMPILED, timings=LAUNCH_BOUND), compile_mode="reduce-overhead"
    ),
}


def test_each_report_as_lines(goldens: Goldens) -> None:
    reports = [f"== {name}\n" + "\n".join(report_lines(make())) for name, make in REPORTS.items()]
    goldens.check("reports/bench", "\n\n".join(reports))


def test_each_report_as_strict_json(goldens: Goldens) -> None:
    for name in ("FLOP/s", "compiled, launch-bound"):
        goldens.check(
            f"reports/bench json, {name.replace('/', ' per ')}", json_text(report_json(REPORTS[name]()))
        )
    goldens.check_digests({name: json_text(report_json(make())) for name, make in REPORTS.items()})


# ------------------------------------------------------------------------------ while it measures


@pytest.mark.parametrize("on_terminal", [True, False])
def test_progress_stays_in_its_line(on_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return on_terminal

    monkeypatch.setenv("COLUMNS", "40")
    out = Stream()
    progress = Progress(out)
    for number, text in enumerate((*poison.STEERING, poison.FORGED, "漢字" * 30), 1):
        progress.show(f"data {text} 漢字{text * 9}")
        note = event_of(Note(time=0.0, severity="warning", text=text))
        progress.warn(SessionView(events=(replace(note, number=number),)))
    written = out.getvalue()
    if on_terminal:
        rewritten = re.findall("\r([^\r\n]+)\x1b\\[K", written)
        assert len(rewritten) == len(poison.STEERING) + 2
        assert max(map(cell_len, rewritten)) <= 39
        written = written.replace("\x1b[K", "").replace("\r", "")
    assert not poison.strange_in_lines(written.encode())
