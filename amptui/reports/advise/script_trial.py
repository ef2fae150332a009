"""Measures a script: runs it, drives the loop that `amptui.watch()` gave it, and stops it afterwards."""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from amptui.base import units
from amptui.base.errors import AmptuiError, RunFolderError
from amptui.base.fork import how_ended
from amptui.base.prompt import complain
from amptui.guest.run_script import Script, plan_script, script_name, spawn
from amptui.process.followers import LocalFollower
from amptui.recipe.request import AdviseRequest
from amptui.records.answers import RequestMade
from amptui.records.control import Control
from amptui.records.run import RunFailed
from amptui.reports.advise.advice import CANDIDATES, Evidence
from amptui.reports.advise.loss_race import LossRace
from amptui.reports.advise.stages import Stages, show_stages
from amptui.reports.bench.measure import Progress, slow_on_cpu
from amptui.runs.socket_place import connect
from amptui.telemetry.session import Session

_LOOK_SECONDS = 0.1

_PATIENCE_SECONDS = 15.0
"""How long a script may take to end that was asked to stop."""

_STOPPED_SECONDS = 3.0
"""The same after a signal to stop, and after each one that it gets."""

_LAST_LINES = 12
"""Of the output of a script that failed."""

_NO_RACE = (
    "amptui cannot restart a script from the same weights; run it once per precision with `amptui run`, and "
    "compare the runs with `amptui compare`"
)

_WATCH = "let amptui.watch() give the loop its autocast and scaler"


def measure_script(request: AdviseRequest, stop: Control) -> tuple[Evidence, AmptuiError | None, bool]:
    """Run the script and measure its training: what was found, what ended it early, and no thread that hangs.

    Raises AmptuiError for a script whose precision cannot be switched.
    """
    slow = slow_on_cpu() if request.precisions is None else {}  # it takes a second in which a script may end
    limit = units.duration(request.minutes * 60)
    complain(
        f"running {request.script[0]}; amptui stops it after the measurement, at most {limit} after its "
        "first step; the script still writes its own files"
    )
    stages = Stages(request.precisions or CANDIDATES, seconds=request.minutes * 60, slow_on_cpu=slow)
    with TemporaryDirectory(prefix="amptui-advise-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch) / script_name(request.script)
        trial = _Trial(plan_script(request.script, folder, observe=False), stop)
        try:
            evidence, error = trial.measure(trial.connect(), stages)
        finally:
            trial.end()
    evidence.race = LossRace(steps=0, why_not=_NO_RACE)
    return evidence, error, False


class _Trial:
    """A script that runs, and the connection to its run."""

    def __init__(self, script: Script, stop: Control) -> None:
        self._script, self._stop, self._name = script, stop, script.command[0]
        self._child = spawn(script, to_log=True)
        self._session = Session(str(script.folder.path))
        self._client: LocalFollower | None = None

    def connect(self) -> LocalFollower:
        """Wait until the run says what it is. Raises AmptuiError if it ends before, or cannot be switched."""
        folder, status = self._script.folder, None
        while (run := self._session.view().run) is None:
            if self._stop.stop_reason is not None:
                raise KeyboardInterrupt
            if status is not None:
                self._tell_last_lines()
                what = f"{self._name} {how_ended(status)} before amptui could watch a training"
                hint = f"{_WATCH}, see demo/guide/own_loop.md, and let it train longer"
                raise AmptuiError(what, hint=hint)
            if self._client is None:
                with suppress(RunFolderError):
                    self._client = LocalFollower(connect(folder.path), folder.path)
                    self._session = self._client.session
                    self._client.start()
            if self._client is None or self._client.ended.is_set():
                status = self._child.status
            time.sleep(_LOOK_SECONDS)
        if "precision" in run.refuses:
            what = f"{self._name} is only observed: its own loop chooses the precision"
            raise AmptuiError(what, hint=f"{_WATCH} instead of observe(): see demo/guide/own_loop.md")
        assert self._client is not None, "it is connected"
        return self._client

    def measure(self, client: LocalFollower, stages: Stages) -> tuple[Evidence, AmptuiError | None]:
        """Drive the loop until all is measured, or it ends."""
        progress = Progress(sys.stderr)
        while not (stages.over or client.ended.is_set() or self._stop.stop_reason):
            view = self._session.view()
            stages.look(view, client)
            show_stages(progress, stages, view)
            time.sleep(_LOOK_SECONDS)
        progress.clear()
        evidence, view = stages.evidence, self._session.view()
        evidence.view = view
        error = evidence.failure
        if not stages.over and not self._stop.stop_reason:
            # Its process may take seconds to end after its training, on a busy machine.
            status = self._wait(_PATIENCE_SECONDS)
            how_it_ended = f"ended after {units.counted(view.step, 'step')}"
            how_it_ended += f" and {how_ended(status)}" if status else ""
            evidence.missing.setdefault("the rest", f"the script {how_it_ended}; let it train longer")
            if isinstance(view.outcome, RunFailed):
                self._tell_last_lines()
                error = AmptuiError(f"{self._name}: {view.outcome.error}")
            elif not view.step:
                error = AmptuiError(f"{self._name} {how_it_ended}", hint="let it train longer")
        return evidence, error

    def _tell_last_lines(self) -> None:
        with suppress(OSError):
            text = self._script.folder.output_path.read_text(errors="replace")
            for line in text.splitlines()[-_LAST_LINES:]:
                complain(f"  {line}")

    def end(self) -> None:
        """Stop the script and wait for its end; with ever less courtesy, for it has a session of its own."""
        if self._client is not None:
            self._client.ask(RequestMade("stop", reason="measured"))
            self._wait(_PATIENCE_SECONDS)
            self._client.leave()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            if self._child.status is None:
                with suppress(ProcessLookupError):
                    os.killpg(self._child.pid, number)
                self._wait(_STOPPED_SECONDS)

    def _wait(self, seconds: float) -> int | None:
        """The script's exit status; None if it still runs then, or after a signal to stop already sooner."""
        began = time.monotonic()
        while self._child.wait(_LOOK_SECONDS) is None and not self._stop.ends_at_once:
            limit = seconds if self._stop.stop_reason is None else min(seconds, _STOPPED_SECONDS)
            if time.monotonic() - began >= limit:
                break
        return self._child.status
