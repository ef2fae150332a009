"""The run of somebody else's script, in that script's process: its loop, recording and answers."""

import os
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from amptui.base.prompt import complain
from amptui.base.script_signals import aside, in_background, is_from_signal_handler, suppressed
from amptui.base.text import one_line, write_line
from amptui.diagnosis.summary import tell_unsaved
from amptui.guest.handover import note_unsaved, take_run_dir
from amptui.guest.loop.loop_hooks import HOOKS
from amptui.guest.loop.observed_loop import ObservedLoop
from amptui.guest.loop.watched_loop import NO_LONGER_WATCHED, WatchedLoop
from amptui.guest.peer import UNWATCHED, RankPeer
from amptui.guest.restarted_run import RestartedRun, last_before_restart
from amptui.guest.script import (
    ScriptRun,
    describe,
    last_record,
    own_script_name,
    with_length,
)
from amptui.guest.watched_scripts import Emit, Observed, Watched
from amptui.ranks.agreement.guest_control import GuestControl
from amptui.ranks.world import World
from amptui.recording.recording import Recording
from amptui.records.answers import RequestMade, RequestRefused
from amptui.records.control import Control, Request, StopRequest, record_of
from amptui.records.run import Note, PhaseChanged, Record, RunFailed, RunStarted, Severity
from amptui.runs.rundir import RunDir, create_run_dir, run_argument

_NO_NORMS = "the model is sharded: no gradient norms, no float16 window and no memory breakdown of its shards"


class GuestRun(ScriptRun):
    """A script's run, with its recording. Raises AmptuiError and OSError.

    Of several ranks, rank 0 keeps it.
    """

    def __init__(self, script: Observed | Watched, world: World | None = None) -> None:
        handed = take_run_dir()
        if world is not None and not handed:
            world = replace(world, restart=0, max_restarts=0)  # each start of the ranks has a run of its own
        super().__init__(world)
        self._started_by_amptui = bool(handed)
        goes_on = world is not None and world.restart > 0 and RunDir(Path(handed)).holds_a_run
        self._script: Observed | Watched | None = script
        self._refusal = script.reason if isinstance(script, Observed) else ""
        self._name = own_script_name()
        self._began = time.monotonic()
        self._parent = os.getppid()
        self._asked_to_stop: str | None = None
        """Why a screen asked the script to stop."""
        self._peer: RankPeer | None = None
        self._restarted: RestartedRun | None = None
        # Files, sockets and threads are no work for the script's thread, whose alarms may find us there.
        aside(partial(self._keep, handed, goes_on=goes_on), abandoned=lambda _: self._recording.close())
        try:
            with HOOKS.all_or_none():
                self._watch(script)
            try:
                aside(partial(self._serve, skip_output=goes_on))
                if not handed:
                    write_line(sys.stderr, f"amptui attach {shlex.quote(run_argument(self.path))}")
            except BaseException:
                self.loop.close()  # nobody takes its records
                raise
        except BaseException:
            in_background(self._recording.close)
            raise

    def _keep(self, handed: str, *, goes_on: bool) -> None:
        """Open the recording."""
        run_dir = RunDir(Path(handed)) if handed else create_run_dir(None, self._name)
        restarts = 0 if self.world is None else self.world.max_restarts
        asked = {"script": sys.argv, "max_restarts": restarts}
        self._recording = recording = Recording(run_dir, asked=asked, goes_on=goes_on)
        self._emit: Emit = recording.emit
        if goes_on and self.world is not None:
            cut_after = partial(recording.cut_after, starts_at_one=False)
            try:
                self._restarted = RestartedRun(run_dir, self.world, recording.emit, cut_after)
            except BaseException:
                recording.close()
                raise
            self._emit = self._restarted.emit

    def _watch(self, script: Observed | Watched) -> None:
        """Begin to see the loop's steps."""
        self.loop, self._peer = open_loop(self, script, self._emit, begins=self._begin, failed=self._fail)
        if isinstance(self._control, GuestControl):
            self._control.cannot_stop = self._cannot_stop

    def _serve(self, *, skip_output: bool) -> None:
        """Begin to write, to measure the device, to serve screens, and to meet the other ranks."""
        waiting = "waiting for the first step"
        self._emit(PhaseChanged(time=time.time(), phase="first step", detail=waiting))
        self._recording.start(self._answer, read_allocator=lambda: self.loop.allocator.sample)
        if self._started_by_amptui:
            self._recording.follow_output(skip=skip_output)
        if self._peer is not None:
            self._peer.start(self.loop)

    def note(self, severity: Severity, text: str) -> None:
        """Tell the screen."""
        self._emit(Note(time=time.time(), severity=severity, text=text))

    @property
    def path(self) -> Path:
        return self._recording.run_dir.path

    @property
    def _control(self) -> Control | None:
        return self.loop.control if isinstance(self.loop, WatchedLoop) else None

    @property
    def stop_reason(self) -> str | None:
        if self.world is None:
            return self._asked_to_stop
        return None if self._control is None else self._control.stop_reason

    def close(self, error: BaseException | None, *, at_exit: bool) -> None:
        """Deliver what is left, write the last record, and end every thread.

        ``at_exit``: the script has ended, for whatever reason if there is no ``error``.
        """
        end = partial(self._end, error, stopped=self.stop_reason is not None, at_exit=at_exit)
        try:
            self._close_loop(error, at_exit=at_exit)
        except BaseException:  # the script's alarm or Ctrl+C found us at work
            self.loop.lanes.leave()
            in_background(end)
            raise
        if at_exit:
            end()
        else:
            aside(end)

    def _close_loop(self, error: BaseException | None, *, at_exit: bool) -> None:
        peer = self._peer
        if peer is not None and at_exit:
            peer.close("has ended")
        elif peer is not None:
            aside(lambda: peer.close("has ended"))
        try:
            # After an error its GPU may wait for a collective of ranks that have ended.
            self.loop.close(waits=peer is None or error is None)
        except Exception as fault:  # a device that failed has nothing left to deliver
            if is_from_signal_handler(fault):
                raise
            trouble = f"the last steps could not be read: {type(fault).__name__}: {fault}"
            self._emit(Note(time=time.time(), severity="warning", text=one_line(trouble)))

    def _end(self, error: BaseException | None, *, stopped: bool, at_exit: bool) -> None:
        """Write the last record, and close."""
        seconds = time.monotonic() - self._began
        step = self.loop.step
        last = last_record(error, step=step, seconds=seconds, stopped=stopped, at_exit=at_exit)
        if isinstance(last, RunFailed) and self.world is not None and self.world.starts_again:
            last_words: Record = last_before_restart(last, self.world, socket.gethostname())
        else:
            last_words = last
        self._recording.end_output()
        self._emit(last_words)
        self._recording.close()
        if tell_unsaved(self._recording.unsaved) and self._started_by_amptui:
            note_unsaved(self.path)

    def _begin(self, precision: str) -> None:
        """Describe the run, as its first step ends."""
        self._emit(PhaseChanged(time=time.time(), phase="training"))
        started = self._description(precision)
        if self._restarted is None:
            self._emit(started)
        else:
            self._restarted.begin(started, self.loop.step)
        if self.loop.is_sharded:
            self.note("info", _NO_NORMS)
        if why := self.layout.unknown:
            self.note("warning", f"no samples/s: {why}; watch() and observe() take data_parallel=N")
        if self._peer is not None:
            self._peer.begun()

    def _fail(self, error: Exception) -> None:
        tell_fault("stopped watching this script, which goes on", error)
        text = f"amptui stopped watching: {type(error).__name__}: {error}"
        self._emit(Note(time=time.time(), severity="error", text=one_line(text)))
        if self._peer is not None:
            self._peer.close(UNWATCHED)

    def _answer(self, request: Request, number: int) -> None:
        """Answer a screen, in a thread of the server's."""
        loop = self.loop
        if isinstance(request, StopRequest):
            self._stop(request, number)
        elif isinstance(loop, WatchedLoop) and loop.active:
            loop.control.ask(request, number)
        else:
            self._refuse(self._made(request, number), self._refusal or NO_LONGER_WATCHED)

    def _stop(self, request: StopRequest, number: int) -> None:
        """Ask the loop to stop if it asks for that.

        Otherwise, or if it shall end at once, a script that ``amptui run`` started gets the signal that a
        terminal or a batch system would send it; no other script is stopped from a screen.
        """
        control = self._control
        if self.stops_when_asked and not request.at_once and self._may_stop(control):
            self._asked_to_stop = self._asked_to_stop or request.reason
            if control is not None:
                control.ask(request, number)  # it may be paused
            else:
                self._made(request, number)
            return
        made = self._made(request, number)
        if self._started_by_amptui:
            self._interrupt(signal.SIGTERM if request.reason == "SIGTERM" else signal.SIGINT)
        else:
            why = self._refusal or "its loop never asks amptui"
            self._refuse(made, f"{why}: stop the script itself (pid {os.getpid()})")

    def _may_stop(self, control: Control | None) -> bool:
        """Whether the loop may end: one of several ranks must not end alone."""
        return self.world is None or (isinstance(control, GuestControl) and not control.over)

    def _interrupt(self, number: int) -> None:
        """Send the script a signal as its terminal would: that of several ranks is torchrun's."""
        launched = self.world is not None and "TORCHELASTIC_RUN_ID" in os.environ
        if launched and os.getppid() == self._parent:  # else torchrun is gone, and another has adopted us
            os.kill(self._parent, number)
        else:
            signal.pthread_kill(threading.main_thread().ident or 0, number)

    def _cannot_stop(self, why: str) -> None:
        """The ranks could not agree to stop after the same step."""
        self.note("warning", f"the ranks do not stop together: {why}")
        if self._started_by_amptui:
            self._interrupt(signal.SIGINT)

    def _made(self, request: Request, number: int) -> RequestMade:
        made = record_of(request, number)
        self._emit(made)
        return made

    def _refuse(self, made: RequestMade, detail: str) -> None:
        now, step = time.time(), self.loop.step
        self._emit(RequestRefused(time=now, step=step, request=made, reason="unavailable", detail=detail))

    def _description(self, precision: str) -> RunStarted:
        """The run's first record; at the end of its first step, which is ``precision``'s."""
        script, self._script = self._script, None  # the script may drop its model; so do we
        assert script is not None, "a run begins once"
        observed = isinstance(script, Observed)
        started = describe(script, self.loop.device, self._name, precision, self, observed=observed)
        return with_length(started, self, self.loop.batches)


def open_loop(
    run: ScriptRun,
    script: Observed | Watched,
    emit: Emit,
    *,
    begins: Callable[[str], object],
    failed: Callable[[Exception], object],
) -> tuple[ObservedLoop, RankPeer | None]:
    """Begin to see the steps of ``script``; with other ranks, also who meets them, to be started."""
    run.lay_out(script)
    if run.world is None:
        return script.open_loop(emit, begins=begins, failed=failed), None
    control = GuestControl(run.world, emit) if isinstance(script, Watched) else None
    peer = RankPeer(run.world, control, emit)
    shared = {"ranks": run.ranks, "data_parallel": run.layout.data_parallel}
    loop = script.open_loop(peer.take, begins=begins, failed=failed, control=control, **shared)
    return loop, peer


def tell_fault(what: str, error: Exception) -> None:
    """One line on standard error, if there is one."""
    with suppressed(Exception):
        complain(one_line(f"{what}: {type(error).__name__}: {error}"))
