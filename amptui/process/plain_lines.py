"""Output without a screen: a few plain lines for a log file or a pipe, or every record as JSON."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TextIO

from amptui.base import units
from amptui.base.notification import notify
from amptui.base.prompt import complain
from amptui.base.text import NO_ROOM, fall_silent, write_line
from amptui.diagnosis.activity import phase_words
from amptui.diagnosis.alerts import Alerts
from amptui.diagnosis.amp_answer import amp_answer, answer_json, answer_line
from amptui.diagnosis.event_words import event_text
from amptui.diagnosis.labels import (
    SYNTHETIC,
    has_no_loss,
    loss_form_words,
    optimizers_left_out,
    precision_label,
    step_loss_words,
)
from amptui.diagnosis.summary import summary_lines
from amptui.diagnosis.words import short_words
from amptui.records import codec
from amptui.records.run import Record, RunFailed, RunFinished
from amptui.telemetry.events import Event
from amptui.telemetry.view import OptimizerView, SessionView

STATUS_INTERVAL_SECONDS = 5.0
"""Time between two status lines during training."""

_SIGNS = {"info": " ", "neutral": " ", "good": " ", "unknown": " ", "warning": "!", "error": "x"}
"""Of severities, and of the grades of a finding on AMP."""


class JsonLines:
    """Writes every record as one JSON object a line, the answer last."""

    def __init__(self, out: TextIO) -> None:
        self._out = LastingStream(out, "standard output")

    def __call__(self, records: Sequence[Record]) -> None:
        self._out.write("".join(f"{codec.dumps(record)}\n" for record in records))
        self._out.flush()

    def finish(self, view: SessionView) -> None:
        """Write the answer on AMP as the last line: no record, but what all records come to."""
        self._out.write(f"{answer_json(amp_answer(view))}\n")
        self._out.finish()


class PlainFront:
    """Follows a session with plain lines; ``alerts`` ring the bell if these lead to a terminal."""

    def __init__(
        self,
        read_view: Callable[[], SessionView],
        out: TextIO,
        *,
        alerts: Alerts | None = None,
        stop_asked: Callable[[], bool] = bool,
        resume_command: str = "",
    ) -> None:
        self._read_view = read_view
        self._out = out
        self._alerts = alerts
        self._stop_asked = stop_asked
        self._resume_command = resume_command
        self._last_number = 0
        self._error_numbers = set[int]()
        self._status_due = 0.0
        self._phase = ""
        self._status_step = 0
        self._status_front = ""
        self._answer: tuple[object, ...] = ()

    def update(self) -> None:
        """Write what happened since the last call; call it a few times a second."""
        self._write_news(self._read_view())

    def finish(self) -> None:
        """Write the last events and the summary."""
        view = self._read_view()
        self._write_news(view)
        for line in summary_lines(view, self._resume_command):
            write_line(self._out, line)

    def _write_news(self, view: SessionView) -> None:
        for event in self._new_events(view):
            write_line(self._out, event_line(event))
        phase = phase_words(view.phase)
        if phase != self._phase:
            self._phase = phase
            if phase and view.state == "starting":
                write_line(self._out, f"{_clock(time.time())}   {phase}")
        is_new = view.step > self._status_step or view.front != self._status_front
        if is_new and view.outcome is None and time.monotonic() >= self._status_due:
            self._status_due = time.monotonic() + STATUS_INTERVAL_SECONDS
            self._status_step, self._status_front = view.step, view.front
            write_line(self._out, f"{_clock(time.time())}   {status_line(view)}")
            answer = amp_answer(view)
            if answer.headline_key != self._answer:
                self._answer = answer.headline_key
                sign = _SIGNS[answer.safety_grade]
                write_line(self._out, f"{_clock(time.time())} {sign} {answer_line(answer)}")
        if self._alerts is not None and (text := self._alerts.news(view, stop_asked=self._stop_asked())):
            notify(self._out, text)

    def _new_events(self, view: SessionView) -> list[Event]:
        """The events since the last call, oldest first; one whose count grows is written once.

        It is written again when it has become an error, as skipped steps may.
        The end of the run is written by whoever says how it ended.
        """
        events = sorted((*view.events, *view.printed), key=lambda event: event.number)
        fresh = [
            event
            for event in events
            if event.number > self._last_number
            or (event.severity == "error" and event.number not in self._error_numbers)
        ]
        self._error_numbers.update(event.number for event in fresh if event.severity == "error")
        self._last_number = max([self._last_number, *(event.number for event in fresh)])
        return [event for event in fresh if not isinstance(event.about, RunFinished | RunFailed)]


def event_line(event: Event) -> str:
    """``12:04:31 ! step 612: overflow: step skipped, ...``."""
    step = f"step {event.step:,}: " if event.step else ""
    return f"{_clock(event.time)} {_SIGNS[event.severity]} {step}{event_text(event)}"


def status_line(view: SessionView) -> str:
    """The current numbers in one line, without those not measured."""
    last, run = view.last, view.run
    total = f"/{run.total_steps:,}" if run is not None and run.total_steps else ""
    parts = [f"step {view.step:,}{total}", f"epoch {view.epoch}", precision_label(view.precision or "")]
    words = step_loss_words(view.newest)
    if has_no_loss(view.newest):
        parts.append(words)
    elif last is not None:
        parts.append(f"loss {units.loss(last.loss[0])}" + (f" ({words})" if words else ""))
    if view.smoothed_loss is not None:
        parts.append(f"smoothed {units.loss(view.smoothed_loss)}")
    if view.step_seconds is not None:
        parts.append(f"{units.milliseconds(view.step_seconds)}/step")
        parts.append(units.rate(view.samples_per_second, "samples"))
    parts += _scale_parts(view)
    if last is not None and last.grad_norm[0] is not None:
        parts.append(f"grad norm {units.loss(last.grad_norm[0])}")
    parts += [*_memory_parts(view), *_rank_parts(view)]
    if view.eta_seconds is not None:
        parts.append(f"about {units.duration(view.eta_seconds)} left")
    if run is not None and not run.data.real:
        parts.append(SYNTHETIC)
    fronts = [f"{line.label}:" for line in view.optimizers if line.is_front]
    others = [_other(line) for line in view.optimizers if not line.is_front]
    return "  ".join([*fronts, *parts, *others, *optimizers_left_out(view)])


def _other(optimizer: OptimizerView) -> str:
    """``| discriminator: step 2,400  AMP fp16  loss 0.391  lr 0.0004  grad norm 1.21  skipped 3``."""
    parts = [f"| {optimizer.label}: step {optimizer.step:,}", precision_label(optimizer.precision or "")]
    if optimizer.loss is not None:
        parts.append(f"loss {units.loss(optimizer.loss)}")
    elif words := loss_form_words(optimizer.loss_form, optimizer.micro_batches):
        parts.append(words)
    if optimizer.lr is not None:
        parts.append(f"lr {units.loss(optimizer.lr)}")
    if optimizer.grad_norm is not None:
        parts.append(f"grad norm {units.loss(optimizer.grad_norm)}")
    if optimizer.skipped:
        parts.append(f"skipped {optimizer.skipped:,}")
    return "  ".join(part for part in parts if part)


def _scale_parts(view: SessionView) -> list[str]:
    if view.last is None or view.last.loss_scale[0] is None:
        return []
    parts = [f"scale {units.count(view.last.loss_scale[0])}"]
    if view.scaler.skipped:
        parts.append(f"skipped {view.scaler.skipped:,}")
    if view.numerics.headroom is not None and not view.numerics.hypothetical:
        parts.append(f"gradients {units.below_overflow(view.numerics.headroom)}")
    return parts


def _memory_parts(view: SessionView) -> list[str]:
    parts = []
    if view.allocator is not None:
        parts.append(f"allocated {units.number_of_bytes(view.allocator.allocated_bytes)}")
    if view.device is None:
        return parts
    if (gpu := view.training_gpu) is not None and gpu.memory_used_bytes is not None:
        used_bytes = units.number_of_bytes(gpu.memory_used_bytes)
        parts.append(f"GPU {used_bytes} of {units.number_of_bytes(gpu.memory_total_bytes)}")
    if not view.device.gpus:
        whose = "process" if view.world_size == 1 else "rank 0"
        parts.append(f"{whose} {units.number_of_bytes(view.device.host.process_rss_bytes)}")
    return parts


def _rank_parts(view: SessionView) -> list[str]:
    parts: list[str] = []
    if view.rank_samples_per_second is not None:
        parts.append(f"each rank {units.rate(view.rank_samples_per_second, 'samples')}")
    if view.ranks is not None and view.ranks.slow is not None:
        parts.append(short_words(view.ranks.slow))
    return parts


def _clock(unix_seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(unix_seconds))


@contextmanager
def lasting_streams() -> Iterator[None]:
    """Within, no print of ours or of the model fails on a full disk or a reader that is gone."""
    before = sys.stdout, sys.stderr
    streams = LastingStream(sys.stdout, "standard output"), LastingStream(sys.stderr, "standard error")
    sys.stdout, sys.stderr = streams
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in streams:
            stream.finish()


class LastingStream:
    """A text stream that drops what a full disk does not take, says so once, and keeps trying.

    Once its reader is gone it drops everything. A model that closes it closes nothing.
    """

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream = stream
        self._name = name
        self._complained = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._attempt(partial(self._stream.write, text))
        return len(text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    close = flush
    """Closes nothing: others print as well."""

    def finish(self) -> None:
        """Flush, so that nothing left over can fail when the process exits."""
        if not self._attempt(self._stream.flush):
            fall_silent(self._stream)

    def _attempt(self, action: Callable[[], object]) -> bool:
        try:
            action()
        except OSError as error:
            if error.errno not in NO_ROOM:
                fall_silent(self._stream)
            elif not self._complained:
                self._complained = True
                complain(f"cannot write to {self._name}: {error.strerror}; training continues")
            return False
        return True


@contextmanager
def stdout_of(*, json: bool) -> Iterator[TextIO]:
    """Standard output; with ``json`` only what is written here comes there."""
    out = separate_stdout() if json else sys.stdout
    try:
        yield out
    finally:
        if json:
            with suppress(OSError):  # the stream is not shared
                out.close()


def separate_stdout() -> TextIO:
    """A stream of our own on standard output; from now on, what others print there goes to standard error."""
    sys.stdout.flush()
    own = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return own
