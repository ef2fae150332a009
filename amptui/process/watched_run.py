"""What a viewer knows of the run it watches besides its records: of one on this machine, or on another."""

import shlex
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from amptui.base.errors import RemoteError, RunFolderError, UsageError
from amptui.runs.lock import RESTART_SECONDS, holder
from amptui.runs.protocol import ProtocolError
from amptui.runs.rundir import RunDir, run_argument
from amptui.runs.socket_place import connect

if TYPE_CHECKING:
    from amptui.records.run import Record
    from amptui.runs.remote import Remote, Ssh
    from amptui.telemetry.view import SessionView

_ENDING_SECONDS = 1.0

_LAST_RECORD_SECONDS = 10.0
"""How long a run may take, on a busy machine, to write its last record once its connections are closed."""

_RECONNECT_SECONDS = 0.2

_PAUSES_SECONDS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Before each attempt to reach another machine again; the last one repeats."""

_STEADY_SECONDS = 60.0
"""A connection that lasts less does not shorten the pauses: its machine may refuse each after a moment."""


class LocalRun:
    """A run on this machine. ``why_lost`` returns how its process ended, if that is known."""

    host = ""
    """The machine as ssh knows it; empty for this one."""
    list_command = "amptui runs"
    """The command that lists its machine's runs."""

    def __init__(self, folder: Path, why_lost: Callable[[], str] = str) -> None:
        self.folder = folder
        self._why_lost = why_lost
        self._max_restarts = 0
        self.folder_name = str(folder)
        """For people: of another machine ``HOST:FOLDER``."""
        self.attach_command = f"amptui attach {shlex.quote(run_argument(folder))}"
        self.output_path = RunDir(folder).output_path
        """The file for what is printed while the screen is open."""
        self.waiting = ""
        """Why nothing arrives, in one line, while the connection is being made again; empty otherwise."""

    def reconnect(self, view: "SessionView", left: Callable[[], bool]) -> socket.socket | None:
        """A connection to ranks that are started again; None if there is none, or the screen has ``left``."""
        restarts = 0 if view.ranks is None else view.ranks.restarts
        self._max_restarts = self._max_restarts if view.ranks is None else view.ranks.max_restarts
        if view.outcome is not None or restarts >= self._max_restarts:
            return None
        self.waiting = "the ranks are being started again"
        limit = time.monotonic() + RESTART_SECONDS
        try:
            while not left() and time.monotonic() < limit:
                with suppress(RunFolderError):
                    return connect(self.folder)
                time.sleep(_RECONNECT_SECONDS)
        finally:
            self.waiting = ""
        return None

    def recorded(self) -> "Iterable[Record]":
        """All records of a run that has ended; none of one that may still live."""
        from amptui.runs.reader import JournalReader

        path = RunDir(self.folder).journal_path
        return JournalReader(path) if not self._is_held(_LAST_RECORD_SECONDS) and path.exists() else ()

    def is_live(self) -> bool:
        """Whether a process trains it; one that ends soon releases its folder."""
        return self._is_held(_ENDING_SECONDS)

    def _is_held(self, patience_seconds: float) -> bool:
        limit = time.monotonic() + patience_seconds
        while holder(self.folder) is not None:
            if time.monotonic() > limit:
                return True
            time.sleep(0.02)
        return False

    def lost_words(self, error: str) -> str:
        """What to say of a connection that ended with ``error``."""
        if not self.is_live():
            return self._why_lost() or error
        return f"{error}; training continues: press q, then amptui attach to reconnect"

    def silence_cause(self) -> str:
        """Why a connected run is silent, and what to do; empty if that is not known."""
        import psutil

        process = holder(self.folder)
        if process is not None and process.pid is not None and process.is_here:
            with suppress(psutil.Error):
                if psutil.Process(process.pid).status() == psutil.STATUS_STOPPED:
                    return f"suspended (SIGSTOP); to continue it: kill -CONT {process.pid}"
        return ""


class RemoteRun:
    """A run on another machine, watched through ssh, as `LocalRun` is; only what arrives is known of it."""

    output_path = Path("/dev/null")
    """Nothing that another machine sends is written to a file here."""

    def __init__(self, remote: "Remote", ssh: "Ssh") -> None:
        self._remote = replace(remote, run=ssh.header.folder)
        self._ssh = ssh
        self._is_lost = False
        self._connected_at = time.monotonic()
        self._attempts = 0
        self.host = remote.host
        self.folder_name = f"{remote.host}:{ssh.header.folder}"
        self.attach_command = f"amptui attach {remote.argument(ssh.header.run)}"
        self.list_command = f"amptui runs {remote.argument('')}"
        self.waiting = ""

    @property
    def connection(self) -> socket.socket:
        """The newest."""
        return self._ssh.connection

    def reconnect(self, view: "SessionView", left: Callable[[], bool]) -> socket.socket | None:
        """Connect again, as often as it takes.

        Raises ``ProtocolError`` if the run has ended, or if ssh would have to ask the user.
        """
        from amptui.runs.remote import RefusedError, UnreachableError
        from amptui.runs.remote import connect as connect_to_host

        lost, self._is_lost = f"connection to {self.host} lost", True
        self.waiting = f"{lost}; reconnecting"
        self._ssh.close()
        ranks = None if view.outcome is not None else view.ranks
        may_restart = ranks is not None and ranks.restarts < ranks.max_restarts
        restarts_until = time.monotonic() + (RESTART_SECONDS if may_restart else 0.0)
        if time.monotonic() - self._connected_at > _STEADY_SECONDS:
            self._attempts = 0
        while _pause(_PAUSES_SECONDS[min(self._attempts, len(_PAUSES_SECONDS) - 1)], left):
            self._attempts += 1
            try:
                ssh = connect_to_host(self._remote, batch=True, given_up=left)
            except UnreachableError as error:
                if error.needs_user:
                    self._give_up(
                        f"{lost}, and ssh must ask you something; to reconnect: {self.attach_command}"
                    )
                self.waiting = f"{lost}; reconnecting ({error.cause})"
            except (RemoteError, UsageError) as error:
                if time.monotonic() >= restarts_until:
                    self._is_lost = not isinstance(error, UsageError | RefusedError)
                    self._give_up(str(error))
            else:
                self._ssh, self._is_lost, self.waiting = ssh, False, ""
                self._connected_at = time.monotonic()
                return self.connection
        self.waiting = lost  # the screen has left
        return None

    def _give_up(self, why: str) -> NoReturn:
        self.waiting = ""
        raise ProtocolError(why)

    def recorded(self) -> "Iterable[Record]":
        return ()

    def is_live(self) -> bool:
        return self._is_lost

    def lost_words(self, error: str) -> str:
        return error

    def silence_cause(self) -> str:
        return ""

    def close(self) -> None:
        """End ssh, once it has sent what the screen said last."""
        self._ssh.close()


WatchedRun = LocalRun | RemoteRun
"""Where a run is, and how a viewer gets back to it."""


def _pause(seconds: float, left: Callable[[], bool]) -> bool:
    """Wait so long; false at once if the screen has ``left``."""
    limit = time.monotonic() + seconds
    while not left() and time.monotonic() < limit:
        time.sleep(min(_RECONNECT_SECONDS, seconds))
    return not left()
