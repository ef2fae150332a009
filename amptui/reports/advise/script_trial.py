"""Measures a script: runs it, drives the loop that `amptui.watch()` gave it, and stops it afterwards."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from amptui.base import units
from amptui.base.errors import AmptuiError, RunFolderError
from amptui.base.fork import Offspring, how_ended
from amptui.base.prompt import complain
from amptui.base.runfiles import open_file
from amptui.guest.run_script import Script, plan_script, script_name, spawn
from amptui.recipe.request import AdviseRequest
from amptui.records.control import Control, StopRequest
from amptui.records.run import PRECISIONS, RunFailed
from amptui.reports.advise.evidence import Evidence, Exclusion
from amptui.reports.advise.loss_race import LossRace
from amptui.reports.advise.measuring import StagesShown, failure
from amptui.reports.advise.recommendation import Recommendation, candidate_names, recommendation
from amptui.reports.advise.stages import Stages
from amptui.reports.bench.measure import slow_float16
from amptui.runs.client import Client
from amptui.runs.reader import JournalReader
from amptui.runs.socket_place import connect
from amptui.telemetry.session import Session
from amptui.telemetry.view import SessionView

_LOOK_SECONDS = 0.1

_PATIENCE_SECONDS = 15.0
"""How long a script may take to end that was asked to stop, and again after each signal."""

_STOPPED_SECONDS = 3.0
"""The same after a signal to stop: all three must fit into what a process may take to end."""

_HURRIED_SECONDS = 0.5
"""The same for one that was not measured, or after a second signal."""

_LAST_LINES = 12
"""Of the output of a script that failed."""

_NO_RACE = (
    "amptui cannot restart a script from the same weights; run it once per precision with `amptui run`, and "
    "compare the runs with `amptui compare`"
)

_WATCH = "let amptui.watch() give the loop its autocast and scaler"


@dataclass(frozen=True, slots=True)
class _Connected:
    """A script that runs, and the connection to its run."""

    script: Script
    offspring: Offspring
    session: Session
    client: Client
    ended: threading.Event
    """Set once the run has ended, or the connection to it."""


def advise_script(request: AdviseRequest, stop: Control) -> tuple[Recommendation, AmptuiError | None, bool]:
    """Run the script and measure its training: what was found, what ended it early, and no thread that hangs.

    Raises AmptuiError for a script whose precision cannot be switched.
    """
    limit = units.duration(request.minutes * 60)
    complain(
        f"running {request.script[0]}; amptui stops it after the measurement, at most {limit} after its "
        "first step; the script still writes its own files"
    )
    slow = slow_float16() if request.precisions is None else {}  # it takes a second in which a script may end
    with TemporaryDirectory(prefix="amptui-advise-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch) / script_name(request.script)
        script = plan_script(request.script, folder, observe=False)
        with _running(script, stop) as connected:
            evidence, stages, error, names = _measure(request, connected, stop, slow)
    race = LossRace(steps=0, why_not=_NO_RACE)
    result = recommendation(request, evidence, names, race, seconds=stages.seconds_spent)
    return result, error, False


@contextmanager
def _running(script: Script, stop: Control) -> Iterator[_Connected]:
    """Start the script, wait until its run can be watched, and end it at last."""
    output = open_file(script.folder.output_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        offspring = Offspring(spawn(script, output=output))
    finally:
        os.close(output)
    connected, patience = None, _HURRIED_SECONDS
    try:
        connected = _connected(script, offspring, stop)
        yield connected
        patience = _PATIENCE_SECONDS
    finally:
        if connected is not None:
            connected.client.ask(StopRequest("measured"))
        _end(offspring, patience, stop)
        if connected is not None:
            connected.client.leave("detached")


def _connected(script: Script, offspring: Offspring, stop: Control) -> _Connected:
    session, ended = Session(str(script.folder.path)), threading.Event()
    while stop.stop_reason is None:
        with suppress(RunFolderError):
            client = Client(
                connect(script.folder.path),
                restore=session.restore,
                fold=session.fold,
                on_request=lambda request: session.fold([request]),
                ended=ended,
            )
            client.start()
            return _Connected(script, offspring, session, client, ended)
        if offspring.status is not None:
            _tell_last_lines(script)
            if script.folder.journal_path.exists():  # it trained, but ended before amptui could connect
                session.fold(JournalReader(script.folder.journal_path))
                what = f"{script.command[0]} {_end_phrase(session.view().step, offspring.status)}"
                raise AmptuiError(what, hint="let it train longer")
            what = f"{script.command[0]} {how_ended(offspring.status)} before amptui could watch a training"
            raise AmptuiError(what, hint=f"{_WATCH}: see demo/guide/own_loop.md")
        time.sleep(_LOOK_SECONDS)
    raise KeyboardInterrupt


def _measure(
    request: AdviseRequest, connected: _Connected, stop: Control, slow: Mapping[str, str]
) -> tuple[Evidence, Stages, AmptuiError | None, tuple[str, ...]]:
    """Drive the loop until all is measured, or it ends."""
    view = _first_view(connected, stop)
    _refuse_what_cannot_be_switched(request, view)
    names, left_out = _plan(request, view, slow)
    stages = Stages([name for name in names if name not in left_out], seconds=request.minutes * 60)
    progress = StagesShown(sys.stderr)
    while not (stages.over or connected.ended.is_set() or stop.stop_reason):
        view = connected.session.view()
        stages.look(view, connected.client)
        progress.look(stages, view)
        time.sleep(_LOOK_SECONDS)
    progress.clear()
    view, evidence = connected.session.view(), stages.evidence
    evidence = replace(evidence, view=view, exclusions={**left_out, **evidence.exclusions})
    error = failure(evidence)
    if not stages.over and not stop.stop_reason:
        ended = _how_it_ended(connected, stop)
        evidence = evidence.lacking("the rest", f"the script {ended}; let it train longer")
        if isinstance(view.outcome, RunFailed):
            _tell_last_lines(connected.script)
            error = AmptuiError(f"{request.script[0]}: {view.outcome.error}")
        elif not view.step:
            error = AmptuiError(f"{request.script[0]} {ended}", hint="let it train longer")
    return evidence, stages, error, names


def _how_it_ended(connected: _Connected, stop: Control) -> str:
    """Its process may take seconds to end after its training, on a busy machine."""
    status = _wait(connected.offspring, _PATIENCE_SECONDS, stop)
    return _end_phrase(connected.session.view().step, status)


def _end_phrase(steps: int, status: int | None) -> str:
    """``ended after 40 steps``, with its status if that is none of success."""
    how = f" and {how_ended(status)}" if status else ""
    return f"ended after {units.count(steps)} step{'' if steps == 1 else 's'}{how}"


def _first_view(connected: _Connected, stop: Control) -> SessionView:
    """The view once the run has said what it is."""
    while not stop.stop_reason and not connected.ended.is_set():
        view = connected.session.view()
        if view.run is not None:
            return view
        time.sleep(_LOOK_SECONDS)
    if stop.stop_reason:
        raise KeyboardInterrupt
    if (view := connected.session.view()).run is not None:
        return view
    _tell_last_lines(connected.script)
    raise AmptuiError(f"{connected.script.command[0]} ended before its first step")


def _refuse_what_cannot_be_switched(request: AdviseRequest, view: SessionView) -> None:
    run = view.run
    if run is not None and "precision" in run.refuses:
        what = f"{request.script[0]} is only observed: its own loop chooses the precision"
        raise AmptuiError(what, hint=f"{_WATCH} instead of observe(): see demo/guide/own_loop.md")


def _plan(
    request: AdviseRequest, view: SessionView, slow: Mapping[str, str]
) -> tuple[tuple[str, ...], dict[str, Exclusion]]:
    """The precisions in question, and those of them that are left out; ``slow`` ones on a CPU, and why."""
    run = view.run
    assert run is not None, "the run has said what it is"
    unsupported: Mapping[str, str] = run.unsupported
    left_out = {name: Exclusion("not here", why) for name, why in unsupported.items() if name in PRECISIONS}
    if run.device == "cpu" and request.precisions is None:
        left_out |= {name: Exclusion("not here", why) for name, why in slow.items()}
    names = candidate_names(request)
    return names, {name: why for name, why in left_out.items() if name in names}


def _tell_last_lines(script: Script) -> None:
    with suppress(OSError):
        text = script.folder.output_path.read_text(errors="replace")
        for line in text.splitlines()[-_LAST_LINES:]:
            complain(f"  {line}")


def _end(offspring: Offspring, patience_seconds: float, stop: Control) -> None:
    """Wait for the script to end; with ever less courtesy, for it has a session of its own."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if _wait(offspring, patience_seconds, stop) is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(offspring.pid, number)
    offspring.wait(_STOPPED_SECONDS)


def _wait(offspring: Offspring, patience_seconds: float, stop: Control) -> int | None:
    """The script's exit status; None if it is still running."""
    began = time.monotonic()
    while time.monotonic() - began < _shortened(patience_seconds, stop):
        if offspring.wait(_LOOK_SECONDS) is not None:
            break
    return offspring.status


def _shortened(patience_seconds: float, stop: Control) -> float:
    if stop.ends_at_once:
        return _HURRIED_SECONDS
    return patience_seconds if stop.stop_reason is None else min(patience_seconds, _STOPPED_SECONDS)
