"""What every measurement is to a training: when it is due, what it does in a step, how its numbers arrive."""

import time
from collections.abc import Callable, Iterator, Sequence
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
