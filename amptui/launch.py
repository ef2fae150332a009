"""What `train` and `attach` do: plan a run, start it where it belongs, show it, say how it ended.

A run forks off before anything heavy is imported: its process imports torch while this one draws the screen.
"""

import os
import shlex
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amptui.errors import RunFolderError, UsageError
from amptui.forking import Offspring, fork
from amptui.modelspec import ModelSpec, parse_model
from amptui.prompt import complain, say
from amptui.records import RunFailed
from amptui.request import TrainRequest
from amptui.runs.find import live_run, resumable
from amptui.runs.lock import RunLock
from amptui.runs.rundir import RunDir, create_run_dir, expanded, folder_name, home, read_run_json, said
from amptui.signals import hold_back

if TYPE_CHECKING:
    from amptui.watching import Watched

_ENDING_SECONDS = 20.0
"""How long a run's process may take after its last record, with a file that will not close say."""

_MAY_CHANGE = ("epochs", "steps", "device", "checkpoint_every", "data_dir", "attended")
"""What another process may do differently in the same run: how long, where, and who watches."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A run that is about to start or to go on."""

    request: TrainRequest
    spec: ModelSpec
    run_dir: RunDir


def plan_new(request: TrainRequest, run_dir: Path | None) -> Plan:
    """A new run; makes its folder. Raises UsageError and RunFolderError."""
    spec = parse_model(request.model)
    folder = create_run_dir(run_dir, spec.name)
    kept = replace(request, model=spec.anywhere, checkpoint_dir=folder.checkpoints_path)
    return Plan(kept, spec, folder)


def plan_resumed(given: Mapping[str, Any], text: str) -> Plan:
    """The run that ``text`` names, going on from its newest checkpoint, as it was asked for at first.

    ``given`` is what the command line says now, by the fields of ``TrainRequest``. Raises UsageError where
    that is another training, and RunFolderError for a run that cannot go on.
    """
    folder = resumable(text)
    asked = _asked_at_first(folder)
    if "model" in given:
        given = {**given, "model": parse_model(given["model"]).anywhere}
    for name, value in given.items():
        before = getattr(asked, name)
        if name not in _MAY_CHANGE and value != before:
            what = f"{folder.path.name} was started with {_words(name, before)}, not {_words(name, value)}"
            raise UsageError(what, mend="leave that out, or start a new run without --resume")
    changed = {name: value for name, value in given.items() if name in _MAY_CHANGE}
    request = replace(asked, **changed, checkpoint_dir=folder.checkpoints_path, resume=True)
    return Plan(request, parse_model(request.model), folder)


def _asked_at_first(folder: RunDir) -> TrainRequest:
    try:
        return TrainRequest.from_json(read_run_json(folder.path)["asked"])
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        what = f"{folder.run_json_path} does not say what was asked for"
        raise RunFolderError(what, mend="start a new run") from error


def newest_of(model: str) -> str:
    """What names the newest run of ``model``. Raises UsageError."""
    return folder_name(parse_model(model).name)


def can_go_on(run_dir: Path) -> bool:
    """Whether a run can go on there; one that died before its first checkpoint makes room for another.

    Raises RunFolderError where it is running, or the folder cannot be written.
    """
    folder = RunDir(expanded(run_dir))
    if not folder.path.is_dir() or not folder.holds_a_run:
        return False
    if not folder.holds_checkpoints:
        with RunLock.take(folder.path):
            folder.set_aside()
    return folder.holds_a_run


def train(plan: Plan, *, json: bool, detach: bool, frames_per_second: float | None) -> int:
    """Run one training behind the front that fits; return the exit status."""
    if not detach and not plan.request.attended:
        from amptui.running import run_plainly

        return run_plainly(plan.request, plan.spec, plan.run_dir, json=json)
    ours, theirs = socket.socketpair()

    def work() -> int:
        from amptui.running import run_for_viewers

        ours.close()
        return run_for_viewers(plan.request, plan.spec, plan.run_dir, theirs)

    # What reached neither process's handlers would end the one that asks, and leave the run to nobody.
    hold_back()
    offspring = fork(work)
    theirs.close()
    folder = plan.run_dir.path
    if detach:
        from amptui.watching import see_off

        return _conclude(see_off(ours, folder), folder, offspring)
    return _conclude(_watch(ours, folder, frames_per_second, attached=False), folder, offspring)


def attach(text: str, *, frames_per_second: float | None) -> int:
    """Watch a run that is under way; return the exit status. Raises UsageError and RunFolderError."""
    if not wants_screen(headless=False):
        raise UsageError("attach needs a terminal", mend="`amptui runs` lists runs in plain lines")
    from amptui.runs.client import connect

    folder = live_run(text).path
    watched = _watch(connect(folder), folder, frames_per_second, attached=True)
    return _conclude(watched, folder, None)


def wants_screen(*, headless: bool) -> bool:
    """Whether somebody sits at a terminal that can show a screen and type keys."""
    return (
        not headless
        and os.environ.get("TERM", "dumb") not in ("", "dumb")
        and sys.stdin is not None
        and sys.stdin.isatty()
        and sys.stdout.isatty()
    )


def default_data_dir() -> Path:
    """The user's cache folder for data sets, by the XDG convention. Raises RunFolderError without a home."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG base directory specification: a relative path is invalid and to be ignored.
    return (cache if cache.is_absolute() else home() / ".cache") / "amptui"


def _watch(
    connection: socket.socket, folder: Path, frames_per_second: float | None, *, attached: bool
) -> "Watched":
    from amptui.tui.opening import Opening

    # The boxes of the panels stand while Textual is imported. Not before the fork: numpy starts threads.
    with Opening() as opening:
        from amptui.watching import watch

        return watch(
            connection, folder, attached=attached, frames_per_second=frames_per_second, opening=opening
        )


def _conclude(watched: "Watched", folder: Path, offspring: Offspring | None) -> int:
    """Say what a person should know who is back at the prompt."""
    if watched.left == "hung up":
        return 128 + (watched.signal or signal.SIGHUP)  # the terminal may be gone
    if watched.left == "detached" and not watched.over:
        say("", f"detached at step {watched.view.step:,}; training goes on")
        say(f"watch it again: amptui attach {_said(folder)}")
        return 0
    ended = offspring.wait(_ENDING_SECONDS if watched.over else 0.0) if offspring is not None else None
    if not watched.over:
        say("", f"the run is still ending (step {watched.view.step:,}): `amptui runs` tells when it has")
        return 128 + (watched.signal or signal.SIGINT)
    from amptui.summary import summary_lines

    # The first line ends the one the cursor was left in by a terminal without an alternate screen.
    say("", *summary_lines(watched.view))
    return _status(watched, folder, ended)


def _status(watched: "Watched", folder: Path, ended: int | None) -> int:
    outcome = watched.view.outcome
    if outcome is None:
        complain(watched.error if not (ended or 0) < 0 else _killed(-(ended or 0), folder))
        return ended if ended is not None and ended > 0 else RunFolderError.exit_status
    if isinstance(outcome, RunFailed):
        complain(outcome.error)
        return ended or 1
    if watched.view.not_kept:
        complain(f"{' and '.join(watched.view.not_kept)} could not be kept to the end")
    if watched.left == "interrupted" or watched.signal is not None:
        return 128 + (watched.signal or signal.SIGINT)
    return ended or 0


def _killed(number: int, folder: Path) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    what = f"the run's process was ended by {name}"
    if not RunDir(folder).holds_checkpoints:
        return f"{what} before its first checkpoint"
    return f"{what}; go on from its last checkpoint: amptui train --resume {_said(folder)}"


def _said(folder: Path) -> str:
    """What a person types to mean that run."""
    return shlex.quote(said(folder))


def _words(name: str, value: object) -> str:
    """An option and its value as a person wrote them: ``--lr 0.01``."""
    option = {"learning_rate": "lr", "amp_precision": "amp-dtype", "settings": "set"}.get(name, name)
    if value is None or value == {}:
        return f"no --{option.replace('_', '-')}"
    if isinstance(value, Mapping):
        value = ", ".join(f"{key}={each}" for key, each in value.items())
    return f"{value}" if name == "model" else f"--{option.replace('_', '-')} {value}"
