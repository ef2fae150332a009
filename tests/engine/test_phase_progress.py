"""Progress is emitted a few times a second, and never without its start, its end and each new detail."""

import time

from amptui.engine.phase_progress import INTERVAL_SECONDS, PhaseProgress
from amptui.records.run import PhaseChanged
from tests.tiny import Log


def test_progress_is_thinned_out_but_not_its_ends() -> None:
    log, began = Log(), time.monotonic()
    progress = PhaseProgress(log.emit, "data")
    for detail in ("downloading", "unpacking"):
        for done in range(101):
            progress.report(detail, done, 100, "samples")
    seen = [(each.phase, each.detail, each.done) for each in log.of(PhaseChanged)]
    ends = [("data", detail, done) for detail in ("downloading", "unpacking") for done in (0, 100)]
    assert [each for each in seen if each in ends] == ends
    assert len(seen) <= len(ends) + (time.monotonic() - began) / INTERVAL_SECONDS
