"""Serves a run to screens: one thread takes connections, passes records on and hears what is asked for."""

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
"""Connections that have not said hello."""

HELLO_SECONDS = 10.0
"""A connection that has not said hello by then is closed."""

REFUSAL_SECONDS = 10.0
"""One refusal in that time is told: a flood of them shall not fill the journal."""

HISTORY_SHARE = 0.05
"""Of the pump's time at most goes into histories, however often screens come and fall behind."""

_TICK_SECONDS = 1.0
"""How often the socket's file is looked after; between that the thread sleeps until something comes."""

_MAX_PUBLISHED = 50
"""Batches that this thread did not get round to: five seconds; then each screen gets a new history."""

_MAX_DETAIL_CHARACTERS = 200

_Change = Literal["attached", "detached", "hung up", "lost", "refused"]


class _Batch(NamedTuple):
    """What the pump hands over."""

    lines: bytes = b""
    history: bytes = b""
    """The history's line, ``lines`` included, if somebody waited for one."""
    trouble: str = ""
    """Why there is no history."""
    renewed: bool = False
    """All that was sent before is out of date."""


class Server:
    """A run's end of every screen's connection.

    ``hello`` is what the run says of itself: ``version``, ``pid`` and ``run_dir``. ``obey``, which gets each
    request with its number, and ``changed`` are called by the server's thread and must not block. Whatever
    screens do, and whatever fails here, costs the run nothing but ``trouble``.
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
        self._peers: dict[Peer, None] = {}  # in the order in which they came
        self._adopted: deque[socket.socket] = deque()
        self._published: deque[_Batch] = deque()
        self._history: Callable[[], str] | None = None
        self._history_due = 0.0
        self._wanted = threading.Event()  # a screen waits for a history, or there will be no screen any more
        self._watched = False  # by somebody who takes what is published, or is about to
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
        """Screens that watch now."""
        # A run's death is seen at once only where no process that it forks holds a connection open.
        in_forks(self.close_copies)

    @property
    def trouble(self) -> str:
        """Why no screen can attach, in one line; empty when one can."""
        return self._trouble

    def start(self) -> None:
        """Listen, and begin to serve."""
        self._listen()
        self._thread.start()

    def adopt(self, connection: socket.socket) -> None:
        """Serve the screen at the other end of ``connection``; from any thread, also before the start."""
        self._adopted.append(connection)
        self._wake()

    def publish(self, lines: bytes, history: Callable[[], str]) -> None:
        """Pass whole ``lines`` of records on; to be called ten times a second, with nothing new as well.

        If a screen waits for it, ``history`` is called once, here and now: a session's state as JSON in one
        line, with what ``lines`` say. Never waits, and costs microseconds beside that.
        """
        self._history = history
        if not self._watched:
            return
        if self._wanted.is_set() and time.monotonic() >= self._history_due:
            self._hand_over(self._with_history(lines, history))
        elif lines:
            self._hand_over(_Batch(lines))

    def renew(self) -> None:
        """What was published is out of date: every screen gets a new history. From any thread."""
        self._hand_over(_Batch(renewed=True))

    def close(self, timeout_seconds: float) -> None:
        """Let every screen take what it still can within that time; hang up and take the socket away."""
        if self._thread.ident is None:
            self._hang_up()
            return
        self._closing_by = limit = time.monotonic() + timeout_seconds
        self._wake()
        while not self._over and (left := limit - time.monotonic()) > 0:
            if not self._wanted.wait(min(left, _TICK_SECONDS)) or self._over:
                continue
            if self._history is None:
                self._closing_by = 0.0  # nothing was ever published: there is nothing to wait for
                self._wanted.clear()
                self._wake()
            else:
                self._hand_over(self._with_history(b"", self._history))
        self._thread.join(max(0.0, limit - time.monotonic()) + _TICK_SECONDS)

    def close_copies(self) -> None:
        """In a forked process: let go of what belongs to this one."""
        connections = [peer.connection for peer in self._peers]
        if self._listening is not None:
            connections.append(self._listening.socket)
        # Not the selector: what is taken from a forked epoll is taken from the run's as well.
        for connection in (*connections, *self._adopted, self._woken, self._waker):
            connection.close()

    # What the pump's thread does.

    def _with_history(self, lines: bytes, history: Callable[[], str]) -> _Batch:
        self._wanted.clear()
        begun = time.monotonic()
        try:
            batch = _Batch(lines, history=protocol.history_line(history()))
        except Exception as error:  # noqa: BLE001 - who waits for it is told; the pump has more to do
            batch = _Batch(lines, trouble=f"the run cannot tell its history: {type(error).__name__}: {error}")
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
        with suppress(OSError):  # it is awake, or over
            self._waker.send(b"\0")

    # What the server's thread does.

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
        except Exception as error:  # noqa: BLE001 - a fault of ours must not harm the run
            self._trouble = f"no screen can attach any more: {type(error).__name__}: {error}"
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
                self._turn_away(peer, f"it said nothing for {HELLO_SECONDS:g} s")

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
            return  # it went before we came
        except OSError:
            self._stop_listening()  # no descriptor is free: the next tick tries again, and tells
            return
        strangers = sum(not peer.introduced for peer in self._peers)
        if not socket_place.is_ours(connection):
            self._refuse(connection, "this run is another user's")
        elif strangers >= MAX_STRANGERS:
            self._refuse(connection, "too many connections say nothing; try again in a while")
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
        """Do something for one screen, whose faults are its own."""
        try:
            try:
                act(peer)
            except OSError:
                self._hear_out(peer)
        except ProtocolError as error:
            self._turn_away(peer, str(error))
        except Exception as error:  # noqa: BLE001 - a fault of ours, which shall cost this screen alone
            self._turn_away(peer, f"the run failed to serve it: {type(error).__name__}: {error}")
        self._watched = any(peer.standing in ("waiting", "live") for peer in self._peers)
        if peer not in self._peers:
            return
        if peer.standing == "waiting":
            self._wanted.set()  # again as well: a history on its way to it may have been called out of date
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
        """Obey what a screen said; whether it said anything."""
        lines = peer.hear()
        for line in lines:
            said = protocol.parse(line)
            if isinstance(said, Hello):
                self._introduce(peer, said)
            elif not peer.introduced:
                raise ProtocolError("a hello comes first")
            elif isinstance(said, Leave):
                self._drop(peer, said.kind)
                return False
            else:
                self._obey(said.request, said.number)
        if peer.gone:
            self._drop(peer, "lost")
        return bool(lines)

    def _hear_out(self, peer: Peer) -> None:
        """What a screen said before it went still counts, its farewell above all."""
        while peer in self._peers and self._hear(peer):
            pass
        self._drop(peer, "lost")

    def _introduce(self, peer: Peer, hello: Hello) -> None:
        if peer.introduced:
            raise ProtocolError("a second hello")
        if hello.protocol != protocol.PROTOCOL:
            versions = f"the run speaks protocol {protocol.PROTOCOL}, the screen {hello.protocol}"
            raise ProtocolError(f"{versions}; watch it with the version of amptui that started it")
        if self.viewers >= MAX_VIEWERS:
            raise ProtocolError(f"{MAX_VIEWERS} screens watch this run already")
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
