"""Runs of a list that is nowhere on a disk."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from amptui.runs.find import RunEntry
from amptui.runs.kept_run import KeptRun
from amptui.tui.run_list.frame import ListState

if TYPE_CHECKING:
    from amptui.base.errors import RunFolderError

NOW = 1_800_000_000.0

row = partial(KeptRun, name="", folder=Path())

ROWS = {
    "mnist-deep-20261125-201300": row(
        state="running",
        model="mnist-deep",
        precision="bf16",
        step=1200,
        total_steps=18_750,
        loss=0.0058,
        seconds=42.0,
        written=NOW,
        device="NVIDIA H200",
        host="here",
        pid=4711,
    ),
    "mnist-deep-20261125-201300-2": row(
        state="stalled",
        model="mnist-deep",
        precision="fp16",
        step=17,
        total_steps=18_750,
        loss=math.inf,
        seconds=60 * 60 * 26,
        written=NOW - 3,
        silent_seconds=161.0,
    ),
    "char-gpt-20261124-091500": row(state="paused", model="char-gpt", precision="ieee", step=999),
    "resnet50-20261124-091500": row(
        state="failed",
        model="resnet50",
        precision="bf16 weights",
        step=1_234_567,
        total_steps=10_000_000,
        loss=-1.5e-12,
        seconds=86_400 * 400,
        written=NOW - 86_400 * 1000,
        error="out of memory in step 340; use a smaller --batch-size",
    ),
    "./runs/mine": row(state="unreadable", error="cannot read the journal: permission denied"),
}

LIVE = tuple(ROWS)[:3]


def entry(name: str, row: KeptRun, *, is_live: bool | None = None) -> RunEntry:
    live = name in LIVE if is_live is None else is_live
    return RunEntry(
        run=f"/home/me/runs/{name}", name=name, is_live=live, written=row.written or 0.0, read=lambda: row
    )


ENTRIES = tuple(entry(name, row) for name, row in ROWS.items())

STATE = ListState(entries=ENTRIES, live=3, ended=2, rows={entry.run: ROWS[entry.name] for entry in ENTRIES})


class FakeSource:
    """A list that a test may change; or make unreadable."""

    def __init__(self, entries: Sequence[RunEntry] = ENTRIES) -> None:
        self.entries = list(entries)
        self.failure: RunFolderError | None = None

    def list_runs(self) -> list[RunEntry]:
        if self.failure is not None:
            raise self.failure
        return list(self.entries)
