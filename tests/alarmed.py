"""A script whose alarms go off at random moments of open, steps, looks and close, and what became of each.

``python -m tests.alarmed ALARMS SEED`` writes one JSON object: how many fired, how many reached the script,
and where those were that did not.
"""

import gc
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

import torch

import amptui
from tests.observed import Loop

if TYPE_CHECKING:
    from amptui.guest.monitor import Monitor

MAX_STEPS = 40
"""At most so many alarms while a run makes steps, for one while it is opened and one while it is closed."""


class OwnTimeoutError(TimeoutError):
    """As many scripts have it: an OSError to those who catch these."""


class OwnError(Exception):
    """Of no kind that anybody else knows."""


class DisorderError(Exception):
    """An earlier alarm, in the middle of torch's own work, has left that in disorder."""


KINDS: tuple[type[Exception], ...] = (
    *(TimeoutError, OwnTimeoutError, ConnectionResetError, FileNotFoundError, BlockingIOError),
    *(ValueError, RuntimeError, KeyError, AttributeError, ImportError, OwnError),
)


class Alarms:
    """Sets one alarm at a time, whose handler raises, and counts."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.kind: type[Exception] = OwnError
        self.fired = self.reached = self.dropped = 0
        self.where = ""
        self.is_dropped = False
        self.lost: Counter[str] = Counter()
        self.seconds: dict[str, float] = {}
        self.phases: Counter[str] = Counter()
        signal.signal(signal.SIGALRM, self.ring)

    def ring(self, _number: int, frame: FrameType | None) -> None:
        self.fired += 1
        self.where = "".join(traceback.format_stack(frame)[-6:])
        self.is_dropped = self.kind is KeyError and asks_a_mapping(frame)
        raise self.kind(f"alarm {self.fired}")

    def during(self, phase: str, work: Callable[[], object]) -> None:
        """Do ``work`` with an alarm in the middle of it, or right after it; the first time without."""
        fired, self.kind = self.fired, self.random.choice(KINDS)
        began = time.perf_counter()
        if phase not in self.seconds:
            work()
            self.seconds[phase] = time.perf_counter() - began
            return
        try:
            self._ring_within(phase, work, fired, began)
        except self.kind as alarm:
            if f"alarm {self.fired}" not in alarm.args or self.fired == fired:
                raise
            self.reached += 1  # while what an earlier one had left in disorder was handled
            raise DisorderError from alarm
        self.phases[phase] += 1

    def _ring_within(self, phase: str, work: Callable[[], object], fired: int, began: float) -> None:
        expected = self.seconds[phase]
        try:
            signal.setitimer(signal.ITIMER_REAL, self.random.uniform(1e-5, expected))
            work()
            self.seconds[phase] += 0.1 * (time.perf_counter() - began - expected)
            while self.fired == fired:
                time.sleep(0)
        except Exception as error:
            if f"alarm {self.fired}" in error.args and self.fired > fired:
                self.reached += 1
            elif self.fired > fired:
                self.lose(phase, repr(error))
            else:
                signal.setitimer(signal.ITIMER_REAL, 0)
                raise DisorderError from error
        else:
            self.lose(phase, "")

    def lose(self, phase: str, instead: str) -> None:
        """An alarm did not reach the script."""
        if self.is_dropped:
            self.dropped += 1
        else:
            self.lost[f"{phase}: {self.kind.__name__} {instead}\n{self.where}"] += 1


def asks_a_mapping(frame: FrameType | None) -> bool:
    """Whether somebody other than amptui asks a mapping there, as torch asks ``os.environ`` in each step.

    ``Mapping.get`` takes any KeyError in the middle of it for a key that is missing: nobody hears of it.
    """
    is_get = False
    while frame is not None and frame.f_globals.get("__name__") in ("os", "collections.abc"):
        is_get = is_get or frame.f_code.co_name == "get"
        frame = frame.f_back
    return is_get and frame is not None and not frame.f_globals.get("__name__", "").startswith("amptui")


def step_of(loop: Loop, monitor: "Monitor", *, logs: bool) -> None:
    """A step, now and then with what scripts tell a monitor beside it."""
    loop.run(1)
    if logs:
        monitor.log(accuracy=0.5)
        with monitor.validation():
            monitor.log(loss=1.0)


def trial(alarms: Alarms, *, steps: int) -> None:
    """Alarms while a run is opened, while it makes ``steps``, and while it is closed."""
    watches = alarms.random.random() < 0.5
    loop = Loop(alarms.random.choice(["fp32", "bf16", "fp16"]))
    found: list[Monitor] = []

    def begin() -> None:
        opening = amptui.watch if watches else amptui.observe
        found.append(opening(loop.model, loop.optimizer))

    alarms.during("open", begin)
    if not found:
        begin()
    monitor = found[0]
    for _ in range(steps):
        alarms.during("step", partial(step_of, loop, monitor, logs=alarms.random.random() < 0.1))
        if monitor.loop is None or not monitor.loop.active:
            break
    if monitor.loop is not None and not monitor.loop.active:
        alarms.phases["faults"] += 1
    alarms.during("close", monitor.close)
    monitor.close()


def main(count: int, seed: int) -> None:
    alarms = Alarms(seed)
    torch.set_num_threads(1)
    gc.disable()
    began = time.perf_counter()
    while alarms.fired < count:
        torch.set_grad_enabled(True)
        gc.collect()  # not in the middle: Python drops what is raised in the callbacks of weak references
        gc.freeze()  # else nearly all alarms of an opening find it looking through what torch has imported
        with suppress(DisorderError):
            trial(alarms, steps=alarms.random.randrange(1, MAX_STEPS))
    found = {
        "fired": alarms.fired,
        "reached": alarms.reached,
        "dropped": alarms.dropped,
        "lost": alarms.lost.most_common(),
        "phases": alarms.phases,
        "seconds": {**alarms.seconds, "all": time.perf_counter() - began},
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as state:
        os.environ["XDG_STATE_HOME"] = state
        main(int(sys.argv[1]), int(sys.argv[2]))
