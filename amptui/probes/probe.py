"""What every measurement is to a training: when it is due, what it does in a step, how its numbers arrive.

All of them together take a small part of the time: each has a budget.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from amptui.base.script_signals import is_from_signal_handler
from amptui.device.failure import explain
from amptui.device.readback import open_readback
from amptui.recipe.precision import Precision
from amptui.records.run import Note, Record

Answer = Callable[[str], object]
"""Answers a request once: takes "" when the result was emitted, else why there is none."""

Deliver = Callable[[Sequence[float] | None, float | None, float | None], object]
"""Takes a row (None if it was lost), the number beside it, and the seconds of the measurement."""

_CAPACITY = 8

GRADIENTS_BUDGET = 0.0012
WINDOW_BUDGET = 0.001
TIMELINE_BUDGET = 0.0006
BUFFERS_BUDGET = 0.0002
UPDATES_BUDGET = 0.0003
"""The fraction of the training's time that each measurement may take: gradient norms, float16 histograms,
timed steps, buffer checks and update ratios. Together 0.33%, so that watching a training does not slow it
down noticeably."""


class Moment(NamedTuple):
    """A step that is measured."""

    step: int
    precision: Precision
    assumed_scale: float = 1.0
    """The loss scale that ``fp16`` would start with, for steps in other precisions."""


class Probe:
    """One measurement. It knows what it measures, and not who makes the steps."""

    what: ClassVar[str]
    """Its name in a warning that there is none."""

    def is_due(self) -> bool:
        """Whether to measure the next step."""
        raise NotImplementedError

    def around(self) -> AbstractContextManager[object]:
        """The context of the forward and backward passes of a step in which it is due."""
        return nullcontext()

    def collect(self, moment: Moment) -> None:
        """Send what was measured in :meth:`around`."""

    def after_backward(self, moment: Moment) -> None:
        """Measure the gradients as backward left them, in a step in which it is due."""


class Cadence:
    """Decides when a measurement may be taken, so that it costs at most ``budget``, a fraction of the time.

    Each second earns ``budget`` seconds of credit, up to the cost of one measurement. A measurement is due
    when the credit covers its expected cost, the lower of the last two; then its real cost is deducted. The
    first ``free`` measurements (one or two) cost no credit: they run cold code and say little about later
    ones. What a measurement costs on a GPU is known only later; until it is charged, no other is due.
    """

    def __init__(
        self, budget: float, *, free: int = 2, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._budget = budget
        self._free = free
        self._clock = clock
        self._costs_seconds: deque[float] = deque(maxlen=2)
        self._credit_seconds = 0.0
        self._last = clock()
        self._uncharged = False

    def due(self) -> bool:
        """Whether a measurement may be taken now."""
        if self._uncharged:
            return False
        return self._free > 0 or self._credit_at(self._clock()) >= min(self._costs_seconds)

    @property
    def may_borrow(self) -> bool:
        """Whether an urgent measurement may be taken on credit: the one before is paid off.

        It is charged like any other, so the next one comes later.
        """
        return not self._uncharged and self._credit_at(self._clock()) >= 0.0

    def charge_since(self, began: float) -> None:
        """Charge a measurement that ``began`` at that time of the clock and ends now."""
        now = self._clock()
        self._credit_seconds, self._last = self._credit_at(began), now
        self.charge(now - began)

    def begin(self) -> None:
        """Begin a measurement whose cost :meth:`charge` gets later."""
        now = self._clock()
        self._credit_seconds, self._last = self._credit_at(now), now
        self._uncharged = True

    def charge(self, seconds: float | None) -> None:
        """Charge the last measurement; None if its cost was not measured."""
        self._uncharged = False
        if seconds is None:
            if not self._costs_seconds:
                return
            seconds = min(self._costs_seconds)
        if self._free:
            self._free -= 1
        else:
            self._credit_seconds -= seconds
        self._costs_seconds.append(seconds)

    def _credit_at(self, now: float) -> float:
        credit = self._credit_seconds + (now - self._last) * self._budget
        return min(credit, min(self._costs_seconds, default=0.0))


class Sender:
    """Brings what probes measure to the host, and keeps their errors from the training.

    Used by the thread that trains; nothing but :meth:`flush` waits for the device.
    """

    def __init__(self, device: torch.device, emit: Callable[[Record], object]) -> None:
        self.emit = emit
        self._reported_failures: set[str] = set()
        self.use(device)

    def use(self, device: torch.device) -> None:
        """Measure on ``device`` from now on."""
        self._device = device
        self._readback = open_readback(device, clock=time.perf_counter, capacity=_CAPACITY)
        self.begin_interval, self.drain = self._readback.begin_interval, self._readback.drain
        self.flush = self._readback.flush

    @contextmanager
    def suppress_errors(self, what: str, answers: list[Answer] | None = None) -> Iterator[None]:
        """Turn an error, a lack of memory for example, into one warning per ``what``; the run goes on.

        Within, autocast is off, which may be on in a script. ``answers`` are told what failed.
        """
        kind = self._device.type
        is_enabled = torch.is_autocast_enabled(kind)
        try:
            # To enter a context of autocast would tell our own hooks that a forward pass begins.
            torch.set_autocast_enabled(kind, False)
            yield
        except Exception as error:  # a tensor subclass may raise anything; the run must go on
            if is_from_signal_handler(error):
                raise
            why = explain(error, doing="between two steps", batch_size=None).what
            answer_all(answers, why)
            if what not in self._reported_failures:
                self._reported_failures.add(what)
                self.emit(Note(time=time.time(), severity="warning", text=f"no {what}: {why}"))
        finally:
            torch.set_autocast_enabled(kind, is_enabled)

    def push(self, row: Tensor, other: Tensor | None, deliver: Deliver, *, timed: bool = False) -> None:
        """Send ``row`` and one ``other`` number; ``timed``: what was enqueued since ``begin_interval``."""

        def split(values: Sequence[float] | None, seconds: float | None) -> None:
            if values is None or other is None:
                deliver(values, None, seconds)
            else:
                deliver(values[:-1], values[-1], seconds)

        self._readback.push([row] if other is None else [row, other], split, timed=timed)


def answer_all(answers: list[Answer] | None, trouble: str) -> None:
    """Answer everybody who asked, once."""
    while answers:
        answers.pop()(trouble)


def tensors_in(nest: object) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists and mappings, in order."""
    if isinstance(nest, Tensor):
        yield nest
    elif isinstance(nest, Mapping):
        yield from tensors_in(tuple(nest.values()))
    elif isinstance(nest, tuple | list):
        for value in nest:
            yield from tensors_in(value)


def dtype_name(dtype: torch.dtype) -> str:
    """``float16``."""
    return str(dtype).removeprefix("torch.")
