"""Follows a run on this machine or on another for a screen: its records, and what else is known of it."""

import math
import shlex
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from amptui.base import units
from amptui.base.errors import RemoteError, RunFolderError, UsageError
from amptui.records.answers import RequestMade, RequestRefused
from amptui.records.run import Record
from amptui.runs.client import Client
from amptui.runs.lock import RESTART_SECONDS, holder
from amptui.runs.protocol import ProtocolError
from amptui.runs.rundir import RunDir, run_argument
from amptui.runs.socket_place import connect
from amptui.telemetry.session import Session
from amptui.telemetry.view import SessionView

if TYPE_CHECKING:
    from amptui.runs.remote import Remote, Ssh

_SILENT_SECONDS = 5.0
"""A run samples its device every second; during a long call it may miss some."""

_ENDING_SECONDS = 1.0

_LAST_RECORD_SECONDS = 10.0
"""How long a run may take, on a busy machine, to write its last record once its connections are closed."""

_RECONNECT_SECONDS = 0.2

_PAUSES_SECONDS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Before each attempt to reach another machine again; the last one repeats."""

_STEADY_SECONDS = 60.0
"""A connection that lasts less does not shorten the pauses: its machine may refuse each after a moment."""


class Follower(Client):
    """Follows a run into its session, over one connection after another.

    Each request of this screen gets an answer, also if the connection is lost before the run's.
    """

    host = ""
    """The machine as ssh knows it; empty for this one."""
    folder: Path | None = None
    """The run's, on this machine."""
    list_command = "amptui runs"
    """The command that lists its machine's runs."""
    attach_command: str
    output_path: Path
    """The file for what is printed while the screen is open."""
    waiting = ""
    """Why nothing arrives, in one line, while the connection is being made again; empty otherwise."""

    def __init__(self, connection: socket.socket, folder_name: str) -> None:
        """``folder_name`` is for people: of another machine ``HOST:FOLDER``."""
        super().__init__(connection)
        self.session = Session(folder_name)
        self._heard_at = math.inf
        self._numbers: set[int] = set()
        """Of the requests that were sent."""
        self._doubtful: list[RequestMade] = []
        """Those that a lost connection may not have carried over."""

    def start(self) -> None:
        """Begin to read, and to notice silence."""
        self._heard_at = time.monotonic()
        super().start()

    def connect_again(self, view: SessionView) -> socket.socket | None:
        """A new connection to the run, of which ``view`` is known; None if there is none, or this has left.

        Raises ``ProtocolError`` to say why there is none.
        """
        raise NotImplementedError

    def is_live(self) -> bool:
        """Whether a process trains it; one that ends soon releases its folder."""
        raise NotImplementedError

    def lost_words(self, error: str) -> str:
        """What to say of a connection that ended with ``error``."""
        return error

    def silence_cause(self) -> str:
        """Why a connected run is silent, and what to do; empty if that is not known."""
        return ""

    def why_ended(self) -> str:
        """Why the connection ended, if the run did not say."""
        return self.error and self.lost_words(self.error)

    def exit_reason(self) -> str:
        """What became of a run that was cut off."""
        return self.why_ended() if self.ended.is_set() and self.session.status().outcome is None else ""

    def is_heard(self) -> bool:
        """Whether the run goes on, and says so."""
        return not (self.ended.is_set() or self.silence())

    def silence(self) -> str:
        """What to say of a run that is silent: it sends something every second; empty if it is not."""
        seconds = time.monotonic() - self._heard_at
        if seconds < _SILENT_SECONDS:
            return ""
        words = f"no response from the run for {units.duration(seconds)}"
        cause = self.silence_cause()
        return f"{words}: {cause}" if cause else words

    def restore(self, state: Any) -> None:
        self._heard_at = time.monotonic()
        self.session.restore(state, host=self.host)
        # The run, whose history has just arrived, has never heard of some.
        view, doubtful = self.session.view(), self._doubtful
        arrived = {request.number for request in view.pending}
        arrived |= {answer.request.number for answer in view.answers}
        self._doubtful = []
        for request in doubtful:
            if request.number not in arrived:
                self._refuse(request, "the connection was lost before it arrived: press the key again")

    def fold(self, records: Sequence[Record]) -> None:
        self._heard_at = time.monotonic()
        self.session.fold(records)

    def reconnect(self) -> socket.socket | None:
        connection = self.connect_again(self.session.view())
        pending = self.session.view().pending
        self._doubtful += [request for request in pending if request.number in self._numbers]
        return connection

    def requested(self, request: RequestMade) -> None:
        self._numbers.add(request.number)
        self.session.fold([request])

    def unsent(self, request: RequestMade) -> None:
        self._refuse(request, self.waiting or "the run takes no request now")

    def _refuse(self, request: RequestMade, detail: str) -> None:
        step, now = self.session.view().step, time.time()
        refusal = RequestRefused(time=now, step=step, request=request, reason="unavailable", detail=detail)
        self.session.fold([request, refusal])


class LocalFollower(Follower):
    """Of a run on this machine. ``why_lost`` returns how its process ended, if that is known."""

    def __init__(self, connection: socket.socket, folder: Path, why_lost: Callable[[], str] = str) -> None:
        super().__init__(connection, str(folder))
        self.folder: Path = folder
        self._why_lost = why_lost
        self._max_restarts = 0
        self.attach_command = f"amptui attach {shlex.quote(run_argument(folder))}"
        self.output_path = RunDir(folder).output_path

    def connect_again(self, view: SessionView) -> socket.socket | None:
        """A connection to ranks that are started again."""
        restarts = 0 if view.ranks is None else view.ranks.restarts
        self._max_restarts = self._max_restarts if view.ranks is None else view.ranks.max_restarts
        if view.outcome is not None or restarts >= self._max_restarts:
            return None
        self.waiting = "the ranks are being started again"
        limit = time.monotonic() + RESTART_SECONDS
        try:
            while not self.left and time.monotonic() < limit:
                with suppress(RunFolderError):
                    return connect(self.folder)
                time.sleep(_RECONNECT_SECONDS)
        finally:
            self.waiting = ""
        return None

    def recorded(self) -> Iterable[Record]:
        from amptui.runs.reader import JournalReader

        path = RunDir(self.folder).journal_path
        return JournalReader(path) if not self._is_held(_LAST_RECORD_SECONDS) and path.exists() else ()

    def is_live(self) -> bool:
        return self._is_held(_ENDING_SECONDS)

    def _is_held(self, patience_seconds: float) -> bool:
        limit = time.monotonic() + patience_seconds
        while holder(self.folder) is not None:
            if time.monotonic() > limit:
                return True
            time.sleep(0.02)
        return False

    def lost_words(self, error: str) -> str:
        if not self.is_live():
            return self._why_lost() or error
        return f"{error}; training continues: press q, then amptui attach to reconnect"

    def silence_cause(self) -> str:
        import psutil

        process = holder(self.folder)
        if process is not None and process.pid is not None and process.is_here:
            with suppress(psutil.Error):
                if psutil.Process(process.pid).status() == psutil.STATUS_STOPPED:
                    return f"suspended (SIGSTOP); to continue it: kill -CONT {process.pid}"
        return ""


class RemoteFollower(Follower):
    """Of a run on another machine, through ssh: only what arrives is known of it."""

    output_path = Path("/dev/null")
    """Nothing that another machine sends is written to a file here."""

    def __init__(self, remote: "Remote", ssh: "Ssh") -> None:
        super().__init__(ssh.connection, f"{remote.host}:{ssh.header.folder}")
        self._remote = replace(remote, run=ssh.header.folder)
        self._ssh = ssh
        self._is_unreachable = False
        self._connected_at = time.monotonic()
        self._attempts = 0
        self.host = remote.host
        self.attach_command = f"amptui attach {remote.argument(ssh.header.run)}"
        self.list_command = f"amptui runs {remote.argument('')}"

    def connect_again(self, view: SessionView) -> socket.socket | None:
        """Connect again, as often as it takes.

        Raises ``ProtocolError`` if the run has ended, or if ssh would have to ask the user.
        """
        from amptui.runs.remote import RefusedError, UnreachableError
        from amptui.runs.remote import connect as connect_to_host

        lost, self._is_unreachable = f"connection to {self.host} lost", True
        self.waiting = f"{lost}; reconnecting"
        self._ssh.close()
        ranks = None if view.outcome is not None else view.ranks
        may_restart = ranks is not None and ranks.restarts < ranks.max_restarts
        restarts_until = time.monotonic() + (RESTART_SECONDS if may_restart else 0.0)
        if time.monotonic() - self._connected_at > _STEADY_SECONDS:
            self._attempts = 0
        while self._pause(_PAUSES_SECONDS[min(self._attempts, len(_PAUSES_SECONDS) - 1)]):
            self._attempts += 1
            try:
                ssh = connect_to_host(self._remote, batch=True, given_up=lambda: self.left)
            except UnreachableError as error:
                if error.needs_user:
                    self._give_up(
                        f"{lost}, and ssh must ask you something; to reconnect: {self.attach_command}"
                    )
                self.waiting = f"{lost}; reconnecting ({error.cause})"
            except (RemoteError, UsageError) as error:
                if time.monotonic() >= restarts_until:
                    self._is_unreachable = not isinstance(error, UsageError | RefusedError)
                    self._give_up(str(error))
            else:
                self._ssh, self._is_unreachable, self.waiting = ssh, False, ""
                self._connected_at = time.monotonic()
                return ssh.connection
        self.waiting = lost  # the screen has left
        return None

    def _give_up(self, why: str) -> NoReturn:
        self.waiting = ""
        raise ProtocolError(why)

    def is_live(self) -> bool:
        return self._is_unreachable

    def _pause(self, seconds: float) -> bool:
        """Wait so long; false at once if the screen has left."""
        limit = time.monotonic() + seconds
        while not self.left and time.monotonic() < limit:
            time.sleep(min(_RECONNECT_SECONDS, seconds))
        return not self.left

    def close(self) -> None:
        """End ssh, once it has sent what the screen said last."""
        self._ssh.close()
