"""Progress is emitted a few times a second, and never without its start, its end and each new detail."""

import time

from amptui.engine.phase_progress import INTERVAL_SECONDS, PhaseProgress
from amptui.records.run import PhaseChanged
from tests.tiny import Log


def test_progress_is_thinned_out_but_not_its_ends() -> None:
    log, began = Log(), time.monotonic()
    progress = PhaseProgress(log.emit, "data")
    for detail in ("downloading", "unpacking"):
        for count in range(101):
            progress.report(detail, count, 100, "samples")
    phases = [(phase.phase, phase.detail, phase.done) for phase in log.of(PhaseChanged)]
    ends = [("data", detail, count) for detail in ("downloading", "unpacking") for count in (0, 100)]
    assert [phase for phase in phases if phase in ends] == ends
    assert len(phases) <= len(ends) + (time.monotonic() - began) / INTERVAL_SECONDS
