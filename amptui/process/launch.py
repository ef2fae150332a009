"""The commands `train` and `attach`: plan a run, start its process, show it, report how it ended.

A run forks before anything heavy is imported: its process imports torch while this one draws the screen.
"""

import importlib.util
import os
import signal
import socket
import stat
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amptui.base.errors import OutputError, RunFolderError, UsageError
from amptui.base.fork import Offspring, fork, how_ended
from amptui.base.prompt import complain, say, show_traceback
from amptui.base.runfiles import open_to_read
from amptui.base.stacks import print_stacks_if_killed, stacks_if_killed
from amptui.base.terminal import can_show_a_screen
from amptui.base.webhook import Webhook
from amptui.process.stop_signals import blocked_stop_signals
from amptui.process.watched_run import LocalRun, RemoteRun, WatchedRun
from amptui.ranks.world import refuse_unsupported
from amptui.recipe.request import SAFETENSORS, ModelSpec, TrainRequest, option_of, parse_model
from amptui.records.run import PhaseChanged, RunFailed
from amptui.runs.find import live_run, refuse_running_elsewhere, resumable
from amptui.runs.lock import RunLock
from amptui.runs.rundir import (
    RunDir,
    create_run_dir,
    default_data_dir,
    expanded,
    folder_name,
    read_run_json,
    reason,
)
from amptui.runs.trust import is_own, named_files, resume_command, why_owned

_STACKS_BYTES = 65536
"""How far from the end of the output the stacks of a killed process begin, at most."""

if TYPE_CHECKING:
    from amptui.process.rank_process import RankPlan
    from amptui.process.viewer import ViewerEnd

_ENDING_SECONDS = 20.0
"""How long a run's process may take to exit after its last record, for example to close a file."""

_MAY_CHANGE = (
    *("epochs", "steps", "device", "checkpoint_every", "data_dir", "interactive"),
    *("cudnn_benchmark", "compile_mode", "save_weights", "workers", "nproc", "max_restarts"),
    *("stop_timeout", "hang_timeout"),
)
"""What may change when a run is resumed: its length, devices and files, who watches, what speeds it up."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A run that is about to start or resume."""

    request: TrainRequest
    spec: ModelSpec
    run_dir: RunDir


def plan_new(request: TrainRequest, run_dir: Path | None) -> Plan:
    """A new run; creates its folder. Raises UsageError and RunFolderError."""
    spec = parse_model(request.model)
    refuse_unsupported(request, request.nproc)
    if request.nproc == 1 and request.max_restarts:
        raise UsageError("--max-restarts is for the ranks of --nproc", hint="leave out --max-restarts")
    if request.nproc == 1 and request.hang_timeout is not None:
        raise UsageError("--hang-timeout is for the ranks of --nproc", hint="leave out --hang-timeout")
    _check_weights(request, run_dir)
    folder = create_run_dir(run_dir, spec.name)
    saved_request = replace(request, model=spec.anywhere, checkpoint_dir=folder.checkpoints_path)
    return Plan(saved_request, spec, folder)


def plan_resumed(given: Mapping[str, Any], text: str) -> Plan:
    """The run that ``text`` names, resumed from its newest checkpoint with its original options.

    ``given`` holds the fields of ``TrainRequest`` that the command line sets now. Raises UsageError if they
    differ in more than ``_MAY_CHANGE``, or if the run is not the user's own and they leave it to its folder
    which file runs, is read or is written. Raises RunFolderError if the run cannot be resumed.
    """
    folder = resumable(text, say=complain)
    try:
        saved = TrainRequest.from_json(read_run_json(folder.path)["asked"])
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        what = f"{folder.run_json_path} does not hold the options of the run"
        raise RunFolderError(what, hint="start a new run") from error
    saved = _with_rank_batch(saved, given.get("nproc", saved.nproc), folder.path.name)
    if "model" in given:
        given = {**given, "model": parse_model(given["model"]).anywhere}
    if not is_own(folder.path):  # the command line has to name the files that resuming it touches
        effects = [effect for field, (effect, _) in named_files(saved).items() if field not in given]
        if effects:
            what = f"{folder.path} is not one of your runs, and resuming it {' and '.join(effects)}"
            raise UsageError(what, hint=f"if you trust that: {resume_command(folder.path)}")
        saved = replace(saved, data_dir=given.get("data_dir", default_data_dir()))
    for name, value in given.items():
        before = getattr(saved, name)
        if name not in _MAY_CHANGE and value != before:
            then, now = _as_option(name, before), _as_option(name, value)
            what = f"{folder.path.name} was started with {then}, not {now}"
            raise UsageError(what, hint="leave out that option, or start a new run without --resume")
    changed = {name: value for name, value in given.items() if name in _MAY_CHANGE}
    request = replace(saved, **changed, checkpoint_dir=folder.checkpoints_path, resume=True)
    if request.nproc > 1:
        refuse_unsupported(request, request.nproc)
    _check_weights(request, folder.path)
    return Plan(request, parse_model(request.model), folder)


def _with_rank_batch(saved: TrainRequest, ranks: int, run: str) -> TrainRequest:
    """``saved`` with the batch size of each of ``ranks``, if it names one: the global batch stays.

    Raises UsageError if they cannot have equal parts of it.
    """
    if ranks == saved.nproc:
        return saved

    def part(batch_size: int) -> int:
        whole = batch_size * saved.nproc
        if whole % ranks:
            what = f"{run} has a global batch of {whole:,} samples, which {ranks} ranks cannot share equally"
            raise UsageError(f"--nproc {ranks}: {what}", hint="use another number of ranks")
        return whole // ranks

    settings = dict(saved.settings)
    if settings.get("batch_size", "").isdecimal():
        settings["batch_size"] = str(part(int(settings["batch_size"])))
    batch_size = None if saved.batch_size is None else part(saved.batch_size)
    return replace(saved, batch_size=batch_size, settings=settings)


def _check_weights(request: TrainRequest, run_dir: Path | None) -> None:
    """Raise UsageError where a file of weights cannot be read or written, before the run leaves any trace.

    The folder of the run itself may be missing: it is created next.
    """
    initial = None if request.resume else request.init_weights  # the checkpoint holds newer ones
    for option, text in (("--init-weights", initial), ("--save-weights", request.save_weights)):
        if text is not None and text.endswith(SAFETENSORS) and not importlib.util.find_spec("safetensors"):
            raise UsageError(f"{option} {text} needs safetensors", hint="pip install safetensors")
    if initial is not None and (trouble := _why_unreadable(Path(initial))):
        raise UsageError(f"--init-weights {initial}: {trouble}", hint="check the path")
    if request.save_weights is not None and (trouble := _why_unwritable(Path(request.save_weights), run_dir)):
        raise UsageError(f"--save-weights {request.save_weights}: {trouble}", hint="name another file")


def _why_unreadable(path: Path) -> str:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return "not a file"
        path.open("rb").close()
    except OSError as error:
        return reason(error)
    return ""


def _why_unwritable(path: Path, run_dir: Path | None) -> str:
    """Why no file can take the place of ``path``; empty if one can, as far as that is known now."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return "not a file"  # the new file would replace a device
    except FileNotFoundError:
        pass
    except OSError as error:
        return reason(error)
    next_created = expanded(run_dir).absolute() if run_dir is not None else None
    if trouble := why_owned(path, created=next_created):
        return trouble
    if path.parent.is_dir():
        return "" if os.access(path.parent, os.W_OK | os.X_OK) else "its folder cannot be written"
    is_created = next_created is not None and path.parent in (next_created, *next_created.parents)
    return "" if is_created else "no such folder"


def newest_of(model: str) -> str:
    """The name that stands for the newest run of ``model``. Raises UsageError."""
    return folder_name(parse_model(model).name)


def can_go_on(run_dir: Path) -> bool:
    """Whether a run can be resumed there; one that died before its first checkpoint is set aside.

    Raises RunFolderError if it is running or the folder cannot be written.
    """
    folder = RunDir(expanded(run_dir))
    if not folder.path.is_dir() or not folder.holds_a_run:
        return False
    if not folder.holds_checkpoints:
        refuse_running_elsewhere(folder.path)
        with RunLock.take(folder.path):
            folder.set_aside()
    return folder.holds_a_run


def train(
    plan: Plan, *, json: bool, detach: bool, frames_per_second: float | None, quiet: bool = False
) -> int:
    """Run one training, on the screen or with plain output; return the exit status.

    ``quiet``: the terminal gets no bell and no notification.
    """
    # A signal without a handler would end this process and leave the run unattended.
    with blocked_stop_signals():
        if plan.request.nproc > 1 and not plan.request.interactive:
            from amptui.process.elastic import run_ranks

            return run_ranks(rank_plan(plan, json=json, quiet=quiet), plan.request.nproc)
        if detach or plan.request.interactive:
            return _train_in_a_process(plan, detach=detach, frames_per_second=frames_per_second, quiet=quiet)
        from amptui.process.training import run_plainly

        print_stacks_if_killed()
        return run_plainly(plan.request, plan.spec, plan.run_dir, json=json, quiet=quiet)


def _train_in_a_process(plan: Plan, *, detach: bool, frames_per_second: float | None, quiet: bool) -> int:
    ours, theirs = socket.socketpair()

    def work() -> int:
        ours.close()
        if plan.request.nproc > 1:
            from amptui.process.elastic import run_ranks

            return run_ranks(rank_plan(plan), plan.request.nproc, theirs)
        from amptui.process.training import run_for_viewers

        with stacks_if_killed(plan.run_dir.output_path):
            return run_for_viewers(plan.request, plan.spec, plan.run_dir, theirs)

    offspring = fork(work)
    theirs.close()
    folder = plan.run_dir.path
    run = LocalRun(folder)
    if detach:
        from amptui.process.viewer import follow_until_first_step

        return _conclude(follow_until_first_step(ours, folder), run, offspring, folder)
    # What the run's process does now: this one shows it before the first record arrives.
    phase = PhaseChanged(time=time.time(), phase="importing", detail="importing torch")
    watched = watch_run(ours, run, frames_per_second, attached=False, quiet=quiet, phase=phase)
    return _conclude(watched, run, offspring, folder)


def rank_plan(plan: Plan, *, json: bool = False, quiet: bool = False) -> "RankPlan":
    """What each rank of ``plan`` has to know."""
    from amptui.process.rank_process import RankPlan

    interactive = plan.request.interactive
    return RankPlan(request=plan.request, run_dir=plan.run_dir, shown=interactive, json=json, quiet=quiet)


def attach(
    text: str,
    *,
    frames_per_second: float | None,
    quiet: bool = False,
    webhook: Webhook | None = None,
    remote_command: str = "",
) -> int:
    """Watch a live run; return the exit status. Raises UsageError, RunFolderError and RemoteError.

    ``quiet``: the terminal gets no bell and no notification. ``webhook`` gets the news instead, or as well.
    ``remote_command`` starts amptui on the machine of a run that ``text`` names as HOST:RUN.
    """
    if not can_show_a_screen():
        raise UsageError("attach needs a terminal", hint="`amptui runs` lists runs without one")
    from amptui.runs.socket_place import connect_to_live

    options: dict[str, Any] = {"attached": True, "quiet": quiet, "webhook": webhook}
    if ":" in text:
        from amptui.runs.remote import connect, remote_of

        if (remote := remote_of(text, remote_command)) is not None:
            with closing(RemoteRun(remote, connect(remote))) as far_run:
                watched = watch_run(far_run.connection, far_run, frames_per_second, **options)
            return _conclude(watched, far_run, None)
    run = LocalRun(live_run(text).path)
    watched = watch_run(connect_to_live(run.folder), run, frames_per_second, **options)
    return _conclude(watched, run, None)


def watch_run(
    connection: socket.socket,
    run: WatchedRun,
    frames_per_second: float | None,
    *,
    attached: bool,
    quiet: bool,
    webhook: Webhook | None = None,
    phase: PhaseChanged | None = None,
) -> "ViewerEnd":
    """Show ``run`` on the screen; see :func:`amptui.process.viewer.watch`."""
    from amptui.telemetry.session import Session
    from amptui.tui.frame import Frame
    from amptui.tui.opening import Opening
    from amptui.tui.panels.screen_state import ScreenState

    session = Session(run.folder_name)
    session.fold([] if phase is None else [phase])
    frame, state = Frame(), ScreenState()
    farewell = f"the screen was ended; to watch the run again: {run.attach_command}"
    # What is known is shown while Textual is imported; of a run that is attached to, its boxes.
    first = None if attached else lambda canvas: frame.draw(canvas, session.view(), state)
    with Opening(first, farewell=farewell) as opening:
        from amptui.process.viewer import watch

        return watch(
            connection,
            run,
            session,
            opening,
            attached=attached,
            frames_per_second=frames_per_second,
            bell=not quiet,
            webhook=webhook,
        )


def left_running(watched: "ViewerEnd", run: WatchedRun) -> int | None:
    """Report to a user who left a run that goes on; return the exit status.

    None if the run has ended or was asked to.
    """
    if watched.left == "hung up":
        return 128 + (watched.signal or signal.SIGHUP)  # the terminal may be gone
    if watched.over or watched.stop_asked:
        return None
    if watched.error:
        complain(watched.error)
    stands = run.waiting or watched.silence or "training continues"
    tell("", f"detached at step {watched.view.step:,}; {stands}")
    tell(f"to watch it again: {run.attach_command}")
    return 128 + watched.signal if watched.signal is not None else int(bool(watched.error))


def _conclude(
    watched: "ViewerEnd", run: WatchedRun, offspring: Offspring | None, folder: Path | None = None
) -> int:
    """Report how the run stands to a user who is back at the shell prompt.

    ``offspring`` trains it in ``folder`` if this process has started it.
    """
    status = left_running(watched, run)
    if status is not None:
        return status
    ended = offspring.wait(_ENDING_SECONDS if watched.over else 0.0) if offspring is not None else None
    if not watched.over:
        stands = f"{run.waiting}: the run may not stop" if run.waiting else "the run is still stopping"
        tell("", f"{stands} (step {watched.view.step:,}); `{run.list_command}` shows its status")
        return 128 + (watched.signal or signal.SIGINT)
    from amptui.diagnosis.summary import summary_lines

    # The empty line first: without an alternate screen, the cursor may be in the middle of a line.
    way_on = resume_command(run.folder) if isinstance(run, LocalRun) else ""
    tell("", *summary_lines(watched.view, way_on))
    return _status(watched, folder, ended)


def tell(*lines: str) -> None:
    """Print it if possible; the exit status is the run's either way."""
    try:
        say(*lines)
    except OutputError as error:
        complain(str(error))


def _status(watched: "ViewerEnd", folder: Path | None, ended: int | None) -> int:
    outcome = watched.view.outcome
    if outcome is None:
        if folder is not None and ended is not None and ended < 0:
            complain(_killed(-ended, folder))
        else:
            complain(watched.error)
        return ended if ended is not None and ended > 0 else RunFolderError.exit_status
    from amptui.diagnosis.summary import tell_unsaved

    unsaved_status = tell_unsaved(watched.view.not_kept)
    if isinstance(outcome, RunFailed):
        # Into a file the run's own process has written both.
        if folder is None or not stat.S_ISREG(os.fstat(2).st_mode):
            show_traceback("" if folder is None else outcome.traceback)
            complain(outcome.error)
        return ended or 1
    if watched.left == "interrupted" or watched.signal is not None:
        return 128 + (watched.signal or signal.SIGINT)
    return ended or unsaved_status


def _killed(number: int, folder: Path) -> str:
    what, log = f"the training process {how_ended(-number)}", RunDir(folder).output_path
    with suppress(OSError), open_to_read(log) as file:
        file.seek(-min(_STACKS_BYTES, os.fstat(file.fileno()).st_size), os.SEEK_END)
        if b"Fatal Python error" in file.read():
            what = f"{what} (its stack: {log})"
    if not RunDir(folder).holds_checkpoints:
        return f"{what} before its first checkpoint"
    return f"{what}; to resume from its last checkpoint: {resume_command(folder)}"


def _as_option(name: str, value: object) -> str:
    """An option and its value as on the command line: ``--lr 0.01``."""
    option = option_of(name)
    if value is True:
        return option
    if value is None or value is False or value == {}:
        return f"no {option}"
    if isinstance(value, Mapping):
        value = ", ".join(f"{key}={part}" for key, part in value.items())
    return f"{value}" if name == "model" else f"{option} {value}"
