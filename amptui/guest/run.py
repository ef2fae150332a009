"""The run of somebody else's script in one of its processes: its loop, its recording, what it is asked.

Of several ranks, rank 0 keeps the run; the others do what all agree on, and rank 0 tells of them.
"""

import math
import os
import shlex
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from amptui.base.amp_errors import known_hint
from amptui.base.fork import how_ended
from amptui.base.masking import masked
from amptui.base.prompt import complain
from amptui.base.script_signals import is_from_signal_handler
from amptui.base.text import one_line, write_line
from amptui.diagnosis.summary import tell_unsaved
from amptui.guest.handover import mark_unsaved, take_run
from amptui.guest.processes import NOT_WATCHED, Emit, OneOfRanks
from amptui.loops.description import describe_resumption, here
from amptui.loops.script.guard import fault_words
from amptui.loops.script.observed_loop import ObservedLoop
from amptui.loops.script.observed_optimizer import ObservedOptimizer
from amptui.loops.script.script import ObservedScript, SwitchedScaler, WatchedScript
from amptui.loops.script.script_model import ParallelLayout, kind_of
from amptui.loops.script.switched_optimizer import SwitchedOptimizer
from amptui.process.recording import Recording
from amptui.ranks.world import World
from amptui.records.answers import RequestMade, RequestRefused
from amptui.records.control import Control, tell_nobody
from amptui.records.ranks import RankLost
from amptui.records.run import (
    DataInfo,
    Note,
    PhaseChanged,
    Record,
    RunFailed,
    RunFinished,
    RunStarted,
    Severity,
)
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

_KERNELS = ("ipykernel_launcher", "colab_kernel_launcher")
"""The scripts that Python runs for a notebook."""

_DEFAULT_GROWTH_INTERVAL = 2000
"""torch.amp.GradScaler's."""


@dataclass(slots=True)
class RunLength:
    """How long a run is, as far as its script has said."""

    total_epochs: int = 0
    """The number of the last one, counted from 1; 0 if unknown."""
    epochs_before: int = 0
    """Those of them that were made before, by a script that is resumed; as the next."""
    start_step: int = 0
    batches_per_epoch: int = 0
    """0 if unknown."""
    steps_per_epoch: int | None = None
    """None if it follows from the batches."""
    total_steps: int = 0
    """0 if only the epochs are counted."""


class ScriptRun:
    """A script's run in this process, as monitors and frameworks use it; of several ranks, rank 0 records it.

    Raises AmptuiError and OSError.
    """

    first: ObservedOptimizer
    """The optimizer whose steps count as the run's."""
    control: Control
    """Takes what screens ask of the loop."""

    def __init__(
        self, script: ObservedScript | WatchedScript, ranks: OneOfRanks | None, length: RunLength
    ) -> None:
        self._ranks = ranks
        """Those that train together; None where this process trains alone."""
        self.loop = script.loop or ObservedLoop()
        self._length = length
        self.stops_when_asked = False
        """Whether the script's loop asks whether it should stop."""
        self.layout = ParallelLayout(1) if ranks is None else ranks.layout(script)
        """How the processes share the training."""
        self._script: ObservedScript | WatchedScript | None = script
        self._refusal = script.reason if isinstance(script, ObservedScript) else ""
        self._warnings: set[str] = set()
        self._unwatched = ""
        """Why nothing is watched any more."""
        self._name = own_script_name()
        self._start_time = time.monotonic()
        self._steps_before = 0
        """The run's steps before the first that the loop counts."""
        self._recording: Recording | None = None
        self._emit: Emit = tell_nobody
        run_dir, notify_url = take_run()  # which no child process shall inherit
        self._started_by_amptui = bool(run_dir)
        self._goes_on = ranks is not None and ranks.world.leads and ranks.continues(run_dir)
        """Whether torchrun has started the ranks again: the run goes on in its folder."""
        if self.world.leads:
            self._open_recording(run_dir, notify_url)
        try:
            self._open_loop(script)
            self._start()
        except BaseException:
            try:
                self.loop.close()  # nobody takes its records
            finally:
                if self._recording is not None:
                    self._recording.close()
            raise

    def _open_recording(self, run_dir: str, notify_url: str) -> None:
        folder = RunDir(Path(run_dir)) if run_dir else create_run_dir(None, self._name)
        request = {"script": masked(sys.argv), "max_restarts": self.world.max_restarts}
        recording = Recording(folder, request=request, goes_on=self._goes_on, notify_url=notify_url)
        self._recording, self._emit = recording, recording.emit
        if self._goes_on:
            self._emit = lambda record: recording.emit(_later(record, self._steps_before))

    def _open_loop(self, script: ObservedScript | WatchedScript) -> None:
        """Begin to see the steps of ``script``."""
        loop, world, emit = self.loop, self.world, self._emit
        if self._ranks is None:
            self.control = Control(emit)
        else:
            self.control, emit = self._ranks.open(script, emit)
            if world.leads:
                self.control.cannot_stop = self._cannot_stop
        loop.emit, loop.leads = emit, world.leads
        loop.on_first_step, loop.on_fault = self._begin, self._give_up
        data_parallel = self.layout.data_parallel
        samples = script.samples_per_step and script.samples_per_step * data_parallel
        if isinstance(script, WatchedScript):
            self.first = SwitchedOptimizer(
                script, loop, samples_per_step=samples, data_parallel=data_parallel, control=self.control
            )
        else:
            self.control.close(self._refusal)
            self.first = ObservedOptimizer(
                script.model, script.optimizer, loop, samples_per_step=samples, data_parallel=data_parallel
            )
        self.first.step, self.first.epoch = self._length.start_step, self._length.epochs_before + 1
        loop.add(self.first, script.optimizer)
        loop.takes_others = world.size == 1  # of several ranks, only the first one's steps are told
        for other in script.others if loop.takes_others else ():
            watcher = loop.watch(other.optimizer, other.model, other.name)
            watcher.keeper = other if self.first.keeper is not None else None

    def _start(self) -> None:
        """Begin to write, to measure the device, to serve screens, and to meet the other ranks."""
        if (recording := self._recording) is not None:
            waiting = "waiting for the first step"
            self._emit(PhaseChanged(time=time.time(), phase="first step", detail=waiting))
            recording.start(self._answer, read_allocator=lambda: self.first.allocator.sample)
            if self._started_by_amptui:
                recording.follow_output(skip=self._goes_on)
            else:
                attach = f"amptui attach {shlex.quote(run_argument(recording.run_dir.path))}"
                write_line(sys.stderr, attach)
        if self._ranks is not None:
            self._ranks.start(self.first)

    @property
    def world(self) -> World:
        """Which process of how many this is."""
        return World(0, 0, 1) if self._ranks is None else self._ranks.world

    @property
    def path(self) -> Path | None:
        """The run's folder; None in a process that keeps none."""
        return None if self._recording is None else self._recording.run_dir.path

    @property
    def stop_reason(self) -> str | None:
        """Why the script should stop now; None if it should go on."""
        return self.control.stop_reason if self.control.stopping else None

    def note(self, severity: Severity, text: str) -> None:
        """Tell the screen, if this process has one."""
        self._emit(Note(time=time.time(), severity=severity, text=text))

    def warn_once(self, text: str) -> None:
        """Tell screen and terminal, unless they were told before."""
        if text not in self._warnings:
            self._warnings.add(text)
            complain(text)
            self.note("warning", text)

    def _begin(self, precision: str) -> None:
        """Describe the run, as its first step ends; where ranks were started again it goes on.

        A framework knows which of the script's steps it makes; any other loop counts from 1 again, whatever
        it has read from a checkpoint of its own.
        """
        script, self._script = self._script, None  # the script may drop its model; so do we
        assert script is not None, "a run begins once"
        if (recording := self._recording) is not None:
            self._emit(PhaseChanged(time=time.time(), phase="training"))
            started = describe(script, self.first, name=self._name, precision=precision, length=self._length)
            started, resumed = self._ranks.add_to(started, self.layout) if self._ranks else started, None
            if self._goes_on:
                step, last_step = self.first.step, look_at(recording.run_dir).step or 0
                after, restarts = step - 1 if step > 1 else last_step, self.world.restart
                resumed = describe_resumption(started, step=after, restarts=restarts, cause="a rank ended")
            recording.begin(started, resumed)
            if resumed is not None and step == 1:
                self._steps_before = last_step
            if self.first.is_sharded:
                self.note("info", _NO_NORMS)
            if why := self.layout.unknown:
                self.note("warning", f"no samples/s: {why}")
        if self._ranks is not None:
            self._ranks.begin()

    def _give_up(self, error: Exception) -> None:
        """Nothing is watched any more, by a fault of ours."""
        self._unwatched = fault_words(error)
        complain(f"stopped watching this script, which goes on: {self._unwatched}")
        self.note("error", f"amptui stopped watching: {self._unwatched}")
        if self._ranks is not None:
            self._ranks.leave(NOT_WATCHED)
        self.control.close(NO_LONGER_WATCHED)

    # ------------------------------------------------------------------------------- what is asked of it

    def _answer(self, request: RequestMade) -> None:
        """Answer a screen, in a thread of the server's.

        A loop that asks whether it should stop is told so. If it never asks, or shall end at once, a script
        that ``amptui run`` started gets the signal that a terminal or a batch system would send it; no other
        script is stopped from a screen.
        """
        asks_itself = self.stops_when_asked and (self._ranks is None or self._ranks.may_stop)
        if request.kind != "stop" or (asks_itself and not request.at_once):
            if self._refusal:
                self.control.look(self.first.step)  # nobody else does: the step of a refusal
            self.control.ask(request)
            return
        self._emit(request)
        if self._started_by_amptui:
            self._interrupt(signal.SIGTERM if request.reason == "SIGTERM" else signal.SIGINT)
            return
        why = f"{self._refusal or 'its loop never asks amptui'}: stop the script itself (pid {os.getpid()})"
        now, step = time.time(), self.first.step
        self._emit(RequestRefused(time=now, step=step, request=request, reason="unavailable", detail=why))

    def _interrupt(self, number: int) -> None:
        """Send the script a signal as its terminal would: that of several ranks is torchrun's."""
        if self._ranks is not None and (launcher_pid := self._ranks.launcher_pid) is not None:
            os.kill(launcher_pid, number)
        else:
            signal.pthread_kill(threading.main_thread().ident or 0, number)

    def _cannot_stop(self, why: str) -> None:
        """The ranks could not agree to stop after the same step."""
        self.note("warning", f"the ranks do not stop together: {why}")
        if self._started_by_amptui:
            self._interrupt(signal.SIGINT)

    # ---------------------------------------------------------------------------------------- its end

    def close(self, error: BaseException | None, *, at_exit: bool) -> None:
        """Deliver what is left, write the last record, and end every thread.

        ``at_exit``: the script has ended, for whatever reason if there is no ``error``.
        """
        stopped = self.stop_reason is not None
        try:
            if self._ranks is not None:
                self._ranks.leave("has ended", failure_of(error))
            # The GPU of a rank that failed may wait for a collective of ranks that have ended.
            self.loop.close(waits=error is None or self._ranks is None)
        except Exception as fault:  # a device that failed has nothing left to deliver
            if is_from_signal_handler(fault) or self._recording is None:
                raise
            trouble = f"the last steps could not be read: {type(fault).__name__}: {fault}"
            self.note("warning", one_line(trouble))
        finally:  # also if the script's alarm or Ctrl+C found us at work
            self.loop.leave()
            if self._recording is not None:
                self._end(self._recording, error, stopped=stopped, at_exit=at_exit)

    def _end(
        self, recording: Recording, error: BaseException | None, *, stopped: bool, at_exit: bool
    ) -> None:
        now, step, failure = time.time(), self.first.step, failure_of(error)
        if failure and (precision := self.first.unproven_precision):
            failure = f"{failure}; {_AFTER_SWITCH.format(precision=precision)}"
        if failure and self.world.starts_again:  # the run is not over
            place: dict[str, Any] = {"rank": 0, "host": socket.gethostname()}
            self._emit(RankLost(time=now, step=step, cause="failed", detail=failure, **place))
        elif failure:
            trace = "".join(traceback.format_exception(error))
            self._emit(RunFailed(time=now, step=step, error=failure, traceback=trace))
        else:
            reason: Literal["done", "stopped", "ended"] = "ended" if at_exit or self._unwatched else "done"
            if not self._unwatched and (stopped or isinstance(error, KeyboardInterrupt)):
                reason = "stopped"
            seconds = time.monotonic() - self._start_time
            end = RunFinished(time=now, steps=step, seconds=seconds, reason=reason, unwatched=self._unwatched)
            self._emit(end)
        recording.close()
        is_unsaved = tell_unsaved(recording.unsaved) or bool(self._unwatched)
        if is_unsaved and self._started_by_amptui:
            mark_unsaved(recording.run_dir.path)


def describe(
    script: ObservedScript | WatchedScript,
    optimizer: ObservedOptimizer,
    *,
    name: str,
    precision: str,
    length: RunLength,
) -> RunStarted:
    """The first record of a run whose first ``optimizer`` is making its first step, in ``precision``."""
    scaler = script.scaler
    growth_interval = _DEFAULT_GROWTH_INTERVAL
    if scaler is not None and (scaler.is_enabled() or isinstance(scaler, SwitchedScaler)):
        growth_interval = scaler.get_growth_interval()
    steps_per_epoch = length.steps_per_epoch
    if steps_per_epoch is None and length.batches_per_epoch and optimizer.batches:
        steps_per_epoch = math.ceil(length.batches_per_epoch / optimizer.batches)
    steps_left = (steps_per_epoch or 0) * max(0, length.total_epochs - length.epochs_before)
    total_steps = length.total_steps or (steps_left and length.start_step + steps_left)
    return RunStarted(
        **here(optimizer.device),
        model=name,
        precision=precision,
        amp_precision=script.amp_precision,
        unsupported=script.not_switchable(precision),
        config={
            "arguments": sys.argv[1:],
            "model": kind_of(script.model),
            "optimizer": type(script.optimizer).__name__,
        },
        data=DataInfo(name="the script's own data", real=True, samples=None),
        parameters=sum(p.numel() for p in script.model.parameters()),
        batch_size=script.samples_per_step,
        steps_per_epoch=steps_per_epoch,
        total_epochs=length.total_epochs,
        total_steps=total_steps or None,
        growth_interval=growth_interval,
        observed=isinstance(script, ObservedScript),
        refuses=script.refuses(),
        optimizer=script.first.name,
    )


def failure_of(error: BaseException | None) -> str:
    """What a script has failed with that ``error`` ends; empty if it has not."""
    if error is None or isinstance(error, KeyboardInterrupt):
        return ""
    if isinstance(error, SystemExit):
        if error.code in (None, 0):
            return ""
        # Python makes the status 1 of what is no number, which it prints.
        status, words = (error.code, "") if isinstance(error.code, int) else (1, f": {error.code}")
        return one_line(f"the script {how_ended(status & 0xFF)}{words}")
    message, hint = known_hint(f"{type(error).__name__}: {error}")
    what = one_line(message).removesuffix(":")
    return f"{what.removesuffix('.')}; {hint}" if hint else what


def own_script_name() -> str:
    """What the run is called: the file that Python was told to run, or the notebook."""
    stem = Path(sys.argv[0] if sys.argv else "").stem
    if stem in _KERNELS:  # the notebook as far as its front end tells; Colab and Kaggle do not
        path = getattr(sys.modules.get("__main__"), "__vsc_ipynb_file__", None)  # Visual Studio Code
        if not isinstance(path, str):
            path = os.environ.get("JPY_SESSION_NAME", "")  # jupyter_server 2: the notebook's path
        return Path(path).stem or "notebook"
    if stem == "__main__":
        return Path(sys.argv[0]).parent.name
    return stem if stem not in ("", "-c", "-m") else "script"


def _later(record: Record, steps: int) -> Record:
    """``record`` with its step, if it has one, so many ``steps`` later."""
    if isinstance(record, Steps):
        return replace(record, first_step=record.first_step + steps)
    name = "steps" if isinstance(record, RunFinished) else "step"
    step: Any = getattr(record, name, None)
    return record if step is None else replace(record, **{name: step + steps})


def tell_fault(what: str, error: Exception) -> None:
    """One line on standard error, if there is one."""
    with suppress(Exception):
        complain(f"{what}: {fault_words(error)}")
