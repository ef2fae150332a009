"""The run of somebody else's script in one of its processes: its loop, its recording, what it is asked.

Of several ranks, rank 0 keeps the run; the others do what all agree on, and rank 0 tells of them.
"""

import os
import shlex
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from amptui.base.masking import masked
from amptui.base.notify_url import VARIABLE as NOTIFY_VARIABLE
from amptui.base.prompt import complain
from amptui.base.script_signals import is_from_signal_handler
from amptui.base.text import one_line, write_line
from amptui.base.webhook import Webhook, parse_webhook
from amptui.diagnosis.summary import tell_unsaved
from amptui.guest.handover import note_unsaved, take_notify_url, take_run_dir
from amptui.guest.loop.guard import fault_words
from amptui.guest.loop.observed_loop import ObservedLoop
from amptui.guest.loop.observed_optimizer import ObservedOptimizer
from amptui.guest.loop.parallel_layout import ParallelLayout
from amptui.guest.loop.script import ObservedScript, WatchedScript
from amptui.guest.loop.switched_optimizer import SwitchedOptimizer
from amptui.guest.processes import NOT_WATCHED, Emit, OneProcess
from amptui.guest.run_records import RunLength, describe, failure_of, last_record, own_script_name
from amptui.loops.description import describe_resumption
from amptui.process.recording import Recording
from amptui.ranks.agreement.control import RankControl
from amptui.records.answers import RequestMade, RequestRefused
from amptui.records.control import Control, Request, StopRequest, record_of, tell_nobody
from amptui.records.ranks import RankLost
from amptui.records.run import Note, PhaseChanged, Record, RunFailed, RunFinished, RunStarted, Severity
from amptui.records.steps import Steps
from amptui.runs.kept_run import look_at
from amptui.runs.rundir import RunDir, create_run_dir, run_argument

NO_LONGER_WATCHED = "amptui stopped watching this script"
"""Why requests are refused after a fault."""

_AFTER_SWITCH = (
    "this was the first step after the switch to {precision}: cast or reset what the loop carries "
    "from step to step, such as a recurrent state"
)

_NO_NORMS = "the model is sharded: no gradient norms, no float16 window and no memory breakdown of its shards"


class ScriptRun:
    """A script's run in one of its processes, as monitors and frameworks use it."""

    first: ObservedOptimizer
    """The optimizer whose steps count as the run's."""

    def __init__(self, script: ObservedScript | WatchedScript, processes: OneProcess) -> None:
        self.processes = processes
        self.loop = script.loop or ObservedLoop()
        self.length = RunLength()
        self.stops_when_asked = False
        """Whether the script's loop asks whether it should stop."""
        self.layout = ParallelLayout(1)
        """How the processes share the training."""
        self.control: Control | None = None
        """Takes what screens ask of the loop; None if it is only observed."""
        self._warnings: set[str] = set()
        self._unwatched = ""
        """Why nothing is watched any more."""

    def open_loop(self, script: ObservedScript | WatchedScript, emit: Emit) -> None:
        """Begin to see the steps of ``script``."""
        self.layout = self.processes.layout(script)
        self.control, emit = self.processes.open(script, emit)
        loop, leads = self.loop, self.processes.leads
        loop.open(emit, on_first_step=self._begin, on_fault=self._give_up, leads=leads)
        data_parallel = self.layout.data_parallel
        samples = script.samples_per_step and script.samples_per_step * data_parallel
        if isinstance(script, WatchedScript):
            assert self.control is not None, "opened above"
            self.first = SwitchedOptimizer(
                script, loop, samples_per_step=samples, data_parallel=data_parallel, control=self.control
            )
        else:
            self.first = ObservedOptimizer(
                script.model, script.optimizer, loop, samples_per_step=samples, data_parallel=data_parallel
            )
        loop.add(self.first, script.optimizer)
        loop.takes_others = self.processes.size == 1  # of several ranks, only the first one's steps are told
        for other in script.others if loop.takes_others else ():
            watcher = loop.watch(other.optimizer, other.model, other.name)
            watcher.keeper = other if self.first.keeper is not None else None

    @property
    def path(self) -> Path | None:
        """The run's folder; None in a process that keeps none."""
        return None

    @property
    def stop_reason(self) -> str | None:
        """Why the script should stop now; None if it should go on."""
        control = self.control
        return control.stop_reason if control is not None and control.stopping else None

    def note(self, severity: Severity, text: str) -> None:
        """Tell the screen, if this process has one."""

    def warn_once(self, text: str) -> None:
        """Tell screen and terminal, unless they were told before."""
        if text not in self._warnings:
            self._warnings.add(text)
            complain(text)
            self.note("warning", text)

    def _begin(self, _precision: str) -> None:
        """The first step ends."""
        self.processes.begin()

    def _give_up(self, error: Exception) -> None:
        """Nothing is watched any more, by a fault of ours."""
        self._unwatched = fault_words(error)
        complain(f"stopped watching this script, which goes on: {self._unwatched}")
        self.note("error", f"amptui stopped watching: {self._unwatched}")
        self.processes.leave(NOT_WATCHED)
        if self.control is not None:
            self.control.close(NO_LONGER_WATCHED)

    def close(self, error: BaseException | None, *, at_exit: bool) -> None:
        """Deliver what is left, write the last record, and end every thread.

        ``at_exit``: the script has ended, for whatever reason if there is no ``error``.
        """
        stopped = self.stop_reason is not None
        try:
            self.processes.leave("has ended", failure_of(error))
            # The GPU of a rank that failed may wait for a collective of ranks that have ended.
            self.loop.close(waits=error is None or self.processes.size == 1)
        except Exception as fault:  # a device that failed has nothing left to deliver
            if is_from_signal_handler(fault) or self.path is None:
                raise
            trouble = f"the last steps could not be read: {type(fault).__name__}: {fault}"
            self.note("warning", one_line(trouble))
        finally:  # also if the script's alarm or Ctrl+C found us at work
            self.loop.leave()
            self._end(error, stopped=stopped, at_exit=at_exit)

    def _end(self, error: BaseException | None, *, stopped: bool, at_exit: bool) -> None:
        """The loop is closed."""


class OtherRank(ScriptRun):
    """A rank that has no journal, no screen and no folder of its own."""

    def __init__(self, script: ObservedScript | WatchedScript, processes: OneProcess) -> None:
        super().__init__(script, processes)
        take_run_dir()  # rank 0's, which no child process shall inherit
        take_notify_url()
        self.open_loop(script, tell_nobody)
        self.processes.start(self.first)


class GuestRun(ScriptRun):
    """A script's run, with its recording. Raises AmptuiError and OSError."""

    def __init__(self, script: ObservedScript | WatchedScript, processes: OneProcess) -> None:
        super().__init__(script, processes)
        run_dir = take_run_dir()
        self._started_by_amptui = bool(run_dir)
        goes_on = processes.continues(run_dir)
        self._script: ObservedScript | WatchedScript | None = script
        self._refusal = script.reason if isinstance(script, ObservedScript) else ""
        self._name = own_script_name()
        self._start_time = time.monotonic()
        self._stop_request: str | None = None
        """Why a screen asked the script to stop."""
        self._goes_on = goes_on
        """Whether torchrun has started the ranks again: the run goes on in its folder."""
        self._steps_before = 0
        """The run's steps before the first that the loop counts."""
        self._open_recording(run_dir, goes_on=goes_on)
        try:
            self.open_loop(script, self._emit)
            if isinstance(self.control, RankControl):
                self.control.cannot_stop = self._cannot_stop
            self._serve(skip_output=goes_on)
            if not run_dir:
                write_line(sys.stderr, f"amptui attach {shlex.quote(run_argument(self.path))}")
        except BaseException:
            try:
                self.loop.close()  # nobody takes its records
            finally:
                self._recording.close()
            raise

    def _open_recording(self, path: str, *, goes_on: bool) -> None:
        run_dir = RunDir(Path(path)) if path else create_run_dir(None, self._name)
        request = {"script": masked(sys.argv), "max_restarts": self.processes.max_restarts}
        self._recording = recording = Recording(run_dir, request=request, goes_on=goes_on, webhook=_webhook())
        emit = recording.emit
        self._emit: Emit = (lambda record: emit(_later(record, self._steps_before))) if goes_on else emit

    def _serve(self, *, skip_output: bool) -> None:
        """Begin to write, to measure the device, to serve screens, and to meet the other ranks."""
        waiting = "waiting for the first step"
        self._emit(PhaseChanged(time=time.time(), phase="first step", detail=waiting))
        self._recording.start(self._answer, read_allocator=lambda: self.first.allocator.sample)
        if self._started_by_amptui:
            self._recording.follow_output(skip=skip_output)
        self.processes.start(self.first)

    def note(self, severity: Severity, text: str) -> None:
        """Tell the screen."""
        self._emit(Note(time=time.time(), severity=severity, text=text))

    @property
    def path(self) -> Path:
        return self._recording.run_dir.path

    @property
    def stop_reason(self) -> str | None:
        return self._stop_request if self.processes.size == 1 else super().stop_reason

    def _end(self, error: BaseException | None, *, stopped: bool, at_exit: bool) -> None:
        """Write the last record, and close."""
        seconds = time.monotonic() - self._start_time
        last = last_record(error, step=self.first.step, seconds=seconds, stopped=stopped, at_exit=at_exit)
        if self._unwatched and isinstance(last, RunFinished):
            last = replace(last, reason="ended", unwatched=self._unwatched)
        if isinstance(last, RunFailed) and (precision := self.first.unproven_precision):
            last = replace(last, error=f"{last.error}; {_AFTER_SWITCH.format(precision=precision)}")
        self._recording.end_output()
        if isinstance(last, RunFailed) and self.processes.starts_again:  # the run is not over
            place: dict[str, Any] = {"rank": 0, "host": socket.gethostname()}
            self._emit(RankLost(time=last.time, step=last.step, cause="failed", detail=last.error, **place))
        else:
            self._emit(last)
        self._recording.close()
        is_unsaved = tell_unsaved(self._recording.unsaved) or bool(self._unwatched)
        if is_unsaved and self._started_by_amptui:
            note_unsaved(self.path)

    def _begin(self, precision: str) -> None:
        """Describe the run, as its first step ends."""
        self._emit(PhaseChanged(time=time.time(), phase="training"))
        script, self._script = self._script, None  # the script may drop its model; so do we
        assert script is not None, "a run begins once"
        started = describe(
            script,
            self.first,
            name=self._name,
            precision=precision,
            length=self.length,
        )
        started = self.processes.add_to(started, self.layout)
        if self._goes_on:
            self._resume(started, self.first.step)
        else:
            self._emit(started)
        if self.first.is_sharded:
            self.note("info", _NO_NORMS)
        if why := self.layout.unknown:
            self.note("warning", f"no samples/s: {why}; watch() and observe() take data_parallel=N")
        super()._begin(precision)

    def _resume(self, started: RunStarted, step: int) -> None:
        """Emit that the run goes on with what the script counts as ``step``.

        A framework knows which of the script's steps it makes; any other loop counts from 1 again, whatever
        it has read from a checkpoint of its own.
        """
        last_step = look_at(self._recording.run_dir).step or 0
        resumes_after = step - 1 if step > 1 else last_step
        lost_steps = self._recording.cut_after(resumes_after, starts_at_one=False)
        if lost_steps is None:
            self._emit(started)  # the ranks before made no step
            return
        restart: dict[str, Any] = {"restarts": self.processes.restart, "cause": "a rank ended"}
        resumed = describe_resumption(started, None, lost_steps=lost_steps, **restart)
        self._emit(replace(resumed, step=resumes_after))
        self._steps_before = last_step if step == 1 else 0

    def _answer(self, request: Request, number: int) -> None:
        """Answer a screen, in a thread of the server's."""
        if isinstance(request, StopRequest):
            self._stop(request, number)
        elif self.control is not None and self.first.active:
            self.control.ask(request, number)
        else:
            self._refuse(self._record(request, number), self._refusal or NO_LONGER_WATCHED)

    def _stop(self, request: StopRequest, number: int) -> None:
        """Ask the loop to stop if it asks for that.

        Otherwise, or if it shall end at once, a script that ``amptui run`` started gets the signal that a
        terminal or a batch system would send it; no other script is stopped from a screen.
        """
        if self.stops_when_asked and not request.at_once and self.processes.may_stop:
            self._stop_request = self._stop_request or request.reason
            if self.control is not None:
                self.control.ask(request, number)  # it may be paused
            else:
                self._record(request, number)
            return
        record = self._record(request, number)
        if self._started_by_amptui:
            self._interrupt(signal.SIGTERM if request.reason == "SIGTERM" else signal.SIGINT)
        else:
            why = self._refusal or "its loop never asks amptui"
            self._refuse(record, f"{why}: stop the script itself (pid {os.getpid()})")

    def _interrupt(self, number: int) -> None:
        """Send the script a signal as its terminal would: that of several ranks is torchrun's."""
        if (launcher_pid := self.processes.launcher_pid) is not None:
            os.kill(launcher_pid, number)
        else:
            signal.pthread_kill(threading.main_thread().ident or 0, number)

    def _cannot_stop(self, why: str) -> None:
        """The ranks could not agree to stop after the same step."""
        self.note("warning", f"the ranks do not stop together: {why}")
        if self._started_by_amptui:
            self._interrupt(signal.SIGINT)

    def _record(self, request: Request, number: int) -> RequestMade:
        record = record_of(request, number)
        self._emit(record)
        return record

    def _refuse(self, request: RequestMade, detail: str) -> None:
        now, step = time.time(), self.first.step
        self._emit(RequestRefused(time=now, step=step, request=request, reason="unavailable", detail=detail))


def _later(record: Record, steps: int) -> Record:
    """``record`` with its step, if it has one, so many ``steps`` later."""
    if isinstance(record, Steps):
        return replace(record, first_step=record.first_step + steps)
    name = "steps" if isinstance(record, RunFinished) else "step"
    step: Any = getattr(record, name, None)
    return record if step is None else replace(record, **{name: step + steps})


def _webhook() -> Webhook | None:
    """Where this script's run sends its news; a wrong URL stops no training."""
    url = take_notify_url()
    try:
        return parse_webhook(url) if url else None
    except ValueError as error:
        complain(f"{NOTIFY_VARIABLE}: {error}")
    return None


def tell_fault(what: str, error: Exception) -> None:
    """One line on standard error, if there is one."""
    with suppress(Exception):
        complain(f"{what}: {fault_words(error)}")
