"""One training under the whole app in a pseudo-terminal, seen from outside while it runs."""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import psutil

from amptui.records.run import Record, RunFailed, RunFinished
from tests.benchmarks.workloads import WARM_UP_STEPS
from tests.builders import StepRow, of, read
from tests.terminal import Terminal

LOOK_INTERVAL_SECONDS = 0.25

LEAVING_SECONDS = 60.0

PANEL_TITLES = ("╭ loss", "╭ comparison", "╭ throughput", "╭ loss scale", "╭ memory", "╭ events")

_LAST_WORDS = (b'"RunFinished"', b'"RunFailed"')


@dataclass(frozen=True, slots=True)
class Look:
    """What a program had done by ``time`` (Unix seconds)."""

    time: float
    written_bytes: int
    main_thread_cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Shown:
    """From ``time`` (Unix seconds) on the screen showed ``step``."""

    time: float
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One training's journal and what was seen of it."""

    records: tuple[Record, ...]
    looks: tuple[Look, ...]
    shown: tuple[Shown, ...]

    @property
    def steps(self) -> list[StepRow]:
        """Every step, the warm-up's too."""
        return of(StepRow, self.records)

    @property
    def step_rate(self) -> float:
        """Steps a second after the warm-up, validation excluded; raises ValueError if none was measured."""
        seconds = [
            s.step_seconds for s in self.steps if s.step > WARM_UP_STEPS and s.step_seconds is not None
        ]
        if not seconds:
            raise ValueError("no step was measured")
        return len(seconds) / sum(seconds)

    def per_second(self, quantity: str) -> float:
        """How fast a field of :class:`Look` grew from the end of the warm-up to the last step."""
        ends = [s.time for s in self.steps if s.step == WARM_UP_STEPS or s is self.steps[-1]]
        values = [getattr(look, quantity) for look in self.looks]
        first, last = np.interp(ends, [look.time for look in self.looks], values)
        return float((last - first) / (ends[1] - ends[0]))

    def glass_seconds(self) -> list[float]:
        """For each step after the warm-up that the screen reached: from its record to the screen.

        A step is on the screen from the moment when the screen first shows its number or a higher one.
        """
        numbers = np.maximum.accumulate([shown.step for shown in self.shown])
        steps = [s for s in self.steps if WARM_UP_STEPS < s.step <= numbers[-1]]
        places = np.searchsorted(numbers, [s.step for s in steps])
        return [self.shown[place].time - s.time for place, s in zip(places, steps, strict=True)]


def watch(
    command: Sequence[str],
    journal: Path,
    *,
    env: Mapping[str, str],
    limit_seconds: float,
) -> Watched:
    """Run ``command``, a training that ends by itself, in a terminal of 120x40 until it has ended.

    Raises RuntimeError if the run failed, AssertionError if it did not end.
    """
    limit = time.monotonic() + limit_seconds
    looks: list[Look] = []
    shown: list[Shown] = []
    with Terminal(command, env=env) as terminal:
        terminal.wait_for(r"\A.*step +\d", seconds=limit_seconds)
        process, written_bytes = psutil.Process(terminal.process.pid), len(terminal.written)
        with journal.open("rb") as growing:
            looks.append(Look(time.time(), written_bytes, main_thread_cpu_seconds(process)))
            while not _ended(growing):
                assert time.monotonic() < limit, f"the training did not end:\n{terminal.text}"
                written_bytes += _take(terminal, shown)
                looks.append(Look(time.time(), written_bytes, main_thread_cpu_seconds(process)))
        _leave(terminal)
    return Watched(records=finished_run(journal), looks=tuple(looks), shown=tuple(shown))


def _leave(terminal: Terminal) -> None:
    """Press q until the screen, which may not have heard yet that the run is over, has left."""
    limit = time.monotonic() + LEAVING_SECONDS
    while terminal.process.poll() is None:
        assert time.monotonic() < limit, f"the screen did not leave:\n{terminal.text}"
        terminal.press("q")
        terminal.read(LOOK_INTERVAL_SECONDS)
    terminal.wait()


def finished_run(journal: Path) -> tuple[Record, ...]:
    """The records of a run that ended as asked; raises RuntimeError for any other."""
    records = tuple(read(journal))
    failures = [record for record in records if isinstance(record, RunFailed)]
    if failures:
        raise RuntimeError(f"the run failed: {failures[0].error}\n{failures[0].traceback}".strip())
    if not any(isinstance(record, RunFinished) for record in records):
        raise RuntimeError(f"the run never ended: {records[-1:]}")
    return records


def main_thread_cpu_seconds(process: psutil.Process) -> float:
    """What the main thread, which draws the screen, has used of the processor."""
    return next(t.user_time + t.system_time for t in process.threads() if t.id == process.pid)


def shown_step(terminal: Terminal) -> int | None:
    """The step in the screen's top line; None while there is none."""
    found = re.search(r"step +([\d,]+)", terminal.screen.display[0])
    return int(found[1].replace(",", "")) if found else None


def _take(terminal: Terminal, shown: list[Shown]) -> int:
    """Read for one interval; return how many bytes there were."""
    until = time.monotonic() + LOOK_INTERVAL_SECONDS
    count = 0
    while (left := until - time.monotonic()) > 0:
        before = len(terminal.written)
        terminal.read(left)
        count += len(terminal.written) - before
        step = shown_step(terminal)
        if step is not None and (not shown or step != shown[-1].step):
            shown.append(Shown(time.time(), step))
    return count


def _ended(growing: BinaryIO) -> bool:
    """Whether the run's last word is in what was appended since the last call."""
    added = growing.read()
    # A word that was read in half is read whole the next time.
    growing.seek(max(0, growing.tell() - max(map(len, _LAST_WORDS))))
    return any(word in added for word in _LAST_WORDS)
