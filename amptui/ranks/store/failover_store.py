"""What ranks tell each other goes through the launcher's store, and through rank 0's once that is gone."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from functools import cache, partial
from typing import TypeVar

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from amptui.base.errors import DeviceError
from amptui.base.text import one_line

R = TypeVar("R")

LOOK_SECONDS = 0.05
"""How soon a waiting rank looks again at first."""

_LOOKS_A_SECOND = 1000
"""How often all ranks together look while they wait for long."""

_FIRST_LOOKS = 8
"""How many times as often they look at first: most waits are short."""

_GROWTH = 1.5

_CONNECTING = timedelta(minutes=30)
"""How long a rank tries to reach a store that is not there yet: a machine may be late."""

_ANSWER_SECONDS = 30.0
"""A store that is there, and is there so much later, has answered."""

_PROBE_SECONDS = 1.0

_DYING_SECONDS = 5.0
"""How much later than its connections a killed launcher's port may close: a busy machine takes its time."""

_PORT = "spare port"


def pauses(ranks: int) -> Iterator[float]:
    """The seconds from one look to the next of each of ``ranks`` that wait: short ones first."""
    longest = max(LOOK_SECONDS, ranks / _LOOKS_A_SECOND)
    seconds = max(LOOK_SECONDS, longest / _FIRST_LOOKS)
    while True:
        yield seconds
        seconds = min(_GROWTH * seconds, longest)


def connected(*, leads: bool) -> Store:
    """A connection to the store at ``MASTER_ADDR``: the launcher's, or in rank 0's process if it has none.

    Raises DeviceError.
    """
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    hosts = leads and not is_the_launchers()
    try:
        return _hosted(host, port) if hosts else _client(host, port)
    except RuntimeError as error:
        if hosts:
            why = "another program has that port" if "EADDRINUSE" in str(error) else one_line(str(error))
            what = f"rank 0 cannot listen at MASTER_ADDR:MASTER_PORT, {host}:{port}: {why}"
            raise DeviceError(what, hint="set MASTER_PORT to a free port for all ranks") from error
        what = f"no store of the ranks answers at MASTER_ADDR:MASTER_PORT, {host}:{port}"
        raise DeviceError(what, hint="see what rank 0 or its launcher says") from error


def is_the_launchers() -> bool:
    """Whether the launcher keeps the store: it outlives the ranks."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


@cache
def _hosted(host: str, port: int) -> Store:
    """A store in this process. It is kept until the process ends: the others may need it as long."""
    return TCPStore(host, port, is_master=True, wait_for_workers=False, multi_tenant=True)


def _client(host: str, port: int) -> Store:
    store: Future[Store] = Future()

    def connect() -> None:
        try:
            store.set_result(
                TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=_CONNECTING)
            )
        except RuntimeError as error:
            store.set_exception(error)

    # Not in this thread: torch waits for ever for the answer of another program that has the port.
    threading.Thread(target=connect, name="amptui-store", daemon=True).start()
    listened = 0
    while listened < 2:
        with suppress(TimeoutError):
            return store.result(_ANSWER_SECONDS)
        listened = listened + 1 if _listens(port) else 0
    raise RuntimeError("what listens there is no store")


class LostKeyError(RuntimeError):
    """The launcher's store may have had it, and is gone."""


class FailoverStore:
    """The part of ``store`` under ``prefix``; for any thread.

    Raises RuntimeError, as torch's stores do, if a store cannot be reached and there is no other. What was
    asked of the launcher's store is not known at rank 0's, but for what each rank has to :meth:`keep`.
    """

    def __init__(self, store: Store, prefix: str) -> None:
        self.torch_store = PrefixStore(prefix, store)
        """For torch's own groups, which need it only while they are made."""
        self._base, self._prefix = store, prefix
        self._store: Store = self.torch_store
        self._spare: Store | None = None
        """Rank 0's own, which ends with its process."""
        self._spare_port = 0
        self._repeats: dict[str, Callable[[Store], object]] = {}
        """What is done again at rank 0's store."""
        self._lock = threading.Lock()

    def clone(self, timeout: timedelta) -> "FailoverStore":
        """The same over a connection of its own, which answers within ``timeout`` or raises."""
        base = self._base.clone()
        base.set_timeout(timeout)
        other = FailoverStore(base, self._prefix)
        other._spare, other._spare_port = self._spare, self._spare_port
        return other

    def open_spare(self) -> None:
        """Rank 0's: open a store in this process, for the day when the launcher is gone."""
        with suppress(RuntimeError):  # no port is free: the run is as steady as its launcher
            self._spare = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
            self.set(_PORT, str(self._spare.port))

    def know_spare(self) -> None:
        """Another rank's: learn where rank 0 has opened it."""
        self._spare_port = int(self.get(_PORT)) if self.check([_PORT]) else 0

    def set(self, key: str, value: str | bytes) -> None:
        """See ``torch.distributed.Store``."""
        self._do(partial(_set, key, value))

    def keep(self, key: str, value: str | bytes, *, place: str = "") -> None:
        """Set it, and again at rank 0's store if the launcher's is lost later.

        Only the newest of what shares a ``place``; each key has its own if none is named.
        """
        self._do_and_keep(place or key, partial(_set, key, value))

    def keep_count(self, key: str) -> None:
        """Add 1 as part of a number, and at rank 0's store as part of the number there."""
        self._do_and_keep(key, lambda store: store.add(key, 1))

    def get(self, key: str) -> bytes:
        """See there; raises :class:`LostKeyError` instead of waiting for what was lost."""
        return self._do(lambda store: self._having(store, [key]).get(key))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """See :meth:`get`."""
        return self._do(lambda store: self._having(store, list(keys)).multi_get(list(keys)))

    def add(self, key: str, amount: int) -> int:
        """See there."""
        return self._do(lambda store: store.add(key, amount))

    def check(self, keys: Sequence[str]) -> bool:
        """See there."""
        return self._do(lambda store: store.check(list(keys)))

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        """See there."""
        return self._do(lambda store: store.compare_set(key, expected, value))

    def delete_key(self, key: str) -> bool:
        """See there."""
        return self._do(lambda store: store.delete_key(key))

    def spare(self) -> Store | None:
        """The same part of rank 0's store, once the launcher's is gone; None if it is not, or is the last."""
        with suppress(RuntimeError):
            return self._store if self._leave(self.torch_store) else None
        return None

    @property
    def is_still_there(self) -> bool:
        """Whether the launcher's store can be reached that this one is part of: it may have been slow."""
        return self._store is self.torch_store and _listens()

    def leave(self) -> None:
        """Go over to rank 0's store, as nobody listens at the launcher's."""
        with suppress(RuntimeError):
            self._leave(self.torch_store)

    def _do(self, work: Callable[[Store], R]) -> R:
        store = self._store
        try:
            return work(store)
        except dist.DistNetworkError:
            if not self._leave(store):
                raise
        return work(self._store)

    def _do_and_keep(self, place: str, work: Callable[[Store], object]) -> None:
        stores: list[Store] = []

        def work_and_note(store: Store) -> None:
            work(store)
            stores.append(store)

        self._do(work_and_note)
        with self._lock:
            if self._store is self.torch_store:
                self._repeats[place] = work
        if stores[0] is not self._store:  # lost since then
            self._do(work)

    def _having(self, store: Store, keys: list[str]) -> Store:
        """``store``, which would wait for a key that it lacks, and let no other thread ask meanwhile."""
        if store is not self.torch_store and not store.check(keys):
            raise LostKeyError(f"lost with the launcher's store: {keys[0]}")
        return store

    def _leave(self, lost: Store) -> bool:
        """Go over to rank 0's store if that of the launcher is gone; return whether there is another now."""
        with self._lock:
            if self._store is not lost:
                return True  # another thread was here
            if lost is not self.torch_store or not (self._spare or self._spare_port) or not _is_dying():
                return False
            if self._spare is None:
                if not _listens(self._spare_port):  # rank 0 has ended too: a client would try for long
                    return False
                self._spare = _client(os.environ["MASTER_ADDR"], self._spare_port)
            other = PrefixStore(self._prefix, self._spare)
            for work in self._repeats.values():
                work(other)
            self._store, self._repeats = other, {}
            return True


def _set(key: str, value: str | bytes, store: Store) -> None:
    store.set(key, value)  # type: ignore[arg-type]  # it takes bytes too
    store.check([key])  # a store does not answer a set: one that is gone would be told nothing


def _is_dying() -> bool:
    """Whether nobody listens at the launcher's port, or soon nobody does."""
    limit = time.monotonic() + _DYING_SECONDS
    while _listens():
        if time.monotonic() > limit:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def _listens(port: int = 0) -> bool:
    """Whether a store is at ``port`` of rank 0's machine: the launcher's if none is given.

    If that is still there, only this connection was lost.
    """
    address = os.environ["MASTER_ADDR"], port or int(os.environ["MASTER_PORT"])
    try:
        socket.create_connection(address, _PROBE_SECONDS).close()
    except OSError:
        return False
    return True
