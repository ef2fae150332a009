"""Serves a run to screens: one thread accepts connections, sends records and receives requests."""

import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from amptui.control import Request
from amptui.errors import RunFolderError
from amptui.fork import in_forks
from amptui.records import ViewersChanged
from amptui.runs import protocol, socket_place
from amptui.runs.peer import Peer
from amptui.runs.protocol import Hello, Leave, ProtocolError

MAX_VIEWERS = 16

MAX_STRANGERS = 16
"""Limit of connections that have not said hello."""

HELLO_SECONDS = 10.0
"""A connection that has not said hello by then is closed."""

REFUSAL_SECONDS = 10.0
"""At most one refusal in that time is reported: a flood of them must not fill the journal."""

HISTORY_SHARE = 0.05
"""At most this part of the pump's time goes into histories, however often screens attach or fall behind."""

_TICK_SECONDS = 1.0
"""How often the socket's file is checked; in between the thread sleeps until something arrives."""

_MAX_PUBLISHED = 50
"""Limit of unprocessed batches: five seconds' worth; then each screen gets a new history."""

_MAX_DETAIL_CHARACTERS = 200

_Change = Literal["attached", "detached", "hung up", "lost", "refused"]


class _Batch(NamedTuple):
    """What the pump passes to the server's thread."""

    lines: bytes = b""
    history: bytes = b""
    """The history's line, including ``lines``, if a screen waited for one."""
    trouble: str = ""
    """Why there is no history."""
    renewed: bool = False
    """Whether everything sent before is out of date."""


class Server:
    """A run's end of every screen's connection.

    ``hello`` describes the run: ``version``, ``pid`` and ``run_dir``. ``obey``, which gets each request with
    its number, and ``changed`` are called by the server's thread and must not block. Nothing that screens do
    or that fails here affects the run: it only sets ``trouble``.
    """

    def __init__(
        self,
        folder: Path,
        *,
        hello: Mapping[str, Any],
        obey: Callable[[Request, int], object],
        changed: Callable[[ViewersChanged], object],
    ) -> None:
        self._folder = folder.resolve()
        self._hello = protocol.hello_line(hello)
        self._obey = obey
        self._changed = changed
        self._peers: dict[Peer, None] = {}  # in order of arrival
        self._adopted: deque[socket.socket] = deque()
        self._published: deque[_Batch] = deque()
        self._history: Callable[[], str] | None = None
        self._history_due = 0.0
        self._wanted = threading.Event()  # a screen waits for a history, or the server has ended
        self._watched = False  # by a screen that gets what is published, or is about to
        self._over = False
        self._listening: socket_place.Listening | None = None
        self._trouble = ""
        self._tick_due = self._refusal_due = 0.0
        self._closing_by: float | None = None
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._wake_up)
        self._thread = threading.Thread(target=self._serve, name="amptui-server", daemon=True)
        self.viewers = 0
        """The number of screens that watch now."""
        # Screens notice a run's death at once only if no process that it forked holds the connection open.
        in_forks(self.close_copies)

    @property
    def trouble(self) -> str:
        """Why no screen can attach, in one line; empty when one can."""
        return self._trouble

    def start(self) -> None:
        """Listen, and start serving."""
        self._listen()
        self._thread.start()

    def adopt(self, connection: socket.socket) -> None:
        """Serve the screen at the other end of ``connection``. From any thread, also before the start."""
        self._adopted.append(connection)
        self._wake()

    def publish(self, lines: bytes, history: Callable[[], str]) -> None:
        """Send whole ``lines`` of records; to be called ten times a second, even with nothing new.

        If a screen waits for a history, ``history`` is called once, right here: it returns a session's state
        as one line of JSON, ``lines`` included. Never waits, and otherwise costs microseconds.
        """
        self._history = history
        if not self._watched:
            return
        if self._wanted.is_set() and time.monotonic() >= self._history_due:
            self._hand_over(self._with_history(lines, history))
        elif lines:
            self._hand_over(_Batch(lines))

    def renew(self) -> None:
        """Send every screen a new history, since what was published is out of date. From any thread."""
        self._hand_over(_Batch(renewed=True))

    def close(self, timeout_seconds: float) -> None:
        """Send every screen what it accepts within that time; then close the connections and the socket."""
        if self._thread.ident is None:
            self._hang_up()
            return
        self._closing_by = limit = time.monotonic() + timeout_seconds
        self._wake()
        while not self._over and (left := limit - time.monotonic()) > 0:
            if not self._wanted.wait(min(left, _TICK_SECONDS)) or self._over:
                continue
            if self._history is None:
                self._closing_by = 0.0  # nothing was ever published, so there is nothing to wait for
                self._wanted.clear()
                self._wake()
            else:
                self._hand_over(self._with_history(b"", self._history))
        self._thread.join(max(0.0, limit - time.monotonic()) + _TICK_SECONDS)

    def close_copies(self) -> None:
        """In a forked process: close what belongs to the parent."""
        connections = [peer.connection for peer in self._peers]
        if self._listening is not None:
            connections.append(self._listening.socket)
        # Not the selector: unregistering from a forked epoll also changes the run's own.
        for connection in (*connections, *self._adopted, self._woken, self._waker):
            connection.close()

    # Called by the pump's thread.

    def _with_history(self, lines: bytes, history: Callable[[], str]) -> _Batch:
        self._wanted.clear()
        begun = time.monotonic()
        try:
            batch = _Batch(lines, history=protocol.history_line(history()))
        except Exception as error:  # noqa: BLE001 - the waiting screen is told; the pump must continue
            batch = _Batch(lines, trouble=f"cannot send the history: {type(error).__name__}: {error}")
        now = time.monotonic()
        self._history_due = now + (now - begun) / HISTORY_SHARE
        return batch

    def _hand_over(self, batch: _Batch) -> None:
        if len(self._published) >= _MAX_PUBLISHED:
            self._published.clear()
            self._published.append(_Batch(renewed=True))
        self._published.append(batch)
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):  # awake already, or ended
            self._waker.send(b"\0")

    # Called by the server's thread.

    def _serve(self) -> None:
        try:
            while not self._may_end():
                for key, events in self._selector.select(self._patience_seconds()):
                    key.data(events)
                while self._adopted:
                    self._welcome(self._adopted.popleft(), adopted=True)
                while self._published:
                    self._pass_on(self._published.popleft())
                self._tick()
        except Exception as error:  # noqa: BLE001 - an error here must not harm the run
            self._trouble = f"screens can no longer attach: {type(error).__name__}: {error}"
        finally:
            self._hang_up()

    def _may_end(self) -> bool:
        if self._closing_by is None:
            return False
        coming = self._published or self._adopted
        everybody_settled = not coming and all(peer.settled for peer in self._peers)
        return everybody_settled or time.monotonic() >= self._closing_by

    def _patience_seconds(self) -> float:
        if self._closing_by is None:
            return _TICK_SECONDS
        return min(_TICK_SECONDS, max(0.0, self._closing_by - time.monotonic()))

    def _hang_up(self) -> None:
        self._over = True
        self._wanted.set()
        self._watched, self.viewers = False, 0
        self._stop_listening()
        for peer in self._peers:
            peer.close()
        for connection in (*self._adopted, self._woken, self._waker):
            connection.close()
        self._selector.close()

    def _wake_up(self, _events: int) -> None:
        with suppress(BlockingIOError):
            self._woken.recv(4096)

    def _tick(self) -> None:
        now = time.monotonic()
        if now < self._tick_due or self._closing_by is not None:
            return
        self._tick_due = now + _TICK_SECONDS
        self._listen()
        for peer in [peer for peer in self._peers if not peer.introduced and not peer.adopted]:
            if now - peer.since > HELLO_SECONDS:
                self._turn_away(peer, f"no hello within {HELLO_SECONDS:g} s")

    def _listen(self) -> None:
        if self._listening is not None:
            if self._listening.intact():
                return
            self._stop_listening()
        try:
            self._listening = socket_place.listen(self._folder)
        except RunFolderError as error:
            self._trouble = str(error)
            return
        self._trouble = ""
        self._selector.register(self._listening.socket, selectors.EVENT_READ, self._accept)

    def _stop_listening(self) -> None:
        if self._listening is not None:
            with suppress(OSError, KeyError):
                self._selector.unregister(self._listening.socket)
            self._listening.close()
            self._listening = None

    def _accept(self, _events: int) -> None:
        assert self._listening is not None, "only a listening socket brings us here"
        try:
            connection, _ = self._listening.socket.accept()
        except (BlockingIOError, ConnectionError):
            return  # it closed before it was accepted
        except OSError:
            self._stop_listening()  # no free descriptor: the next tick tries again, and reports it
            return
        strangers = sum(not peer.introduced for peer in self._peers)
        if not socket_place.is_ours(connection):
            self._refuse(connection, "this run belongs to another user")
        elif strangers >= MAX_STRANGERS:
            self._refuse(connection, "too many unfinished connections; try again later")
        else:
            self._welcome(connection, adopted=False)

    def _refuse(self, connection: socket.socket, why: str) -> None:
        self._tell_refusal(why)
        Peer(connection, adopted=False, since=0.0).close(protocol.error_line(why))

    def _welcome(self, connection: socket.socket, *, adopted: bool) -> None:
        peer = Peer(connection, adopted=adopted, since=time.monotonic())
        self._peers[peer] = None
        self._selector.register(connection, selectors.EVENT_READ, partial(self._serve_peer, peer))

    def _serve_peer(self, peer: Peer, events: int) -> None:
        if events & selectors.EVENT_READ:
            self._attend(peer, self._hear)
        if events & selectors.EVENT_WRITE and peer in self._peers:
            self._attend(peer, Peer.send)

    def _pass_on(self, batch: _Batch) -> None:
        for peer in tuple(self._peers):
            self._attend(peer, partial(self._hand, batch))

    def _attend(self, peer: Peer, act: Callable[[Peer], object]) -> None:
        """Do something for one screen; its errors end only its own connection."""
        try:
            try:
                act(peer)
            except OSError:
                self._hear_out(peer)
        except ProtocolError as error:
            self._turn_away(peer, str(error))
        except Exception as error:  # noqa: BLE001 - an error here must cost this screen alone
            self._turn_away(peer, f"the run failed to serve the screen: {type(error).__name__}: {error}")
        self._watched = any(peer.standing in ("waiting", "live") for peer in self._peers)
        if peer not in self._peers:
            return
        if peer.standing == "waiting":
            self._wanted.set()  # set again too: a history under way may be out of date
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.blocked else 0)
        key = self._selector.get_key(peer.connection)
        if key.events != events:
            self._selector.modify(peer.connection, events, key.data)

    def _hand(self, batch: _Batch, peer: Peer) -> None:
        if batch.renewed:
            if peer.standing in ("live", "behind"):
                peer.fall_behind()
        elif peer.standing == "waiting":
            if batch.trouble:
                raise ProtocolError(batch.trouble)
            if batch.history:
                peer.owe_history(batch.history)
        elif peer.standing == "live" and batch.lines:
            peer.owe_lines(batch.lines)
        if not peer.blocked:
            peer.send()

    def _hear(self, peer: Peer) -> bool:
        """Handle what a screen sent; return whether it sent anything."""
        lines = peer.hear()
        for line in lines:
            said = protocol.parse(line)
            if isinstance(said, Hello):
                self._introduce(peer, said)
            elif not peer.introduced:
                raise ProtocolError("the first line must be a hello")
            elif isinstance(said, Leave):
                self._drop(peer, said.kind)
                return False
            else:
                self._obey(said.request, said.number)
        if peer.gone:
            self._drop(peer, "lost")
        return bool(lines)

    def _hear_out(self, peer: Peer) -> None:
        """Handle what a screen sent before it closed, above all its farewell."""
        while peer in self._peers and self._hear(peer):
            pass
        self._drop(peer, "lost")

    def _introduce(self, peer: Peer, hello: Hello) -> None:
        if peer.introduced:
            raise ProtocolError("a second hello")
        if hello.protocol != protocol.PROTOCOL:
            versions = f"the run uses protocol {protocol.PROTOCOL}, the screen {hello.protocol}"
            raise ProtocolError(f"{versions}; attach with the version of amptui that started it")
        if self.viewers >= MAX_VIEWERS:
            raise ProtocolError(f"{MAX_VIEWERS} screens are already attached")
        peer.introduce(self._hello)
        self._count()
        self._tell("attached")
        peer.send()

    def _turn_away(self, peer: Peer, why: str) -> None:
        why = " ".join(why.split())[:_MAX_DETAIL_CHARACTERS]
        if not peer.introduced:
            self._tell_refusal(why)
        self._drop(peer, "lost", detail=why, last_word=protocol.error_line(why))

    def _drop(self, peer: Peer, change: _Change, *, detail: str = "", last_word: bytes = b"") -> None:
        if peer not in self._peers:
            return
        del self._peers[peer]
        self._selector.unregister(peer.connection)
        peer.close(last_word)
        if peer.introduced:
            self._count()
            self._tell(change, detail)

    def _count(self) -> None:
        self.viewers = sum(peer.introduced for peer in self._peers)

    def _tell_refusal(self, why: str) -> None:
        now = time.monotonic()
        if now >= self._refusal_due:
            self._refusal_due = now + REFUSAL_SECONDS
            self._tell("refused", why)

    def _tell(self, change: _Change, detail: str = "") -> None:
        told = ViewersChanged(time=time.time(), viewers=self.viewers, change=change, detail=detail)
        self._changed(told)
