"""What keeps and shows a run: its folder's lock, journal, session, socket, device samples and output."""

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from amptui.base.webhook import Webhook
from amptui.device.sampler import Sampler
from amptui.process.capture import LogTail
from amptui.process.notifier import Notifier
from amptui.process.recorder import Listener, Recorder
from amptui.records.control import Request
from amptui.records.keeping import KeepingChanged
from amptui.records.run import Note
from amptui.records.samples import AllocatorSample
from amptui.runs.lock import RunLock
from amptui.runs.rundir import RunDir
from amptui.runs.server import Server
from amptui.telemetry.session import Session

_CLOSING_SECONDS = 5.0


class Recording:
    """Keeps a run in its folder and shows it to screens, whatever trains: a training, a script, rank 0.

    Holds the folder's lock until :meth:`close`. If the run ``goes_on`` there, nothing is written before
    ``cut_after``. ``request`` goes into ``run.json``; ``listeners`` get every record, ``webhook`` the
    news. Raises RunFolderError.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        request: Mapping[str, Any],
        listeners: Sequence[Listener] = (),
        goes_on: bool = False,
        webhook: Webhook | None = None,
    ) -> None:
        self.run_dir = run_dir
        self._lock = RunLock.take(run_dir.path, new=not goes_on)
        try:
            session = Session(str(run_dir.path))
            recorder = Recorder(session, run_dir, request=request, listeners=listeners, goes_on=goes_on)
        except BaseException:
            self._lock.release()
            raise
        self._recorder = recorder
        self._server: Server | None = None
        self._sampler: Sampler | None = None
        self._output: LogTail | None = None
        self._notifier: Notifier | None = None
        if webhook is not None:
            self._notifier = Notifier(webhook, look=recorder.status, say=recorder.emit)
        self._is_closed = False
        self.claim_folder = recorder.own_folder.claim
        self.emit = recorder.emit
        self.view = recorder.view
        self.cut_after = recorder.cut_after
        self.wait_until_kept = recorder.wait_until_kept

    def __enter__(self) -> "Recording":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def unsaved(self) -> tuple[KeepingChanged, ...]:
        """The newest word on each part of the run that is not saved."""
        return self._recorder.unsaved

    def start(
        self,
        answer: Callable[[Request, int], object],
        *,
        read_allocator: Callable[[], AllocatorSample | None],
        viewer: socket.socket | None = None,
    ) -> None:
        """Begin to serve screens, to write, and to sample the device; :meth:`close` also if that fails.

        ``answer`` gets each request of a screen with its number, in threads of the server's. ``viewer``: a
        screen that is there already. ``read_allocator`` is called in the sampler's thread.
        """
        self._server = Server(self.run_dir.path, obey=answer, changed=self.emit)
        if viewer is not None:
            self._server.adopt(viewer)
        self._recorder.show_to(self._server)
        self._server.start()
        if self._server.trouble:
            self.emit(Note(time=time.time(), severity="warning", text=self._server.trouble))
        self._recorder.start()
        if self._notifier is not None:
            self._notifier.start()
        self._sampler = Sampler(self.emit, read_allocator=read_allocator)
        self._sampler.start()

    def follow_output(self, *, skip: bool) -> None:
        """Record the lines that come into the run's output file, if there is one; ``skip`` those in it."""
        if self.run_dir.output_path.exists():
            output = LogTail(self.run_dir.output_path, self.emit, skip=skip)
            output.start()
            self._output = output

    def end_output(self) -> None:
        """Record the last lines of the output: the run's last record comes after them."""
        if self._output is not None:
            self._output.stop()
            self._output = None

    def close(self) -> None:
        """Stop sampling, send the last news, drain the records, and release the folder; once.

        Screens have the last record before the news is sent.
        """
        if self._is_closed:
            return
        self._is_closed = True
        with self._lock:
            self.end_output()
            if self._sampler is not None:
                self._sampler.stop(timeout=1.0)
            if self._notifier is not None:
                self._notifier.close()
            self._recorder.close(_CLOSING_SECONDS)
            if self._server is not None:
                self._server.close(_CLOSING_SECONDS)
