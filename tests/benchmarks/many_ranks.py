"""What the ranks of a distributed run cost rank 0 and a screen, by their number: bytes and CPU time.

    python -m tests.benchmarks.many_ranks [--seconds N] [--ranks N ...] [--json FILE]

Simulated ranks, with a slow one among them, post rows for the real report of rank 0, and give a sample for
each second of a run to the real recorder, session, journal, socket and screen. Rows are texts in memory:
what it takes to bring them over a network is no part of this. Prints a table and then one JSON object.
"""

import argparse
import json
import math
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

from amptui.process.recorder import Recorder
from amptui.ranks.agreement.rows import PostedRows, rows_seconds
from amptui.ranks.numbers.meter import RankNumbers, RankReport
from amptui.records import codec
from amptui.records.keeping import ViewersChanged
from amptui.records.ranks import RanksSampled, StandingOut, condensed
from amptui.records.run import Record
from amptui.runs import protocol
from amptui.runs.rundir import RunDir
from amptui.runs.server import Server
from amptui.telemetry.session import Session
from amptui.tui.canvas import Canvas
from amptui.tui.frame import Frame
from amptui.tui.painter import Painter
from amptui.tui.panels.screen_state import ScreenState
from tests.benchmarks.figures import columns
from tests.telemetry.record_samples import run
from tests.telemetry.simulated_ranks import SimulatedRanks

RANKS = (2, 8, 64, 1024, 4096, 16384)

SECONDS = 30

_HELLO = protocol.encode(protocol.Hello())

_ENOUGH_SECONDS = 60.0

_ROWS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one number of ranks, for each second of the run; CPU in seconds."""

    ranks: int
    rows_cpu: float
    """Reading the rows of all ranks at rank 0, in the thread beside the training."""
    rows_seconds: float
    """From one row of each rank to the next."""
    row_bytes: int
    """Of one row of each of the others, which rank 0 receives."""
    condense_cpu: float
    """Choosing what of a sample is kept."""
    record_cpu: float
    """What a sample adds to a look of the recorder: session, encoding, journal and socket."""
    journal_bytes: float
    """As many go to each screen."""
    screen_cpu: float
    """Reading, folding and four frames of 120x40."""
    painted_bytes: float
    """To the terminal."""
    state_bytes: int
    """Sent once to a screen that attaches."""
    places_bytes: int
    """Written once: where each rank runs."""
    found: bool
    """The slow rank has been found."""


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description="Measure what the ranks of a distributed run cost.")
    parser.add_argument("--seconds", type=int, default=SECONDS, help=f"of the run (default: {SECONDS})")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the JSON object there, too")
    options = parser.parse_args()
    costs = []
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory() as folder:
            costs.append(measure(Path(folder), ranks, options.seconds))
    report = json.dumps([asdict(cost) for cost in costs])
    print(table(costs))
    print(report)
    if options.json:
        options.json.write_text(f"{report}\n")
    return 0


def measure(folder: Path, ranks: int, seconds: int) -> Cost:
    """Feed ``seconds`` samples of so many ranks to a recorder in ``folder`` with one screen."""
    simulated = SimulatedRanks(ranks, 1, slow="compute", slow_rank=ranks // 2)
    samples = list(simulated.samples(seconds))
    began, standing_out = time.thread_time(), StandingOut()
    kept = [condensed(sample, standing_out) for sample in samples]
    condense_cpu = (time.thread_time() - began) / seconds

    started: list[Record] = [run(world_size=ranks, parallel="ddp"), simulated.started()]
    session, run_dir = Session(str(folder)), RunDir(folder)
    recorder = Recorder(session, run_dir, request={})
    screen = _Screen()
    server = _server(folder)
    server.adopt(screen.theirs)
    recorder.show_to(server)
    recorder.start()
    for record in started:
        recorder.emit(record)
    recorder.wait_until_kept(0)
    before = run_dir.journal_path.stat().st_size, _process_cpu(screen)
    for sample in kept:
        recorder.emit(sample)
        recorder.wait_until_kept(0)
    after = run_dir.journal_path.stat().st_size, _process_cpu(screen)
    idle = _idle_cpu(recorder, screen)
    recorder.close(_ENOUGH_SECONDS)
    state_bytes = len(session.state())
    server.close(1.0)
    screen.close()
    found = session.view().ranks
    rows_cpu, row_bytes = _rows_cost(samples[0])
    shown = _shown([*started, *kept], seconds)
    return Cost(
        ranks=ranks,
        rows_cpu=rows_cpu,
        rows_seconds=rows_seconds(ranks),
        row_bytes=row_bytes,
        condense_cpu=condense_cpu,
        record_cpu=(after[1] - before[1]) / seconds - idle,
        journal_bytes=(after[0] - before[0]) / seconds,
        screen_cpu=shown[0],
        painted_bytes=shown[1],
        state_bytes=state_bytes,
        places_bytes=len(codec.dumps(started[1])),
        found=found is not None and found.straggler is not None and found.straggler.rank == ranks // 2,
    )


class _AllRanks:
    """The board of rank 0 with ranks that always tell the same."""

    def __init__(self, sample: RanksSampled) -> None:
        columns = zip(
            sample.step_seconds, sample.data_seconds, sample.compute_seconds, sample.sm_clock_mhz, strict=True
        )
        rows = [
            RankNumbers(
                steps=8,
                last_step=1,
                step_seconds=step or math.nan,
                data_seconds=data or math.nan,
                compute_seconds=compute or math.nan,
                loss_scale=65536.0,
                sm_clock_mhz=clock or math.nan,
            )
            for step, data, compute, clock in columns
        ]
        self._texts = [json.dumps([0, *row]) for row in rows[1:]]
        self.bytes = sum(map(len, self._texts))
        self.read_rows = 0

    def post(self, name: str, value: object) -> None: ...

    def decide(self, name: str, value: object) -> None: ...

    def count(self, _name: str, _more: int = 0) -> int:
        return 1 << 60

    def read(self, _names: Sequence[str]) -> list[list[float]]:
        self.read_rows += 1
        return [json.loads(text) for text in self._texts]


def _rows_cost(sample: RanksSampled) -> tuple[float, int]:
    """CPU seconds of rank 0's thread for the rows of a second, and the bytes of one of each rank."""
    board: Any = _AllRanks(sample)
    report, hours = RankReport(lambda _record: None), count(0, 3600)
    rows = PostedRows(board, 0, sample.world_size, report, clock=lambda: next(hours))
    began = time.thread_time()
    while board.read_rows < _ROWS:
        rows.announce(0)
        rows.put(RankNumbers(steps=8, last_step=1))
        rows.announce(0)
    return (time.thread_time() - began) / _ROWS / rows_seconds(sample.world_size), board.bytes


def _idle_cpu(recorder: Recorder, screen: "_Screen") -> float:
    """CPU seconds of a look of the recorder that finds nothing."""
    began, looks = _process_cpu(screen), 20
    for _ in range(looks):
        recorder.wait_until_kept(0)
    return (_process_cpu(screen) - began) / looks


def _process_cpu(screen: "_Screen") -> float:
    """CPU seconds of this process without the thread that reads what screens read."""
    return time.process_time() - screen.cpu_seconds


def _server(folder: Path) -> Server:
    def obey(_request: object, _number: int) -> None: ...

    def changed(_change: ViewersChanged) -> None: ...

    server = Server(
        folder, hello={"version": "1", "pid": 1, "run_dir": str(folder)}, obey=obey, changed=changed
    )
    server.start()
    return server


class _Screen:
    """Takes what a screen is sent, and counts what that costs."""

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair()
        self.cpu_seconds = 0.0
        self._ours.sendall(_HELLO)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while self._ours.recv(1 << 20):
            self.cpu_seconds = time.thread_time()

    def close(self) -> None:
        self._thread.join(_ENOUGH_SECONDS)
        self._ours.close()


def _shown(records: Sequence[Record], seconds: int) -> tuple[float, float]:
    """CPU seconds and painted bytes of a screen, for each second of the run."""
    lines = [codec.dumps(record) for record in records]
    session, frame, painter, painted = Session(), Frame(), Painter(no_color=False), 0
    shown = Canvas(120, 40)
    began = time.thread_time()
    for second, line in enumerate(lines):
        record = codec.loads(line)
        session.fold([] if record is None else [record])
        for quarter in range(4):
            canvas = Canvas(120, 40)
            frame.draw(canvas, session.view(), ScreenState(now=100.0 + second + quarter / 4))
            if spans := canvas.changes_since(shown):
                painted += len(painter.paint(canvas, spans).encode())
            shown = canvas
    return (time.thread_time() - began) / seconds, painted / seconds


def table(costs: Sequence[Cost]) -> str:
    """One line for each number of ranks."""
    head = (
        "ranks",
        "read rows",
        "row bytes",
        "condense",
        "record",
        "journal",
        "screen",
        "painted",
        "at attach",
        "places",
        "slow rank",
    )
    rows = [
        (
            f"{cost.ranks:,}",
            f"{1000 * cost.rows_cpu:.2f} ms/s",
            f"{cost.row_bytes / 1000 / cost.rows_seconds:.1f} kB/s",
            f"{1000 * cost.condense_cpu:.2f} ms/s",
            f"{1000 * cost.record_cpu:.2f} ms/s",
            f"{cost.journal_bytes / 1000:.2f} kB/s",
            f"{1000 * cost.screen_cpu:.1f} ms/s",
            f"{cost.painted_bytes / 1000:.2f} kB/s",
            f"{cost.state_bytes / 1000:.0f} kB",
            f"{cost.places_bytes / 1000:.1f} kB",
            "found" if cost.found else "not found",
        )
        for cost in costs
    ]
    return columns([head, *rows])


if __name__ == "__main__":
    sys.exit(main())
